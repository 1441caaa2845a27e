"""`lox.bind` gives context to records, wherever they are logged."""

import dataclasses
import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.compiled import jit_in_turn
from support.delivered import assert_delivered, heard
from support.programs import PROGRAMS, Program, logged
from support.selection import covering
from support.truth import (
    Record,
    assert_logs,
    assert_trees_close,
    raises,
    records,
    records_of_each,
    result,
    result_of_each,
)

DIFFERENT = covering(PROGRAMS, 8)


def in_context(eager: list[Record]) -> list[Record]:
    """What the eager run logs, with the context written to it by hand."""
    return [
        dataclasses.replace(
            record,
            data={f"a/{key}": value for key, value in record.data.items()},
            steps={"outer": 7, **record.steps},
            tags=(*record.tags, "bound"),
        )
        for record in eager
    ]


def natural(p: Program):
    return lambda key: p.is_natural(key.removeprefix("a/"))


@pytest.mark.parametrize("p", DIFFERENT, ids=lambda p: p.name)
def test_bind_adds_its_context_to_every_record(p: Program):
    bound = lox.bind(p.fun, prefix="a/", tags="bound", outer=7)

    jit = ft.partial(jit_in_turn, DIFFERENT.index(p))

    out, logs = jit(lox.spool(bound))(p.x)
    assert_trees_close(out, result(p))
    assert_logs(logs, in_context(records(p)), natural=natural(p))
    assert all("bound" in tags for tags in logs.tags.values())

    out, logs = jit(lox.spool(jax.vmap(bound)))(p.xs)
    assert_trees_close(out, result_of_each(p))
    assert_logs(logs, in_context(records_of_each(p)), natural=natural(p))

    out, found = heard(lambda hear: jit(lox.tap(bound, hear)), p.x)
    assert_trees_close(out, result(p))
    assert_delivered(found, in_context(records(p)))


def test_a_loop_gives_its_counter_to_a_function_that_was_jitted_before():
    @jax.jit
    def library(x):
        lox.log({"x": x})
        return x + 1

    with lox.silent():
        library(1.0)

    def f(x):
        def body(i, x):
            return lox.bind(library, step=i)(x)

        return jax.lax.fori_loop(0, 3, body, x)

    for _ in range(2):
        y, logs = jax.jit(lox.spool(f))(1.0)
        assert y == 4
        np.testing.assert_array_equal(logs["x"], [1, 2, 3])
        np.testing.assert_array_equal(logs.step["x"], [0, 1, 2])


def test_a_python_loop_does_not_trace_anew_for_another_step():
    traces = []

    @jax.jit
    def step(x):
        traces.append(None)
        lox.log({"x": x})
        return x + 1

    x = jnp.float32(0)
    for i in range(5):
        x, logs = lox.spool(lox.bind(step, step=i))(x)
        assert logs.step["x"] == i
    assert len(traces) == 1


def test_the_own_steps_of_a_record_win_and_contexts_nest():
    def f(x):
        lox.log({"x": x}, step=1, tags="own")
        return x

    inner = lox.bind(f, step=2, epoch=3, prefix="inner/", tags="in")
    _, logs = lox.spool(lox.bind(inner, epoch=4, run=5, prefix="outer/", tags="out"))(0.0)

    assert list(logs) == ["outer/inner/x"]
    steps = {name: int(step["outer/inner/x"]) for name, step in logs.steps.items()}
    assert steps == {"step": 1, "epoch": 3, "run": 5}
    assert logs.tags["outer/inner/x"] == ("own", "in", "out")


def test_each_example_has_its_own_step():
    def f(x, i):
        return lox.bind(lambda x: lox.log({"x": x}), member=i)(x)

    _, logs = lox.spool(jax.vmap(f))(jnp.arange(3.0), jnp.arange(3) * 10)
    np.testing.assert_array_equal(logs.member["x"], [0, 10, 20])

    _, logs = lox.spool(lox.bind(jax.vmap(lambda x: lox.log({"x": x})), member=4))(
        jnp.arange(3.0)
    )
    np.testing.assert_array_equal(logs.member["x"], [4, 4, 4])


def test_without_a_listener_it_prints_with_the_context(capsys):
    def f(x):
        lox.log({"x": x})
        return x

    for _ in range(2):
        jax.jit(lox.bind(f, prefix="a/", step=1))(2.0)
    lox.barrier()
    assert capsys.readouterr().out == "{'a/x': 2.0} step=1\n" * 2


def test_in_silence_nothing_is_left_of_it():
    def log_x(x):
        return logged("x", x)

    def f(x, bind):
        def body(x, i):
            return bind(log_x, i)(x), None

        return jax.lax.scan(body, x, jnp.arange(3))[0]

    def program(bind):
        return str(jax.make_jaxpr(lox.nolog(lambda x: f(x, bind)))(1.0))

    assert program(lambda fun, i: lox.bind(fun, step=i)) == program(lambda fun, i: fun)


def test_what_bind_does_not_take():
    with raises(TypeError, "lox.bind", "function"):
        lox.bind(3)  # pyright: ignore
    with raises(TypeError, "prefix"):
        lox.bind(logged, prefix=1)  # pyright: ignore
    with raises(TypeError, "tags"):
        lox.bind(logged, tags=1)  # pyright: ignore
    with raises(ValueError, "'items'"):
        lox.bind(logged, items=1)
    with raises(TypeError, "'step'", "numbers"):
        lox.bind(logged, step="one")
