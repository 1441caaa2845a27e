"""Modules of flax nnx are updated in place, exactly as without lox.

The truth is the same program without log calls that count: run in silence, in the same way
(jitted or not), with all variables compared to the last bit.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")

X = jax.random.normal(jax.random.key(0), (8, 4))
Y = jnp.sin(X.sum(1, keepdims=True))
STEPS = 3


@pytest.fixture(autouse=True, scope="module")
def _as_flax_needs_it():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Model(nnx.Module):
    """Parameters, batch statistics, random numbers, a count, and an attribute made late."""

    def __init__(self, rngs: Any):
        self.first = nnx.Linear(4, 6, rngs=rngs)
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.last = nnx.Linear(6, 1, rngs=rngs)
        self.calls = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = self.dropout(nnx.relu(self.norm(self.first(x))))
        self.calls[...] += 1
        self.mean = nnx.Intermediate(hidden.mean())
        lox.log({"hidden": hidden.mean()}, call=self.calls[...])
        return self.last(hidden)


def made() -> tuple:
    model = Model(nnx.Rngs(0, dropout=1))
    optimizer = nnx.Optimizer(model, optax.sgd(0.05, momentum=0.9), wrt=nnx.Param)
    return model, optimizer, nnx.MultiMetric(loss=nnx.metrics.Average("loss"))


def step(model: Any, optimizer: Any, *, metrics: dict) -> tuple:
    """Update all three, given by position, by keyword, and inside of a dictionary."""

    def loss_of(model):
        loss = jnp.mean((model(X) - Y) ** 2)
        lox.log({"loss": loss})
        return loss

    loss, gradient = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradient)
    metrics["train"].update(loss=loss)
    return loss, model


def variables(*objects: Any) -> list[np.ndarray]:
    def data(x):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return [data(x) for x in jax.tree.leaves(nnx.state(list(objects)))]


def trained(fun: Callable) -> tuple[list[float], list[np.ndarray]]:
    """Return the losses, and all variables after some steps."""
    model, optimizer, metrics = made()
    losses = []
    for _ in range(STEPS):
        loss, same = fun(model, optimizer, metrics={"train": metrics})
        assert same is model
        losses.append(float(loss))
    return losses, variables(model, optimizer, metrics)


def assert_equal(found: tuple, expected: tuple) -> None:
    assert found[0] == expected[0]
    for x, y in zip(found[1], expected[1], strict=True):
        assert np.array_equal(x, y)


def logs_to(seen: list, spooled: Callable) -> Callable:
    def call(*args, **kwargs):
        out, logs = spooled(*args, **kwargs)
        seen.append(logs)
        return out

    return call


JITTED = {
    "spool(jit)": lambda seen: logs_to(seen, lox.spool(nnx.jit(step))),
    "jit(spool)": lambda seen: logs_to(seen, nnx.jit(lox.spool(step))),
    "tap(jit)": lambda seen: lox.tap(nnx.jit(step), seen.append),
    "jit(tap)": lambda seen: nnx.jit(lox.tap(step, seen.append)),
    "jit(nolog)": lambda seen: nnx.jit(lox.nolog(step)),
    "progress(jit)": lambda seen: lox.progress(nnx.jit(step)),
    "spool(tap(jit))": lambda seen: logs_to(
        [], lox.spool(lox.tap(nnx.jit(step), seen.append))
    ),
}


@pytest.fixture(scope="module")
def jitted() -> tuple:
    with lox.silent():
        return trained(nnx.jit(step))


@pytest.fixture(scope="module")
def eager() -> tuple:
    with lox.silent():
        return trained(step)


@pytest.mark.parametrize("way", JITTED)
def test_a_jitted_step_trains_as_without_lox(way, jitted):
    seen: list = []
    assert_equal(trained(JITTED[way](seen)), jitted)
    lox.barrier()
    if seen:
        losses = [float(logs["loss"]) for logs in seen if "loss" in logs]
        calls = [int(logs.call["hidden"]) for logs in seen if "hidden" in logs]
        assert losses == jitted[0]
        assert calls == [*range(1, STEPS + 1)]


@pytest.mark.parametrize("way", ["spool", "tap", "nolog", "progress"])
def test_a_step_that_is_not_jitted_trains_as_without_lox(way, eager):
    """Up to rounding: JAX compiles other operations together when it traces a gradient."""
    fun = {
        "spool": lambda: logs_to([], lox.spool(step)),
        "tap": lambda: lox.tap(step, lambda logs: None),
        "nolog": lambda: lox.nolog(step),
        "progress": lambda: lox.progress(step),
    }[way]()
    (losses, found), (eager_losses, expected) = trained(fun), eager
    assert np.allclose(losses, eager_losses, rtol=1e-6)
    for x, y in zip(found, expected, strict=True):
        assert np.allclose(x, y, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("way", ["tap", "spool"])
def test_loggers_train_as_without_lox(tmp_path, way, jitted):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(jax.random.key(0))
    assert_equal(trained(getattr(logger, way)(nnx.jit(step), state)), jitted)
    logger.finish(state)
    saved = lox.load(tmp_path, "loss")["loss"]
    assert np.array_equal(saved, np.float32(jitted[0]))


def test_modules_of_a_vmap_and_of_a_scan_are_updated():
    """Three layers in a row, each with a count of its own."""

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(4, 4, rngs=rngs)
            self.calls = nnx.BatchStat(jnp.zeros((), jnp.int32))

        def __call__(self, x):
            self.calls[...] += 1
            out = jnp.tanh(self.linear(x))
            lox.log({"out": out.mean()})
            return out

    def layers():
        return nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: Layer(rngs)))(nnx.Rngs(0))

    def in_a_row(layers, x):
        carry = {"in_axes": (nnx.Carry, 0), "out_axes": nnx.Carry}
        return nnx.scan(lambda x, layer: layer(x), **carry)(x, layers)

    def side_by_side(layers, x):
        return nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))(layers, x)

    for fun in (in_a_row, side_by_side):
        expected, found = layers(), layers()
        with lox.silent():
            out = nnx.jit(fun)(expected, X)
        for spool in (lox.spool(nnx.jit(fun)), nnx.jit(lox.spool(fun))):
            found = layers()
            own, logs = spool(found, X)
            assert np.array_equal(own, out)
            assert np.asarray(logs["out"]).shape == (3,)
            for x, y in zip(variables(found), variables(expected), strict=True):
                assert np.array_equal(x, y)
    # And around the transformation.
    found = layers()
    vmapped = nnx.vmap(lox.spool(lambda layer, x: layer(x)), in_axes=(0, None))
    _, logs = vmapped(found, X)
    assert logs["out"].shape == (3,)
    assert found.calls[...].tolist() == [1, 1, 1]


def test_the_gradient_of_a_spooled_loss_updates_statistics():
    model, expected = made()[0], made()[0]

    def loss(model):
        return jnp.mean(model(X) ** 2)

    with lox.silent():
        plain = nnx.jit(nnx.grad(loss))(expected)
    gradient, logs = nnx.jit(nnx.grad(lox.spool(loss), has_aux=True))(model)
    assert int(logs.call["hidden"]) == 1
    for x, y in zip(variables(gradient, model), variables(plain, expected), strict=True):
        assert np.array_equal(x, y)


def test_what_a_function_makes_or_returns_arrives():
    model = Model(nnx.Rngs(0))

    def grow(model):
        model.extra = nnx.Param(jnp.ones(3))
        model.name = "grown"
        other = nnx.Linear(2, 2, rngs=nnx.Rngs(1))
        lox.log({"x": other.kernel[...].sum()})
        return {"model": model, "other": other, "word": "done"}

    out, logs = lox.spool(grow)(model)
    assert out["model"] is model
    assert out["word"] == "done"
    assert isinstance(out["other"], nnx.Linear)
    assert model.name == "grown"
    assert model.extra[...].tolist() == [1, 1, 1]
    assert float(logs["x"]) == float(out["other"].kernel[...].sum())


def test_one_module_given_twice_stays_one():
    model = Model(nnx.Rngs(0))

    def twice(a, b):
        a.calls[...] += 1
        b.calls[...] += 1
        lox.log({"calls": a.calls[...]})

    _, logs = lox.spool(twice)(model, b=model)
    assert int(logs["calls"]) == int(model.calls[...]) == 2


def test_what_fails_changes_nothing():
    model = Model(nnx.Rngs(0))

    def fails(model):
        model.calls[...] += 1
        raise KeyError("no")

    for _ in range(2):
        with pytest.raises(KeyError, match="no"):
            lox.spool(fails)(model)
    assert int(model.calls[...]) == 0


def test_a_module_of_a_closure_cannot_be_changed():
    """Flax says so itself: nothing is lost without a word."""
    model = Model(nnx.Rngs(0))

    def fun(x):
        lox.log({"x": x})
        model.calls[...] += 1

    with pytest.raises(Exception, match="trace level"):
        lox.spool(fun)(1.0)


def test_find_nan_leaves_modules_as_they_are():
    model = nnx.Linear(4, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(model, optimizer, x):
        def loss(model):
            return jnp.sqrt(model(x)).mean()

        value, slope = nnx.value_and_grad(loss)(model)
        optimizer.update(model, slope)
        return value

    # Positive outputs, then negative ones.
    model.kernel[...] = jnp.ones((4, 1))
    ones = jax.tree.map(np.array, nnx.state(model))
    for way in (step, nnx.jit(step)):
        assert lox.find_nan(way)(model, optimizer, jnp.ones((2, 4))) is None
        report = lox.find_nan(way)(model, optimizer, -jnp.ones((2, 4)))
        assert (report.operation, report.culprit) == ("sqrt", (-4.0,))
        assert report.line.source == "return jnp.sqrt(model(x)).mean()"
        same = jax.tree.map(np.array_equal, ones, jax.tree.map(np.array, nnx.state(model)))
        assert all(jax.tree.leaves(same))
