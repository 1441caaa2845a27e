"""`stats`: describe an array by a few numbers, computed on the device."""

import functools as ft
import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp

from lox._jax.types import AnyArray


def stats(x: AnyArray) -> dict[str, jax.Array]:
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
    return described(x, ("mean", "std", "rms", "min", "max", "zeros", "nonfinite"))


def described(x: AnyArray, names: Iterable[str]) -> dict[str, jax.Array]:
    """Return some statistics of an array; nothing is computed for the others."""
    values = _Values(_real(x))
    return {name: STATISTICS[name](values) for name in names}


class _Values:
    """The values of an array, and what several statistics of them share."""

    def __init__(self, values: jax.Array):
        self.all = values

    @ft.cached_property
    def scale(self) -> jax.Array:
        # Squares may overflow or underflow where the values do not, so scale the values
        # first.
        largest = jnp.abs(self.all).max()
        # The compiler may multiply by the inverse, and devices may take that of a number
        # near the largest for zero. The 16th part is small enough.
        most = jnp.finfo(self.all.dtype).max / 16
        usable = jnp.isfinite(largest) & (largest > 0)
        return jnp.where(usable, jnp.minimum(largest, most), 1)

    @ft.cached_property
    def scaled(self) -> jax.Array:
        return self.all / self.scale

    @ft.cached_property
    def scaled_mean(self) -> jax.Array:
        return self.scaled.mean()

    @ft.cached_property
    def rms(self) -> jax.Array:
        return jnp.sqrt(jnp.square(self.scaled).mean()) * self.scale

    def share(self, which: jax.Array) -> jax.Array:
        return which.mean(dtype=self.all.dtype)


STATISTICS: dict[str, Callable[[_Values], jax.Array]] = {
    "mean": lambda x: x.scaled_mean * x.scale,
    "std": lambda x: jnp.sqrt(jnp.square(x.scaled - x.scaled_mean).mean()) * x.scale,
    "rms": lambda x: x.rms,
    "norm": lambda x: x.rms * math.sqrt(x.all.size),
    "min": lambda x: x.all.min(),
    "max": lambda x: x.all.max(),
    "zeros": lambda x: x.share(x.all == 0),
    "finite": lambda x: x.share(jnp.isfinite(x.all)),
    "nonfinite": lambda x: x.share(~jnp.isfinite(x.all)),
}
"""The statistics that there are. `norm` is the root of the sum of squares."""


def _real(x: AnyArray) -> jax.Array:
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
            f"`lox.stats` takes real numbers, not an array of {array.dtype}. For complex "
            "numbers, pass `abs(x)`, `x.real` or `x.imag`."
        )
    if not array.size:
        raise ValueError(
            f"`lox.stats` got an array of shape {array.shape}, which has no values."
        )
    wide = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize >= 4
    return array if wide else array.astype(jnp.float32)
