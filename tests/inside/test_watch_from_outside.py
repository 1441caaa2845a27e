"""`lox.watch` around functions that differentiate: what is inside is watched exactly.

The truth is the network written by hand of `test_watch.py`, and `jax.vjp`.
"""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

from .test_watch import LAYERS, VALUE, WEIGHTS, X, loss, same, truth


def train_step(weights, x):
    with jax.named_scope("train"):
        value, slope = jax.value_and_grad(loss)(weights, x)
    return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, slope)


@pytest.fixture(scope="module")
def outside():
    return jax.jit(lox.spool(lox.watch(train_step, stats=VALUE, epoch=7)))(WEIGHTS, X)


def test_activations_and_cotangents_are_those_inside(outside):
    _, logs = outside
    activations, cotangents = truth()
    inside = {
        f"train/{name}/{kind}/value" for name in activations for kind in ("out", "grad")
    }
    # `train` itself is a scope that is not differentiated: the loss and gradients leave it.
    around = {f"train/out/{i}/value" for i in range(4)}
    assert set(logs) == inside | around
    shapes = sorted(logs[key].shape for key in around)
    assert shapes == sorted([(), *(w.shape for w in WEIGHTS.values())])
    for name, expected in activations.items():
        same(logs[f"train/{name}/out/value"], expected)
    for name, expected in cotangents.items():
        order = slice(None, None, None if name == "head" else -1)
        same(logs[f"train/{name}/grad/value"], expected[order])
    np.testing.assert_array_equal(logs.layer["train/block/mlp/grad/value"], [2, 1, 0])
    assert (logs.epoch["train/block/mlp/grad/value"] == 7).all()


def test_results_are_the_same_to_the_last_bit(outside):
    jax.tree.map(np.testing.assert_array_equal, outside[0], jax.jit(train_step)(WEIGHTS, X))


def test_patterns_see_the_scopes_around_the_derivative():
    for pattern in ("train/*/mlp", "*/mlp", "train/block/mlp", "t*mlp"):
        _, logs = lox.spool(lox.watch(train_step, pattern, stats="max"))(WEIGHTS, X)
        assert set(logs) == {"train/block/mlp/out/max", "train/block/mlp/grad/max"}
    with pytest.warns(UserWarning, match="has the scopes 'train', 'train/b"):
        _, logs = lox.spool(lox.watch(train_step, "trian/*"))(WEIGHTS, X)
    assert not logs


def test_a_pattern_that_matches_nothing_lists_scopes_that_are_only_in_a_derivative():
    expected = r"`scopes` \['mlp'\] .* match nothing. .* the scopes .*'outer/mlp'"

    def loss(x):
        with jax.named_scope("outer"), jax.named_scope("mlp"):
            return jnp.sin(x) * x

    with pytest.warns(UserWarning, match=expected):
        lox.spool(lox.watch(jax.grad(loss), "mlp"))(1.0)


def test_equations_that_jax_moves_out_of_a_loop_are_not_watched():
    def f(w, x):
        def body(h, _):
            with jax.named_scope("body"):
                with jax.named_scope("constant"):
                    k = jnp.sqrt(w)
                return jnp.sin(h * k), None

        return jax.lax.scan(body, x, None, 3)[0]

    g = lox.watch(jax.grad(f), stats=VALUE)
    _, logs = lox.spool(g)(2.0, 1.0)
    # Once per iteration, as the program says, not once in front of the loop.
    same(logs["body/constant/out/value"], np.full(3, np.sqrt(2)))
    assert logs["body/out/value"].shape == (3,)
    _, logs = lox.spool(lox.watch(jax.grad(f), "body/constant", "out", VALUE))(2.0, 1.0)
    assert logs["body/constant/out/value"].shape == (3,)


def test_jitted_steps_in_a_loop_count_the_loops_around():
    step = jax.jit(train_step)

    def train(weights, xs):
        def update(weights, x):
            return step(weights, x)[1], None

        return jax.lax.scan(update, weights, xs)[0]

    with lox.silent():
        train(WEIGHTS, X[None])  # what was jitted before is traced again
    watch = ft.partial(lox.watch, scopes="*/mlp", stats="max", loops=("layer", "step"))
    f = jax.jit(lox.spool(watch(train)))
    for _ in range(2):
        _, logs = f(WEIGHTS, jnp.stack([X, X]))
    key = "train/block/mlp/grad/max"
    np.testing.assert_array_equal(logs.layer[key], [*range(LAYERS)[::-1]] * 2)
    np.testing.assert_array_equal(logs.step[key], [0] * LAYERS + [1] * LAYERS)
    same(logs[key][:LAYERS], truth()[1]["block/mlp"].max((1, 2))[::-1])
    # The second step has other weights.
    assert not np.allclose(logs[key][:LAYERS], logs[key][LAYERS:])


def test_forward_mode_and_second_derivatives():
    def f(x):
        with jax.named_scope("cube"):
            y = x**3
        return jnp.sin(y)

    def of(g, **options):
        return lox.spool(lox.watch(g, stats=VALUE, **options))(2.0)[1]

    logs = of(lambda x: jax.jvp(f, (x,), (1.0,)))
    same(logs["cube/out/value"], 8.0)
    assert set(logs) == {"cube/out/value"}
    # Forward over reverse: each first-order cotangent once.
    logs = of(jax.hessian(f))
    same(logs["cube/out/value"], 8.0)
    same(logs["cube/grad/value"], np.cos(8.0))


def test_vmapped_gradients_and_auxiliary_outputs():
    def f(w, x):
        with jax.named_scope("product"):
            y = w * x
        return jnp.sin(y), {"y": y, "name": "kept"}

    def each(w, xs):
        def one(x):
            (_, aux), slope = jax.value_and_grad(f, has_aux=True)(w, x)
            assert aux["name"] == "kept"
            return slope

        return jax.vmap(one)(xs)

    xs = jnp.array([0.5, 1.0])
    slopes, logs = lox.spool(lox.watch(each, stats=VALUE))(2.0, xs)
    same(slopes, np.cos(2 * xs) * xs)
    same(logs["product/out/value"], 2 * xs)
    same(logs["product/grad/value"], np.cos(2 * xs))


def test_vjp_and_linearize_are_seen():
    def f(x):
        with jax.named_scope("square"):
            y = x * x
        return y + 1

    def by_vjp(x):
        y, pull = jax.vjp(f, x)
        return pull(jnp.full_like(y, 3.0))

    _, logs = lox.spool(lox.watch(by_vjp, stats=VALUE))(2.0)
    same(logs["square/out/value"], 4.0)
    same(logs["square/grad/value"], 3.0)


def test_a_derivative_taken_beforehand_is_an_error():
    step = jax.make_jaxpr(train_step)(WEIGHTS, X)

    def replayed(weights, x):
        return jax.core.eval_jaxpr(step.jaxpr, step.consts, *jax.tree.leaves((weights, x)))

    with pytest.raises(ValueError, match="JAX differentiated the scope") as found:
        lox.spool(lox.watch(replayed, "*/mlp"))(WEIGHTS, X)
    assert "`jax.grad(lox.watch(loss))`" in str(found.value)


def test_scopes_of_a_training_step():
    found = lox.scopes(train_step)(WEIGHTS, X)
    names = {"train", *(f"train/{name}" for name in truth()[0])}
    assert set(found) == names
    assert not any("jvp" in name or "remat" in name for name in found)


@pytest.mark.usefixtures("optimized")
def test_outside_and_inside_agree_on_flops():
    def flops(f):
        return jax.jit(f).lower(WEIGHTS, X).compile().cost_analysis()["flops"]

    def step_that_watches(weights, x):
        watched = lox.watch(loss, "*/mlp")
        value, slope = jax.value_and_grad(watched)(weights, x)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, slope)

    outside = flops(lox.spool(lox.watch(train_step, "*/mlp")))
    assert outside == pytest.approx(flops(lox.spool(step_that_watches)), rel=0.001)
