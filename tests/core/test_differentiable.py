"""`spool(differentiable=True)`: logs as a part of the loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support import truth
from support.compiled import way
from support.programs import PROGRAMS, Program
from support.selection import covering
from support.truth import assert_trees_close, total

# Logs carry nothing out of custom rules, and the truth nothing out of a derivative.
LEFT_OUT = (
    *("custom", "activations", "inner_spool", "vjp", "backward", "grad", "linearize"),
    *("jacfwd", "jacrev", "hessian", "training", "actor_and_critic"),
    # Records that all examples share: logs repeat them for each example.
    *("vmap_with_an_unbatched_record", "a_key_inside_and_outside_of_vmap"),
)
LOGGING = [p for p in PROGRAMS if p.grad and not any(word in p.name for word in LEFT_OUT)]


def loss_with_logs(fun):
    """The result, and all that was logged, as one number."""

    def loss(x):
        out, logs = lox.spool(fun, differentiable=True)(x)
        values = []
        for key, value in logs.items():
            for leaf in filter(is_float, jax.tree.leaves(value)):
                mask = logs.valid.get(key, jnp.ones((), bool))
                values.append(jnp.where(expanded(mask, leaf), leaf, 0))
        return total(out) + 0.3 * total(values)

    return loss


def expanded(mask, leaf):
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim))


@way(covering(LOGGING, 4))
def slope_of_all(p: Program):
    return jax.grad(loss_with_logs(p.fun)), p.x


@slope_of_all.every
def test_the_gradient_goes_through_logs(p: Program):
    """The truth is an eager gradient of a sum of all that `log` is called with."""

    def loss(x):
        start = len(lox.log.__self__.records)
        out = p.truth(x)
        noted = [r.raw for r in lox.log.__self__.records[start:]]
        leaves = [leaf for leaf in jax.tree.leaves(noted) if is_float(leaf)]
        return total(out) + 0.3 * total([jnp.asarray(leaf) for leaf in leaves])

    expected, _ = truth.run(lambda x: jax.grad(loss)(x), p.x)
    assert_trees_close(slope_of_all(p), expected)


def is_float(x):
    return jnp.issubdtype(jnp.result_type(x), jnp.floating)


def loss(w, xs, differentiable):
    def fun(w):
        def step(h, x):
            h = jnp.tanh(w * h + x)
            lox.log({"balance": h**2})
            return h, None

        return jax.lax.scan(jax.checkpoint(step), 0.0, xs)[0]

    y, logs = lox.spool(fun, differentiable=differentiable)(w)
    return y + 0.1 * logs["balance"].sum()


def by_hand(w, xs):
    h, extra = 0.0, 0.0
    for x in xs:
        h = jnp.tanh(w * h + x)
        extra = extra + h**2
    return h + 0.1 * extra


XS = jnp.array([0.3, -0.2, 0.5])


def test_an_auxiliary_loss_has_a_gradient_only_if_asked_for():
    slope = jax.jit(jax.grad(loss), static_argnums=2)
    bare = jax.grad(lambda w: by_hand(w, XS) - 0.1 * extra_loss(w))(0.7)
    np.testing.assert_allclose(slope(0.7, XS, True), jax.grad(by_hand)(0.7, XS), rtol=1e-5)
    np.testing.assert_allclose(slope(0.7, XS, False), bare, rtol=1e-5)


def extra_loss(w):
    h, extra = 0.0, 0.0
    for x in XS:
        h = jnp.tanh(w * h + x)
        extra = extra + h**2
    return extra


@pytest.mark.parametrize("reduce", ["mean", "sum", "last", "max"])
def test_reduced_logs_have_a_gradient_too(reduce):
    def fun(w):
        def step(h, x):
            h = jnp.sin(w * h + x)
            lox.log({"h": h})
            return h, None

        return jax.lax.scan(step, 0.0, XS)[0]

    def spooled(w):
        return lox.spool(fun, reduce=reduce, differentiable=True)(w)[1]["h"]

    def expected(w):
        hs, h = [], 0.0
        for x in XS:
            hs.append(h := jnp.sin(w * h + x))
        return hs[-1] if reduce == "last" else getattr(jnp, reduce)(jnp.stack(hs))

    np.testing.assert_allclose(jax.grad(spooled)(0.7), jax.grad(expected)(0.7), rtol=1e-4)


def test_under_vmap_and_jit_of_the_function_itself():
    fun = jax.jit(lambda w: (lox.log({"h": jnp.sin(w)}), 2 * w)[1])
    spooled = lambda w: lox.spool(fun, differentiable=True)(w)[1]["h"]  # noqa: E731
    ws = jnp.array([0.1, 0.7])
    np.testing.assert_allclose(jax.vmap(jax.grad(spooled))(ws), jnp.cos(ws), rtol=1e-6)
    plain = lambda w: lox.spool(fun)(w)[1]["h"]  # noqa: E731
    assert list(jax.vmap(jax.grad(plain))(ws)) == [0, 0]
    _, tangent = jax.jvp(spooled, (0.7,), (1.0,))
    np.testing.assert_allclose(tangent, jnp.cos(0.7), rtol=1e-6)


def test_a_function_with_a_rule_of_its_own_keeps_it_and_its_logs_carry_nothing():
    @jax.custom_vjp
    def fun(x):
        lox.log({"x": 5 * x})
        return 2 * x

    fun.defvjp(lambda x: (fun(x), None), lambda _, g: (7 * g,))

    def loss(x):
        y, logs = lox.spool(fun, differentiable=True)(x)
        return y + logs["x"]

    assert jax.grad(loss)(1.0) == 7


def stepping(w, xs):
    """Log in a loop whose iterations depend on each other."""

    def step(h, x):
        h = jnp.sin(w * h + x)
        lox.log({"h": h})
        return h, None

    return jax.lax.scan(step, 0.0, xs)[0]


def rows_by_hand(w, xs):
    rows, h = [], 0.0
    for x in xs:
        rows.append(h := jnp.sin(w * h + x))
    return jnp.stack(rows)


@pytest.mark.parametrize("batched", [False, True])
def test_rows_of_an_interval_have_a_gradient(batched):
    """They are written into a ring in the loop."""

    def spooled(w, xs):
        weights = jnp.array([1.0, 3.0])
        fun = lox.spool(stepping, interval=2, differentiable=True)
        return jnp.dot(fun(w, xs)[1]["h"], weights)

    def expected(w, xs):
        rows = rows_by_hand(w, xs)
        return rows[0] + 3 * rows[2]

    xs = jnp.stack([XS, 2 * XS])
    slope, truth = jax.grad(spooled), jax.grad(expected)
    if batched:
        slope, truth = (jax.jit(jax.vmap(f, (None, 0))) for f in (slope, truth))
    else:
        xs = xs[0]
    np.testing.assert_allclose(slope(0.7, xs), truth(0.7, xs), rtol=1e-5)
    curves = [jax.hessian(f)(0.7, XS) for f in (spooled, expected)]
    np.testing.assert_allclose(*curves, rtol=1e-4)


def test_rows_of_a_loop_of_unknown_length_have_tangents():
    """Of examples that finish at different times, nested loops included."""

    def fun(w, n):
        def inner(x):
            def step(carry):
                j, x = carry
                lox.log({"x": x * w})
                return j + 1, x * w

            return jax.lax.while_loop(lambda c: c[0] < 2, step, (0, x))[1]

        def outer(carry):
            return carry[0] + 1, inner(carry[1])

        return jax.lax.while_loop(lambda c: c[0] < n, outer, (0, 1.0))[1]

    def spooled(w, n, capacity=9):
        _, logs = lox.spool(fun, capacity=capacity, differentiable=True)(w, n)
        return jnp.where(logs.valid["x"], logs["x"], 0).sum()

    def tangent(w, n, **options):
        return jax.jvp(lambda w: spooled(w, n, **options), (w,), (1.0,))[1]

    ws, ns = jnp.array([2.0, 3.0, 0.5]), jnp.array([1, 3, 2])
    # The rows are w, w**2, ..., w**(2 n).
    powers = np.arange(1, 7)
    slopes = powers * np.asarray(ws)[:, None] ** (powers - 1)
    logged = powers <= 2 * np.asarray(ns)[:, None]
    expected = (slopes * logged).sum(1)
    np.testing.assert_allclose(jax.vmap(tangent)(ws, ns), expected, rtol=1e-5)
    last_two = slopes[1, 4:].sum()
    np.testing.assert_allclose(tangent(3.0, 3, capacity=2), last_two, rtol=1e-5)
    plain = lambda w: lox.spool(fun, capacity=9)(w, 3)[1]["x"].sum()  # noqa: E731
    assert jax.jvp(plain, (3.0,), (1.0,))[1] == 0
