"""Automatic sharding: JAX decides where a program's values are, and lox leaves it so."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

import lox


def test_spooled_values_keep_their_sharding():
    mesh = jax.make_mesh((4, 2), ("x", "y"))
    sharding = NamedSharding(mesh, P("x", "y"))
    xs = jax.device_put(jnp.arange(32.0).reshape(8, 4), sharding)

    def f(x):
        lox.log({"twice": 2 * x})
        return x + 1

    y, logs = jax.jit(lox.spool(f))(xs)

    assert y.sharding.is_equivalent_to(sharding, 2)
    assert logs["twice"].sharding.is_equivalent_to(sharding, 2)
    assert (logs["twice"] == 2 * xs).all()
