"""The words of a PRNG key or a number, on the device. See `lox_host.runs.run_id`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._rows.rows import key_data


def key_words(key: Any) -> np.ndarray | jax.Array | None:
    """Return a PRNG key or a number as an array of words. None if it is neither."""
    given = key if isinstance(key, jax.Array) else np.asarray(key)
    is_typed = jnp.issubdtype(given.dtype, jax.dtypes.prng_key)
    if is_typed:
        return key_data(given) if given.ndim == 0 else None
    if not jnp.issubdtype(given.dtype, np.integer):
        return None
    if given.ndim == 0:
        return _number_words(given)
    is_data = given.dtype == np.uint32 and given.ndim == 1 and given.size in (2, 4)
    return given if is_data else None


def _number_words(number: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    """Return the lower and the higher word of a number, and whether it is negative."""
    # Stay with NumPy for NumPy's numbers: JAX cuts 64 bits down to 32 by default.
    xp = np if isinstance(number, np.ndarray) else jnp
    is_negative = number < 0
    if number.dtype.itemsize < 8:
        low = number.astype(np.uint32)
        high = xp.where(is_negative, np.uint32(2**32 - 1), np.uint32(0))
    else:
        low, high = ((number >> shift).astype(np.uint32) for shift in (0, 32))
    return xp.stack([low, high.astype(np.uint32), is_negative.astype(np.uint32)])
