"""`stats`: describe an array by a few numbers, computed on the device."""

from typing import Any

import jax
import jax.numpy as jnp


def stats(x: Any) -> dict[str, jax.Array]:
    """Describe an array by a few numbers, so that you can log these instead of the array.

    They are computed on the device.

    Args:
        x: An array of real numbers, of any shape but not empty.

    Returns:
        `mean`, `std`, `rms` (root mean square), `min` and `max`, which are not finite if
        any value is not; `zeros`, the share of values that are 0; and `nonfinite`, the
        share of values that are not finite. If you log them under `"h"`, loggers and tables
        call them `h/mean`, `h/std` and so on.

    Example:
        >>> def f(x):
        ...     lox.log({"h": lox.stats(x)})
        ...     return x.sum()
        >>> y, logs = jax.jit(lox.spool(f))(jnp.array([3.0, 0.0, -3.0, 0.0]))
        >>> print(logs["h"]["mean"], logs["h"]["max"], logs["h"]["zeros"])
        0.0 3.0 0.5
    """
    values = _real(x)
    largest = jnp.abs(values).max()
    # Squares may overflow or underflow where the values do not, so scale the values first.
    scale = jnp.where(jnp.isfinite(largest) & (largest > 0), largest, 1)
    scaled = values / scale
    mean = scaled.mean()
    return {
        "mean": mean * scale,
        "std": jnp.sqrt(jnp.square(scaled - mean).mean()) * scale,
        "rms": jnp.sqrt(jnp.square(scaled).mean()) * scale,
        "min": values.min(),
        "max": values.max(),
        "zeros": (values == 0).mean(dtype=values.dtype),
        "nonfinite": (~jnp.isfinite(values)).mean(dtype=values.dtype),
    }


def _real(x: Any) -> jax.Array:
    leaves = jax.tree.leaves(x)
    if len(leaves) != 1 or leaves[0] is not x:
        raise TypeError(
            f"`lox.stats` takes an array, not `{type(x).__name__}`. For each array of a "
            "pytree, use `jax.tree.map(lox.stats, tree)`."
        )
    array = jnp.asarray(x)
    real = jnp.issubdtype(array.dtype, jnp.number) or array.dtype == jnp.bool_
    if not real or jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise TypeError(
            f"`lox.stats` takes real numbers, not an array of {array.dtype}. Of complex "
            "numbers, describe `abs(x)` or the parts."
        )
    if not array.size:
        raise ValueError(
            f"`lox.stats` of an array of shape {array.shape}: it has no values to describe."
        )
    wide = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize >= 4
    return array if wide else array.astype(jnp.float32)
