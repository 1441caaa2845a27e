"""Every k-th row of each key, against the rows of the eager run."""

import functools as ft
import itertools as it
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.compiled import way
from support.programs import PROGRAMS, Program, logged
from support.reductions import assert_reduced, thinned
from support.selection import covering, half, thin
from support.truth import (
    assert_logs,
    assert_trees_close,
    by_key,
    records,
    records_in_grad,
    records_of_each,
    records_of_grad,
    result,
    total,
    total_of,
)
from support.while_programs import PROGRAMS as WHILE_PROGRAMS, ROOM, X, truth

INTERVALS = [1, 2, 3, 5, 100]


PARTS = [covering(PROGRAMS, 4, start=start) for start in range(3)]
DIFFERENTIABLE = covering([p for p in PROGRAMS if p.grad], 4, start=3)


def intervals(p: Program, turn: int = 0) -> list[int]:
    """Some intervals for a program: each interval meets many programs."""
    i = PROGRAMS.index(p)
    return thin(INTERVALS, 5, start=i + turn * (i // 5 + 2))


def every(programs: list[Program]):
    return pytest.mark.parametrize("p", programs, ids=lambda p: p.name)


# Every construct ----------------------------------------------------------------------


@way(half(PARTS[0], 0))
def jit_of_spool(p: Program):
    return lambda x: [lox.spool(p.fun, interval=k)(x) for k in intervals(p)], p.x


EAGER = half(PARTS[0], 1)


def eager_spool(p: Program):
    return [lox.spool(p.fun, interval=k)(p.x) for k in intervals(p)]


@every(PARTS[0])
def test_each_key_keeps_every_kth_row(p: Program):
    for run, programs in ((jit_of_spool, jit_of_spool.programs), (eager_spool, EAGER)):
        if p in programs:
            for k, (out, logs) in zip(intervals(p), run(p), strict=True):
                check(p, logs, records(p), k)
                assert_trees_close(out, result(p))


@way(half(PARTS[1], 0))
def spool_of_vmap(p: Program):
    vmapped = jax.vmap(p.fun)
    return lambda xs: [lox.spool(vmapped, interval=k)(xs)[1] for k in intervals(p)], p.xs


@way(half(PARTS[1], 1))
def vmap_of_spool(p: Program):
    def fun(xs):
        return [jax.vmap(lox.spool(p.fun, interval=k))(xs)[1] for k in intervals(p)]

    return fun, p.xs


@every(PARTS[1])
def test_each_example_keeps_its_own_kth_rows(p: Program):
    for run in (spool_of_vmap, vmap_of_spool):
        if p in run.programs:
            for k, logs in zip(intervals(p), run(p), strict=True):
                check(p, logs, records_of_each(p), k, batch_first=run is vmap_of_spool)


@way(half(DIFFERENTIABLE, 0))
def grad_of_spool(p: Program):
    def fun(x, k):
        out, logs = lox.spool(p.fun, interval=k)(x)
        return total(out), logs

    grad = jax.grad(fun, has_aux=True)
    return lambda x: [grad(x, k)[1] for k in intervals(p, turn=1)], p.x


@way(half(DIFFERENTIABLE, 1))
def spool_of_grad(p: Program):
    grad = jax.jit(jax.grad(total_of(p.fun)))
    return lambda x: [lox.spool(grad, interval=k)(x)[1] for k in intervals(p, turn=1)], p.x


@every(DIFFERENTIABLE)
def test_rows_are_thinned_under_grad(p: Program):
    for run, truth_of in (
        (grad_of_spool, records_in_grad),
        (spool_of_grad, records_of_grad),
    ):
        if p in run.programs:
            for k, logs in zip(intervals(p, turn=1), run(p), strict=True):
                check(p, logs, truth_of(p), k)


def reductions(p: Program) -> list[str]:
    return thin(["count", "last", "count of each"], 3, start=PROGRAMS.index(p) // 3)


def reduced_by(p: Program, names: list[str], fun):
    spools = [
        lox.spool(fun, interval=k, reduce=name) for k in intervals(p) for name in names
    ]
    return lambda x: [spool(x)[1] for spool in spools]


@way(PARTS[2])
def reduced(p: Program):
    names = [name for name in reductions(p) if name != "count of each"]
    return reduced_by(p, names, p.fun), p.x


@way([p for p in PARTS[2] if "count of each" in reductions(p)])
def reduced_for_each(p: Program):
    return reduced_by(p, ["count"], jax.vmap(p.fun)), p.xs


@every(PARTS[2])
def test_reductions_see_every_kth_row(p: Program):
    names = [name for name in reductions(p) if name != "count of each"]
    for (k, name), logs in zip(it.product(intervals(p), names), reduced(p), strict=True):
        assert_reduced(logs, every_kth(records(p), k), name)
    if p in reduced_for_each.programs:
        for k, logs in zip(intervals(p), reduced_for_each(p), strict=True):
            assert_reduced(logs, every_kth(records_of_each(p), k), "count")


def interval_of(fun) -> int:
    return INTERVALS[WHILE_PROGRAMS.index(fun) % 5]


@way(WHILE_PROGRAMS)
def rows_of_while(fun):
    return lox.spool(fun, interval=interval_of(fun), capacity=ROOM), X


@way(WHILE_PROGRAMS)
def count_of_while(fun):
    return lox.spool(fun, interval=interval_of(fun), reduce="count"), X


@pytest.mark.parametrize("fun", WHILE_PROGRAMS, ids=lambda fun: fun.__name__)
def test_every_kth_row_in_loops_of_unknown_length(fun):
    kept = every_kth(truth(fun, float(X))[1], interval_of(fun))
    _, logs = rows_of_while(fun)
    natural = {"before", "last"}.__contains__
    assert_logs(logs.filter(lambda key, _: not natural(key)), but(kept, natural),
                natural=lambda key: False)  # fmt: skip
    _, logs = count_of_while(fun)
    assert_reduced(logs, kept, "count")


def but(records, natural):
    return [r for r in records if not any(natural(key) for key in r.data)]


def check(p: Program, logs, mine, k: int, batch_first=False) -> None:
    """The rows are every k-th of those that were logged, and there is no room for more."""
    assert_logs(logs, every_kth(mine, k), natural=p.is_natural, batch_first=batch_first)
    for key, rows in logs.rows().items():
        most = bound(p, key)
        if rows.time and most is not None:
            assert rows.length <= math.ceil(most / k), f"{key!r}: {rows.length} rows"


def every_kth(records, k):
    """Every k-th record of each key, of each example, with that key alone."""
    return [r.only({key}) for key in by_key(records) for r in thinned(records, key, k)]


@ft.cache
def bounds(p: Program) -> dict[str, int]:
    _, logs = jax.eval_shape(lox.spool(p.fun), p.x)
    return {key: rows.length for key, rows in logs.rows().items()}


def bound(p: Program, key: str) -> int | None:
    """How many rows of a key there may be."""
    return bounds(p).get(key)


# By hand ------------------------------------------------------------------------------


def nested(x):
    def outer(carry, i):
        def inner(carry, j):
            lox.log({"x": 10 * i + j, "all": carry}, i=i, j=j)
            return carry + 1, None

        lox.log({"x": -i})
        return jax.lax.scan(inner, carry, jnp.arange(4))[0], None

    return jax.lax.scan(outer, x, jnp.arange(6))[0]


def test_rows_of_nested_loops_are_counted_through():
    every = [v for i in range(6) for v in (-i, *(10 * i + j for j in range(4)))]
    for k in (1, 2, 3, 4, 5, 7, 29, 30, 31, 100):
        _, logs = jax.jit(lox.spool(nested, interval=k))(0)
        assert logs["x"].tolist() == every[::k]
        assert logs["all"].tolist() == list(range(24))[::k]
        assert "x" not in logs.valid
        assert logs.j["all"].tolist() == [n % 4 for n in range(24)][::k]


def test_rows_of_a_branch_are_counted_as_they_are_logged():
    def fun(xs):
        def step(count, x):
            count = jax.lax.cond(x > 0, lambda c: logged("c", c, step=x) + 1, abs, count)
            return count, None

        return jax.lax.scan(step, 0, xs)[0]

    xs = jnp.array([0, 1, 2, 0, 3, 0, 0, 4, 5, 6, 0, 7])
    for k in (1, 2, 3, 4, 100):
        _, logs = jax.jit(lox.spool(fun, interval=k))(xs)
        assert logs["c"].shape == (math.ceil(12 / k),)
        rows = logs.compact()
        assert rows["c"].tolist() == list(range(7))[::k]
        assert rows.step["c"].tolist() == list(range(1, 8))[::k]
        _, logs = jax.jit(jax.vmap(lox.spool(fun, interval=k)))(jnp.stack([xs, 1 - xs]))
        for row, there, count in zip(logs["c"], logs.valid["c"], (7, 5), strict=True):
            assert row[np.asarray(there)].tolist() == list(range(count))[::k]


def test_keys_of_one_record_count_by_themselves_where_they_are_logged_apart():
    def fun(x):
        def step(carry, i):
            lox.log({"a": i, "b": 10 * i, "c": 20 * i})
            lox.log({"a": -i})
            jax.lax.cond(i % 2 == 0, lambda: lox.log({"b": 30 * i}), lambda: None)
            return carry, None

        return jax.lax.scan(step, x, jnp.arange(10))[0]

    a = [v for i in range(10) for v in (i, -i)]
    b = [v for i in range(10) for v in ((10 * i, 30 * i) if i % 2 == 0 else (10 * i,))]
    c = [20 * i for i in range(10)]
    for k in (2, 3, 7):
        _, logs = jax.jit(lox.spool(fun, interval=k))(0)
        rows = logs.compact()
        for key, expected in (("a", a), ("b", b), ("c", c)):
            assert rows[key].tolist() == expected[::k]


def test_keys_count_by_themselves_where_a_custom_rule_logs_only_some_of_them():
    @jax.custom_jvp
    def sin(x):
        lox.log({"a": x, "b": -x})
        return jnp.sin(x)

    @sin.defjvp
    def sin_jvp(primals, tangents):
        lox.log({"a": primals[0]})
        return jnp.sin(primals[0]), jnp.cos(primals[0]) * tangents[0]

    def fun(x):
        def step(x, i):
            lox.log({"a": 100.0 + i, "b": 100.0 + i})
            return x + 1 + 0 * sin(x), None

        return jax.lax.scan(step, x, jnp.arange(5.0))[0]

    a = [v for i in range(5) for v in (100 + i, i)]
    b = [100 + i for i in range(5)]
    for k in (2, 3):
        spooled = lox.spool(fun, interval=k)
        (_, logs), _ = jax.jvp(spooled, (0.0,), (1.0,))
        rows = logs.compact()
        assert rows["a"].tolist() == a[::k]
        assert rows["b"].tolist() == b[::k]


def test_a_vmap_over_no_examples_has_no_rows():
    def fun(x):
        def step(c, i):
            jax.lax.cond(c > 0, lambda: lox.log({"masked": c}), lambda: None)
            return logged("x", c) + i, None

        return jax.lax.scan(step, x, jnp.arange(4.0))[0]

    _, logs = jax.jit(lox.spool(jax.vmap(fun), interval=2))(jnp.zeros(0))
    assert logs["x"].shape == logs["masked"].shape == (2, 0)


def test_a_key_logged_once_keeps_its_shape():
    for k in INTERVALS:
        _, logs = lox.spool(lambda x: logged("x", x), interval=k)(2.0)
        assert logs.data == {"x": 2}
        assert not logs.valid


def test_the_interval_is_applied_before_the_reduction():
    rows = np.arange(24)
    for k in (1, 2, 5, 100):
        for name, expected in (("sum", rows[::k].sum()), ("last", rows[::k][-1])):
            _, logs = jax.jit(lox.spool(nested, interval=k, reduce=name))(0)
            assert logs["all"] == expected
            assert logs.j["all"] == rows[::k][-1] % 4
        _, logs = jax.jit(lox.spool(nested, interval=k, reduce={"all": "count"}))(0)
        assert logs["all"] == len(rows[::k])
        assert len(logs["x"]) == math.ceil(30 / k)


def test_rows_of_a_loop_of_unknown_length_are_counted_through():
    def fun(n):
        lox.log({"i": -1})
        jax.lax.fori_loop(0, n, lambda i, c: (logged("i", i), c)[1], 0)
        lox.log({"i": n})

    spooled = jax.jit(lox.spool(fun, interval=3, capacity=4))
    for n in (0, 1, 2, 5, 9, 11, 12, 40):
        inside = [i for i in range(n) if (i + 1) % 3 == 0]
        after = [n] if (n + 1) % 3 == 0 else []
        _, logs = spooled(n)
        assert logs.compact()["i"].tolist() == [-1, *inside[-4:], *after]


def test_a_loop_that_never_runs_has_no_rows():
    def never(c, _):
        return jax.lax.scan(lambda c, _: (logged("x", c), None), c, None, 0)

    def fun(x):
        return jax.lax.scan(lambda c, _: never(logged("y", c), None), x, None, 3)[0]

    _, logs = jax.jit(lox.spool(fun, interval=2))(1.0)
    assert logs["y"].tolist() == [1, 1]
    assert logs["x"].shape == (0,)


def test_thinned_logs_cannot_be_added():
    _, logs = lox.spool(nested, interval=2)(0)
    with pytest.raises(ValueError, match=r"(?s)'x'.*thin|thin.*'x'"):
        logs + logs
