"""Logs in loops of unknown length, against the eager run."""

import itertools as it

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.compiled import jit_in_turn, way
from support.programs import logged
from support.reductions import NAMES, asked, assert_reduced
from support.selection import half, thin
from support.truth import (
    Record,
    assert_logs,
    assert_trees_close,
    by_key,
    raises,
    row_block,
    run,
)
from support.while_programs import (
    NONE,
    ONCE,
    PROGRAMS,
    ROOM,
    XS,
    X,
    collatz,
    count_up,
    dynamic_fori_loop,
    log_around_the_loop,
    logging_predicate,
    prng_keys,
    truth,
    truth_of_each,
    twice_in_the_body,
    while_in_a_scan,
    while_in_one_branch,
)

every = pytest.mark.parametrize("fun", PROGRAMS, ids=lambda fun: fun.__name__)


# Rows ---------------------------------------------------------------------------------


@every
def test_with_room_enough_all_rows_are_there(fun):
    number = PROGRAMS.index(fun)
    spools = [
        jit_in_turn(number // 2, lox.spool(fun, capacity=ROOM)),
        lox.spool(jax.jit(fun), capacity=ROOM),
    ]
    for spooled in thin(spools, 2, number):
        for x in (X, NONE, X + 2):
            out, logs = spooled(x)
            expected, records = truth(fun, float(x))
            assert_trees_close(out, expected)
            assert_rows(logs, records)


@way(thin(PROGRAMS, 2))
def spool_of_vmap(fun):
    return lox.spool(jax.vmap(fun), capacity=ROOM), XS


@way(thin(PROGRAMS, 2, start=1))
def vmap_of_spool(fun):
    return jax.vmap(lox.spool(fun, capacity=ROOM)), XS


@every
def test_each_example_has_its_own_rows(fun):
    expected, records = truth_of_each(fun)
    for run_each, batch_first in ((spool_of_vmap, False), (vmap_of_spool, True)):
        if fun in run_each.programs:
            out, logs = run_each(fun)
            assert_trees_close(out, expected)
            assert_rows(logs, records, batch_first=batch_first)


def tangents_of(fun):
    """Differentiate in forward mode, and leave out the tangents of integers."""

    def jvp(x):
        out, tangents = jax.jvp(fun, (x,), (jnp.ones_like(x),))
        is_float = lambda t: t.dtype != jax.dtypes.float0  # noqa: E731
        return out, list(filter(is_float, jax.tree.leaves(tangents)))

    return jvp


@way(PROGRAMS)
def jvp(fun):
    return tangents_of(lox.nolog(fun)), X


@way(PROGRAMS)
def jvp_of_spool(fun):
    return tangents_of(lox.spool(fun, capacity=ROOM)), X


@way(PROGRAMS)
def spool_of_jvp(fun):
    return lox.spool(tangents_of(fun), capacity=ROOM), X


@every
def test_forward_mode_gives_the_primal_rows(fun):
    _, records = truth(fun, 3.5)
    (_, logs), tangents = jvp_of_spool(fun)
    assert_rows(logs, records)
    _, expected = jvp(fun)
    # Logs have tangents, too: zeros.
    assert_trees_close(tangents[: len(expected)], expected)
    assert not any(np.any(t) for t in tangents[len(expected) :])
    _, logs = spool_of_jvp(fun)
    assert_rows(logs, records)


def assert_rows(logs, records: list[Record], batch_first=False) -> None:
    """The rows that exist are `records`, of each example and in order; so is `count`."""
    assert_logs(logs, records, natural=ONCE.__contains__, batch_first=batch_first)
    expected = by_key(records)
    for key, count in logs.count.items():
        mine = expected.get(key, [])
        sizes = max((record.sizes for record in mine), key=len, default=())
        assert mine or not np.any(count)
        for lane in it.product(*map(range, sizes)) if mine else ():
            own = [r for r in mine if r.lanes == lane[: len(r.lanes)]]
            block = {"lane": lane, "sizes": sizes, "shape": (), "timed": False}
            assert row_block(np.asarray(count), **block)[0] == len(own)


# Capacity -----------------------------------------------------------------------------


def counted(n, start=10):
    body = lambda i, c: logged("i", c, step=i) + 1  # noqa: E731
    return jax.lax.fori_loop(0, n, body, start)


def test_the_last_rows_are_kept_in_order():
    for room in (1, 2, 3, 7, 20):
        spooled = jax.jit(lox.spool(counted, capacity=room))
        for n in (0, 1, 2, 3, 4, 6, 7, 8, 15, 20, 50):
            _, logs = spooled(n)
            kept = list(range(n))[-room:]
            assert logs["i"].shape == (room,)
            assert logs.valid["i"].tolist() == [k < len(kept) for k in range(room)]
            assert logs["i"][: len(kept)].tolist() == [10 + i for i in kept]
            assert logs.step["i"][: len(kept)].tolist() == kept
            assert logs.count["i"] == n
            compact = logs.compact()
            assert (compact["i"].tolist() if kept else compact) == (
                [10 + i for i in kept] if kept else {}
            )


def test_the_last_rows_of_each_example_are_kept_in_order():
    numbers, room = [0, 1, 5, 3, 9], 4
    counts = jnp.array(numbers)
    for fun, axis in (
        (jax.vmap(lox.spool(counted, capacity=room)), 0),
        (lox.spool(jax.vmap(counted), capacity=room), 1),
    ):
        _, logs = jax.jit(fun)(counts)
        found = np.moveaxis(np.asarray(logs["i"]), axis, 0)
        valid = np.moveaxis(np.asarray(logs.valid["i"]), axis, 0)
        assert logs.count["i"].tolist() == numbers
        for n, rows, there in zip(numbers, found, valid, strict=True):
            kept = list(range(n))[-room:]
            assert rows[there].tolist() == [10 + i for i in kept]
            assert there.tolist() == [k < len(kept) for k in range(room)]


def test_examples_may_be_along_any_axis_of_what_a_loop_carries():
    def fun(x):
        def body(state):
            i, x = state
            lox.log({"x": x}, i=i)
            return i + 1, 0.75 * x

        return jax.lax.while_loop(lambda state: state[0] < state[1][0], body, (0.0, x))

    x = jnp.arange(6.0).reshape(2, 3)
    spooled = jax.vmap(lox.spool(fun, capacity=4), in_axes=1)
    for transform in (lambda f: f, jax.jit):
        _, logs = transform(spooled)(x)
        for example, start in enumerate(x.T):
            _, records = run(fun, start)
            assert logs.count["x"][example] == len(records)
            rows = logs["x"][example][: len(records)]
            assert rows.tolist() == [record.data["x"].tolist() for record in records]


def test_loops_of_known_length_are_not_capped():
    def fun(n):
        jax.lax.scan(lambda c, i: (c, log_it(i)), 0, jnp.arange(10))
        counted(n)

    def log_it(i):
        lox.log({"i": i, "j": i})

    _, logs = jax.jit(lox.spool(fun, capacity=2))(5)
    assert logs["j"].tolist() == list(range(10))
    assert "j" not in logs.count
    assert "j" not in logs.valid
    rows = logs["i"][np.asarray(logs.valid["i"])]
    assert rows.tolist() == [*range(10), 13, 14]
    _, logs = lox.spool(lambda: counted(3, start=0), capacity=2)()
    assert logs["i"].tolist() == [0, 1, 2]  # static bounds


def test_each_run_of_a_loop_in_a_scan_has_its_own_room():
    def fun(ns):
        return jax.lax.scan(lambda c, n: (counted(n, c), None), 0, ns)[0]

    _, logs = jax.jit(lox.spool(fun, capacity=2))(jnp.array([3, 0, 1, 4]))
    assert logs["i"].shape == (8,)
    assert logs.compact()["i"].tolist() == [1, 2, 3, 6, 7]
    assert logs.count["i"] == 8


def test_the_outermost_loop_of_unknown_length_decides_what_is_kept():
    def fun(ns, n):
        def body(i, c):
            return counted(ns[i], c)

        return jax.lax.fori_loop(0, n, body, 0)

    _, logs = jax.jit(lox.spool(fun, capacity=3))(jnp.array([3, 0, 1, 4]), 4)
    assert logs["i"].tolist() == [5, 6, 7]
    assert logs.count["i"] == 8


def test_capacity_keeps_what_is_logged_after_the_loop():
    def fun(n):
        lox.log({"i": 7})
        lox.log({"i": counted(n)})

    _, logs = jax.jit(lox.spool(fun, capacity=2))(5)
    assert logs.compact()["i"].tolist() == [7, 13, 14, 15]
    assert logs.count["i"] == 7


def test_a_reduced_key_needs_no_room_beside_one_that_has_it():
    def fun(n):
        def body(i, c):
            lox.log({"rows": c, "mean": c})
            return c + 1.0

        return jax.lax.fori_loop(0, n, body, 0.0)

    _, logs = jax.jit(lox.spool(fun, reduce={"mean": "mean"}, capacity=2))(5)
    assert logs["mean"] == 2
    assert logs["rows"].tolist() == [3, 4]
    assert "mean" not in logs.count


# Reductions ---------------------------------------------------------------------------


@every
def test_every_reduction_in_loops_of_unknown_length(fun):
    names = ["first", "last", "count"] if fun is prng_keys else NAMES
    # Each reduction meets many of the programs.
    number = PROGRAMS.index(fun)
    for name in thin(names, 3, start=number):
        spooled = jit_in_turn(number // 3, lox.spool(fun, reduce=asked(name)))
        for x in (X, NONE):
            out, logs = spooled(x)
            expected, records = truth(fun, float(x))
            assert_trees_close(out, expected)
            assert_reduced(logs, records, name, tol=1e-3)


def one_reduction(fun) -> str:
    names = ["last", "count"] if fun is prng_keys else ["sum", "mean", "std", "last"]
    return names[PROGRAMS.index(fun) % len(names)]


@way(half(PROGRAMS, 0))
def reduce_of_vmap(fun):
    return lox.spool(jax.vmap(fun), reduce=asked(one_reduction(fun))), XS


@way(half(PROGRAMS, 1))
def vmap_of_reduce(fun):
    return jax.vmap(lox.spool(fun, reduce=asked(one_reduction(fun)))), XS


@every
def test_reductions_of_each_example(fun):
    expected, records = truth_of_each(fun)
    for run_each in (reduce_of_vmap, vmap_of_reduce):
        if fun in run_each.programs:
            out, logs = run_each(fun)
            assert_trees_close(out, expected)
            assert_reduced(logs, records, one_reduction(fun), tol=1e-3)


def test_a_key_that_is_only_in_the_loop_may_have_no_row():
    spooled = jax.jit(lox.spool(counted, reduce="mean"))
    assert spooled(3)[1].valid["i"]
    assert spooled(3)[1]["i"] == 11
    assert not spooled(0)[1].valid["i"]
    _, logs = lox.spool(log_around_the_loop, reduce="mean")(NONE)
    assert "x" not in logs.valid  # it is logged before the loop, too


def test_a_log_call_can_ask_for_the_reduction():
    def fun(n):
        def body(i, c):
            lox.log({"c": c}, reduce="mean", step=i)
            return c + 1.0

        return jax.lax.fori_loop(0, n, body, 0.0)

    _, logs = jax.jit(lox.spool(fun))(5)
    assert logs["c"] == 2
    assert logs.step["c"] == 4


# Derivatives --------------------------------------------------------------------------


def test_reverse_mode_is_the_error_of_jax():
    for name in ("sum", None):
        spooled = lox.spool(twice_in_the_body, reduce=name, capacity=9)
        with raises(ValueError, "[Rr]everse-mode"):
            jax.grad(lambda x: spooled(x)[0])(X)
        with raises(ValueError, "[Rr]everse-mode"):
            lox.spool(jax.grad(twice_in_the_body), reduce=name, capacity=9)(X)


def test_a_loop_beside_the_differentiated_part_is_heard():
    def fun(x):
        n = count_up(jax.lax.stop_gradient(x), lambda i, c: logged("c", c + 1, step=i))
        return jnp.sin(x) * logged("last", jax.lax.stop_gradient(n))

    expected = run(fun, X)[1]
    for options in ({"capacity": ROOM}, {"reduce": "sum"}):
        spooled = lox.spool(fun, **options)
        slope, logs = jax.jit(jax.grad(spooled, has_aux=True))(X)
        other, more = jax.jit(lox.spool(jax.grad(fun), **options))(X)
        np.testing.assert_allclose(slope, jnp.cos(X) * 7.5, rtol=1e-5)
        np.testing.assert_allclose(other, slope, rtol=1e-5)
        for found in (logs, more):
            if "reduce" in options:
                assert_reduced(found, expected, "sum")
            else:
                assert_rows(found, expected)


def beside_the_derivative(x):
    """A loop that has no derivative, but logs what has one."""

    def body(c):
        lox.log({"c": c}, x=x)
        return c + 1

    return x * jax.lax.while_loop(lambda c: c < 3, body, 0.0)


def in_a_scan(x):
    return jax.lax.scan(lambda c, x: (c + beside_the_derivative(x), None), x, x + X[None])[
        0
    ]


def with_a_derivative(x):
    def body(state):
        i, y = state
        lox.log({"c": i}, x=x)
        return i + 1, y * x

    return jax.lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1]


@pytest.mark.parametrize(
    "fun",
    [
        jax.grad(beside_the_derivative),
        jax.grad(jax.jit(beside_the_derivative)),
        jax.grad(jax.checkpoint(beside_the_derivative)),
        jax.grad(jax.checkpoint(in_a_scan)),
        jax.grad(in_a_scan),
        jax.hessian(in_a_scan),
        lambda x: jax.linearize(with_a_derivative, x)[1](x),
        lambda x: jax.linearize(jax.jit(with_a_derivative), x)[1](x),
        lambda x: jax.jvp(with_a_derivative, (x,), (x,)),
    ],
)
def test_a_loop_that_is_run_again_for_its_derivative_is_heard_once(fun, capsys):
    with lox.silent():
        expected = fun(X)
    for transform in (lambda f: f, jax.jit):
        out, logs = transform(lox.spool(fun, reduce="count"))(X)
        assert logs.data == {"c": 3}
        assert_trees_close(out, expected)
        found = []
        assert_trees_close(transform(lox.tap(fun, found.append))(X), expected)
        lox.barrier()
        assert [logs["c"] for logs in found] == [0, 1, 2]
        transform(fun)(X)
        jax.effects_barrier()
        assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_tap_inside_of_the_derivative_is_heard_once():
    found = []
    for fun in (beside_the_derivative, in_a_scan, jax.checkpoint(in_a_scan)):
        for transform in (lambda f: f, jax.jit):
            found.clear()
            transform(jax.grad(lox.tap(fun, found.append)))(X)
            lox.barrier()
            assert [logs["c"] for logs in found] == [0, 1, 2]


def test_a_tangent_in_a_loop_has_no_value_under_linearize():
    @jax.custom_jvp
    def square(x):
        return x * x

    @square.defjvp
    def rule(primals, tangents):
        lox.log({"tangent": tangents[0]})
        return primals[0] ** 2, 2 * primals[0] * tangents[0]

    def fun(x):
        return count_up(x, lambda i, c: square(logged("c", c)))

    _, logs = lox.spool(lambda x: jax.jvp(fun, (x,), (x,)), reduce="count")(X)
    assert logs.data == {"c": 4, "tangent": 4}
    with raises(ValueError, "'tangent'", "while_loop", "`jax.linearize`", "`jax.jvp`"):
        lox.spool(lambda x: jax.linearize(fun, x)[1](x), reduce="count")(X)


def test_what_does_not_change_in_the_loop_is_logged_each_time_also_under_linearize():
    def fun(x):
        y = jnp.sin(x)
        return count_up(
            X, lambda i, c: (lox.log({"y": y, "x": x, "one": 1.0}), c * y)[1], x
        )

    (_, logs), _ = jax.linearize(lox.spool(fun, reduce="count"), X)
    assert logs.data == {"y": 4, "x": 4, "one": 4}
    (_, logs), _ = jax.linearize(lox.spool(fun, capacity=9), X)
    assert {key: len(rows) for key, rows in logs.compact().items()} == dict.fromkeys(
        ["y", "x", "one"], 4
    )
    _, logs = lox.spool(lambda x: jax.linearize(fun, x)[0], capacity=9)(X)
    assert {key: len(rows) for key, rows in logs.compact().items()} == dict.fromkeys(
        ["y", "x", "one"], 4
    )
    _, logs = lox.spool(lambda x: jax.linearize(fun, x)[0], reduce="count")(X)
    assert logs.data == {"y": 4, "x": 4, "one": 4}


# Bad input ----------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.vmap(f)])
def test_rows_without_room_are_an_error_that_names_the_ways_out(wrap):
    x = XS if wrap not in (jax.jit,) and wrap(len) is not len else X
    for fun, key in (
        (collatz, "n"),
        (dynamic_fori_loop, "c"),
        (logging_predicate, "asked"),
        (while_in_a_scan, "x"),
        (while_in_one_branch, "x"),
    ):
        words = [f"'{key}'", "while_loop", "`reduce=`", "`capacity=n`", "`lox.tap`"]
        with raises(ValueError, *words):
            lox.spool(wrap(fun))(x)
        with raises(ValueError, *words):
            jax.jit(lox.spool(wrap(fun)))(x)
    with raises(ValueError, "'half'"):
        lox.spool(wrap(collatz), reduce={"n": "mean"})(x)
    lox.spool(wrap(collatz), reduce={"n": "mean", "half": "sum"})(x)


def test_a_filter_that_leaves_no_rows_in_the_loop_needs_no_room():
    _, logs = lox.spool(lox.spool(log_around_the_loop, argnames="last"), reduce="count")(X)
    assert logs["x"] == 7
