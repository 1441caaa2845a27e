"""What the pages on lox show, as they show it, with the corrections of SPEC.md."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox


@pytest.fixture(autouse=True)
def _relaxed_promotion():
    # The pages add integers to floats.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def f(x):
    lox.log({"x": x})
    return x + 1.0


# lox.spool ----------------------------------------------------------------------------


def test_spool():
    assert repr(lox.spool(f)(1.0)) == "(2.0, {'x': 1.0})"


def test_spool_of_a_scan():
    def g(xs):
        carry, ys = jax.lax.scan(lambda c, x: (f(c), x), 0.0, xs)
        lox.log({"carry": carry})
        return ys

    ys, logs = lox.spool(g)(jnp.arange(3))
    assert list(ys) == [0, 1, 2]
    assert logs["carry"] == 3
    assert logs["carry"].shape == ()
    assert list(logs["x"]) == [0, 1, 2]


def test_spool_of_a_cond():
    def h(x):
        return jax.lax.cond(x > 0, lambda x: f(x), lambda x: f(x + 1), x)

    y, logs = lox.spool(h)(3.0)
    assert y == 4
    assert str(logs) == "{'x': 3.0}"
    assert not logs.valid


def test_spooling_twice_gives_nothing_the_second_time():
    def j(x):
        y, _ = lox.spool(f)(x)
        return y

    assert repr(lox.spool(j)(1.0)) == "(2.0, {})"


def test_keep_logs():
    def j(x):
        y, logs = lox.spool(f, keep_logs=True)(x)
        return y, logs["x"]

    (y, inner), logs = lox.spool(j)(1.0)
    assert (y, inner) == (2, 1)
    assert str(logs) == "{'x': 1.0}"


# The sharp bits -----------------------------------------------------------------------


def test_branches_that_log_different_things():
    def g(x):
        log = lambda x: (lox.log({"a": 1}), x)[1]  # noqa: E731
        return jax.lax.cond(x > 0, log, lambda x: x, x)

    _, logs = lox.spool(g)(1.0)
    assert (logs["a"], logs.valid["a"]) == (1, True)
    _, logs = lox.spool(g)(-1.0)
    assert not logs.valid["a"]
    assert logs.compact() == {}


def test_spooling_a_function_that_is_jitted_already():
    traced = []

    @jax.jit
    def g(x):
        traced.append(x)
        lox.log({"x": x})
        return x

    assert g(1.0) == g(1.0) == 1
    assert len(traced) == 1
    for _ in range(3):
        y, logs = lox.spool(g)(1.0)
        assert (y, str(logs)) == (1, "{'x': 1.0}")
    assert len(traced) == 2
    assert g(1.0) == 1
    assert len(traced) == 2


def test_selective_logging():
    def g(x):
        lox.log({"loss": x}, tags=["metric"])
        lox.log({"gradient_norm": 2 * x}, tags=["debug"])
        return x

    assert str(lox.spool(g, tags=["metric"])(1.0)[1]) == "{'loss': 1.0}"
    assert str(lox.spool(g, tags="debug")(1.0)[1]) == "{'gradient_norm': 2.0}"
    names = ["gradient_norm"]
    assert str(lox.spool(g, argnames=names)(1.0)[1]) == "{'gradient_norm': 2.0}"
    assert str(lox.spool(g, argnames="loss")(1.0)[1]) == "{'loss': 1.0}"


def test_an_argname_is_a_whole_key():
    def g(x):
        lox.log({"x": x, "xy": 2 * x})
        return x

    assert str(lox.spool(g, argnames="xy")(1.0)[1]) == "{'xy': 2.0}"


# Quick start --------------------------------------------------------------------------


def running_sum(xs):
    lox.log({"xs": xs})

    def step(carry, x):
        carry += x
        lox.log({"carry": carry})
        return carry, x

    y, _ = jax.lax.scan(step, 0, xs)
    return y


def test_basic_api(capsys):
    f = running_sum
    y, logs = lox.spool(f)(jnp.arange(3))
    print("Collected Logs:", logs)

    expected = "Collected Logs: {'xs': [0, 1, 2], 'carry': [0, 1, 3]}\n"
    assert capsys.readouterr().out == expected
    assert y == 3


def test_logdicts(capsys):
    xs = jnp.arange(3)

    def f(xs):
        def body(i, carry):
            carry += xs[i]
            lox.log({"carry": carry}, step=i, episode=i // 2)
            return carry

        return jax.lax.fori_loop(0, len(xs), body, 0)

    _, logs = lox.spool(f)(xs)
    print("Collected Logs:", logs["carry"])
    print("Corresponding Steps:", logs.step["carry"])
    print("Corresponding Episodes:", logs.episode["carry"])

    assert capsys.readouterr().out == (
        "Collected Logs: [0 1 3]\n"
        "Corresponding Steps: [0 1 2]\n"
        "Corresponding Episodes: [0 0 1]\n"
    )
    assert isinstance(logs, lox.logdict)
    assert isinstance(logs, dict)


# Accelerated logging in JAX -----------------------------------------------------------


def test_the_table_of_the_first_example():
    def f(xs):
        lox.log({"xs": xs})

        def scan_step(carry, x):
            carry = carry + x
            lox.log({"xs": carry, "x": x})
            return carry, x

        lox.log({"xs": xs})
        ys, _ = jax.lax.scan(scan_step, xs, xs)
        return ys

    _, logs = lox.spool(f)(jnp.arange(3))
    assert list(logs) == ["xs", "x"]
    assert logs["x"].dtype == logs["xs"].dtype == jnp.int32
    assert list(logs["x"]) == [0, 1, 2]
    rows = [[0, 1, 2], [0, 1, 2], [0, 1, 2], [1, 2, 3], [3, 4, 5]]
    assert np.array_equal(logs["xs"], rows)


def test_a_log_is_printed(capsys):
    def f(x):
        lox.log({"x": x})

        def step(carry, x):
            lox.log({"x": x})
            return carry + x, None

        return jax.lax.scan(step, x, jnp.arange(5))

    f(3)
    jax.effects_barrier()
    printed = capsys.readouterr().out.splitlines()
    assert printed == [f"{{'x': {x}}}" for x in (3, 0, 1, 2, 3, 4)]


def test_a_log_is_printed_in_a_jitted_function(capsys):
    @jax.jit
    def f(x):
        lox.log({"x": x})
        return x * x

    assert f(3) == 9
    jax.effects_barrier()
    assert capsys.readouterr().out == "{'x': 3}\n"


def test_function_spooling(capsys):
    def f(x, y):
        lox.log({"x": x, "y": y})
        return x * y

    z, logs = lox.spool(f)(3, 4)
    print("f(x, y)", z)
    print("Logs:", logs)
    assert capsys.readouterr().out == "f(x, y) 12\nLogs: {'x': 3, 'y': 4}\n"


def test_nolog(capsys):
    assert lox.nolog(f)(1.0) == jax.jit(lox.nolog(f))(1.0) == 2
    jax.effects_barrier()
    assert capsys.readouterr().out == ""


def test_loggers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    f = running_sum
    xs, key = jnp.arange(3), jax.random.key(0)
    logger = lox.loggers.SaveLogger("./.lox/")
    logger_state = logger.init(key)
    assert logger.spool(f, logger_state)(xs) == 3

    console_logger = lox.loggers.ConsoleLogger()
    save_logger = lox.loggers.SaveLogger("./.lox/")
    multi_logger = lox.loggers.MultiLogger(console_logger, save_logger)
    multi_logger_state = multi_logger.init(key)
    assert multi_logger.tap(f, multi_logger_state)(xs) == 3

    logger.finish(logger_state)
    multi_logger.finish(multi_logger_state)
    assert len(lox.runs("./.lox/")) == 2
    logs = lox.load("./.lox/", key=key)
    assert list(logs["xs"]) == [0, 1, 2]
    assert list(logs["carry"]) == [0, 1, 3]
    assert "carry 3" in capsys.readouterr().err
