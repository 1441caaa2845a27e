"""Loggers write only the records for which a condition holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.truth import raises

XS = jnp.array([1.0, 0.0, 4.0, -1.0, 9.0, 0.0, -4.0, 2.0])


def logarithms(xs):
    def step(i, x):
        lox.log({"log": jnp.log(x), "x": x}, step=i)
        return i + 1, None

    return jax.lax.scan(step, 0, xs)[0]


def steps_where(xs, interval):
    """The steps at which something is not finite, by a loop in NumPy."""
    with np.errstate(all="ignore"):
        bad = [i for i, x in enumerate(np.asarray(xs)) if not np.isfinite(np.log(x))]
    return bad[::interval]


@pytest.mark.parametrize("options", [{}, {"interval": 2}, {"batch": 3}, "spool"], ids=str)
def test_a_logger_writes_where_the_condition_holds(options, tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path / "results")
    xs = jnp.stack([XS, XS[::-1], abs(XS) + 1])

    @jax.jit
    @jax.vmap
    def run(key, xs):
        state = logger.init(key)
        if options == "spool":
            logger.spool(logarithms, state, when=lox.nonfinite)(xs)
        else:
            logger.tap(logarithms, state, when=lox.nonfinite, **options)(xs)
        logger.finish(state)

    run(jnp.arange(3), xs)
    lox.barrier()
    interval = options.get("interval", 1) if isinstance(options, dict) else 1
    path = tmp_path / "results"
    for i, (own, of_run) in enumerate(zip(xs, lox.runs(path), strict=True)):
        assert of_run.key[-1] == i
        logs = lox.load(path, key=of_run.key, session=of_run.session)
        expected = steps_where(own, interval)
        found = logs.step["log"].tolist() if logs else []
        assert found == expected


def test_a_wrong_condition_is_named(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path / "results")
    state = logger.init(0)
    with raises(TypeError, "`when` of `logger.tap` takes a function", "not True"):
        logger.tap(logarithms, state, when=True)
    with raises(TypeError, "`when` of `logger.spool` takes a function", "not 'x'"):
        logger.spool(logarithms, state, when="x")
    with raises(TypeError, r"`when` returns float32\[\] for the record of 'log', 'x'"):
        logger.tap(logarithms, state, when=lambda logs: logs["x"])(XS)
