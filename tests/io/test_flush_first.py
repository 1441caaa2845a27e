"""In the process that writes, what was logged is there for those who read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox.loggers import ConsoleLogger, MultiLogger, SaveLogger


def train(x):
    def body(c, i):
        lox.log({"loss": c}, step=i)
        return c / 2, None

    return jax.lax.scan(body, x, jnp.arange(5))[0]


@pytest.mark.parametrize("several", [False, True])
def test_reading_comes_after_what_was_logged(tmp_path, several, capfd):
    logger = saving = SaveLogger(tmp_path)
    if several:
        logger = MultiLogger(saving, ConsoleLogger(every=1000))
    state = logger.init(0)
    program = jax.jit(logger.tap(train, state))
    for times in (1, 3):
        program(1.0)
        assert [run.rows for run in lox.runs(tmp_path)] == [5 * times]
        program(1.0)
        loaded = lox.load(tmp_path)["loss"]
        np.testing.assert_array_equal(loaded, [*0.5 ** np.arange(5)] * (times + 1))
    logger.finish(state)


def test_saving_in_a_program_comes_before_reading(tmp_path):
    @jax.jit
    def f(x):
        lox.save({"x": x}, tmp_path)
        return x

    for number in range(1, 3):
        f(1.0)
        assert [run.rows for run in lox.runs(tmp_path)] == [number]


def test_a_callback_reads_what_there_is(tmp_path):
    logger = SaveLogger(tmp_path)
    state = logger.init(0)
    logger.log(state, {"x": 1.0})
    seen = []

    def read(logs):
        seen.append(len(lox.runs(tmp_path)))

    lox.tap(train, read)(1.0)
    logger.finish(state)
    assert seen == [1] * 5
