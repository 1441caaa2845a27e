"""Histograms: how values are distributed, counted on the device.

`lox.histogram(x)` counts the values of one array, and `reduce="histogram"` those of all
rows of a key while the program runs. Counts of the same bins add up, so the latter needs
edges that are known before the first value is. They are symmetric and logarithmic:

    -1e7.5 ... -1e-7.5  -1e-8       0       1e-8  1e-7.5 ... 1e7.5
       |    ...   |       |         |         |      |    ...   |
       large, negative     tiny, negative and positive     large, positive

Counting is one sum over the array for each edge, #(x >= edge), and the differences of
these are the counts. To look up the bin of each value and add one there would be less work
on paper. But this is a plain reduction: the compiler keeps nothing of the size of the
array, and one that is sharded over devices is reduced where it is.
"""

import dataclasses
import functools as ft
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lox._jax.types import AnyArray, DType, PyTree
from lox._rows.reductions import Reduction, add_named

# Fixed edges, or how to find them.
Edges = Literal["data", "symlog"] | AnyArray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Histogram:
    """How many values fall into each of some bins.

    Every value is counted: those below the first edge in the first bin, those above the
    last edge in the last bin, and NaNs and infinities separately.

    Attributes:
        counts: The number of values in each bin.
        edges: The edges of the bins, one more than there are bins.
        nonfinite: The number of NaNs and infinities.
    """

    counts: AnyArray
    edges: AnyArray
    nonfinite: AnyArray

    def merged(self) -> "Histogram":
        """Add up histograms with the same edges: of all rows, examples or devices.

        Example:
            >>> def f(x):
            ...     lox.log({"h": lox.histogram(x, edges=[0, 1, 2])})
            >>> _, logs = jax.vmap(lox.spool(f))(jnp.array([0.5, 1.5, 1.7]))
            >>> print(logs["h"].counts.shape, logs["h"].merged().counts)
            (3, 2) [1 2]
        """
        # (..., bins + 1) -> (histograms, bins + 1)
        edges = np.asarray(self.edges)
        flat = edges.reshape(-1, edges.shape[-1])
        if (flat != flat[:1]).any():
            raise ValueError(
                "These histograms have different edges, so their counts cannot be added. "
                'Use fixed edges, or `edges="symlog"`, instead of those from the data.'
            )
        counts = np.asarray(self.counts)
        counts = counts.reshape(-1, counts.shape[-1]).sum(0)
        return Histogram(counts, flat[0], np.asarray(self.nonfinite).sum())

    @staticmethod
    def reduction(bins: int = 64, *, edges: Edges = "symlog") -> Reduction:
        """Return the reduction behind `reduce="histogram"`, with other edges.

        Args:
            bins: The number of bins, if `edges` is `"symlog"`.
            edges: `"symlog"`, or the edges themselves, in increasing order.

        Example:
            >>> def f(xs):
            ...     step = lambda _, x: (_, lox.log({"x": x}) and None)
            ...     jax.lax.scan(step, None, xs)
            >>> quarters = lox.Histogram.reduction(edges=[0, 0.25, 0.5, 0.75, 1])
            >>> _, logs = lox.spool(f, reduce=quarters)(jnp.linspace(0, 1, 9))
            >>> print(logs["x"].counts)
            [2. 2. 2. 3.]
        """
        if isinstance(edges, str) and edges == "data":
            raise ValueError(
                "A reduction needs its edges before it has seen any data. Give it edges, "
                'or use `edges="symlog"`.'
            )
        return _reduction(tuple(_fixed_edges(bins, edges).tolist()))


def histogram(x: AnyArray, bins: int = 64, *, edges: Edges = "data") -> Histogram:
    """Count the values of an array, on the device, to log them.

    Args:
        x: An array of real numbers, of any shape.
        bins: The number of bins, unless `edges` are given.
        edges: `"data"`: bins of equal width from the smallest to the largest value.
            `"symlog"`: bins that are symmetric around 0 and logarithmic, from 1e-8 to
            3e7, the same for all data. Or the edges themselves, in increasing order.
            Inside `jit`, `jnp.linspace` returns a traced array, whose order lox cannot
            check.

    Returns:
        A `lox.Histogram`, which can be logged like any value.

    Example:
        >>> def f(x):
        ...     lox.log({"h": lox.histogram(x, bins=4)})
        ...     return x.sum()
        >>> y, logs = jax.jit(lox.spool(f))(jnp.array([0.0, 1.0, 1.5, 8.0]))
        >>> print(logs["h"].counts, logs["h"].edges)
        [3 0 0 1] [0. 2. 4. 6. 8.]
    """
    values = _real(x)
    if isinstance(edges, str) and edges == "data":
        return _of_data(values, _checked_bins(bins))
    if isinstance(edges, Tracer):
        _check_shape(edges)
        return _count(values, edges.astype(values.dtype))
    return _count(values, jnp.asarray(_fixed_edges(bins, edges), values.dtype))


def _real(x: AnyArray) -> jax.Array:
    """Return the values as floats in which small differences count."""
    array = jnp.asarray(x)
    _check_dtype(array.dtype)
    wide = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize >= 4
    return array if wide else array.astype(jnp.float32)


def _check_dtype(dtype: DType) -> None:
    """Raise if values of a dtype cannot be ordered. For `Reduction.dtype`."""
    real = jnp.issubdtype(dtype, jnp.number) or dtype == jnp.bool_
    if not real or jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"histograms count real numbers, not {dtype}")


def check_value(value: PyTree, reduction: Reduction) -> None:
    """Raise if a reduction to a histogram would count the counts of another one."""
    is_histogram = lambda x: isinstance(x, Histogram)  # noqa: E731
    leaves = jax.tree.leaves(value, is_leaf=is_histogram)
    if reduction.dtype is _check_dtype and any(map(is_histogram, leaves)):
        raise TypeError(
            "they contain a `lox.Histogram`, whose counts would count as values. Log "
            "the values themselves, or keep every row of this key and add the histograms "
            "up with `lox.Histogram.merged`"
        )


def _checked_bins(bins: int) -> int:
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"`bins` must be a number of bins, at least 1, not {bins!r}.")
    return bins


def _fixed_edges(bins: int, edges: Edges) -> np.ndarray:
    if isinstance(edges, str) and edges == "symlog":
        return _symlog_edges(_checked_bins(bins))
    if isinstance(edges, str):
        raise ValueError(
            f"`edges` cannot be {edges!r}. Use 'data', 'symlog', or an array of edges."
        )
    given = np.asarray(edges, float)
    _check_shape(given)
    if not (np.diff(given) > 0).all():
        raise _bad_edges(edges)
    return given


def _check_shape(edges: AnyArray) -> None:
    if edges.ndim != 1 or edges.size < 2:
        raise _bad_edges(edges)


def _bad_edges(edges: Edges) -> ValueError:
    return ValueError(
        "`edges` must be at least two numbers in increasing order, such as "
        f"`jnp.linspace(-1, 1, 65)`, not {edges!r}."
    )


def _symlog_edges(bins: int) -> np.ndarray:
    """Return edges that are symmetric around 0, with 0 among them if there can be."""
    positive = np.geomspace(_SMALL, _LARGE, (bins + 1) // 2)
    zero = [] if bins % 2 else [0.0]
    return np.concatenate([-positive[::-1], zero, positive])


_SMALL, _LARGE = 1e-8, 10**7.5


@ft.partial(jax.jit, static_argnames="bins")
def _of_data(x: jax.Array, bins: int) -> Histogram:
    finite = jnp.isfinite(x)
    low = jnp.min(x, initial=jnp.inf, where=finite)
    high = jnp.max(x, initial=-jnp.inf, where=finite)
    # If all values are the same, there is some space around them; if none is finite, the
    # edges do not matter.
    low, high = (jnp.where(low <= high, x, i) for i, x in enumerate((low, high)))
    # Values that differ in their last bits only have space around them, too, so that edges
    # are still different numbers after rounding, in increasing order.
    size = jnp.maximum(jnp.abs(low), jnp.abs(high))
    missing = 8 * bins * jnp.finfo(x.dtype).eps * size - (high - low)
    space = jnp.where(
        low == high, jnp.maximum(0.5, size / 1024), jnp.maximum(0, missing / 2)
    )
    largest = jnp.finfo(x.dtype).max
    low, high = jnp.maximum(low - space, -largest), jnp.minimum(high + space, largest)
    # (bins + 1,): how far each edge is from the lowest to the highest
    share = jnp.linspace(0, 1, bins + 1, dtype=x.dtype)
    # Not `low + share * (high - low)`: the difference may be too large.
    return _count(x, low * (1 - share) + high * share)


@jax.jit
def _count(x: jax.Array, edges: jax.Array) -> Histogram:
    finite = jnp.isfinite(x)

    def number_from(edge: jax.Array) -> jax.Array:
        return ((x >= edge) & finite).sum(dtype=jnp.int32)

    # The outermost bins are open, so what matters are the edges between bins.
    number, none = finite.sum(dtype=jnp.int32), jnp.zeros((), jnp.int32)
    above = jax.lax.map(number_from, edges[1:-1])
    # at least (edge 0, edge 1, ...) - at least (edge 1, ..., the end)
    counts = jnp.concatenate([number[None], above]) - jnp.concatenate([above, none[None]])
    return Histogram(counts, edges, jnp.int32(x.size) - number)


# The reduction ------------------------------------------------------------------------


@ft.cache
def _reduction(edges: tuple[float, ...]) -> Reduction:
    """Return a reduction to a histogram; equal edges give the same one."""
    number = len(edges)  # a count for each bin, and one for what is not finite

    def lift(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = _real(row)
        found = _count(values, jnp.asarray(edges, values.dtype))
        counts = jnp.concatenate([found.counts, found.nonfinite[None]])
        return counts.astype(jnp.uint32), jnp.zeros(number, jnp.uint32)

    def combine(a: tuple, b: tuple) -> tuple:
        """Add numbers of 64 bits, each in two parts: a long run counts beyond 32."""
        low = a[0] + b[0]
        # If the sum is smaller than a term, it has wrapped around: carry one.
        return low, a[1] + b[1] + (low < a[0]).astype(jnp.uint32)

    def finish(total: tuple) -> Histogram:
        # A float32 rounds counts beyond 2**24, but never wraps around as a uint32 would.
        low, high = (part.astype(jnp.float32) for part in total)
        counts = high * 2.0**32 + low
        return Histogram(counts[:-1], jnp.asarray(edges, jnp.float32), counts[-1])

    return Reduction(
        empty=lambda row: (jnp.zeros(number, jnp.uint32),) * 2,
        lift=lift,
        combine=combine,
        finish=finish,
        devices=True,
        name="'histogram'",
        dtype=_check_dtype,
    )


add_named("histogram", Histogram.reduction())
