"""`lox.watch` on unmodified models of flax linen, flax nnx, equinox and haiku.

The truth comes from the library itself where it has one: `capture_intermediates` and
`perturb` of linen. Elsewhere it is the model called by hand, part by part, with `jax.vjp`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

VALUE = {"value": lambda x: x}
X = jax.random.normal(jax.random.key(1), (2, 5, 4))
LAYERS = 3


@pytest.fixture(autouse=True, scope="module")
def _as_the_libraries_need_it():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def same(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# flax linen: a transformer, scanned and rematerialized ----------------------------------


def linen_transformer(**more_axes):
    """Return a model. To collect other variables than parameters, give their axes."""
    nn = pytest.importorskip("flax.linen")
    probing = "perturbations" in more_axes

    class MLP(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4, name="down")(nn.gelu(nn.Dense(8, name="up")(x)))

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            def probe(name, h):
                return self.perturb(name, h) if probing else h

            h = nn.LayerNorm(name="norm1")(x)
            h = nn.MultiHeadDotProductAttention(2, name="attention")(h)
            x = x + probe("attention_out", h)
            h = MLP(name="mlp")(nn.LayerNorm(name="norm2")(x))
            return x + probe("mlp_out", h), None

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, x):
            blocks = nn.scan(
                nn.remat(Block, prevent_cse=False),
                variable_axes={"params": 0, **more_axes},
                split_rngs={"params": True},
                length=LAYERS,
            )
            x, _ = blocks(name="blocks")(x, None)
            return nn.Dense(1, name="head")(x)

    return Transformer()


@pytest.fixture(scope="module")
def linen():
    model = linen_transformer()
    params = model.init(jax.random.key(0), X)

    def loss(params, x):
        return (model.apply(params, x) ** 2).mean()

    f = lox.spool(jax.value_and_grad(lox.watch(loss, stats=VALUE)))
    result, logs = jax.jit(f)(params, X)
    return params, loss, result, logs


def test_linen_gradients_are_the_same_to_the_last_bit(linen):
    params, loss, result, _ = linen
    plain = jax.jit(jax.value_and_grad(loss))(params, X)
    jax.tree.map(np.testing.assert_array_equal, result, plain)


def test_linen_activations_equal_capture_intermediates(linen):
    params, _, _, logs = linen
    model = linen_transformer(intermediates=0)
    _, state = model.apply(params, X, capture_intermediates=True, mutable="intermediates")
    found = state["intermediates"]
    same(logs["Transformer/head/out/value"], found["head"]["__call__"][0])
    blocks = found["blocks"]
    for path in (
        ("norm1",),
        ("norm2",),
        ("mlp",),
        ("mlp", "up"),
        ("mlp", "down"),
        ("attention", "query"),
        ("attention", "out"),
    ):
        captured = blocks
        for name in path:
            captured = captured[name]
        key = f"Transformer/blocks/{'/'.join(path)}/out/value"
        same(logs[key], captured["__call__"][0])
        np.testing.assert_array_equal(logs.layer[key], range(LAYERS))
    same(logs["Transformer/blocks/out/value"], blocks["__call__"][0][0])


def test_linen_cotangents_equal_perturb(linen):
    params, _, _, logs = linen
    model = linen_transformer(perturbations=0)
    zeros = model.init(jax.random.key(0), X)["perturbations"]

    def loss(perturbations):
        return (model.apply({**params, "perturbations": perturbations}, X) ** 2).mean()

    expected = jax.grad(loss)(zeros)["blocks"]
    for path, name in (("attention", "attention_out"), ("mlp", "mlp_out")):
        key = f"Transformer/blocks/{path}/grad/value"
        np.testing.assert_array_equal(logs.layer[key], range(LAYERS)[::-1])
        same(logs[key], expected[name][::-1])


def test_linen_scopes_are_listed_as_a_tree():
    model = linen_transformer()
    found = lox.scopes(model.init_with_output)(jax.random.key(0), X)
    assert "Transformer/blocks/mlp/up" in found
    found = lox.scopes(model.apply)(model.init(jax.random.key(0), X), X)
    lines = str(found).splitlines()
    assert lines[0].split() == ["Transformer", "float32[2,5,1]"]
    assert lines[1].split() == ["├─", "blocks", "float32[2,5,4]", "×3"]
    assert lines[-1].split() == ["└─", "head", "float32[2,5,1]"]


# flax nnx -------------------------------------------------------------------------------


def nnx_model():
    nnx = pytest.importorskip("flax.nnx")

    class MLP(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(4, 8, rngs=rngs)
            self.down = nnx.Linear(8, 4, rngs=rngs)

        def __call__(self, x):
            return self.down(nnx.gelu(self.up(x)))

    class Special(MLP):
        def __call__(self, x):
            return 2 * super().__call__(x)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.blocks = nnx.List([MLP(rngs), Special(rngs)])
            self.norm = nnx.BatchNorm(4, rngs=rngs)

        def __call__(self, x):
            for block in self.blocks:
                x = x + block(x)
            return self.norm(x)

    return nnx, Model(nnx.Rngs(0))


def test_nnx_activations_and_cotangents():
    nnx, model = nnx_model()

    def loss(model, x):
        return (model(x) ** 3).mean()

    def by_hand(zeros, model, x):
        model = nnx.clone(model)  # inside of the gradient, where it may be updated
        activations = []
        for block, zero in zip(model.blocks, zeros, strict=True):
            activations.append(block(x) + zero)
            x = x + activations[-1]
        return (model.norm(x) ** 3).mean(), activations

    zeros = [jnp.zeros(X.shape)] * 2
    expected, activations = jax.grad(by_hand, has_aux=True)(zeros, model, X)
    plain = nnx.clone(model)
    slope = nnx.jit(nnx.grad(loss))(plain, X)
    call = type(model.blocks[0]).__call__

    watched = nnx.grad(lox.watch(loss, "*/blocks_?", stats=VALUE))
    mine, logs = nnx.jit(lox.spool(watched))(model, X)
    for i in range(2):
        same(logs[f"Model/blocks_{i}/out/value"], activations[i])
        same(logs[f"Model/blocks_{i}/grad/value"], expected[i])
    # The gradient and the statistics of the batch are those without `watch`.
    for a, b in zip(
        jax.tree.leaves((mine, nnx.state(model))),
        jax.tree.leaves((slope, nnx.state(plain))),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    # The classes are what they were before.
    assert type(model.blocks[0]).__call__ is call


def test_nnx_scopes_are_found_in_functions_that_were_jitted_before():
    nnx, model = nnx_model()
    apply = nnx.jit(lambda model, x: model(x))
    with lox.silent():
        apply(model, X)
    assert "Model/blocks_1/up" in lox.scopes(apply)(model, X)
    _, logs = lox.spool(lox.watch(apply, "*/up", "out"))(model, X)
    assert "Model/blocks_0/up/out/rms" in logs
    # Parent and child class are one scope, not two.
    assert not any("blocks_1/blocks_1" in name for name in lox.scopes(apply)(model, X))


# equinox and haiku ----------------------------------------------------------------------


def test_equinox_activations_and_cotangents():
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        up: eqx.nn.Linear
        down: eqx.nn.Linear

        @jax.named_scope("block")
        def __call__(self, x):
            return x + self.down(jax.nn.relu(self.up(x)))

    def made(key):
        up, down = jax.random.split(key)
        return Block(eqx.nn.Linear(4, 8, key=up), eqx.nn.Linear(8, 4, key=down))

    # The usual way to scan over layers: parameters stacked by `filter_vmap`.
    stacked = eqx.filter_vmap(made)(jax.random.split(jax.random.key(0), LAYERS))
    arrays, static = eqx.partition(stacked, eqx.is_array)

    def loss(arrays, x):
        def layer(x, arrays):
            return jax.vmap(eqx.combine(arrays, static))(x), None

        return (jax.lax.scan(layer, x, arrays)[0] ** 2).mean()

    def by_hand(zeros, x):
        activations = []
        for i, zero in enumerate(zeros):
            block = eqx.combine(jax.tree.map(lambda a: a[i], arrays), static)
            x = jax.vmap(block)(x) + zero
            activations.append(x)
        return (x**2).mean(), activations

    x = X[0]
    zeros = jnp.zeros((LAYERS, *x.shape))
    expected, activations = jax.grad(by_hand, has_aux=True)(zeros, x)
    f = lox.spool(jax.value_and_grad(lox.watch(loss, "block", stats=VALUE)))
    result, logs = jax.jit(f)(arrays, x)
    same(logs["block/out/value"], jnp.stack(activations))
    same(logs["block/grad/value"], expected[::-1])
    # The layers of equinox have names of their own; `block` holds two of the same.
    _, logs = lox.spool(lox.watch(loss, "block/*", "out", "rms"))(arrays, x)
    assert logs["block/eqx.nn.Linear/out/rms"].shape == (2 * LAYERS,)
    plain = jax.jit(jax.value_and_grad(loss))(arrays, x)
    jax.tree.map(np.testing.assert_array_equal, result, plain)


def test_haiku_modules_are_scopes():
    hk = pytest.importorskip("haiku")
    net = hk.transform(lambda x: hk.nets.MLP([8, 4])(x))
    params = net.init(jax.random.key(0), X)

    def loss(params, x):
        return (net.apply(params, None, x) ** 2).mean()

    y, pull = jax.vjp(lambda y: (y**2).mean(), net.apply(params, None, X))
    _, logs = lox.spool(jax.grad(lox.watch(loss, "mlp", stats=VALUE)))(params, X)
    same(logs["mlp/out/value"], net.apply(params, None, X))
    same(logs["mlp/grad/value"], pull(jnp.ones_like(y))[0])


# From the outside: training steps that differentiate inside -------------------------------


def test_a_linen_training_step_is_watched_from_outside(linen):
    params, loss, _, inside = linen

    @jax.jit
    def step(params, x):
        slope = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, slope)

    result, logs = jax.jit(lox.spool(lox.watch(step, "*/mlp", stats=VALUE)))(params, X)
    assert set(logs) == {f"Transformer/blocks/mlp/{kind}/value" for kind in ("out", "grad")}
    for key in logs:
        same(logs[key], inside[key])
        np.testing.assert_array_equal(logs.layer[key], inside.layer[key])
    jax.tree.map(np.testing.assert_array_equal, result, step(params, X))


def test_an_nnx_training_step_is_watched_from_outside():
    nnx, model = nnx_model()
    _, plain = nnx_model()

    def loss(model, x):
        return (model(x) ** 3).mean()

    @nnx.jit
    def step(model, x):
        slope = nnx.grad(loss)(model, x)
        params = nnx.state(model, nnx.Param)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, params, slope))

    # Twice, as the model is updated in place.
    watched = lox.spool(lox.watch(step, "*/blocks_0", stats="norm"))
    norms = []
    for _ in range(2):
        _, logs = watched(model, X)
        _, expected = lox.spool(nnx.grad(lox.watch(loss, "*/blocks_0", stats="norm")))(
            nnx.clone(plain), X
        )
        assert set(logs) == {f"Model/blocks_0/{kind}/norm" for kind in ("out", "grad")}
        for key in logs:
            same(logs[key], expected[key])
        with lox.silent():
            step(plain, X)
        norms.append(logs["Model/blocks_0/grad/norm"])
    assert norms[0] != norms[1]
    for a, b in zip(
        jax.tree.leaves(nnx.state(model)), jax.tree.leaves(nnx.state(plain)), strict=True
    ):
        same(a, b)


def test_an_equinox_training_step_is_watched_from_outside():
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(4, 1, 8, 2, key=jax.random.key(0))

    @eqx.filter_jit
    def step(model, x):
        def loss(model):
            return (jax.vmap(model)(x) ** 2).mean()

        value, slope = eqx.filter_value_and_grad(loss)(model)
        return eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, slope)), value

    arrays, static = eqx.partition(model, eqx.is_array)

    def run(arrays, x):
        return step(eqx.combine(arrays, static), x)[1]

    value, logs = lox.spool(lox.watch(run, "eqx.nn.MLP", stats=VALUE))(arrays, X[0])
    y = jax.vmap(model)(X[0])
    same(value, (y**2).mean())
    same(logs["eqx.nn.MLP/out/value"], y)
    same(logs["eqx.nn.MLP/grad/value"], jax.grad(lambda y: (y**2).mean())(y))
