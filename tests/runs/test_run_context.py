"""`with logger.run(key)`: plain log calls in Python code go to a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers import Logger
from support.kept import Kept


@pytest.fixture
def writer():
    return Kept()


@pytest.fixture
def logger(writer):
    return Logger(writer)


def rows(writer, name="seed0"):
    return [(dict(steps), dict(values)) for steps, values in writer.rows(name)]


def test_log_calls_inside_go_to_the_run(writer, logger, capsys):
    with logger.run(0, config={"lr": 0.1}) as run:
        for i in range(3):
            record = lox.log({"x": 0.5 * i, "tree": {"a": jnp.float32(i)}}, step=i)
            assert record == {"x": 0.5 * i, "tree": {"a": i}}
        logger.log(run, {"y": 1}, step=3)
        assert not writer.closed
    assert rows(writer) == [
        *(({"step": i}, {"x": 0.5 * i, "tree": {"a": float(i)}}) for i in range(3)),
        ({"step": 3}, {"y": 1}),
    ]
    assert [run.config for run in writer.closed] == [{"lr": 0.1}]
    assert capsys.readouterr().out == ""
    lox.log({"x": 1})
    assert "{'x': 1}" in capsys.readouterr().out


def test_the_innermost_run_takes_them(writer, logger):
    with logger.run(0):
        lox.log({"x": 0})
        with logger.run(1):
            lox.log({"x": 1})
        lox.log({"x": 2})
    assert [int(values["x"]) for _, values in rows(writer)] == [0, 2]
    assert [int(values["x"]) for _, values in rows(writer, "seed1")] == [1]


def test_prefix_tags_and_bad_calls_are_as_elsewhere(writer, logger):
    with logger.run(0):
        lox.log({"x": 1.0}, prefix="train/", tags=("a", "b"), step=2)
        with pytest.raises(TypeError, match="The value of 'x' is or contains `str`"):
            lox.log({"x": "text"})
    assert rows(writer) == [({"step": 2}, {"train/x": 1.0})]
    (block,) = writer.batches[0]
    assert block.forms["train/x"].tags == ("a", "b")


def test_transformations_and_silence_inside_come_first(writer, logger, capsys):
    def f(x):
        lox.log({"x": x})
        return x

    with logger.run(0):
        _, logs = lox.spool(f)(1.0)
        assert logs == {"x": 1.0}
        lox.nolog(f)(2.0)
        with lox.silent():
            f(3.0)
        f(4.0)
    assert [float(values["x"]) for _, values in rows(writer)] == [4.0]
    assert capsys.readouterr().out == ""


def test_it_collects_in_silence(writer, logger):
    with lox.silent(), logger.run(0):
        lox.log({"x": 1})
        lox.nolog(lambda: lox.log({"x": 2}))()
    assert [int(values["x"]) for _, values in rows(writer)] == [1]


def test_programs_inside_go_where_they_would_go_otherwise(writer, logger, capsys):
    @jax.jit
    def f(x):
        lox.log({"x": x})
        return x

    with logger.run(0) as run:
        f(1.0)
        logger.tap(f, run)(2.0)
        lox.barrier()
    assert [float(values["x"]) for _, values in rows(writer)] == [2.0]
    assert capsys.readouterr().out == "{'x': 1.0}\n"


def test_in_a_program_it_takes_what_is_logged_there(writer, logger):
    @jax.jit
    @jax.vmap
    def f(seed):
        with logger.run(seed, name="{seed}"):
            lox.log({"x": 10 * seed})

    f(jnp.arange(3))
    lox.barrier()
    for seed in range(3):
        assert rows(writer, str(seed)) == [({}, {"x": 10 * seed})]
    assert len(writer.closed) == 3


def test_an_error_inside_ends_the_run(writer, logger):
    def train():
        with logger.run(0):
            lox.log({"x": 1})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert len(writer.closed) == 1
    assert len(rows(writer)) == 1


def test_many_calls_take_the_straight_way(writer, logger, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("traced")

    with logger.run(0):
        lox.log({"x": np.float32(0)}, step=0)
        monkeypatch.setattr("lox.loggers.base._send", fail)
        for i in range(1, 50):
            lox.log({"x": np.float32(i)}, step=i)
        monkeypatch.undo()
    assert [int(steps["step"]) for steps, _ in rows(writer)] == [*range(50)]
