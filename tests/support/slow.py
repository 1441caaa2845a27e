"""A number that takes a while to compute."""

import jax
import jax.numpy as jnp


def slow(x, steps=100):
    """Return zero after some tenths of a second."""
    y = jnp.full((300, 300), x, jnp.float32)
    return 0 * jax.lax.fori_loop(0, steps, lambda i, y: jnp.tanh(y @ y), y)[0, 0]
