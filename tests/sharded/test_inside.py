"""Cotangents, conditions and histograms on several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import lox

XS = jnp.array([0.3, -0.7, 1.1, 2.0])
MESH = Mesh(np.array(jax.devices()[:4]), "shard")


def on_devices(fun, check_vma=True):
    spec = P("shard")
    return jax.shard_map(fun, mesh=MESH, in_specs=spec, out_specs=spec, check_vma=check_vma)


def squares(x):
    return lox.log_grad(jnp.sin(x), "h", device=jax.lax.axis_index("shard")) ** 2


@pytest.mark.parametrize("check_vma", [True, False])
def test_each_device_logs_its_cotangents(check_vma):
    loss = lambda xs: on_devices(squares, check_vma)(xs).sum()  # noqa: E731
    for spooled in (lox.spool(jax.grad(loss)), jax.jit(lox.spool(jax.grad(loss)))):
        slope, logs = spooled(XS)
        np.testing.assert_allclose(slope, np.sin(2 * XS), rtol=1e-5)
        np.testing.assert_allclose(logs["h"].reshape(-1), 2 * np.sin(XS), rtol=1e-5)
        assert list(logs.device["h"]) == [0, 1, 2, 3]
    found = []
    jax.jit(lox.tap(jax.grad(loss), found.append))(XS)
    lox.barrier()
    assert sorted(int(logs.shard["h"]) for logs in found) == [0, 1, 2, 3]


def test_the_cotangent_of_what_devices_share():
    def loss(w):
        fun = lambda w, x: lox.log_grad(w, "w") * x  # noqa: E731
        specs = {"in_specs": (P(), P("shard")), "out_specs": P("shard")}
        return jax.shard_map(fun, mesh=MESH, **specs)(w, XS).sum()

    slope, logs = jax.jit(lox.spool(jax.grad(loss)))(2.0)
    np.testing.assert_allclose(slope, XS.sum(), rtol=1e-6)
    np.testing.assert_allclose(np.sum(logs["w"]), XS.sum(), rtol=1e-6)


def test_a_sharded_array_is_counted_where_it_is():
    x = jax.device_put(jnp.arange(64.0), NamedSharding(MESH, P("shard")))

    def fun(x):
        lox.log({"h": lox.histogram(x, edges=[0, 10, 32, 64]), "s": lox.stats(x)})

    compiled = jax.jit(lox.spool(fun)).lower(x).compile()
    _, logs = compiled(x)
    assert logs["h"].counts.tolist() == [10, 22, 32]
    assert logs["s"]["max"] == 63
    assert "all-gather" not in compiled.as_text()


def test_a_histogram_is_over_all_devices():
    def log(x):
        lox.log({"x": x})
        return x

    reduction = lox.Histogram.reduction(edges=[-1, 0, 1, 2])
    _, logs = jax.jit(lox.spool(on_devices(log), reduce=reduction))(XS)
    assert logs["x"].counts.tolist() == [1, 1, 2]


def test_only_devices_that_meet_a_condition_call_the_host():
    def log(x):
        lox.log({"x": x})
        return x

    found = []
    when = lambda logs: (logs["x"] > 1).any()  # noqa: E731
    jax.jit(lox.tap(on_devices(log), found.append, when=when))(XS)
    lox.barrier()
    assert sorted(int(logs.shard["x"]) for logs in found) == [2, 3]


def test_each_device_describes_what_it_watches():
    def layer(h, w):
        with jax.named_scope("mlp"):
            return jnp.tanh(h * w), None

    def body(weights, x):
        h, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return jax.lax.psum((h**2).sum(), "shard")

    specs = P(), P("shard")
    loss = jax.shard_map(body, mesh=MESH, in_specs=specs, out_specs=P())
    weights = jnp.array([0.5, 2.0])
    activations = [np.tanh(XS * 0.5)]
    activations.append(np.tanh(activations[0] * 2.0))
    slopes = [2 * activations[1]]
    slopes.append(slopes[0] * (1 - activations[1] ** 2) * 2.0)
    for f in (
        jax.grad(lox.watch(loss, stats="max")),
        lox.watch(jax.grad(loss), stats="max"),
    ):
        slope, logs = jax.jit(lox.spool(f))(weights, XS)
        np.testing.assert_allclose(slope, jax.grad(loss)(weights, XS), rtol=1e-5)
        # (layers, devices): one value per device
        np.testing.assert_allclose(logs["mlp/out/max"], activations, rtol=1e-5)
        np.testing.assert_allclose(logs["mlp/grad/max"], slopes, rtol=1e-5)
