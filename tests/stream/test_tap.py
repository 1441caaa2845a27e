"""What is delivered while the program runs: law 6 over the catalogue."""

import contextlib
import functools as ft
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

import lox
from lox._core import transform as _jitted
from lox._stream import emit as _emit
from lox._stream.callbacks import callback_thread
from lox._stream.tap import Listener
from support.compiled import jit_in_turn
from support.delivered import assert_delivered, heard
from support.programs import PROGRAMS, Program, logged
from support.selection import thin
from support.truth import (
    assert_trees_close,
    by_key,
    raises,
    records,
    records_in_grad,
    records_of_each,
    records_of_grad,
    result,
    result_of_each,
    run,
    slope_of,
    total_of,
)
from support.while_programs import (
    PROGRAMS as WHILE_PROGRAMS,
    XS,
    X,
    collatz,
    truth,
    truth_of_each,
)


def grad(fun):
    return jax.grad(total_of(fun))


# Ways to tap a program: how, with which argument, what it should return and deliver, and
# whether only the order of the rows of a key counts. `jit` is that of JAX, or NumPy.
PLAIN = lambda p: p.x, result, records
EACH = lambda p: p.xs, result_of_each, records_of_each
WAYS = [
    (lambda f, tap, jit: tap(f), *PLAIN, False),
    (lambda f, tap, jit: jit(tap(f)), *PLAIN, False),
    (lambda f, tap, jit: tap(jax.jit(f)), *PLAIN, False),
    (lambda f, tap, jit: jit(jax.vmap(tap(f))), *EACH, False),
    (lambda f, tap, jit: jit(tap(jax.vmap(f))), *EACH, False),
    (lambda f, tap, jit: jit(grad(tap(f))), PLAIN[0], slope_of, records_in_grad, False),
    (lambda f, tap, jit: jit(tap(grad(f))), PLAIN[0], slope_of, records_of_grad, False),
    (lambda f, tap, jit: jit(tap(f, batch=3)), *PLAIN, True),
    (lambda f, tap, jit: jit(tap(f, batch=1000)), *PLAIN, True),
    (lambda f, tap, jit: jit(jax.vmap(tap(f, batch=3))), *EACH, True),
    (lambda f, tap, jit: jit(tap(jax.vmap(f), batch=3)), *EACH, True),
]


@pytest.mark.parametrize("p", PROGRAMS, ids=lambda p: p.name)
def test_tap_delivers_what_the_eager_run_logs_in_its_order(p: Program, capsys):
    ways = [way for way in WAYS if p.grad or way[2] is not slope_of]
    for way in thin(ways, 6, PROGRAMS.index(p)):
        assert_heard(p, way, ft.partial(jit_in_turn, PROGRAMS.index(p) // 6))
        printed = capsys.readouterr().out
        # What a backward rule logs belongs to whoever is around `grad`.
        assert not printed or way[2] is slope_of


def assert_heard(p: Program, way, jit=jax.jit) -> None:
    transform, argument, output, expected, by_key = way

    def tapping(listen):
        return transform(p.fun, lambda f, **options: lox.tap(f, listen, **options), jit)

    out, found = heard(tapping, argument(p))
    assert_trees_close(out, output(p))
    assert_delivered(found, expected(p), by_key=by_key)


# Loops of unknown length --------------------------------------------------------------

every_while = pytest.mark.parametrize("fun", WHILE_PROGRAMS, ids=lambda fun: fun.__name__)


@every_while
def test_tap_delivers_what_loops_of_unknown_length_log(fun):
    one, each = (X, *truth(fun, float(X))), (XS, *truth_of_each(fun))
    number = WHILE_PROGRAMS.index(fun)
    jit = ft.partial(jit_in_turn, number // 3)
    ways = [
        (lambda tap: jit(tap(fun)), one, None),
        (lambda tap: tap(jax.jit(fun)), one, None),
        (lambda tap: jit(tap(fun)), one, 3),
        (lambda tap: jit(jax.vmap(tap(fun))), each, None),
        (lambda tap: jit(tap(jax.vmap(fun))), each, None),
        (lambda tap: jit(jax.vmap(tap(fun))), each, 3),
        (lambda tap: jit(tap(jax.vmap(fun))), each, 3),
    ]
    for transform, (x, expected, mine), batch in thin(ways, 3, number):

        def tapping(listen, transform=transform, batch=batch):
            return transform(lambda f: lox.tap(f, listen, batch=batch))

        out, found = heard(tapping, x)
        assert_trees_close(out, expected)
        assert_delivered(found, mine, by_key=batch is not None)


# What the callback gets ---------------------------------------------------------------


def counting(n, body=lambda i: {"i": i}, **options):
    """Log in a loop of `n`."""

    def fun(x):
        def step(c, i):
            lox.log(body(i), step=i, **options)
            return c + 1, 2 * i

        return jax.lax.scan(step, x, jnp.arange(n))

    return fun


def of(found, key="i"):
    return [logs[key].tolist() for logs in found]


def test_dtypes_shapes_and_steps_arrive():
    key = jax.random.key(7)

    def fun(x):
        lox.log(
            {"bf": x.astype(jnp.bfloat16), "tree": {"a": (x > 0, jax.lax.complex(x, x))}},
            step=3,
        )
        lox.log({"key": key, "none": jnp.zeros((0, 2))})
        return x

    _, (first, second) = heard(lambda listen: jax.jit(lox.tap(fun, listen)), jnp.ones(2))
    assert str(first["bf"].dtype) == "bfloat16"
    assert first["bf"].tolist() == [1, 1]
    assert first["tree"]["a"][0].tolist() == [True, True]
    assert first["tree"]["a"][1].dtype == np.complex64
    assert first.step["bf"] == 3
    assert first.step["bf"].dtype == np.int32
    assert second["key"].tolist() == jax.random.key_data(key).tolist()
    assert second["none"].shape == (0, 2)


DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int4", "uint4"),
    *("float16", "bfloat16", "float32", "complex64", "float8_e4m3fn", "float8_e5m2"),
]


@pytest.mark.parametrize("way", ["quickly", "portably"])
@pytest.mark.parametrize("dtypes", [DTYPES, *([dtype] for dtype in DTYPES)], ids=str)
def test_every_dtype_arrives(dtypes, way, request):
    request.getfixturevalue(way)
    x = np.array([[1, 0, 3], [5, 7, 2]])

    def fun(x):
        lox.log({dtype: x.astype(dtype) for dtype in dtypes}, step=3)
        lox.log({dtype: x[1, 1].astype(dtype) for dtype in dtypes})

    _, found = heard(lambda listen: jax.jit(lox.tap(fun, listen)), jnp.array(x))
    for logs, value in zip(found, (x, x[1, 1]), strict=True):
        for dtype in dtypes:
            expected = value.astype(jnp.dtype(dtype))
            assert logs[dtype].dtype == expected.dtype
            assert logs[dtype].shape == expected.shape
            assert logs[dtype].tolist() == expected.tolist()


@pytest.fixture
def quickly():
    """Call the host as this platform does."""


def test_what_is_delivered_stays_as_it_is():
    _, found = heard(lambda listen: jax.jit(lox.tap(counting(100), listen)), 0)
    assert of(found) == list(range(100))


@pytest.mark.parametrize("interval", [1, 2])
def test_steps_may_be_asked_for_later_and_on_another_thread(interval):
    def fun(x):
        return counting(6, lambda i: {"i": i + x, "tree": (x, {"a": i})})(x)

    transform = ft.partial(lox.tap, fun, interval=interval)
    _, found = heard(lambda to: jax.jit(jax.vmap(transform(to))), jnp.arange(2))
    with ThreadPoolExecutor(2) as pool:
        steps = list(pool.map(lambda logs: logs.steps, found))
    expected = [(i, x) for i in range(0, 6, interval) for x in range(2)]
    assert [(s["step"]["i"], s["example"]["tree"]) for s in steps] == expected
    assert of(found) == [i + x for i, x in expected]
    assert [logs["tree"] for logs in found] == [(x, {"a": i}) for i, x in expected]


def test_the_records_of_a_body_come_in_one_call():
    calls = []

    def fun(x):
        def step(c, i):
            lox.log({"a": i})
            lox.log({"b": c, "c": c + 1}, step=i)
            lox.log({"a": 2 * i})
            return c + 1, None

        return jax.lax.scan(step, x, jnp.arange(5))

    tapped = jax.jit(lox.tap(fun, calls.append))
    assert tapped.lower(0).as_text().count("custom_call @xla_buffer_python") == 1
    tapped(0)
    lox.barrier()
    assert [list(logs) for logs in calls] == [["a"], ["b", "c"], ["a"]] * 5


def host_calls(fun, x) -> list:
    """What reaches the host, one packet a call, when a tapped function runs."""
    calls = []
    with mock.patch.object(Listener, "__call__", lambda self, packet: calls.append(packet)):
        fun(x)
        jax.effects_barrier()
    return calls


def test_a_batch_of_examples_is_one_host_call():
    def fun(x):
        return counting(3, lambda i: {"i": x})(x)

    # The first does not depend on the example.
    for logging, batch in ((counting(3), ()), (fun, (256,))):
        tapped = jax.jit(jax.vmap(lox.tap(logging, print)))
        calls = host_calls(tapped, jnp.arange(256.0))
        assert [r.batch for p in calls for r in p.records()] == [batch] * 3


def test_threads_of_jax_keep_what_they_have_between_host_calls():
    own, calls = threading.local(), []

    def fun(x):
        # Enough work for JAX to use its threads.
        def step(x, _):
            x = jnp.tanh(x @ x)
            lox.log({"sum": x.sum()})
            return x, None

        return jax.lax.scan(step, x, length=50)[0]

    def hear(self, packet):
        own.calls = getattr(own, "calls", 0) + 1
        calls.append((threading.get_native_id(), own.calls))

    with mock.patch.object(Listener, "__call__", hear):
        tapped = jax.jit(lox.tap(fun, print))
        for _ in range(10):
            tapped(jnp.eye(256))
            jax.effects_barrier()
    threads = {thread for thread, _ in calls}
    assert threads != {threading.get_native_id()}
    # Not a new state of Python for each call.
    for thread in threads:
        numbers = [number for other, number in calls if other == thread]
        assert numbers == list(range(1, len(numbers) + 1))


def test_examples_come_in_order_with_their_index():
    def fun(x, y):
        lox.log({"sum": x + y, "x": x})
        lox.log({"one": 1})

    each = jax.vmap(jax.vmap(lambda x, y: lox.tap(fun, found.append)(x, y), (None, 0)))
    found = []
    each(jnp.arange(2.0), jnp.array([[10.0, 20, 30]] * 2))
    lox.barrier()
    sums = [logs for logs in found if "sum" in logs]
    assert of(sums, "sum") == [10, 20, 30, 11, 21, 31]
    assert [logs.steps["example"]["x"].tolist() for logs in sums] == [
        [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]
    ]  # fmt: skip
    assert [logs.steps for logs in found if "one" in logs] == [{}]


def log_in_a_map(n):
    return lambda: jax.lax.map(lambda x: logged("x", x), jnp.arange(n))


def log_in_a_while_loop(n):
    return lambda: jax.lax.while_loop(lambda i: i < n, lambda i: logged("x", i) + 1, 0)


def log_in_nested_while_loops(n):
    def one(i):
        return logged("x", i) + 1

    def two(i):
        return jax.lax.while_loop(lambda i: i % 2 > 0, one, one(i))

    return lambda: jax.lax.while_loop(lambda i: i < n, two, 0)


@pytest.mark.parametrize(
    "make", [log_in_a_map, log_in_a_while_loop, log_in_nested_while_loops]
)
def test_an_interval_is_applied_before_a_batch(make):
    for interval, batch in ((2, 2), (3, 2), (2, 3), (5, 1)):
        calls = []
        lox.tap(make(8), calls.append, interval=interval, batch=batch)()
        kept = list(range(0, 8, interval))
        expected = [kept[i : i + batch] for i in range(0, len(kept), batch)]
        assert [logs["x"].tolist() for logs in calls] == expected


def test_a_batch_of_an_interval_has_never_more_rows_than_asked_for():
    def three_rows(x):
        jax.lax.map(lambda i: logged("x", 3 * x + i), jnp.arange(3))

    calls = []
    lox.tap(jax.lax.map, calls.append, interval=2, batch=2)(three_rows, jnp.arange(5))
    assert [row for logs in calls for row in logs["x"].tolist()] == [*range(0, 15, 2)]
    assert max(len(logs["x"]) for logs in calls) == 2


def test_a_step_of_the_user_that_is_called_example_is_an_error_under_vmap(capsys):
    def fun(x, y):
        jax.lax.cond(x > 0, lambda: show(x, y), lambda: None)

    def show(x, y):
        lox.log({"x": x, "y": y}, example=7)

    calls, xs = [], jnp.arange(2.0)
    tapped = jax.vmap(lox.tap(fun, calls.append), (0, None))
    for of_all in (tapped, jax.jit(tapped)):
        with raises(ValueError, "'x', 'y'", "step called 'example'", r"tap\(jax.vmap"):
            of_all(xs, 1)
    assert not calls
    lox.tap(fun, calls.append)(1.0, 1)
    lox.tap(jax.vmap(fun, (0, None)), calls.append)(xs, 1)
    assert [logs.steps["example"]["x"].tolist() for logs in calls] == [7, [7, 7]]
    jax.jit(jax.vmap(fun, (0, None)))(xs, 1)
    lox.barrier()
    lox.tap(jax.vmap(fun, (0, None)))(xs, 1)
    line = "{'x': [1.0], 'y': [1]} example=[7] index=[1]\n"
    assert capsys.readouterr().out == 2 * line


def test_a_step_of_the_user_that_is_called_process_is_an_error():
    with raises(ValueError, "'x'", "step called 'process'", "process=True"):
        lox.tap(lambda: lox.log({"x": 1}, process=7), print, process=True)()


def test_examples_that_do_not_log_are_not_called():
    calls = []

    def fun(x):
        return jax.lax.cond(x > 0, lambda: logged("pos", x), lambda: -x)

    tapped = jax.jit(jax.vmap(lox.tap(fun, calls.append)))
    tapped(jnp.array([-1.0, 2.0, -3.0]))
    lox.barrier()
    assert of(calls, "pos") == [2.0]
    assert calls[0].steps["example"]["pos"] == 1
    assert not host_calls(tapped, jnp.array([-1.0, -2.0, -3.0]))


def test_tap_of_vmap_says_which_examples_logged():
    def fun(x):
        return jax.lax.cond(x > 0, lambda: logged("pos", x), lambda: -x)

    _, (logs,) = heard(
        lambda listen: jax.jit(lox.tap(jax.vmap(fun), listen)), jnp.array([-1.0, 2.0])
    )
    assert logs.valid["pos"].tolist() == [False, True]
    assert logs["pos"][1] == 2


def test_filters_prefix_and_tags():
    def fun(x):
        lox.log({"a": x, "b": 2 * x}, tags="one")
        lox.log({"a": 3 * x}, tags="two")

    def keys(**options):
        _, found = heard(lambda listen: jax.jit(lox.tap(fun, listen, **options)), 1.0)
        return [(list(logs), logs.tags[next(iter(logs))]) for logs in found]

    assert keys(argnames="a") == [(["a"], ("one",)), (["a"], ("two",))]
    assert keys(tags=["two"]) == [(["a"], ("two",))]
    assert keys(argnames="b", tags="one", prefix="p/") == [(["p/b"], ("one",))]


def test_a_filter_that_matches_nothing_warns():
    with pytest.warns(UserWarning, match=r"`argnames` \['z'\] of `lox.tap` match nothing"):
        lox.tap(counting(2), print, argnames="z")(0)


def test_what_no_filter_matches_is_dropped_and_not_printed(capsys):
    def fun(x):
        lox.log({"a": x})
        lox.log({"b": x, "c": x}, tags="other")

    _, found = heard(lambda listen: jax.jit(lox.tap(fun, listen, argnames="a")), 1.0)
    assert of(found, "a") == [1.0]
    assert list(lox.spool(fun, tags="other")(1.0)[1]) == ["b", "c"]
    assert list(jax.jit(lox.spool(fun, argnames="b"))(1.0)[1]) == ["b"]
    bound = lox.bind(lox.spool(lox.bind(fun, prefix="in/"), argnames="in/c"), step=1)
    assert list(bound(1.0)[1]) == ["in/c"]
    (_, inner), outer = lox.spool(lox.spool(fun, argnames="c"), argnames="b")(1.0)
    assert (list(inner), list(outer)) == (["c"], ["b"])
    lox.barrier()
    assert capsys.readouterr().out == ""


def test_the_default_callback_prints(capsys):
    def fun(x):
        lox.log({"x": x, "y": 2}, step=3)
        return jax.vmap(lambda x: jax.lax.cond(x > 0, lambda: logged("v", x), lambda: x))(
            jnp.stack([x, -x])
        )

    jax.jit(lox.tap(fun))(1.0)
    lox.barrier()
    assert (
        capsys.readouterr().out == "{'x': 1.0, 'y': 2} step=3\n{'v': [1.0]} example=[0]\n"
    )


def test_records_go_on_to_whoever_is_around(capsys):
    inner, outer = [], []
    tapped = lox.tap(lox.tap(counting(3), inner.append), outer.append)
    _, logs = jax.jit(lox.spool(tapped))(0)
    lox.barrier()
    assert logs["i"].tolist() == [0, 1, 2] == of(inner) == of(outer)
    assert capsys.readouterr().out == ""


def test_what_was_heard_is_not_printed_by_a_filter_around(capsys):
    def fun(x):
        lox.log({"a": x, "b": 2 * x})
        lox.log({"c": x})

    found = []
    tapped = lox.tap(fun, found.append, argnames=["a", "b"])
    lox.spool(tapped, argnames="a")(1.0)
    lox.barrier()
    lox.spool(lox.spool(fun, argnames=["a", "b"], keep_logs=True), argnames="a")(1.0)
    assert [list(logs) for logs in found] == [["a", "b"]]
    assert capsys.readouterr().out == ""


def test_a_reduction_of_the_log_call_is_for_spool():
    fun = counting(3, reduce="mean")
    (_, logs), found = heard(lambda listen: jax.jit(lox.spool(lox.tap(fun, listen))), 0)
    assert of(found) == [0, 1, 2]
    assert logs["i"] == 1.0


# interval and batch -------------------------------------------------------------------


@pytest.mark.parametrize("interval", [1, 2, 3, 100])
@pytest.mark.parametrize("batch", [None, 1, 2, 100])
def test_every_kth_row_is_delivered(interval, batch):
    def fun(x):
        lox.log({"i": -1})
        counting(7)(x)
        lox.log({"i": 7, "j": x})
        lox.log({"i": 8})

    options = {"interval": interval, "batch": batch}
    _, found = heard(lambda listen: jax.jit(lox.tap(fun, listen, **options)), 0)
    rows = [i for logs in found if "i" in logs for i in np.atleast_1d(logs["i"])]
    assert rows == list(range(-1, 9))[::interval]
    assert all(found)
    assert [logs["j"] for logs in found if "j" in logs] == [0]


def test_nothing_that_is_not_wanted_reaches_the_host():
    assert len(host_calls(jax.jit(lox.tap(counting(1000), print, interval=100)), 0)) == 10


def test_batches_have_so_many_rows_and_the_rest():
    _, found = heard(lambda listen: jax.jit(lox.tap(counting(10), listen, batch=4)), 0)
    assert of(found) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [logs.step["i"].tolist() for logs in found] == of(found)


def test_batches_of_a_short_a_reversed_and_an_unrolled_loop():
    def fun(n, **options):
        def run(x):
            body = lambda c, i: (c + 1, logged("i", i))  # noqa: E731
            return jax.lax.scan(body, x, jnp.arange(n), **options)

        return run

    for n, options in ((3, {}), (10, {"reverse": True}), (10, {"unroll": 4})):
        transform = ft.partial(lox.tap, fun(n, **options), batch=4)
        out, found = heard(lambda listen, to=transform: jax.jit(to(listen)), 0)
        expected, mine = run(fun(n, **options), 0)
        assert_trees_close(out, expected)
        assert_delivered(found, mine, by_key=True)
        assert len(found) == -(-n // 4)


def test_nested_loops_are_collected_over_the_outermost_one():
    def fun(x):
        def outer(c, i):
            lox.log({"outer": i})
            return counting(3, lambda j: {"inner": 10 * i + j})(c)[0], None

        return jax.lax.scan(outer, x, jnp.arange(4))[0]

    _, found = heard(lambda listen: jax.jit(lox.tap(fun, listen, batch=6)), 0)
    assert [list(map(len, logs.values())) for logs in found] == [[2, 6], [2, 6]]
    assert [of([logs], "outer") for logs in found] == [[[0, 1]], [[2, 3]]]


def test_loops_of_several_rows_an_iteration_end_without_a_rest_if_they_can():
    def twice(x):
        def step(c, i):
            lox.log({"i": 2 * i})
            lox.log({"i": 2 * i + 1})
            return jnp.tanh(c), None

        return jax.lax.scan(step, x, jnp.arange(12))[0]

    _, found = heard(lambda listen: jax.jit(lox.tap(twice, listen, batch=10)), 0.5)
    assert [len(logs["i"]) for logs in found] == [8, 8, 8]
    text = jax.jit(lox.tap(twice, print, batch=10)).lower(0.5).as_text()
    assert text.count("tanh") == 1


def never(x):
    """Log in a loop that never runs, inside of one that does."""
    return jax.lax.scan(lambda c, i: (counting(0)(c)[0], None), x, jnp.arange(3))[0]


@pytest.mark.parametrize("options", [{"batch": 4}, {"batch": 4, "interval": 2}], ids=str)
def test_loops_in_which_nothing_is_logged_deliver_nothing(options):
    def with_others(x):
        return jax.lax.scan(lambda c, i: (never(logged("j", c)), None), x, jnp.arange(3))[0]

    rows = [7, 7] if "interval" in options else [7, 7, 7]
    for fun, expected in ((never, []), (with_others, [rows])):
        tapping = ft.partial(lox.tap, fun, **options)
        out, found = heard(lambda hear, tapping=tapping: jax.jit(tapping(hear)), 7)
        assert out == 7
        assert of(found, "j") == expected


def test_a_batch_costs_one_host_call_and_no_more():
    assert len(host_calls(jax.jit(lox.tap(counting(1000), print, batch=100)), 0)) == 10


def searching(steps):
    """A loop around one whose length is known only when it runs."""

    def fun(x):
        def search(state):
            i, end = state
            lox.log({"i": i}, end=end)
            return i + 1, end

        def step(total, end):
            i, _ = jax.lax.while_loop(lambda state: state[0] < state[1], search, (0, end))
            jax.lax.cond(end % 2 == 0, lambda: logged("even", end), lambda: end)
            return total + i, None

        return jax.lax.scan(step, 0, x + jnp.arange(steps))[0]

    return fun


def searched(x, steps) -> dict[str, list]:
    """What is logged there."""
    ends = range(x, x + steps)
    return {
        "i": [i for end in ends for i in range(end)],
        "even": [end for end in ends if end % 2 == 0],
        "end": [end for end in ends for _ in range(end)],
    }


def joined(found, key="i"):
    return [x for logs in found if key in logs for x in logs[key].ravel().tolist()]


def test_batches_go_on_through_loops_of_unknown_length():
    out, found = heard(lambda hear: jax.jit(lox.tap(searching(9), hear, batch=5)), 0)
    expected = searched(0, 9)
    assert out == len(expected["i"]) == 36
    assert [len(logs["i"]) for logs in found] == [5] * 7 + [1]
    assert joined(found) == expected["i"]
    assert joined(found, "even") == expected["even"]
    assert joined([logs.end for logs in found]) == expected["end"]


def test_such_batches_of_all_examples_come_in_one_host_call():
    tapped = jax.jit(jax.vmap(lox.tap(searching(9), print, batch=20)))
    assert len(host_calls(tapped, jnp.zeros(64, int))) == 2  # for 36 rows of each
    # For 36, 45 and 54 rows: an example that waits for the others keeps its own.
    assert len(host_calls(tapped, jnp.arange(3))) == 4


def test_each_example_has_all_rows_of_such_batches():
    for transform in (lambda f: jax.jit(jax.vmap(f)), lambda f: jax.vmap(jax.jit(f))):
        tapping = lambda hear, to=transform: to(lox.tap(searching(5), hear, batch=7))  # noqa: E731
        _, found = heard(tapping, jnp.array([3, 0, 4]))
        for number, x in enumerate((3, 0, 4)):
            for key in ("i", "even"):
                of_key = [logs for logs in found if key in logs]
                own = [logs for logs in of_key if logs.example[key][0] == number]
                assert joined(own, key) == searched(x, 5)[key]


def test_where_rows_cannot_wait_the_inner_loop_delivers_them():
    @jax.custom_jvp
    def count(end):
        return jax.lax.while_loop(lambda i: i < end, lambda i: logged("i", i + 1), 0)

    count.defjvp(lambda primals, tangents: (count(*primals), *tangents))

    def in_a_rule(x):
        return jax.lax.scan(lambda c, end: (c + count(end), None), x, jnp.arange(4))[0]

    def with_a_predicate(x):
        return jax.lax.while_loop(
            lambda end: logged("end", end) < 4, lambda end: end + count.fun(end) // end, 1
        )

    for fun in (in_a_rule, with_a_predicate):
        _, found = heard(lambda hear, f=fun: jax.jit(lox.tap(f, hear, batch=10)), 0)
        assert joined(found) == [1, 1, 2, 1, 2, 3]
    assert joined(found, "end") == [1, 2, 3, 4]


def test_a_branch_in_a_rule_that_differentiates_its_function_is_delivered_in_order():
    runs = []

    @jax.custom_jvp
    def mean(v, x):
        def one(v):
            jax.debug.callback(runs.append, v)
            v = jax.lax.cond(v > 0, lambda v: logged("x", x) * v, lambda v: 2 * v, v)
            return logged("v", v)

        return jax.vmap(one)(jnp.stack([v - 1, v + 1])).mean()

    @mean.defjvp
    def _(primals, tangents):
        v, x = primals
        return jax.jvp(lambda v: mean.fun(v, x), (v,), tangents[:1])

    tapping = lambda hear: jax.grad(lox.tap(lambda x: mean(x, x), hear))  # noqa: E731
    slope, found = heard(lambda hear: jax.jit(tapping(hear)), 0.5)
    # The first of two examples, -0.5, takes the branch without a log.
    assert slope == (2 + 0.5) / 2
    assert [[*logs] for logs in found] == [["x"], ["v"]]
    assert found[0].valid["x"].tolist() == [False, True]
    assert found[1]["v"].tolist() == [-1, 0.75]
    # The function runs once, as it does without lox.
    jax.effects_barrier()
    assert len(runs) == 2


# The callback, and when it runs -------------------------------------------------------


def test_it_returns_after_its_callbacks_unless_jitted():
    def slow(logs):
        time.sleep(0.02)
        found.append(logs)

    for call in (
        lambda: lox.tap(counting(5), slow)(0),
        lambda: jax.vmap(lox.tap(counting(5), slow))(jnp.zeros(2)),
        lambda: jax.grad(lambda x: lox.tap(counting(5), slow)(x)[0])(0.0),
    ):
        found = []
        call()
        assert len(found) == 5


@pytest.mark.parametrize(
    "transform",
    [lambda f, hear: lox.tap(jax.jit(f), hear), lambda f, hear: jax.jit(lox.tap(f, hear))],
    ids=["tap of jit", "jit of tap"],
)
@pytest.mark.parametrize("fun", [counting(5), lambda x: logged("x", x)])
def test_a_jitted_function_returns_before_its_callbacks(fun, transform):
    may_continue, found = threading.Event(), []

    def slow(logs):
        may_continue.wait(10)
        found.append(logs)

    out = transform(fun, slow)(0)
    jax.block_until_ready(out)
    assert found == []
    may_continue.set()
    lox.barrier()
    assert found


def test_callbacks_may_use_jax_sleep_and_log(capsys):
    means = []

    def callback(logs):
        time.sleep(0.001)
        lox.log({"seen": logs["i"]})
        means.append(float(jnp.mean(jax.jit(lambda x: x @ x)(jnp.full((64, 64), 2.0)))))

    tapped = jax.jit(lox.tap(counting(20), callback))
    for _ in range(3):
        tapped(0)
    lox.barrier()
    assert means == [256.0] * 60
    assert len(capsys.readouterr().out.splitlines()) == 60


def test_a_slow_callback_makes_the_program_wait(monkeypatch):
    monkeypatch.setattr(callback_thread, "max_calls", 5)
    ahead = []

    def slow(logs):
        time.sleep(0.002)
        ahead.append(len(arrived) - len(ahead))

    arrived, take = [], Listener.__call__

    def noted(self, packet):
        take(self, packet)
        arrived.append(packet)

    monkeypatch.setattr(Listener, "__call__", noted)
    jax.jit(lox.tap(counting(60), slow))(0)
    lox.barrier()
    assert len(ahead) == 60
    assert max(ahead) <= 8


def test_several_threads_are_heard():
    found = []
    tapped = jax.jit(lox.tap(counting(50), found.append))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(tapped, range(8)))
    lox.barrier()
    assert sorted(of(found)) == sorted([*range(50)] * 8)


class Oops(Exception):
    pass


def fails_at(step):
    def callback(logs):
        seen.append(int(logs["i"]))
        if logs["i"] == step:
            raise Oops(f"no {step}")

    seen: list[int] = []
    return callback, seen


def test_a_callback_that_raises_stops_the_program():
    callback, seen = fails_at(57)

    def fun(x):
        def step(c, i):
            lox.log({"i": i})
            return jnp.tanh(c @ c), None

        return jax.lax.scan(step, jnp.full((100, 100), x), jnp.arange(5000))[0].sum()

    with pytest.raises(RuntimeError, match=r"`lox\.tap` raised Oops: no 57") as caught:
        lox.tap(fun, callback)(1.0)
    assert isinstance(caught.value.__cause__, Oops)
    assert seen == list(range(58))
    # The next run is heard again, up to the same place.
    with pytest.raises(RuntimeError, match="no 57"):
        lox.tap(jax.jit(fun), callback)(1.0)
    assert seen == [*range(58)] * 2


def test_a_callback_that_raises_in_a_jitted_program_is_in_the_message():
    callback, seen = fails_at(57)

    def fun(x):
        def step(c, i):
            lox.log({"i": i})
            return jnp.tanh(c @ c), None

        return jax.lax.scan(step, jnp.full((100, 100), x), jnp.arange(5000))[0].sum()

    with pytest.raises(Exception, match=r"`lox\.tap` raised Oops: no 57"):
        jax.block_until_ready(jax.jit(lox.tap(fun, callback))(1.0))
    with contextlib.suppress(Exception):
        lox.barrier()
    assert seen == list(range(58))


def test_the_barrier_raises_what_the_last_callbacks_raised():
    callback, _ = fails_at(2)
    jax.jit(lox.tap(counting(3), callback))(0)
    with pytest.raises(RuntimeError, match=r"`lox\.tap` raised Oops: no 2") as caught:
        lox.barrier()
    assert isinstance(caught.value.__cause__, Oops)
    lox.barrier()


def test_a_failing_listener_does_not_silence_another():
    # At the last record: the program has no more that it could stop at.
    callback, _ = fails_at(3)
    found = []
    jax.jit(lox.tap(lox.tap(counting(4), found.append), callback))(0)
    with pytest.raises(RuntimeError, match="no 3"):
        lox.barrier()
    assert of(found) == [0, 1, 2, 3]


def test_an_error_reaches_the_thread_whose_callback_raised():
    def bad(logs):
        raise Oops

    good, failing = (lox.tap(lambda x: logged("x", x), hear) for hear in (str, bad))

    def raised(fun):
        try:
            fun(1.0)
        except RuntimeError:
            return True
        return False

    with ThreadPoolExecutor(2) as pool:
        for _ in range(30):
            assert [*pool.map(raised, [good, failing, good])] == [False, True, False]


def test_a_callback_may_start_a_tapped_program():
    inner = jax.jit(lox.tap(counting(3), lambda logs: found.append(int(logs["i"]))))
    found = []
    jax.jit(lox.tap(counting(4), lambda logs: inner(0)))(0)
    lox.barrier()
    assert found == [0, 1, 2] * 4


def test_errors_of_the_program_stay_what_they_are():
    def fun(x):
        lox.log({"x": x})
        raise Oops("my own")

    with pytest.raises(Oops, match="my own"):
        lox.tap(fun, print)(1.0)


# Order --------------------------------------------------------------------------------


def test_two_sites_of_a_loop_never_swap():
    """Nor do two loops that do not depend on each other, or several runs."""

    def fun(x):
        def step(c, i):
            lox.log({"a": i})
            jax.lax.cond(i % 2 == 0, lambda: lox.log({"even": i}) and None, lambda: None)
            lox.log({"b": i})
            return c * 0.5, None

        y, _ = jax.lax.scan(step, x, jnp.arange(10))
        z, _ = jax.lax.scan(step, x + 1, jnp.arange(10))
        return y + z

    expected = []
    for i in range(10):
        expected += ["a", "even", "b"] if i % 2 == 0 else ["a", "b"]
    found = []
    tapped = jax.jit(lox.tap(fun, lambda logs: found.append(next(iter(logs)))))
    for _ in range(RUNS):
        tapped(1.0)  # without waiting
    lox.barrier()
    assert found == expected * 2 * RUNS


RUNS = int(os.environ.get("LOX_RUNS", "500"))


@pytest.mark.parametrize("batch", [None, 2])
def test_64_bits(batch):
    enable = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable(True):
        for fun, x in ((counting(5), jnp.int64(0)), (collatz, jnp.float64(5))):
            mine = run(fun, x)[1]
            transform = ft.partial(lox.tap, fun, batch=batch)
            _, found = heard(lambda listen, to=transform: jax.jit(to(listen)), x)
            assert_delivered(found, mine, by_key=True)
            _, logs = jax.jit(lox.spool(fun, capacity=24, interval=2))(x)
            rows = {key: len(own) for key, own in logs.compact().items()}
            assert rows == {k: -(-len(own) // 2) for k, own in by_key(mine).items()}


# The portable way ---------------------------------------------------------------------


@pytest.fixture
def portably():
    """Call the host as on platforms that have no quicker way."""
    mlir.register_lowering(_emit.emit_p, _emit._portably, platform="cpu")
    yield
    mlir.register_lowering(_emit.emit_p, _emit._quickly, platform="cpu")


@pytest.mark.parametrize("p", thin(PROGRAMS, 6), ids=lambda p: p.name)
def test_the_portable_way_delivers_the_same(p: Program, portably):
    ways = [way for way in WAYS if p.grad or way[2] is not slope_of]
    for way in thin(ways, 4, PROGRAMS.index(p) // 6):
        assert_heard(p, way)


def test_a_callback_that_raises_the_portable_way(portably):
    callback, seen = fails_at(57)
    with pytest.raises(RuntimeError, match=r"`lox\.tap` raised Oops: no 57") as caught:
        lox.tap(counting(20000), callback)(0)
    assert isinstance(caught.value.__cause__, Oops)
    assert seen == list(range(58))


ON_FOUR_DEVICES = """
import jax, jax.numpy as jnp, lox
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("i")))
def fun(x):
    def step(c, i):
        lox.log({"sum": c.sum()}, step=i)
        jax.lax.cond(i % 2 == 0, lambda: lox.log({"even": i}) and None, lambda: None)
        lox.log({"x": c})
        return c * 0.5, None
    return jax.lax.scan(step, x, jnp.arange(10))[0]
"""


def test_a_program_on_several_devices_is_heard_once_and_in_order():
    flags = "--xla_force_host_platform_device_count=4"
    program = (
        ON_FOUR_DEVICES
        + """
tapped = jax.jit(lox.tap(fun, lambda logs: print(*logs, logs.get("x", x).shape)))
for _ in range(20):
    tapped(x)
lox.barrier()
"""
    )
    code, out, err = ends(program, flags=flags)
    body = [["sum (8,)", "even (8,)", "x (8,)"], ["sum (8,)", "x (8,)"]]
    assert code == 0, err
    assert out.splitlines() == [line for i in range(10) for line in body[i % 2]] * 20


def test_a_callback_that_raises_does_not_stop_one_of_several_devices():
    flags = "--xla_force_host_platform_device_count=4"
    program = (
        ON_FOUR_DEVICES
        + """
try:
    lox.tap(fun, lambda logs: 1 / 0)(x)
except RuntimeError as error:
    print(error, type(error.__cause__))
"""
    )
    code, out, err = ends(program, flags=flags)
    assert code == 0, err
    assert out.startswith("The callback of `lox.tap` raised ZeroDivisionError: division by")


def test_taps_in_one_program_deliver_in_order():
    found = []

    @jax.jit
    def f(x):
        for i in range(3):
            x = lox.tap(jnp.tanh if i % 2 else heavy, found.append)(x)
            lox.tap(lambda i=i: lox.log({"done": jnp.int32(i)}) and None, found.append)()
        return x

    def heavy(x):
        x = jax.lax.fori_loop(0, 5, lambda i, x: jnp.tanh(x @ x), x)
        lox.log({"sum": x.sum()})
        return x

    for _ in range(20):
        f(jnp.ones((100, 100)))
    lox.barrier()
    keys = [key for logs in found for key in logs]
    assert keys == ["sum", "done", "done", "sum", "done"] * 20


# The end of the process ---------------------------------------------------------------


def ends(program: str, interrupt_at: str = "", flags: str = "") -> tuple[int, str, str]:
    """Run a program of its own; its exit code and what it wrote."""
    command = [sys.executable, "-u", "-c", program]
    given = os.environ.get("XLA_FLAGS", "")
    environment = {**os.environ, "XLA_FLAGS": f"{given} {flags}".strip()}
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=environment)
    lines = ""
    if interrupt_at:
        assert process.stdout is not None
        while interrupt_at not in lines:
            lines += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        # `communicate` alone would skip what `readline` has read beyond the line.
        limit = threading.Timer(120, process.kill)
        limit.start()
        lines += process.stdout.read()
        limit.cancel()
    out, err = process.communicate(timeout=120)
    return process.returncode, lines + out, err


LOOP = """
import time, jax, jax.numpy as jnp, lox
def fun(x):
    def step(c, i):
        lox.log({"i": i})
        return jnp.tanh(c @ c), None
    return jax.lax.scan(step, jnp.full((50, 50), x), jnp.arange(500))[0].sum()
def show(logs):
    jnp.mean(logs["i"] * 1.0)
    print("got", logs["i"])
"""


def test_exit_right_after_dispatch_delivers_everything():
    code, out, err = ends(LOOP + "jax.jit(lox.tap(fun, show))(1.0)")
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"got {i}" for i in range(500)]


def test_an_interrupt_ends_the_process_with_what_was_delivered_intact():
    slow = LOOP.replace('print("got"', 'time.sleep(0.01); print("got"')
    code, out, err = ends(slow + "lox.tap(fun, show)(1.0)", interrupt_at="got 9")
    lines = out.splitlines()
    assert lines == [f"got {i}" for i in range(len(lines))]
    assert len(lines) > 9
    assert code != 0
    assert "KeyboardInterrupt" in err


def test_a_callback_that_raises_at_the_end_is_reported():
    program = LOOP.replace('print("got", logs["i"])', '1 / (499 - int(logs["i"]))')
    _, _, err = ends(program + "jax.jit(lox.tap(fun, show))(1.0)")
    assert "`lox.tap` raised ZeroDivisionError" in err


# Bad input ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"callback": 3}, TypeError, "The callback of `lox.tap` must be a function, not 3"),
        ({"batch": 0}, ValueError, "`batch` must be at least 1, not 0"),
        ({"interval": 0}, ValueError, "`interval` must be at least 1, not 0"),
        ({"prefix": 1}, TypeError, "`prefix` must be a string, not 1"),
        ({"argnames": 3}, TypeError, "`argnames` takes a string or several"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        lox.tap(counting(3), **options)


def test_a_tap_takes_a_function():
    with pytest.raises(TypeError, match=r"`lox\.tap` takes a function"):
        lox.tap(3)  # pyright: ignore[reportArgumentType]


class Unhashable(list):
    def __call__(self, logs):
        self.append(int(logs["i"]))


class Equal(Unhashable):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


@pytest.mark.parametrize("kind", [Unhashable, Equal])
def test_callbacks_are_told_apart(kind):
    first, second, fun = kind(), kind(), jax.jit(counting(3))
    for _ in range(2):
        lox.tap(fun, first)(0)
        lox.tap(fun, second)(0)
    lox.barrier()
    assert list(first) == list(second) == [0, 1, 2] * 2


def test_programs_of_old_callbacks_are_let_go():
    fun = jax.jit(lambda x: logged("x", x))
    for i in range(40):
        lox.tap(fun, lambda logs, i=i: None)(1.0)
    assert len(_jitted._transformed[fun]) == 32


def test_another_thread_may_let_go_of_a_program_that_is_about_to_be_called():
    class LetGo(dict):
        def __contains__(self, options):
            is_there = super().__contains__(options)
            self.clear()
            return is_there

    found, fun = [], jax.jit(lambda x: logged("x", x))
    _jitted._transformed[fun] = LetGo()
    for _ in range(2):
        lox.tap(fun, found.append)(1.0)
    lox.barrier()
    assert of(found, "x") == [1.0, 1.0]


def test_a_jitted_function_is_traced_once():
    traces = []

    @jax.jit
    def fun(x):
        traces.append(x)
        return logged("i", x)

    for _ in range(3):
        lox.tap(fun)(1)
    assert len(traces) == 1
