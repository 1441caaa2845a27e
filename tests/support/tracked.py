"""What trackers have written, read back without lox, and what should be there."""

import contextlib
import json
import math
import sqlite3
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox

STEPS = 250
KEYS = jax.random.split(jax.random.key(0), 8)
NAMES = [f"run{i}" for i in range(8)]
XS = jnp.linspace(0.1, 0.9, 8)
CONFIG = {"lr": 0.1, "net": {"width": 64, "sizes": np.array([1, 2])}}
# By key, the steps and the value of each row.
Series = dict[str, list[tuple[dict[str, float], float]]]


def training(x):
    """Logs a lot: keys that are missing in most rows, steps that go back, and no steps."""

    def step(x, i):
        lox.log({"loss": x * i.astype(jnp.float32)}, step=i)
        jax.lax.cond(i % 5 == 0, sometimes, lambda x, i: None, x, i)
        return x, None

    lox.log({"parts": {"z": jax.lax.complex(x, 2 * x), "big": x > 0.5}})
    return jax.lax.scan(step, x, jnp.arange(STEPS))[0]


def sometimes(x, i):
    lox.log({"score": x + 0.5}, step=i, epoch=i // 50)
    lox.log({"back": i}, step=STEPS - i)
    lox.log({"again": 1}, step=i % 2)
    lox.log({"bare": i})


def trained(logger, way="tap"):
    """Train with eight seeds at once."""

    @jax.jit
    @jax.vmap
    def train(key, x):
        state = logger.init(key)
        out = getattr(logger, way)(training, state)(x)
        logger.finish(state)
        return out

    assert jnp.array_equal(train(KEYS, XS), XS)
    lox.barrier()


def odd(x):
    """Logs what has no form of its own in a tracker."""
    lox.log({"nan": jnp.nan * x, "inf": jnp.inf * x, "key": jax.random.key(7)}, half=x / 2)
    lox.log({"vector": jnp.array([1.0, 2.0, jnp.nan, 4.0]), "half": x.astype(jnp.bfloat16)})
    lox.log({"epoch": x, "time": x}, epoch=jnp.int32(3))
    lox.log({"a/b": 1, "a": {"b": 2}})
    jax.vmap(lambda x: jax.lax.cond(x > 0, logged_lane, lambda x: None, x))(jnp.arange(3))


def logged_lane(x):
    lox.log({"lane": x}, number=10 * x)


def expected(x: float) -> Series:
    """What `training` logs, by a loop in NumPy."""
    x = np.float32(x)
    found: Series = {"loss": [], "score": [], "back": [], "again": [], "bare": []}
    for i in range(STEPS):
        found["loss"].append(({"step": i}, float(x * np.float32(i))))
        if i % 5 == 0:
            found["score"].append(
                ({"step": i, "epoch": i // 50}, float(x + np.float32(0.5)))
            )
            found["back"].append(({"step": STEPS - i}, i))
            found["again"].append(({"step": i % 2}, 1))
            found["bare"].append(({}, i))
    parts = {"z/real": float(x), "z/imag": float(2 * x), "big": int(x > 0.5)}
    return found | {f"parts/{name}": [({}, value)] for name, value in parts.items()}


def counted(series: Series) -> dict[str, list[tuple[int, float]]]:
    """As trackers have it that count: at the step, or else the number of the row."""
    found: dict[str, list[tuple[int, float]]] = {}
    for key, rows in series.items():
        for i, (steps, value) in enumerate(rows):
            found.setdefault(key, []).append((int(steps.get("step", i)), value))
            for name in steps.keys() - {"step"}:
                found.setdefault(name, []).append((int(steps["step"]), steps[name]))
    return found


def rowwise(rows: list[dict[str, Any]], steps=("step", "epoch")) -> Series:
    """The series of a tracker that keeps rows, with steps among the values."""
    found: Series = {}
    for row in rows:
        own = {name: row[name] for name in steps if name in row}
        for key in row.keys() - own.keys():
            found.setdefault(key, []).append((own, row[key]))
    return found


# Readers ------------------------------------------------------------------------------


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of W&B's file: blocks of 32 KiB, as in the logs of LevelDB."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def wandb_ended(file: Path) -> list[Any]:
    """The same of a run that has ended, which W&B's process may write a little later."""
    for _ in range(100):
        records = list(wandb_records(file))
        if records and records[-1].HasField("exit"):
            return records
        time.sleep(0.1)
    raise TimeoutError(f"{file} does not end")


def wandb_run(file: Path) -> dict[str, Any]:
    """The name, group, configuration, definitions and rows of a run."""
    found: dict[str, Any] = {"rows": [], "config": {}, "axes": {}}
    for record in wandb_ended(file):
        if record.HasField("run"):
            found |= {"name": record.run.display_name, "group": record.run.run_group}
            for entry in record.run.config.update:
                found["config"][entry.key] = json.loads(entry.value_json)
        if record.HasField("metric"):
            found["axes"][record.metric.name] = record.metric.step_metric
        if record.HasField("history"):
            found["rows"].append(
                _nested(
                    (item.nested_key or [item.key], item) for item in record.history.item
                )
            )
    return found


def _nested(items: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for (*outer, last), item in items:
        inner = row
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = json.loads(item.value_json)
    return row


def wandb_runs(folder: Path) -> dict[str, dict[str, Any]]:
    runs = map(wandb_run, sorted(folder.glob("wandb/*run-*/*.wandb")))
    return {run["name"]: run for run in runs}


def trackio_runs(folder: Path, project: str) -> dict[str, dict[str, Any]]:
    """By run, its configuration and rows, with trackio's own step in `step`."""
    with contextlib.closing(sqlite3.connect(folder / f"{project}.db")) as db:
        configs = db.execute("SELECT run_name, config FROM configs").fetchall()
        rows = db.execute(
            "SELECT run_name, step, metrics FROM metrics ORDER BY id"
        ).fetchall()
    found = {name: {"config": json.loads(config), "rows": []} for name, config in configs}
    for name, step, metrics in rows:
        own = found.setdefault(name, {"config": {}, "rows": []})
        own["rows"].append({**json.loads(metrics), "step": step})
    return found


def neptune_run(file: Path) -> dict[str, Any]:
    """What a run is set to, and its series: by key, the steps and values."""
    from neptune_api.proto.neptune_pb.ingest.v1.common_pb2 import UpdateRunSnapshot

    found: dict[str, Any] = {"set": {}, "series": {}}
    query = (
        "SELECT operation FROM run_operations WHERE operation_type = 0 ORDER BY sequence_id"
    )
    with contextlib.closing(sqlite3.connect(file)) as db:
        for (data,) in db.execute(query).fetchall():
            update = UpdateRunSnapshot.FromString(data)
            for key, value in update.assign.items():
                found["set"][key] = getattr(value, value.WhichOneof("value"))
            step = update.step.whole + update.step.micro / 1_000_000
            for key, value in update.append.items():
                own = getattr(value, value.WhichOneof("value"))
                found["series"].setdefault(key, []).append((step, own))
    return found


def neptune_runs(folder: Path) -> dict[str, dict[str, Any]]:
    runs = map(neptune_run, folder.glob("*/run_operations.sqlite3"))
    return {run["set"]["lox/name"]: run for run in runs}


def neptune_rows(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a run: what has the same place in all series."""
    rows: dict[float, dict] = {}
    for key, series in run["series"].items():
        for step, value in series:
            rows.setdefault(step, {})[key] = value
    return [rows[step] for step in sorted(rows)]


def tensorboard_run(folder: Path) -> Any:
    from tensorboard.backend.event_processing import event_accumulator

    everything = dict.fromkeys(event_accumulator.DEFAULT_SIZE_GUIDANCE, 0)
    return event_accumulator.EventAccumulator(str(folder), everything).Reload()


def mlflow_points(uri: str, run: str) -> dict[str, list[tuple[int, float]]]:
    """By key, the steps and values of a run in MLflow's database."""
    query = (
        "SELECT key, step, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp"
    )
    found: dict[str, list] = {}
    with contextlib.closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as db:
        for key, step, value, is_nan in db.execute(query, [run]).fetchall():
            found.setdefault(key, []).append((step, math.nan if is_nan else value))
    return found
