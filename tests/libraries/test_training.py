"""Whole training programs of other libraries: the same losses, to the last bit.

Each program trains a small model for some steps. It is run as if it had no calls of `log`,
and with lox around it or inside its jitted step. The values that it logs are compared with
what the step returns without lox.
"""

import functools as ft
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

STEPS = 3
# As in MNIST: images and labels, but smaller.
IMAGES = jax.random.normal(jax.random.key(0), (STEPS, 8, 8, 8, 1))
LABELS = jax.random.randint(jax.random.key(1), (STEPS, 8), 0, 3)
TOKENS = jax.random.randint(jax.random.key(2), (STEPS, 4, 6), 0, 11)

# A step takes a state and a batch, and returns the next state and the loss.
Step = Callable[[Any, Any], tuple[Any, Any]]


@pytest.fixture(autouse=True)
def _as_libraries_need_it():
    """They promote dtypes and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def run(step: Step, state: Any, batches: Any) -> tuple[list[np.ndarray], Any]:
    """Return the loss of each step, and the last state."""
    losses = []
    for i in range(STEPS):
        state, loss = step(state, jax.tree.map(lambda x, i=i: x[i], batches))
        losses.append(np.asarray(loss))
    return losses, state


def check(step: Step, state: Any, batches: Any) -> None:
    with mock.patch.object(lox, "log", lambda data, **_: dict(data)):
        expected = run(jax.jit(step), state, batches)
    logs: list[lox.logdict] = []

    def keep(spooled: Callable) -> Step:
        def call(state, batch):
            out, own = spooled(state, batch)
            logs.append(own)
            return out

        return call

    for spooled in (jax.jit(lox.spool(step)), lox.spool(jax.jit(step))):
        assert_same(run(keep(spooled), state, batches), expected)
        assert_logged(logs, expected[0])
    assert_same(run(jax.jit(lox.nolog(step)), state, batches), expected)
    delivered: list[lox.logdict] = []
    tapped = run(jax.jit(lox.tap(step, delivered.append)), state, batches)
    lox.barrier()
    # With a host call in a program, XLA may fuse other operations.
    assert_same(tapped, expected, rtol=1e-4)
    assert_logged([own for own in delivered if "loss" in own], tapped[0])


def assert_logged(logs: list[lox.logdict], losses: list[np.ndarray]) -> None:
    found = [np.asarray(own["loss"]).item() for own in logs[-STEPS:]]
    assert found == [loss.item() for loss in losses]
    assert all(np.isfinite(value).all() for own in logs for value in own.values())


def assert_same(found: Any, expected: Any, rtol: float = 0.0) -> None:
    def same(a: Any, b: Any) -> None:
        a, b = map(np.asarray, (a, b))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol and 1e-5)

    jax.tree.map(same, arrays_of(found), arrays_of(expected))


def arrays_of(tree: Any) -> Any:
    """Return the arrays of a state: PRNG keys as data, and no functions."""
    leaves = [x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array | np.ndarray)]
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return [jax.random.key_data(x) if is_key(x) else x for x in leaves]


# flax nnx: the MNIST tutorial ---------------------------------------------------------


def nnx_program() -> tuple[Any, Callable]:
    import optax
    from flax import nnx

    class CNN(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 4, kernel_size=(3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.dropout = nnx.Dropout(0.2, rngs=rngs)
            self.head = nnx.Linear(4 * 4 * 4, 3, rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(self.norm(self.conv(x)))
            x = nnx.avg_pool(x, (2, 2), strides=(2, 2))
            lox.log({"activation": jnp.mean(x)})
            return self.head(self.dropout(x.reshape(len(x), -1)))

    def train_step(model, optimizer, metrics, images, labels):
        def loss_of(model):
            logits = model(images)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), logits

        (loss, logits), grads = nnx.value_and_grad(loss_of, has_aux=True)(model)
        metrics.update(loss=loss, logits=logits, labels=labels)
        optimizer.update(model, grads)
        lox.log({"loss": loss, "accuracy": metrics.compute()["accuracy"]})
        return loss

    def make() -> tuple:
        model = CNN(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adamw(0.01, 0.9), wrt=nnx.Param)
        metrics = nnx.MultiMetric(
            accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss")
        )
        return model, optimizer, metrics

    return make, train_step


def test_mnist_with_nnx():
    nnx = pytest.importorskip("flax.nnx")
    pytest.importorskip("optax")
    make, train_step = nnx_program()

    def train(wrap: Callable) -> tuple[list[np.ndarray], list[Any], Any]:
        objects, step, logs = make(), wrap(train_step), []
        losses = []
        for images, labels in zip(IMAGES, LABELS, strict=True):
            out = step(*objects, images, labels)
            loss, *own = out if isinstance(out, tuple) else (out,)
            losses.append(np.asarray(loss))
            logs += own
        return losses, logs, nnx.state(objects)

    with mock.patch.object(lox, "log", lambda data, **_: dict(data)):
        losses, _, state = train(nnx.jit)
    assert len({loss.item() for loss in losses}) == STEPS, "it does not learn"
    ways: list[Callable] = [
        lambda f: lox.spool(nnx.jit(f)),
        lambda f: nnx.jit(lox.spool(f)),
        lambda f: lox.nolog(nnx.jit(f)),
        lambda f: lox.bind(nnx.jit(lox.nolog(f)), epoch=1),
    ]
    for way in ways:
        found, logs, after = train(way)
        assert_same((found, after), (losses, state))
        if logs:
            assert_logged(logs, losses)


# flax linen: ScannedRNN of PureJaxRL, and lm1b ----------------------------------------


def linen_step(model: Any, rngs: dict[str, jax.Array]) -> tuple[Step, Callable]:
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01))

    def loss_of(params, tokens):
        logits = model.apply(params, tokens[:, :-1], rngs=rngs)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean()

    def step(state, tokens):
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_of)(params, tokens)
        lox.log({"loss": loss, "norm": optax.tree.norm(grads)})
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    def init() -> tuple:
        keys = {"params": jax.random.key(0), **rngs}
        with lox.silent():
            params = model.init(keys, TOKENS[0][:, :-1])
        return params, optimizer.init(params)

    return step, init


def test_a_recurrent_network_of_linen():
    nn = pytest.importorskip("flax.linen")
    pytest.importorskip("optax")

    class ScannedRNN(nn.Module):
        @ft.partial(
            nn.scan,
            variable_broadcast="params",
            in_axes=1,
            out_axes=1,
            split_rngs={"params": False},
        )
        @nn.compact
        def __call__(self, carry, x):
            carry, y = nn.GRUCell(features=8)(carry, x)
            lox.log({"carry": jnp.mean(carry)})
            return carry, y

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(11, 8)(tokens)
            carry = jnp.zeros((len(tokens), 8))
            _, y = ScannedRNN()(carry, x)
            return nn.Dense(11)(y)

    step, init = linen_step(Model(), {})
    check(step, init(), TOKENS)


def test_a_transformer_of_linen_with_remat_and_scan():
    nn = pytest.importorskip("flax.linen")
    pytest.importorskip("optax")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, mask):
            attention = nn.MultiHeadDotProductAttention(
                num_heads=2, dropout_rate=0.1, deterministic=False
            )
            x = x + attention(nn.LayerNorm()(x), mask=mask)
            hidden = nn.relu(nn.Dense(16)(nn.LayerNorm()(x)))
            lox.log({"active": jnp.mean(hidden > 0)})
            hidden = nn.Dropout(0.1, deterministic=False)(hidden)
            return x + nn.Dense(x.shape[-1])(hidden), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(11, 8)(tokens)
            mask = nn.make_causal_mask(tokens)
            layers = nn.scan(
                nn.remat(Block, prevent_cse=False),
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=nn.broadcast,
                length=3,
            )
            x, _ = layers()(x, mask)
            return nn.Dense(11)(nn.LayerNorm()(x))

    step, init = linen_step(Model(), {"dropout": jax.random.key(3)})
    check(step, init(), TOKENS)


# equinox, haiku, optax ----------------------------------------------------------------


def test_a_convolutional_network_of_equinox():
    eqx = pytest.importorskip("equinox")
    optax = pytest.importorskip("optax")

    class CNN(eqx.Module):
        conv: Any
        norm: Any
        head: Any

        def __init__(self, key):
            keys = jax.random.split(key)
            self.conv = eqx.nn.Conv2d(1, 4, kernel_size=3, key=keys[0])
            self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")
            self.head = eqx.nn.Linear(4 * 6 * 6, 3, key=keys[1])

        def __call__(self, x, state):
            x, state = self.norm(self.conv(jnp.moveaxis(x, -1, 0)), state)
            lox.log({"activation": jnp.mean(x)})
            return self.head(jax.nn.relu(x).ravel()), state

    model, state = eqx.nn.make_with_state(CNN)(jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    optimizer = optax.adam(0.01)

    def loss_of(params, state, images, labels):
        model = eqx.combine(params, static)
        batched = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        logits, state = batched(images, state)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(), state

    def step(carry, batch):
        params, state, opt_state = carry
        grad = eqx.filter_value_and_grad(loss_of, has_aux=True)
        (loss, state), grads = grad(params, state, *batch)
        lox.log({"loss": loss})
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (eqx.apply_updates(params, updates), state, opt_state), loss

    check(step, (params, state, optimizer.init(params)), (IMAGES, LABELS))


def test_a_recurrent_network_of_haiku():
    hk = pytest.importorskip("haiku")
    optax = pytest.importorskip("optax")

    def forward(tokens):
        x = hk.Embed(11, 8)(tokens)
        core = hk.LSTM(8)

        def unroll(x, carry):
            y, carry = core(x, carry)
            lox.log({"cell": jnp.mean(carry.cell)})
            return y, carry

        x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(x, True)
        start = core.initial_state(len(tokens))
        y, _ = hk.dynamic_unroll(unroll, jnp.moveaxis(x, 1, 0), start)
        y = hk.dropout(hk.next_rng_key(), 0.1, jnp.moveaxis(y, 0, 1))
        return hk.Linear(11)(y)

    model = hk.transform_with_state(forward)
    optimizer = optax.adam(0.01)
    with lox.silent():
        params, state = model.init(jax.random.key(0), TOKENS[0][:, :-1])

    def loss_of(params, state, key, tokens):
        logits, state = model.apply(params, state, key, tokens[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        return losses.mean(), state

    def step(carry, tokens):
        params, state, opt_state, key = carry
        key, own = jax.random.split(key)
        grad = jax.value_and_grad(loss_of, has_aux=True)
        (loss, state), grads = grad(params, state, own, tokens)
        lox.log({"loss": loss})
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), state, opt_state, key), loss

    start = params, state, optimizer.init(params), jax.random.key(1)
    check(step, start, TOKENS)


def optimizers() -> Iterator[Any]:
    optax = pytest.importorskip("optax")
    adam = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)
    yield optax.MultiSteps(adam, every_k_schedule=2).gradient_transformation()
    yield optax.apply_if_finite(adam, max_consecutive_errors=2)
    masked = optax.masked(optax.scale(-0.1), {"w": True, "b": False})
    yield optax.chain(optax.clip(0.5), masked, optax.ema(0.9))
    yield optax.partition({"w": adam, "b": optax.sgd(0.1)}, {"w": "w", "b": "b"})


def test_wrappers_of_optax():
    optax = pytest.importorskip("optax")
    x, y = jnp.linspace(-1, 1, 4 * STEPS).reshape(STEPS, 4), jnp.arange(float(STEPS))

    def watch(updates, state, params=None):
        lox.log({"update": optax.tree.norm(updates)})
        return updates, state

    def loss_of(params, x, y):
        return jnp.mean((params["w"] @ x + params["b"] - y) ** 2)

    for optimizer in optimizers():
        watched = optax.GradientTransformation(lambda _: optax.EmptyState(), watch)
        chain = optax.chain(optimizer, watched)

        def step(state, batch, chain=chain):
            params, opt_state = state
            loss, grads = jax.value_and_grad(loss_of)(params, *batch)
            lox.log({"loss": loss})
            updates, opt_state = chain.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), loss

        params = {"w": jnp.ones(4), "b": jnp.float32(0)}
        check(step, (params, chain.init(params)), (x, y))
