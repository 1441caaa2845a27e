"""What every logger must do, read back from where it wrote."""

import csv
import dataclasses
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers import (
    BaseLogger,
    ConsoleLogger,
    CSVLogger,
    JSONLogger,
    MultiLogger,
    PlotLogger,
    SaveLogger,
    TensorBoardLogger,
)
from support.selection import thin
from support.truth import run

Row = tuple[dict[str, Any], dict[str, Any]]  # steps and values


class Kind(NamedTuple):
    """A logger, how what it wrote of a run is read, and what it writes of a log call."""

    make: Callable[[Path], BaseLogger]
    read: Callable[[Path, Any], list[Row]]
    kept: Callable[[list], list] = lambda records: records


def name(key) -> str:
    """What the runs are called here: after all bits of their keys."""
    high, low = np.asarray(jax.random.key_data(key)).tolist()
    return str((high << 32) + low)


def read_json(path: Path, key) -> list[Row]:
    lines = [json.loads(x) for x in (path / f"{name(key)}.jsonl").read_text().splitlines()]
    return [apart(line) for line in lines]


def read_csv(path: Path, key) -> list[Row]:
    with (path / f"{name(key)}.csv").open(newline="") as file:
        return [apart(nested(line)) for line in csv.DictReader(file)]


def apart(line: dict) -> Row:
    return (
        {key[1:]: value for key, value in line.items() if key.startswith("@")},
        {key: value for key, value in line.items() if not key.startswith("@")},
    )


def nested(line: dict[str, str]) -> dict:
    found: dict = {}
    for column, cell in line.items():
        *path, last = column.split("/")
        inner = found
        for part in path if cell else ():
            inner = inner.setdefault(part, {})
        if cell:
            inner[last] = json.loads(cell)
    return found


def read_store(path: Path, key) -> list[Row]:
    found = []
    for own, value in (logs := lox.load(path, key=key)).items():
        steps = {name: of[own] for name, of in logs.steps.items() if own in of}
        rows = logs.rows()[own]
        for i in range(rows.length):
            at = jax.tree.map(lambda x, i=i: x[i] if rows.time else x, (steps, value))
            found.append((at[0], {own: at[1]}))
    return found


def several(path: Path) -> BaseLogger:
    console = ConsoleLogger(file=io.StringIO())
    return MultiLogger(SaveLogger(path), console, JSONLogger(path / "lines"))


PLOTS: dict[Path, PlotLogger] = {}


def plot(path: Path) -> PlotLogger:
    PLOTS[path] = PlotLogger(path / "curves.png", show=False, every=60, max_panels=1)
    return PLOTS[path]


def read_plot(path: Path, key) -> list[Row]:
    """The points of the curves of a run, of which the picture was drawn."""
    host = PLOTS[path]._host
    curves = host.writer._curves
    ids = {name: id for id, name in host.registry._names_of_finished.items()}
    slot = curves._slots.get(ids[name(key)])
    found = []
    for own, curve in curves._curves.items():
        if slot is not None and slot < len(curve._counts) and curve._counts[slot]:
            for step, value in zip(*curve._line(slot), strict=True):
                found.append(({curve.step: step}, {own: value}))
    assert (path / "curves.png").exists() or not curves._curves
    return found


def drawn(records: list) -> list:
    """What is drawn of log calls: each number against one step, or else the row."""
    found, counts = [], Counter()
    for record in records:
        for path, leaf in jax.tree.leaves_with_path(record.data):
            if not np.ndim(leaf):
                key = jax.tree_util.keystr(path, simple=True, separator="/")
                own = {"row": counts[key]}
                steps = {"step": record.steps["step"]} if record.steps else own
                found.append(dataclasses.replace(record, steps=steps, data={key: leaf}))
                counts[key] += 1
    return found


KINDS = {
    "save": Kind(SaveLogger, read_store),
    "csv": Kind(CSVLogger, read_csv),
    "json": Kind(JSONLogger, read_json),
    "plot": Kind(plot, read_plot, drawn),
    "several: save": Kind(several, read_store),
    "several: json": Kind(several, lambda path, key: read_json(path / "lines", key)),
}
every = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def assert_same(found: list[Row], records) -> None:
    """Check that each key has the rows of the eager run, in order."""
    keys = {key for record in records for key in record.data}
    assert {key for _, values in found for key in values} == keys
    for key in keys:
        own = [(steps, values[key]) for steps, values in found if key in values]
        mine = [(r.steps, r.data[key]) for r in records if key in r.data]
        assert len(own) == len(mine), key
        for row, record in zip(own, mine, strict=True):
            jax.tree.map(
                lambda a, b: np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6),
                jax.tree.map(np.asarray, row, is_leaf=lambda x: isinstance(x, list)),
                record,
            )


def once(x):
    lox.log({"x": x, "vector": jnp.arange(3.0) * x})


def loop(x):
    """Keys with steps and without, in trees, not always, and not equally often."""

    def step(total, i):
        total += x
        lox.log({"total": total}, step=i, episode=i // 2)
        lox.log({"tree": {"a": i, "b": {"c": total}}})
        jax.lax.cond(i % 2 == 1, lambda: lox.log({"odd": i}, step=i) and None, lambda: None)
        return total, None

    lox.log({"start": x})
    return jax.lax.scan(step, x, jnp.arange(5))[0]


def nothing(x):
    return x


def rare(x):
    """May log nothing at all."""
    jax.lax.cond(x > 100, lambda: lox.log({"x": x}) and None, lambda: None)


PROGRAMS = [once, loop, nothing, rare]
WAYS = {
    "tap": lambda logger, f, state: logger.tap(f, state),
    "spool": lambda logger, f, state: logger.spool(f, state),
    "jit of tap": lambda logger, f, state: jax.jit(logger.tap(f, state)),
    "batches": lambda logger, f, state: logger.tap(jax.jit(f), state, batch=2),
}


@pytest.mark.parametrize(
    ("way", "kind"),
    [(way, kind) for i, kind in enumerate(KINDS) for way in thin([*WAYS], 2, i)],
)
def test_one_run(kind, way, tmp_path):
    kind = KINDS[kind]
    logger = kind.make(tmp_path)
    for i, program in enumerate(PROGRAMS):
        state = logger.init(key := jax.random.key(i), name="{seed}")
        for _ in range(2):
            WAYS[way](logger, program, state)(1.5)
        logger.finish(state)
        logger.finish(state)
        with pytest.raises(ValueError, match="is finished"):
            logger.log(state, {"x": 1})
        records = kind.kept(run(program, 1.5)[1] * 2)
        if records or kind.read is not read_store:
            assert_same(kind.read(tmp_path, key), records)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(number, kind) for i, kind in enumerate(KINDS) for number in thin([1, 8, 256], 2, i)],
)
def test_one_run_for_each_seed(kind, number, tmp_path):
    kind = KINDS[kind]
    logger = kind.make(tmp_path)
    keys = jax.random.split(jax.random.key(number), number)
    xs = jnp.arange(number) / 8

    @jax.jit
    @jax.vmap
    def train(key, x):
        state = logger.init(key, name="{seed}")
        logger.tap(loop, state)(x)
        logger.spool(once, state)(x)
        logger.finish(state)

    train(keys, xs)
    lox.barrier()
    for i in range(0, number, max(1, number // 3)):
        records = run(loop, xs[i])[1] + run(once, xs[i])[1]
        assert_same(kind.read(tmp_path, keys[i]), kind.kept(records))


@every
def test_in_a_scan_and_under_grad(kind: Kind, tmp_path):
    logger = kind.make(tmp_path)
    key = jax.random.key(0)

    def loss(x):
        lox.log({"loss": x * x})
        return x * x

    def train(x):
        def update(x, i):
            slope = jax.grad(loss)(x)
            lox.log({"slope": slope}, step=i)
            return x - 0.25 * slope, None

        return jax.lax.scan(update, x, jnp.arange(4))[0]

    with logger:
        state = logger.init(key, name="{seed}")
        jax.jit(lambda x: jax.lax.scan(
            lambda x, _: (logger.tap(train, state)(x), None), x, None, length=2
        ))(1.0)  # fmt: skip
    records = run(train, 1.0)[1] + run(train, 0.0625)[1]
    assert_same(kind.read(tmp_path, key), kind.kept(records))


@every
def test_two_loggers_at_once(kind: Kind, tmp_path):
    loggers = [kind.make(tmp_path / side) for side in ("left", "right")]
    key = jax.random.key(0)
    states = [logger.init(key, name="{seed}") for logger in loggers]
    inner, outer = loggers
    jax.jit(lambda x: outer.tap(inner.tap(loop, states[0]), states[1])(x))(2.0)
    for logger, state in zip(loggers, states, strict=True):
        logger.finish(state)
    for side in ("left", "right"):
        assert_same(kind.read(tmp_path / side, key), kind.kept(run(loop, 2.0)[1]))


@pytest.mark.parametrize(
    "make", [SaveLogger, CSVLogger, JSONLogger, TensorBoardLogger, plot]
)
def test_a_path_that_cannot_be_made_raises_in_init(make, tmp_path):
    (tmp_path / "file").write_text("here first")
    logger = make(tmp_path / "file" / "inside")
    for _ in range(2):
        with pytest.raises(OSError, match="folder"):
            logger.init(jax.random.key(0), name="{seed}")
    assert (tmp_path / "file").read_text() == "here first"
