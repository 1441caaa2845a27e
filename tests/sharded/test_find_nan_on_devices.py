"""`find_nan` on several devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import lox
from support.truth import raises

MESH = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
SPEC = P(("data", "model"))


def on_devices(fun, check_vma=True, out_specs=SPEC):
    return jax.shard_map(
        fun, mesh=MESH, in_specs=SPEC, out_specs=out_specs, check_vma=check_vma
    )


def logs_in_a_scan(x):
    """Subtract 1 in each iteration, and take the logarithm."""
    return jax.lax.scan(lambda x, _: (x - 1, jnp.log(x)), x, None, 4)[1].sum(0)


@pytest.mark.parametrize("check_vma", [True, False])
def test_the_device_that_is_first_is_named(check_vma):
    # The value of device (1, 0) is negative first, that of device (0, 1) a bit later.
    x = jnp.array([9.5, 1.5, 0.5, 9.5])
    fun = on_devices(logs_in_a_scan, check_vma)
    for f in (fun, jax.jit(fun)):
        report = lox.find_nan(f)(x)
        assert report.device == {"data": 1, "model": 0}
        assert report.iterations == (1,)
        assert (report.operation, report.culprit) == ("log", (-0.5,))
        assert report.inputs[0].shape == (1,)
        assert "scan iteration 1 (test_find_nan_on_devices.py:" in str(report)
        assert "device data=1, model=0" in str(report)
    assert lox.find_nan(fun)(x + 9) is None


def test_the_backward_pass_on_devices():
    def loss(x):
        return on_devices(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0))(x).sum()

    report = lox.find_nan(jax.grad(loss))(jnp.array([1.0, 1.0, 1.0, 0.0]))
    assert report.device == {"data": 1, "model": 1}
    final = report.became or report
    assert final.phase == "backward pass"
    assert final.culprit in ((0.0, np.inf), (np.inf, 0.0))


def test_an_exchange_between_devices_cannot_be_replayed():
    def spread(x):
        return jax.lax.psum(x, ("data", "model"))

    x = jnp.array([jnp.inf, 1.0, -jnp.inf, 1.0])
    report = lox.find_nan(on_devices(spread, out_specs=P()))(x)
    assert "psum" in report.operation
    with raises(ValueError, "exchanges values between devices"):
        report.replay()


def test_sharded_arguments():
    x = jnp.ones((8, 2)).at[5, 1].set(-1.0)
    x = jax.device_put(x, NamedSharding(MESH, P("data")))
    report = lox.find_nan(jax.jit(jax.vmap(lambda row: jnp.log(row).sum())))(x)
    assert (report.example, report.index, report.device) == (5, (5, 1), None)
