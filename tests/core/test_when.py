"""`when`: conditions on records, asked on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.truth import raises

XS = jnp.array([1.0, 0.0, 4.0, -1.0])


def logs_in_a_scan(xs):
    def step(i, x):
        lox.log({"log": jnp.log(x), "x": x}, step=i)
        return i + 1, x

    return jax.lax.scan(step, 0, xs)[1]


def large(logs):
    return logs["x"] > 0.5


def tapped(transform, *args, **options):
    """What a callback gets, and how often it is called."""
    found = []
    out = transform(lambda fun: lox.tap(fun, found.append, **options))(*args)
    lox.barrier()
    return out, found


WAYS = {
    "eager": lambda tap: tap(logs_in_a_scan),
    "jit": lambda tap: jax.jit(tap(logs_in_a_scan)),
    "of jit": lambda tap: tap(jax.jit(logs_in_a_scan)),
}


@pytest.mark.parametrize("way", WAYS)
def test_tap_calls_only_for_records_for_which_it_is_true(way):
    for _ in range(2):
        out, found = tapped(WAYS[way], XS, when=lox.nonfinite)
        assert list(out) == list(XS)
        assert [logs.step["log"].item() for logs in found] == [1, 3]
        assert np.isneginf(found[0]["log"])
        assert np.isnan(found[1]["log"])
        _, found = tapped(WAYS[way], XS, when=large)
        assert [logs["x"].item() for logs in found] == [1, 4]


def test_it_is_asked_for_each_example():
    xs = jnp.stack([XS, -XS])
    expected = [(0, 1), (0, 3), (1, 0), (1, 1), (1, 2)]
    inside = lambda tap: jax.jit(jax.vmap(tap(logs_in_a_scan)))  # noqa: E731
    _, found = tapped(inside, xs, when=lox.nonfinite)
    assert sorted((int(r.example["x"]), int(r.step["x"])) for r in found) == expected
    outside = lambda tap: jax.jit(tap(jax.vmap(logs_in_a_scan)))  # noqa: E731
    _, found = tapped(outside, xs, when=lox.nonfinite)
    places = [
        (example, int(logs.step["x"][example]))
        for logs in found
        for example in np.flatnonzero(logs.valid.get("x", [True, True]))
    ]
    assert sorted(places) == expected


def test_tap_with_batch_and_interval_counts_the_rows_that_are_left():
    _, found = tapped(WAYS["jit"], XS, when=lox.nonfinite, batch=4)
    assert [list(logs.step["x"]) for logs in found] == [[1, 3]]
    _, found = tapped(WAYS["jit"], XS, when=lox.nonfinite, interval=2)
    assert [int(logs.step["x"]) for logs in found] == [1]


def test_in_a_loop_of_unknown_length():
    def fun(x):
        def body(x):
            lox.log({"x": x})
            return x - 1

        return jax.lax.while_loop(lambda x: x > 0, body, x)

    odd = lambda logs: logs["x"] % 2 == 1  # noqa: E731
    for batch in (None, 2):
        _, found = tapped(lambda tap: jax.jit(tap(fun)), 6, when=odd, batch=batch)
        assert [int(x) for logs in found for x in np.atleast_1d(logs["x"])] == [5, 3, 1]
    _, logs = jax.jit(lox.spool(fun, when=odd, capacity=2))(6)
    assert list(logs.compact()["x"]) == [3, 1]
    _, logs = jax.jit(lox.spool(fun, when=odd, reduce="sum"))(6)
    assert logs["x"] == 9


def test_while_it_is_false_the_host_is_not_called(monkeypatch):
    from lox._stream.tap import Listener

    calls = []
    receive = Listener.__call__
    monkeypatch.setattr(
        Listener, "__call__", lambda self, packet: (calls.append(1), receive(self, packet))
    )
    for options in ({}, {"batch": 2}):
        _, found = tapped(WAYS["jit"], jnp.ones(50), when=lox.nonfinite, **options)
        assert not calls
        assert not found
    tapped(WAYS["jit"], XS, when=lox.nonfinite)
    assert len(calls) == 2


def test_the_host_call_of_the_compiled_program_stands_in_a_branch():
    def text(when):
        tap = lox.tap(logs_in_a_scan, lambda logs: None, when=when)
        return jax.jit(tap).lower(XS).as_text()

    assert "stablehlo.case" in text(lox.nonfinite)
    assert "stablehlo.case" not in text(None)


def test_spool_keeps_the_rows_for_which_it_is_true():
    for _ in range(2):
        _, logs = jax.jit(lox.spool(logs_in_a_scan, when=large))(XS)
        assert list(logs.valid["x"]) == [True, False, True, False]
        assert list(logs.compact()["x"]) == [1, 4]
    _, logs = jax.vmap(lox.spool(logs_in_a_scan, when=large))(jnp.stack([XS, -XS]))
    assert logs.valid["x"].tolist() == [[True, False, True, False], [False] * 3 + [True]]
    _, logs = lox.spool(logs_in_a_scan, when=large, reduce="max")(XS)
    assert (logs["x"], logs.valid["x"]) == (4, True)
    _, logs = lox.spool(logs_in_a_scan, when=large, reduce="max")(-jnp.abs(XS))
    assert not logs.valid["x"]


def test_what_is_not_collected_is_not_printed_either(capsys):
    tapped(WAYS["jit"], jnp.ones(3), when=lox.nonfinite)
    jax.effects_barrier()
    assert not capsys.readouterr().out


def test_it_sees_all_of_a_record_and_may_look_what_is_there():
    def fun(x):
        lox.log({"x": x}, step=1)
        lox.log({"y": 2 * x, "loss": 10 * x}, tags="late")
        return x

    when = lambda logs: logs["loss"] > 5 if "loss" in logs else False  # noqa: E731
    _, logs = lox.spool(fun, "y", when=when)(1.0)
    assert logs.valid["y"]
    _, logs = lox.spool(fun, when=lambda logs: logs["loss"] > 5, tags="late")(1.0)
    assert set(logs) == {"y", "loss"}
    with raises(KeyError, "'loss'", "record of 'x'", "test_when.py", "argnames"):
        lox.spool(fun, when=lambda logs: logs["loss"] > 5)(1.0)


@pytest.mark.parametrize(
    ("when", "words"),
    [
        (lambda logs: logs["x"], ["float32"]),
        (lambda logs: logs["x"][None] > 0, [r"bool\[1\]", "any"]),
        (lambda logs: None, ["None"]),
        (lambda logs: 1, ["int32"]),
    ],
)
def test_an_answer_that_is_no_scalar_boolean_is_an_error(when, words):
    for transform in (lox.spool, lox.tap):
        with raises(TypeError, "`when` returns", *words[:1], "'log', 'x'", *words[1:]):
            transform(logs_in_a_scan, when=when)(XS)


def test_a_condition_that_is_no_function_is_an_error():
    for transform, name in ((lox.spool, "lox.spool"), (lox.tap, "lox.tap")):
        with raises(TypeError, f"`when` of `{name}`", "True"):
            transform(logs_in_a_scan, when=True)


def test_nonfinite_looks_at_all_floats():
    def fun(x):
        lox.log({"tree": {"i": 3, "f": (jnp.ones(2), x)}, "k": jax.random.key(0)})

    for x, expected in ((1.0, False), (jnp.nan, True), (-jnp.inf, True)):
        for value in (x, jnp.bfloat16(x), jax.lax.complex(1.0, x)):
            assert lox.spool(fun, when=lox.nonfinite)(value)[1].valid["tree"] == expected
    _, logs = lox.spool(lambda: lox.log({"i": 3}), when=lox.nonfinite)()
    assert not logs.valid["i"]


def test_nonfinite_looks_at_what_a_histogram_has_counted():
    def fun(x):
        lox.log({"h": lox.histogram(x, bins=2)})

    for last, expected in ((1.0, False), (jnp.nan, True), (-jnp.inf, True)):
        _, logs = lox.spool(fun, when=lox.nonfinite)(jnp.array([0.0, last]))
        assert logs.valid["h"] == expected
