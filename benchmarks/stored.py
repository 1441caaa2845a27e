"""What writing to disk costs: the writer of `SaveLogger` ÷ other files, until closed.

A row has a step and two numbers, except in the lines about arrays. All write the same
rows, and flush them to the operating system every 2,000 rows. "Until safe" means that all
of them end with an `fsync`.
"""

import functools as ft
import importlib.util
import itertools as it
import json
import os
import pathlib
import shutil
import sqlite3
import tempfile
import time
import warnings

import numpy as np
from _measure import Figure, compare, table

from lox.loggers import Batch, Block, Form, Run
from lox_host.writers.save import SaveWriter

FLUSH = 2000


def figures() -> list[Figure]:
    of_cases = (figure for name in CASES for figure in figures_of(name))
    return [*of_cases, *until_safe(), *growth()]


def figures_of(name):
    blocks = CASES[name]()
    for other, write in writers(blocks[0]).items():
        ours, theirs = (ft.partial(written, way, blocks) for way in (save, write))
        goal = "" if other == "Parquet parts" else "≤ 1"
        if other == "JSON lines" and "image" not in blocks[0].values:
            goal = "≤ 0.5"
        yield compare(f"{name}: lox ÷ {other}", ours, theirs, goal=goal)


def until_safe():
    """Write 16.4 MB of arrays, in batches of 100 rows, until they are on the disk."""
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(10, 100, 64, 64)).astype(np.float32)
    blocks = [images(100 * i, array) for i, array in enumerate(arrays)]
    for other, write in SAFE.items():
        ours = ft.partial(written, save, blocks)
        theirs = ft.partial(written, write, blocks)
        goal = "≤ 1.5" if other == "raw bytes" else ""
        yield compare(f"1,000 arrays, until safe: lox ÷ {other}", ours, theirs, goal=goal)


def raw_bytes(folder, blocks):
    with (folder / "rows").open("wb", buffering=0) as file:
        for block in blocks:
            file.write(block.values["image"])
        os.fsync(file.fileno())


def numpy_save(folder, blocks):
    with (folder / "rows.npy").open("wb") as file:
        np.save(file, np.concatenate([block.values["image"] for block in blocks]))
        file.flush()
        os.fsync(file.fileno())


def arrow_ipc(folder, blocks):
    import pyarrow as pa

    with (folder / "rows.arrows").open("wb") as file:
        writer = None
        for block in blocks:
            images = pa.array(block.values["image"].reshape(-1))
            rows = pa.FixedSizeListArray.from_arrays(images, 64 * 64)
            steps = pa.array(block.steps["step"])
            batch = pa.record_batch([steps, rows], names=["step", "image"])
            writer = writer or pa.ipc.new_stream(file, batch.schema)
            writer.write_batch(batch)
        writer.close()
        file.flush()
        os.fsync(file.fileno())


SAFE = {"raw bytes": raw_bytes, "numpy.save": numpy_save}
if importlib.util.find_spec("pyarrow"):
    SAFE["Arrow IPC"] = arrow_ipc


def growth():
    """How much longer the last tenth of a million rows takes than the first."""
    with tempfile.TemporaryDirectory() as folder:
        writer, times = opened(folder, 1), []
        for i in range(0, 10**6, 100):
            writer.write(Batch([numbers(i, 100)]))
            if i % FLUSH == 0:
                writer.flush()
                times.append(time.process_time())
        writer.close(run(0))
    each = np.diff(times)
    tenth = len(each) // 10
    first, last = np.median(each[:tenth]), np.median(each[-tenth:])
    note = f"of the processor; {FLUSH / last:,.0f} rows/s"
    yield Figure("a million rows: the last tenth ÷ the first", last / first, "≤ 1.2", note)


def numbers(start, length, *, runs=None):
    steps = np.arange(start, start + length)
    values = {"loss": 1 / (1 + steps), "accuracy": steps / (1 + steps)}
    ids = np.zeros(length) if runs is None else runs
    return Block(
        ids.astype(np.int32),
        {"step": steps},
        values,
        dict.fromkeys(values, Form(time=True)),
    )


def images(start, array=None):
    array = np.full((1, 64, 64), start, np.float32) if array is None else array
    rows, forms = len(array), {"image": Form(time=True)}
    steps = {"step": np.arange(start, start + rows)}
    return Block(np.zeros(rows, np.int32), steps, {"image": array}, forms)


CASES = {
    "single rows": lambda: [numbers(i, 1) for i in range(5000)],
    "100 rows at a time": lambda: [numbers(100 * i, 100) for i in range(100)],
    "10,000 rows at a time": lambda: [numbers(10_000 * i, 10_000) for i in range(2)],
    "64 x 64 arrays": lambda: [images(i) for i in range(200)],
    "256 runs": lambda: [numbers(i, 256, runs=np.arange(256)) for i in range(40)],
}


def writers(block):
    """The other files that can hold such rows."""
    found = {"JSON lines": json_lines, "sqlite": sqlite}
    if importlib.util.find_spec("pyarrow"):
        found["Parquet parts"] = parquet
    if importlib.util.find_spec("tensorboard") and "image" not in block.values:
        found["TensorBoard"] = tensorboard
    return found


def written(write, blocks):
    folder = tempfile.mkdtemp()
    write(pathlib.Path(folder), blocks)
    shutil.rmtree(folder)


def flushes(blocks):
    """The blocks, cut where they are brought to the operating system."""
    counts = it.accumulate(len(block) for block in blocks)
    pairs = zip(counts, blocks, strict=True)
    for _, group in it.groupby(pairs, key=lambda pair: (pair[0] - 1) // FLUSH):
        yield [block for _, block in group]


def run(i):
    return Run(i, str(i), (0, i), {}, 0.0, "")


def opened(folder, count):
    writer = SaveWriter(folder)
    for i in range(count):
        writer.open(run(i))
    return writer


def save(folder, blocks):
    count = int(blocks[0].runs.max()) + 1
    writer = opened(folder, count)
    for group in flushes(blocks):
        writer.write(Batch(group))
        writer.flush()
    for i in range(count):
        writer.close(run(i))


def json_lines(folder, blocks):
    with (folder / "rows.jsonl").open("w") as file:
        for group in flushes(blocks):
            for row in rows(group):
                file.write(json.dumps(row) + "\n")
            file.flush()


def sqlite(folder, blocks):
    names = ["run", "step", *blocks[0].values]
    file = sqlite3.connect(folder / "rows.db")
    file.execute(f"create table rows ({', '.join(names)})")
    places = ", ".join("?" * len(names))
    for group in flushes(blocks):
        for block in group:
            columns = [block.runs, block.steps["step"], *block.values.values()]
            lists = [x.tolist() if x.ndim == 1 else map(bytes, x) for x in columns]
            file.executemany(
                f"insert into rows values ({places})", zip(*lists, strict=True)
            )
        file.commit()
    file.close()


def parquet(folder, blocks):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for i, group in enumerate(flushes(blocks)):
        fields = [{"run": b.runs, **b.steps, **b.values} for b in group]
        columns = {name: np.concatenate([f[name] for f in fields]) for name in fields[0]}
        columns = {
            name: x if x.ndim == 1 else [*map(bytes, x)] for name, x in columns.items()
        }
        pq.write_table(pa.table(columns), folder / f"{i}.parquet")


def tensorboard(folder, blocks):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writers = {}
    for group in flushes(blocks):
        for row in rows(group):
            own = row.pop("run")
            step = row.pop("step")
            values = [Summary.Value(tag=key, simple_value=x) for key, x in row.items()]
            if own not in writers:
                writers[own] = EventFileWriter(str(folder / str(own)))
            writers[own].add_event(Event(step=step, summary=Summary(value=values)))
        for writer in writers.values():
            writer.flush()
    for writer in writers.values():
        writer.close()


def rows(blocks):
    for block in blocks:
        columns = {"run": block.runs, **block.steps, **block.values}
        lists = [column.tolist() for column in columns.values()]
        for row in zip(*lists, strict=True):
            yield dict(zip(columns, row, strict=True))


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(table(figures()))
