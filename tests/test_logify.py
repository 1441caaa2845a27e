"""logify: every reduction in every construct against a NumPy loop, and what is its own."""

import dataclasses
import json
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import logify
import lox
from support.selection import thin
from support.truth import raises

REDUCTIONS: dict[str, Callable] = {
    "replace": lambda rows: rows[-1],
    "append": np.stack,
    "mean": lambda rows: np.stack(rows).mean(0),
    "sum": lambda rows: np.stack(rows).sum(0),
}
V = np.array([0.5, 1.0, 2.0], np.float32)
constant = jax.lax.stop_gradient


# The constructs -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Construct:
    """A program of a number and a function that logs, and a loop in NumPy.

    Attributes:
        program: Returns a number.
        rows: The values that `program` logs, one after the other.
        bounded: Whether it is known before how many values there are at most.
    """

    program: Callable[[jax.Array, Callable], jax.Array]
    rows: Callable[[np.float32], list]
    bounded: bool = True

    @property
    def name(self) -> str:
        return self.program.__name__

    @property
    def reductions(self) -> list[str]:
        return [name for name in REDUCTIONS if self.bounded or name != "append"]


CONSTRUCTS: list[Construct] = []


def construct(rows: Callable, **options: bool):
    def register(program):
        CONSTRUCTS.append(Construct(program, rows, **options))
        return program

    return register


@construct(lambda x: [x])
def once(x, log):
    log(x)
    return x


@construct(lambda x: [x, 2 * x, x - 1])
def plain(x, log):
    for value in (x, 2 * x, x - 1):
        log(value)
    return 3 * x


@construct(lambda x: [x * V, x + V])
def arrays(x, log):
    log(x * V)
    log(x + jnp.asarray(V))
    return x


@construct(lambda x: [x, 2 * x])
def jit_inside(x, log):
    @jax.jit
    def inner(y):
        log(y)
        return 2 * y

    return inner(inner(x))


@construct(lambda x: [x * V, x + V])
def vmap_inside(x, log):
    def each(v):
        log(x * v)
        log(x + v)
        return x * v

    return jnp.sum(jax.vmap(each)(jnp.asarray(V)))


@construct(lambda x: [x, x * x, 3 * x])
def grad_inside(x, log):
    def loss(y):
        log(y)
        log(y * y)
        return y**3

    slope = jax.grad(loss)(x)
    log(3 * x)
    return slope


@construct(lambda x: [x + 7] + [x * v for v in V] + [x * V.sum()])
def scan(x, log):
    def step(total, v):
        log(x * v)
        return total + x * v, None

    log(x + 7)
    total, _ = jax.lax.scan(step, 0 * x, jnp.asarray(V))
    log(total)
    return total


@construct(lambda x: [x * v for v in V[::-1]])
def reversed_scan(x, log):
    def step(total, v):
        log(x * v)
        return total + x, None

    return jax.lax.scan(step, x, jnp.asarray(V), reverse=True)[0]


@construct(lambda x: [y for i in range(3) for y in (x + i, x * i, x * i)])
def nested_scan(x, log):
    def outer(total, i):
        log(x + i)

        def inner(total, _):
            log(x * i)
            return total + x * i, None

        return jax.lax.scan(inner, total, length=2)

    return jax.lax.scan(outer, x, jnp.arange(3, dtype=jnp.float32))[0]


@construct(lambda x: [x * 2**i for i in range(4)])
def fori_loop(x, log):
    def step(_, y):
        log(y)
        return 2 * y

    return jax.lax.fori_loop(0, 4, step, x)


@construct(lambda x: [x * v for v in V])
def lax_map(x, log):
    def each(v):
        log(x * v)
        return x * v

    return jnp.sum(jax.lax.map(each, jnp.asarray(V)))


def doubled(x: np.float32) -> list:
    rows = []
    while x < 5:
        rows.append(x)
        x = 2 * x
    return rows


@construct(doubled, bounded=False)
def while_loop(x, log):
    def step(y):
        log(y)
        return 2 * y

    jax.lax.while_loop(lambda y: y < 5, step, constant(x))
    return x


@construct(lambda x: [x * i for i in range(4)], bounded=False)
def fori_loop_of_unknown_length(x, log):
    n = constant(jnp.where(x > -100, 4, 3))

    def step(i, y):
        log(constant(x) * i.astype(jnp.float32))
        return y

    return jax.lax.fori_loop(0, n, step, constant(x)) + x


@construct(lambda x: [x] if x > 1 else [-x])
def cond(x, log):
    return jax.lax.cond(x > 1, lambda: log(x) or 2 * x, lambda: log(-x) or 3 * x)


@construct(lambda x: [x] + [x * v for v in V if x * v > 0.8])
def cond_in_a_scan(x, log):
    def step(total, v):
        return total + jax.lax.cond(x * v > 0.8, lambda: log(x * v) or v, lambda: v), None

    log(x)
    return x * jax.lax.scan(step, 0 * x, jnp.asarray(V))[0]


@construct(lambda x: [[x], [2 * x, 3 * x], [x - 1]][int(x)])
def switch(x, log):
    def two(x):
        log(2 * x)
        log(3 * x)
        return x

    branches = [lambda x: log(x) or x, two, lambda x: log(x - 1) or x]
    return jax.lax.switch(jnp.int32(constant(x)), branches, x)


@construct(lambda x: [x, 2 * x, x * x])
def checkpoint(x, log):
    @jax.checkpoint
    def block(y):
        log(y)
        log(2 * y)
        return jnp.sin(y)

    log_after = block(x) + x
    log(x * x)
    return log_after


@construct(lambda x: [x, 2 * x])
def custom_jvp(x, log):
    @jax.custom_jvp
    def double(y):
        log(y)
        return 2 * y

    @double.defjvp
    def rule(primals, tangents):
        return double(*primals), 5 * tangents[0]

    return double(double(x))


@construct(lambda x: [x, x + 1])
def custom_vjp(x, log):
    @jax.custom_vjp
    def double(y):
        log(y)
        return 2 * y

    double.defvjp(lambda y: (double(y), ()), lambda _, ct: (5 * ct,))
    y = double(x)
    log(x + 1)
    return y


# The ways to run them -----------------------------------------------------------------


def alone(f, xs):
    return [logify.logify(f)(x)[1] for x in xs]


def under_jit(f, xs):
    logified = jax.jit(logify.logify(f))
    return [logified(x)[1] for x in xs]


def after_jit(f, xs):
    logified = logify.logify(jax.jit(f))
    return [logified(x)[1] for x in xs]


def under_vmap(f, xs):
    _, logs = jax.vmap(logify.logify(f))(xs)
    return [jax.tree.map(lambda leaf: leaf[i], logs) for i in range(len(xs))]


def under_grad(f, xs):
    return [jax.grad(logify.logify(f), has_aux=True)(x)[1] for x in xs]


def after_grad(f, xs):
    return [logify.logify(jax.grad(f))(x)[1] for x in xs]


WAYS = [alone, under_jit, after_jit, under_vmap, under_grad, after_grad]
XS = jnp.array([1.25, 0.75], jnp.float32)  # they take different branches


def logging(program: Callable, *reductions: str) -> Callable:
    def log(value):
        for name in reductions:
            logify.log("v", value, reduction=name)

    return lambda x: program(x, log)


def assert_entry(p: Construct, name: str, value: Any, valid: Any, x: np.float32) -> None:
    """Compare one reduction with the loop in NumPy."""
    value, valid = np.asarray(value), None if valid is None else np.asarray(valid)
    if name != "append":
        assert valid is None if p.bounded else valid
    elif valid is not None:
        value = value[valid]
    expected = REDUCTIONS[name]([np.asarray(row, np.float32) for row in p.rows(x)])
    assert value.shape == expected.shape
    assert value.dtype == expected.dtype
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", CONSTRUCTS, ids=lambda p: p.name)
def test_a_reduction_is_that_of_a_loop_in_numpy(p, reduction):
    if reduction not in p.reductions:
        with raises(ValueError, "Cannot keep the rows of 'v'", "while_loop", "lox.tap"):
            logify.logify(logging(p.program, reduction))(XS[0])
        return
    logified = logify.logify(logging(p.program, reduction))
    for x in (XS[0], XS[0], XS[1]):
        out, logs = logified(x)

        assert out == p.program(x, lambda value: None)
        assert list(logs.asdict()) == ["v"]
        assert list(logs.asdict()["v"]) == [reduction]
        valid = logs.valid.get("v", {}).get(reduction)
        assert_entry(p, reduction, logs.asdict()["v"][reduction], valid, np.float32(x))


@pytest.mark.parametrize(
    ("p", "way"),
    [
        pytest.param(p, way, id=f"{p.name}-{way.__name__}")
        for i, p in enumerate(CONSTRUCTS)
        for way in thin(WAYS, 2, i)
    ],
)
def test_one_name_has_all_reductions_side_by_side(p, way):
    every = way(logging(p.program, *p.reductions), XS)

    for x, logs in zip(np.asarray(XS), every, strict=True):
        assert list(logs.asdict()["v"]) == p.reductions
        for name, value in logs.asdict()["v"].items():
            assert_entry(p, name, value, logs.valid.get("v", {}).get(name), x)


@pytest.mark.parametrize("p", CONSTRUCTS, ids=lambda p: p.name)
def test_a_vmap_inside_gives_each_example_its_own(p):
    _, logs = logify.logify(jax.vmap(logging(p.program, *p.reductions)))(XS)

    for i, x in enumerate(np.asarray(XS)):
        for name, value in logs.asdict()["v"].items():
            valid = logs.valid.get("v", {}).get(name)
            at = (slice(None), i) if name == "append" else i
            own = None if valid is None else valid[at]
            assert_entry(p, name, value[at], own, x)


# The page -----------------------------------------------------------------------------


def test_the_demo_prints_what_the_page_shows(capsys):
    @jax.jit
    @logify.logify
    def f(a, b):
        logify.log("b", b, reduction="mean")
        logify.log("b", b + 1, reduction="mean")
        logify.log("b", b + 1, reduction="mean")
        x = jnp.sum(a + b)
        logify.log("y", x**2 - 1)
        logify.log("y", x**2)
        return x

    with jax.numpy_dtype_promotion("standard"):
        out, logs = f(jnp.arange(3), jnp.zeros(3))
    print(out)
    print(json.dumps(logs.asdict(), indent=2, default=str))

    assert (
        capsys.readouterr().out
        == """\
3.0
{
  "b": {
    "mean": "[0.6666667 0.6666667 0.6666667]"
  },
  "y": {
    "replace": "9.0"
  }
}
"""
    )


def test_the_default_is_to_replace():
    @logify.logify
    def f(a, b):
        logify.log("b", b)
        return a + b

    out, logs = f(1, 2)

    assert f.__name__ == "f"
    assert (out, logs.asdict()) == (3, {"b": {"replace": 2}})
    assert repr(logs) == "Logs({'b': {'replace': 2}})"


def test_it_is_one_module():
    assert lox.logify.log is logify.log
    assert lox.logify.logify is logify.logify
    assert lox.logify.Logs is logify.Logs


# Beside lox ---------------------------------------------------------------------------


def manifold(x):
    logify.log("b", x, "mean")
    logify.log("b", x, "sum")
    logify.log("b", x + 2, "mean")
    logify.log("c", x)
    return x


def test_what_lox_logs_is_appended():
    def f(x):
        lox.log({"x": x, "y": 3 * x})
        logify.log("x", 2 * x, "append")
        logify.log("x", 5 * x)

    _, logs = logify.logify(f)(jnp.float32(1))

    assert (
        repr(logs)
        == "Logs({'x': {'append': [1.0, 2.0], 'replace': 5.0}, 'y': {'append': [3.0]}})"
    )


def test_a_reduction_that_lox_asks_for_is_an_entry_like_others():
    first = lox.Reduction(
        empty=lambda row: row,
        lift=lambda row: row,
        combine=lambda earlier, later: earlier,
        finish=lambda row: row,
        name="mine",
    )

    def f(x):
        lox.log({"x": x}, reduce="mean")
        logify.log("x", x + 2, "mean")
        lox.log({"x": x}, reduce="max")
        lox.log({"x": 7 * x})
        lox.log({"x": 9 * x}, reduce=first)

    _, logs = logify.logify(f)(jnp.float32(1))

    expected = "{'mean': 2.0, 'max': 1.0, 'append': [7.0], 'mine': 9.0}"
    assert repr(logs) == f"Logs({{'x': {expected}}})"


@pytest.mark.parametrize("fun", [manifold, jax.jit(manifold)], ids=["plain", "jitted"])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "{'b/mean': 2.0, 'b/sum': 1.0, 'c': 1.0}"),
        ({"prefix": "p/"}, "{'p/b/mean': 2.0, 'p/b/sum': 1.0, 'p/c': 1.0}"),
        ({"reduce": "sum"}, "{'b': 5.0, 'c': 1.0}"),
        ({"reduce": {"b": "append"}}, "{'b': [1.0, 1.0, 3.0], 'c': 1.0}"),
        ({"interval": 2}, "{'b/mean': 1.0, 'b/sum': 1.0, 'c': 1.0}"),
        ({"argnames": "b", "keep_logs": True}, "{'b/mean': 2.0, 'b/sum': 1.0}"),
    ],
    ids=str,
)
def test_spool_tells_the_reductions_of_a_name_apart(fun, options, expected):
    with lox.silent():
        for _ in range(2):
            _, logs = lox.spool(fun, **options)(jnp.float32(1))

            assert repr(logs) == expected


def test_each_reduction_of_a_name_is_thinned_by_itself():
    def f(xs):
        return jax.lax.map(manifold, xs)

    # Averaged are 1, 3, 2, 4, 3 and 5, summed up 1, 2 and 3.
    _, logs = lox.spool(f, interval=2)(jnp.array([1.0, 2.0, 3.0]))

    assert repr(logs) == "{'b/mean': 2.0, 'b/sum': 4.0, 'c': 3.0}"


def test_a_custom_rule_that_logs_one_of_two_reductions_is_an_error():
    def f(x):
        @jax.custom_vjp
        def double(x):
            logify.log("x", x, "mean")
            logify.log("x", x, "sum")
            return 2 * x

        def forward(x):
            logify.log("x", x, "sum")
            return 2 * x, ()

        double.defvjp(forward, lambda _, ct: (5 * ct,))
        return double(x)

    with pytest.raises(NotImplementedError, match="'x' is logged by a function"):
        jax.grad(logify.logify(f), has_aux=True)(jnp.float32(3))


def test_a_name_with_one_reduction_is_a_key_of_spool():
    def f(x):
        logify.log("b", x, "mean")
        logify.log("b", 2 * x, "mean")

    def g(x):
        f(x)
        lox.log({"b": 5 * x})
        lox.log({"b": 6 * x})

    assert repr(lox.spool(f)(jnp.float32(1))[1]) == "{'b': 1.5}"
    assert repr(lox.spool(g)(jnp.float32(1))[1]) == "{'b/mean': 1.5, 'b': [5.0, 6.0]}"


@pytest.mark.parametrize("first", [True, False])
def test_two_entries_of_one_name_are_an_error(first):
    def f(x):
        if first:
            lox.log({"b/mean": x})
        manifold(x)
        if not first:
            lox.log({"b/mean": x})

    with raises(ValueError, "Two entries would be called 'b/mean'", "Rename"):
        lox.spool(f)(1.0)


def test_a_name_is_printed_as_it_is(capsys):
    jax.jit(manifold)(1.0)
    lox.barrier()

    lines = ["{'b': 1.0}", "{'b': 1.0}", "{'b': 3.0}", "{'c': 1.0}"]
    assert sorted(capsys.readouterr().out.splitlines()) == lines


def test_tap_gets_every_value_under_its_name():
    def f(xs):
        return jax.lax.map(manifold, xs)

    each, batched = [], []
    lox.tap(f, each.append)(jnp.array([1.0, 2.0]))
    lox.tap(f, batched.append, argnames="b", batch=6)(jnp.array([1.0, 2.0]))

    names = ["b", "b", "b", "c"]
    values = [1, 1, 3, 1, 2, 2, 4, 2]
    assert [dict(logs) for logs in each] == [
        {name: value} for name, value in zip(2 * names, values, strict=True)
    ]
    (logs,) = batched
    assert list(logs) == ["b"]
    assert list(logs["b"]) == [1, 1, 3, 2, 2, 4]


def test_the_logs_of_a_logified_function_end_there(capsys):
    def f(x):
        y, logs = logify.logify(manifold)(x)
        return y + logs.asdict()["b"]["mean"]

    assert repr(lox.spool(f)(jnp.float32(1))) == "(Array(3., dtype=float32), {})"
    assert repr(logify.logify(f)(jnp.float32(1))[1]) == "Logs({})"
    assert lox.nolog(manifold)(1.0) == 1
    lox.barrier()
    assert capsys.readouterr().out == ""


def test_a_jitted_function_is_traced_once():
    traced = []

    @jax.jit
    def f(x):
        traced.append(x)
        return manifold(x)

    for i in range(3):
        _, logs = logify.logify(f)(float(i))
        assert logs.asdict()["b"] == {"mean": i + 1, "sum": i}
    assert len(traced) == 1


# What is logged -----------------------------------------------------------------------


def test_valid_says_whether_a_branch_that_logs_was_taken():
    @logify.logify
    def f(x):
        def branch():
            for name in REDUCTIONS:
                logify.log("x", x, name)

        jax.lax.cond(x > 0, branch, lambda: None)
        logify.log("always", x)

    for x in (1.0, -1.0):
        _, logs = f(x)
        assert list(logs.asdict()) == ["x", "always"]
        assert logs.valid == {"x": dict.fromkeys(REDUCTIONS, x > 0)}
        assert x < 0 or logs.asdict()["x"] == dict.fromkeys(REDUCTIONS, x)


def test_each_reduction_may_have_a_form_of_its_own():
    tree = {"w": jnp.ones(2), "n": jnp.int32(3)}

    @logify.logify
    def f(x):
        for _ in range(2):
            logify.log("x", x, "sum")
            logify.log("x", tree, "mean")
            logify.log("x", tree, "append")

    logs = f(jnp.float32(1))[1].asdict()["x"]

    assert logs["sum"] == 2
    assert logs["mean"]["n"] == 3
    assert logs["mean"]["w"].shape == (2,)
    assert logs["append"]["n"].shape == (2,)
    assert logs["append"]["w"].shape == (2, 2)


def test_logs_are_pickled_and_exported():
    logified = jax.jit(logify.logify(manifold))
    exported = export.deserialize(export.export(logified)(jnp.float32(0)).serialize())

    for _, logs in (logified(jnp.float32(1)), exported.call(jnp.float32(1))):
        for own in (logs, pickle.loads(pickle.dumps(logs))):
            expected = "{'b': {'mean': 2.0, 'sum': 1.0}, 'c': {'replace': 1.0}}"
            assert repr(own) == f"Logs({expected})"


# Errors -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [3, None, ["x"], b"x"], ids=str)
def test_a_name_is_a_string(name):
    with raises(TypeError, "The name in `logify.log` must be a string"):
        logify.log(name, 1.0)


@pytest.mark.parametrize("reduction", ["max", "", None, ["mean"], {}, 3], ids=str)
def test_there_are_four_reductions(reduction):
    with raises(ValueError, "no reduction", "'replace', 'append', 'mean', 'sum'"):
        logify.log("x", 1.0, reduction)


@pytest.mark.parametrize("fun", [3, None, "f"], ids=str)
def test_only_a_function_is_logified(fun):
    with raises(TypeError, "`logify.logify` takes a function, not"):
        logify.logify(fun)


def test_messages_show_the_plain_name():
    @logify.logify
    def f(x):
        logify.log("x", x, "sum")
        logify.log("x", jnp.stack([x, x]), "sum")

    with raises(ValueError, "'x' is logged as float32..", "test_logify.py"):
        f(jnp.float32(1))
    with raises(TypeError, "The value of 'x' is or contains `str`"):
        logify.log("x", "text")
    with raises(TypeError, "The rows of 'k'", "'mean': PRNG keys are not numbers"):
        logify.logify(lambda: logify.log("k", jax.random.key(0), "mean"))()
