"""Stores on object storage: a thousand writers, how soon rows are seen, and who reads them.

The server is moto's, on this machine, so times are those of this machine and not of a
cloud. Each writer has its own session, spool and uploader thread, as it would in a process
of its own, and logs a step, the time and two numbers per row. `LOX_BENCH_WRITERS` and
`LOX_BENCH_SECONDS` set how many and for how long.
"""

import contextlib
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from _measure import Figure

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

from lox_host.remote import Bucket, compact
from lox_host.rows import Batch, Block, Form
from lox_host.runs.run import Run
from lox_host.store import open_store
from lox_host.writers.save_remote import RemoteSaveWriter
from support.object_server import ObjectServer, environment

WRITERS = int(os.environ.get("LOX_BENCH_WRITERS", "1000"))
SECONDS = int(os.environ.get("LOX_BENCH_SECONDS", "30"))
RATE = 100  # rows per second of each writer
PROCESSES = 4
EVERY = 10  # seconds between uploads
ROWS = int(os.environ.get("LOX_BENCH_ROWS", str(10**7)))
TENSORBOARD_ROWS = 10**5


def figures() -> list[Figure]:
    with served() as folder:
        return [*many_writers(), *long_session(folder), *visible(), *queries(folder)]


@contextlib.contextmanager
def served():
    """A server with a bucket, and a folder for what stays on this machine."""
    server = ObjectServer()
    try:
        server.make_bucket("bench")
        with tempfile.TemporaryDirectory() as folder:
            os.environ.update(environment(server.url, folder))
            yield pathlib.Path(folder)
    finally:
        server.close()


def run(number):
    return Run(number, f"run-{number}", (number,), {"lr": 0.1}, time.time(), "l", 0, "")


def block(number, first, rows):
    steps = np.arange(first, first + rows)
    noise = np.random.default_rng(first + number).normal(size=(2, rows))
    values = dict(zip(("loss", "accuracy"), noise.astype(np.float32), strict=True))
    return Block(
        np.full(rows, number, np.int32),
        {"step": steps},
        values,
        dict.fromkeys(values, Form(time=True)),
        time=time.time() + np.arange(rows) / RATE,
    )


def many_writers():
    """Writers in some processes; what they sent is compared with what is there."""
    os.environ["LOX_UPLOAD_EVERY"] = str(EVERY)
    start = time.time()
    each = WRITERS // PROCESSES
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        jobs = [(range(i * each, (i + 1) * each), SECONDS) for i in range(PROCESSES)]
        done = pool.starmap(write_many, jobs)
    took = time.time() - start
    sent, segments, written = (sum(found[i] for found in done) for i in range(3))
    late = max(found[3] for found in done)
    bucket = Bucket("s3://bench/many")
    objects = bucket.objects("")
    rows = sum(found.path.startswith("rows/") for found in objects)
    stored = sum(found.size for found in objects)
    found = sum(
        frame.rows
        for reader in open_store("s3://bench/many")
        for frames in reader.frames.values()
        for frame in frames
    )
    note = (
        f"{len(done) * each:,} writers in {PROCESSES} processes, {written:,} rows in "
        f"{took:.0f} s of which {SECONDS} s were paced, at most {late:.1f} s late; "
        f"{found:,} rows found, {rows:,} objects with rows, {len(objects):,} in all, "
        f"{stored / 1e6:.1f} MB, of which segments {segments / 1e6:.1f} MB"
    )
    yield Figure("writers: rows written - rows found", written - found, "0", note)
    yield Figure("writers: bytes sent ÷ bytes stored", sent / stored, "≤ 1.1", "")
    yield Figure("writers: objects with rows per writer", rows / (len(done) * each), "", "")


def write_many(numbers, seconds):
    """Write as several writers at once, each at its rate."""
    writers, spool = [], os.environ["LOX_SPOOL"]
    for number in numbers:
        os.environ["LOX_SPOOL"] = f"{spool}/{number}"  # as on a machine of its own
        writers.append((number, RemoteSaveWriter("s3://bench/many")))
        writers[-1][1].open(run(number))
    uploads = [writer._uploader.upload for _, writer in writers]
    start, late, pause = time.time(), 0.0, 2
    for second in range(0, seconds, pause):
        for number, writer in writers:
            writer.write(Batch([block(number, second * RATE, pause * RATE)]))
            writer.flush()
        late = max(late, time.time() - start - second - pause)
        time.sleep(max(0, start + second + pause - time.time()))
    with ThreadPoolExecutor(32) as threads:
        list(threads.map(lambda pair: pair[1].close(run(pair[0])), writers))
    sent = sum(upload.sent_bytes["all"] for upload in uploads)
    segments = sum(upload.sent_bytes["segments"] for upload in uploads)
    return sent, segments, len(writers) * seconds * RATE, late


def long_session(folder):
    """What the manifests of a session of several hours add to its segments."""
    os.environ["LOX_UPLOAD_EVERY"] = "3600"
    url = f"file://{folder}/long"
    writer, count = RemoteSaveWriter(url), 2000
    writer.open(run(0))
    upload = writer._uploader.upload
    for number in range(count):
        writer.write(Batch([block(0, number * 1000, 1000)]))
        writer.flush()
        writer.push()
    writer.close(run(0))
    sent, segments = upload.sent_bytes["all"], upload.sent_bytes["segments"]
    hours = count * 1000 / RATE / 3600
    note = (
        f"{count} segments of 1,000 rows, {segments / count:,.0f} bytes each: {hours:.1f} h"
    )
    yield Figure(
        "one long session: bytes sent ÷ bytes of rows", sent / segments, "≤ 1.1", note
    )
    start = time.time()
    done = compact(url)
    note = f"{done.before} objects became {done.after}"
    yield Figure("long session: compacted, seconds", time.time() - start, "", note)


def visible():
    """Seconds from the flush of a row until a reader finds it, with the default pause."""
    os.environ["LOX_UPLOAD_EVERY"] = "5"
    url, waits = "s3://bench/visible", []
    writer = RemoteSaveWriter(url)
    writer.open(run(0))
    writer.push()
    for number in range(8):
        time.sleep(0.7)
        writer.write(Batch([block(0, number, 1)]))
        writer.flush()
        start = time.time()
        while sum(len(b) for r in open_store(url) for b in r.blocks()) <= number:
            time.sleep(0.1)
        waits.append(time.time() - start)
    writer.close(run(0))
    note = f"median {np.median(waits):.1f} s; uploads every 5 s, polled every 0.1 s"
    yield Figure("seconds until a row is seen, at most", max(waits), "≤ 6", note)


def queries(folder):
    """`SELECT run, last(loss)`, by DuckDB on Parquet and JSON lines, and on event files."""
    import duckdb

    parquet, lines = folder / "parquet", folder / "lines"
    lines.mkdir()
    os.environ["LOX_UPLOAD_EVERY"] = "3600"
    runs, size = 100, ROWS // 100
    for number in range(runs):
        writer = RemoteSaveWriter(f"file://{parquet}")
        writer.open(run(number))
        for first in range(0, size, 10_000):
            writer.write(Batch([block(number, first, min(10_000, size - first))]))
        writer.close(run(number))
    connection = duckdb.connect()
    table = f"read_parquet('{parquet}/rows/*/*/*.parquet', hive_partitioning=true)"
    connection.sql(
        f"COPY (SELECT run, step, loss, accuracy, time FROM {table}) "
        f"TO '{lines}' (FORMAT json, PER_THREAD_OUTPUT true, OVERWRITE_OR_IGNORE true)"
    )
    texts = f"read_json('{lines}/*.json', format='newline_delimited')"
    seconds = {}
    answers = {}
    for name, source in (("Parquet", table), ("JSON lines", texts)):
        query = f"SELECT run, arg_max(loss, step) FROM {source} GROUP BY run ORDER BY run"
        start = time.time()
        answers[name] = connection.sql(query).fetchall()
        seconds[name] = time.time() - start
    assert [a[0] for a in answers["Parquet"]] == [a[0] for a in answers["JSON lines"]]
    sizes = {"Parquet": bytes_in(parquet), "JSON lines": bytes_in(lines)}
    event_seconds, event_bytes = tensorboard(folder / "events", connection, table)
    for name, taken in seconds.items():
        note = f"{ROWS:,} rows of {runs} runs, {sizes[name] / 1e6:,.0f} MB"
        yield Figure(f"SELECT run, last(loss) from {name}, seconds", taken, "", note)
    note = (
        f"read: {TENSORBOARD_ROWS:,} rows in {event_seconds:.1f} s, "
        f"{event_bytes / 1e6:.1f} MB; the figure is for {ROWS:,} at this rate"
    )
    scaled = event_seconds * ROWS / TENSORBOARD_ROWS
    yield Figure("SELECT run, last(loss) from event files, seconds", scaled, "", note)
    ratio = seconds["JSON lines"] / seconds["Parquet"]
    yield Figure("SELECT run, last(loss): JSON lines ÷ Parquet", ratio, "≥ 1", "")


def tensorboard(folder, connection, table):
    """Write some of the rows as event files, and read them as TensorBoard does."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from lox_host.writers.tensorboard import TensorBoardWriter

    runs = 10
    for number in range(runs):
        writer = TensorBoardWriter(folder)
        writer.open(run(number))
        writer.write(Batch([block(number, 0, TENSORBOARD_ROWS // runs)]))
        writer.flush()
        writer.close(run(number))
    start = time.time()
    for place in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        tags = events.Tags()
        assert "loss" in tags["scalars"] or "loss" in tags["tensors"]
    return time.time() - start, bytes_in(folder)


def bytes_in(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    for figure in figures():
        print(" | ".join(figure.cells()))
