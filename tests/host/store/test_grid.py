"""Runs that form a grid are loaded at once, and all others one by one, with one result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers import Batch, Block, Form, Run
from lox_host.store import open_store, read_key_rows, read_stacked
from lox_host.store.format.column_pattern import Pattern
from lox_host.store.read_grid import Grid
from lox_host.writers.save import SaveWriter


def test_a_grid_is_found_in_every_order_of_runs_and_rows():
    assert Grid.of(np.array([7, 7, 9, 9]))[0::2] == (1, 2)
    assert Grid.of(np.array([7, 9, 7, 9, 7, 9]))[0::2] == (3, 1)
    assert Grid.of(np.array([7, 7, 7]))[0::2] == (1, 3)
    assert Grid.of(np.array([7, 7, 9, 9, 7, 9])) is None
    assert Grid.of(np.array([7, 7, 9])) is None
    assert Grid.of(np.array([7, 9, 9, 7])) is None
    assert Grid.of(np.array([7, 9, 7])) is None


@pytest.mark.parametrize("order", ["by run", "by row", "in batches"])
def test_a_grid_is_what_each_run_has(tmp_path, order):
    ids, rows = np.array([40, 7, 23], np.int32), 600
    runs = {
        "by run": np.repeat(ids, rows),
        "by row": np.tile(ids, rows),
        "in batches": np.tile(np.repeat(ids, 100), 6),
    }[order]
    values = np.random.default_rng(0).normal(size=(len(runs), 2))
    save(tmp_path, ids, runs, values)
    (reader,) = open_store(tmp_path)
    wanted = [23, 40]
    stacked = read_stacked(reader, wanted)
    assert stacked is not None
    for place, run in enumerate(wanted):
        expected = values[runs == run]
        np.testing.assert_array_equal(stacked["x"].value[place], expected)
        np.testing.assert_array_equal(stacked["x"].steps["i"][place], np.arange(rows))
        alone = read_key_rows(reader, [run])[run]["x"]
        np.testing.assert_array_equal(alone.value, expected)


GRIDS = [(1, 5, 4), (3, 5, 1), (3, 1, 4), (40, 20, 60), (1, 1, 60), (40, 3, 1), (2, 2, 2)]


@pytest.mark.parametrize(("times", "count", "length"), GRIDS)
def test_a_grid_is_made_of_the_patterns_of_columns(times, count, length):
    rng = np.random.default_rng(0)
    ids = rng.permutation(100)[:count].astype(np.int32)
    runs = np.tile(np.repeat(ids, length), times)
    shape = times, count, length
    steps = np.arange(times * length).reshape(times, 1, length)
    columns = {
        "runs": runs,
        "row numbers": np.arange(len(runs)),
        "steps": np.broadcast_to(steps, shape).reshape(-1),
        "times of batches": np.broadcast_to(0.3 * (steps // length), shape).reshape(-1),
        "not a number": np.full(len(runs), np.nan, np.float32),
    }
    patterns = {name: Pattern.of(column) for name, column in columns.items()}
    grid = Grid.of_pattern(patterns["runs"])
    assert grid is not None
    places = rng.permutation(count)[: count // 2 + 1]
    for name, pattern in patterns.items():
        if pattern is not None:
            column = columns[name]
            arranged = grid.arrange_pattern(pattern, column.dtype, places)
            expected = np.stack([column[runs == ids[place]] for place in places])
            np.testing.assert_array_equal(arranged, expected)


def test_other_rows_are_no_grid(tmp_path):
    ids = np.array([1, 2], np.int32)
    runs = np.array([1, 1, 2], np.int32)
    save(tmp_path, ids, runs, np.ones((3, 2)))
    (reader,) = open_store(tmp_path)
    assert read_stacked(reader, [1, 2]) is None
    np.testing.assert_array_equal(lox.load(tmp_path).valid["x"], [[True, True], [1, 0]])


def test_loading_a_grid_is_loading_each_run(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)

    def train(key):
        run = logger.init(key)

        def steps(x):
            def body(x, i):
                lox.log({"x": x, "key": key, "tree": {"a": jnp.full((2, 3), i)}}, step=i)
                jax.vmap(lambda y: lox.log({"y": y}))(x + jnp.arange(4.0))
                return x + 1, None

            lox.log({"once": x})
            return jax.lax.scan(body, x, jnp.arange(5))[0]

        out = logger.spool(steps, run)(0.5)
        logger.finish(run)
        return out

    jax.vmap(train)(jax.random.split(jax.random.key(0), 3))
    lox.barrier()
    logs = lox.load(tmp_path)
    runs = lox.runs(tmp_path)
    assert len(runs) == 3
    assert set(logs) == {"x", "key", "tree", "y", "once"}
    for i, run in enumerate(runs):
        alone = lox.load(tmp_path, run=run)
        for key in logs:
            one = jax.tree.map(lambda x, i=i: x[i], logs[key])
            assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), one, alone[key]))
        np.testing.assert_array_equal(logs.step["x"][i], alone.step["x"])
    assert logs.slice[1:3]["x"].shape == (3, 2)


def save(path, ids, runs, values):
    """Save rows of some runs, each with the number of the row in its run as a step."""
    writer = SaveWriter(path)
    opened = [Run(int(id), str(id), (0, int(id)), {}, 0.0, "") for id in ids]
    for run in opened:
        writer.open(run)
    steps = np.zeros(len(runs), np.int64)
    for id in ids:
        steps[runs == id] = np.arange((runs == id).sum())
    block = Block(runs, {"i": steps}, {"x": values}, {"x": Form(time=True)})
    writer.write(Batch([block]))
    for run in opened:
        writer.close(run)
