"""Reductions: how the rows of a key become one value while the program runs.

A reduction is a monoid: an associative `combine` with a neutral element `empty`. This is
all that loops, branches and devices need. A loop carries `empty` and combines in each
iteration; the rows of two parts of a program, or of several devices, are combined in the
order of the program; an example that has not logged brings the neutral element.

Sums are compensated. A mean over a million rows in float32 would otherwise lose the digits
that the total has no room for. So a total is a pair of a large and a small part, which are
never rounded together (Knuth's two-sum):

    high    16777216.0       a float32 has 24 bits: 16777216 + 1 is 16777216 again
    low            1.0       what was lost comes back in the end
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from lox._jax.types import DType, PyTree
from lox._rows.several_reductions import SideBySide


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A way to combine the rows of a key into one value, in constant memory.

    The functions take single rows, which are arrays without time or batch axes, and
    accumulators, which can be any pytree of arrays. `combine` must be associative, with
    `empty` as its neutral element.

    Args:
        empty: From a row, of which only the shape and dtype matter, to the accumulator of
            no rows.
        lift: From a row to the accumulator of that row alone.
        combine: From the accumulators of earlier and of later rows to that of both.
        finish: From the accumulator to the value, an array or a pytree of arrays.
        devices: What to do with the accumulators of the devices of a `shard_map`, which
            each have their own. False: each device has a value. True: combine them in the
            order of the mesh, even if all are the same. A function: from the accumulators
            of all devices, stacked along a new first axis, to one accumulator.
        steps: Which steps the value has: those of the `"last"` row or of the `"first"`.
        name: Its name in messages.
        dtype: From the dtype of the rows to that of the value, or a `TypeError`.

    Example:
        >>> product = lox.Reduction(
        ...     empty=jnp.ones_like,
        ...     lift=lambda row: row,
        ...     combine=lambda earlier, later: earlier * later,
        ...     finish=lambda total: total,
        ... )
        >>> def f():
        ...     for x in (2.0, 3.0, 4.0):
        ...         lox.log({"x": x})
        >>> lox.spool(f, reduce=product)()[1]
        {'x': 24.0}
    """

    empty: Callable[[jax.Array], PyTree]
    lift: Callable[[jax.Array], PyTree]
    combine: Callable[[PyTree, PyTree], PyTree]
    finish: Callable[[PyTree], PyTree]
    devices: bool | Callable[[PyTree], PyTree] = dataclasses.field(
        default=False, kw_only=True
    )
    steps: Literal["first", "last"] = dataclasses.field(default="last", kw_only=True)
    name: str = dataclasses.field(default="a `lox.Reduction`", kw_only=True)
    dtype: Callable[[DType], DType | None] | None = dataclasses.field(
        default=None, kw_only=True
    )

    @classmethod
    def named(
        cls, name: str, *, devices: bool | Callable[[PyTree], PyTree] = False
    ) -> "Reduction":
        """The reduction that a name such as `"mean"` stands for, over devices as well.

        Example:
            >>> mean = lox.Reduction.named("mean", devices=True)
            >>> lox.spool(lambda x: lox.log({"x": x}), reduce=mean)(1.0)[1]
            {'x': 1.0}
        """
        reduction = reduction_named(name)
        if reduction is None:
            raise ValueError(f"{name!r} keeps every row: there is nothing to combine.")
        return dataclasses.replace(reduction, devices=devices)

    def result(self, dtype: DType) -> DType | None:
        """The dtype of the value of rows of a dtype. None: what `finish` makes of it."""
        return None if self.dtype is None else self.dtype(dtype)


ReductionLike = Reduction | SideBySide | str | None
"""How a user or a call of `log` asks for a reduction. None: keep every row."""


def reduction_named(given: object) -> Reduction | None:
    """Return the reduction that `given` asks for. None: keep every row."""
    if given is None or isinstance(given, Reduction):
        return given
    if isinstance(given, SideBySide):
        return _named[given.name]
    if isinstance(given, str) and given in _named:
        return _named[given]
    raise ValueError(
        f"There is no reduction {given!r}. Choose from {', '.join(map(repr, _named))}, or "
        "define your own with `lox.Reduction`."
    )


def add_named(name: str, reduction: Reduction) -> None:
    """Let a name stand for a reduction that is made in another module."""
    _named[name] = reduction


def _number(dtype: DType) -> DType:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        raise TypeError("PRNG keys are not numbers")
    return dtype


def _ordered(dtype: DType) -> DType:
    if jnp.issubdtype(_number(dtype), jnp.complexfloating):
        raise TypeError("complex values have no order")
    return dtype


def _wide(dtype: DType) -> DType:
    """Return the dtype in which rows of a dtype are added up."""
    for kind, least in (
        (jnp.bool_, jnp.int32),
        (jnp.signedinteger, jnp.int32),
        (jnp.unsignedinteger, jnp.uint32),
        (jnp.floating, jnp.float32),
    ):
        if jnp.issubdtype(dtype, kind) and jnp.dtype(dtype).itemsize < 4:
            return jnp.dtype(least)
    return jnp.dtype(dtype)


def _real(dtype: DType) -> DType:
    """Return the dtype in which rows of a dtype are averaged."""
    wide = _wide(dtype)
    return wide if jnp.issubdtype(wide, jnp.inexact) else jnp.dtype(jnp.float32)


def _sum_dtype(dtype: DType) -> DType:
    return dtype if jnp.issubdtype(_number(dtype), jnp.inexact) else _wide(dtype)


def _mean_dtype(dtype: DType) -> DType:
    return dtype if jnp.issubdtype(_number(dtype), jnp.inexact) else _real(dtype)


def _spread_dtype(dtype: DType) -> DType:
    return jnp.finfo(_mean_dtype(dtype)).dtype


def _plus(total: tuple, x: tuple) -> tuple:
    """Add two sums, each a large part and a small one that it has no room for."""
    (high, low), (other, more) = total, x
    new = high + other
    # `back` is what arrived of `other`. Both brackets are what rounding took away, exactly.
    back = new - high
    small = ((high - (new - back)) + (other - back)) + (low + more)
    # What is not finite has no rest.
    small = jnp.where(jnp.isfinite(new), small, jnp.zeros_like(small))
    # Small parts add up, too: hand over what the large part has room for now.
    high = new + small
    return high, jnp.where(jnp.isfinite(new), small - (high - new), small)


def _exactly(x: jax.Array) -> tuple:
    return x, jnp.zeros_like(x)


def _divided(total: jax.Array, count: jax.Array) -> jax.Array:
    """Divide by a number of rows. Without any the total is 0, and so is the result.

    A NaN there would stop a program under `jax_debug_nans` that never has one.
    """
    return total / jnp.maximum(count, 1).astype(total.dtype)


def _total(dtype: Callable) -> Reduction:
    """Return a compensated sum in `dtype`."""
    return Reduction(
        empty=lambda row: _exactly(jnp.zeros(row.shape, dtype(row.dtype))),
        lift=lambda row: _exactly(row.astype(dtype(row.dtype))),
        combine=_plus,
        finish=lambda total: total[0] + total[1],
        name="'sum'",
        dtype=_sum_dtype,
    )


def _mean() -> Reduction:
    total = _total(_real)
    return Reduction(
        empty=lambda row: (total.empty(row), jnp.zeros((), jnp.int32)),
        lift=lambda row: (total.lift(row), jnp.ones((), jnp.int32)),
        combine=lambda a, b: (_plus(a[0], b[0]), a[1] + b[1]),
        finish=lambda acc: _divided(total.finish(acc[0]), acc[1]),
        name="'mean'",
        dtype=_mean_dtype,
    )


def _spread(name: str, finish: Callable) -> Reduction:
    """Return the variance by Chan's formula, with compensated mean and sum of squares."""

    def empty(row):
        mean = jnp.zeros(row.shape, _real(row.dtype))
        return jnp.zeros((), jnp.int32), _exactly(mean), _exactly(mean.real)

    def lift(row):
        _, _, squares = empty(row)
        return jnp.ones((), jnp.int32), _exactly(row.astype(_real(row.dtype))), squares

    def combine(a, b):
        # a, b: the count, the mean, and the sum of squared distances from the mean
        #     mean    = mean_a + delta * n_b / n
        #     squares = squares_a + squares_b + delta**2 * n_a * n_b / n
        count = a[0] + b[0]
        real = a[2][0].dtype
        share = _divided(b[0].astype(real), count)
        delta = (b[1][0] - a[1][0]) + (b[1][1] - a[1][1])
        # Without rows in `a`, its mean is 0, and the new mean is that of `b`.
        delta = jnp.where((a[0] > 0) & (b[0] > 0), delta, _sole(a, b))
        mean = _plus(a[1], _exactly(delta * share.astype(delta.dtype)))
        # The variance of complex numbers is that of their distances from the mean.
        square = jnp.square(delta.real) + jnp.square(delta.imag)
        more = square * share * a[0].astype(real)
        # Two infinities have no difference. This is NaN, but 0 where all is finite: a NaN
        # that is only there to be chosen would stop a program under `jax_debug_nans`.
        lost = (delta - delta).real
        lost = jnp.where(a[0] > 0, lost, jnp.zeros_like(lost))
        more = jnp.where(jnp.isfinite(delta), more, lost)
        return count, mean, _plus(_plus(a[2], b[2]), _exactly(more))

    def _sole(a, b):
        return jnp.where(b[0] > 0, b[1][0] + b[1][1], jnp.zeros_like(b[1][0]))

    def value(acc):
        count, _, (high, low) = acc
        return finish(_divided(high + low, count))

    return Reduction(empty, lift, combine, value, name=name, dtype=_spread_dtype)


def _extreme(name: str, choose: Callable, start: Callable) -> Reduction:
    """Return the smallest or the largest row. No row is beyond the value `start`.

    Under `jax_debug_infs` an infinite start would stop a program that is finite. Then a
    flag says whether there was a row, which costs a select per row.
    """

    def empty(row):
        if jax.config.jax_debug_infs:
            return _no_row(row)
        return jnp.full(row.shape, start(row.dtype), row.dtype)

    def lift(row):
        return _one_row(row) if jax.config.jax_debug_infs else row

    def combine(a, b):
        if not isinstance(a, tuple):
            return choose(a, b)
        either = jnp.where(b[0], b[1], a[1])
        return a[0] | b[0], jnp.where(a[0] & b[0], choose(a[1], b[1]), either)

    return Reduction(
        empty=empty,
        lift=lift,
        combine=combine,
        finish=lambda acc: acc[1] if isinstance(acc, tuple) else acc,
        name=name,
        dtype=_ordered,
    )


def _largest(dtype: DType) -> float | np.floating:
    """Return infinity, or the largest number of a small float that has none."""
    if dtype == jnp.bool_:
        return True
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.iinfo(dtype).max
    return np.inf if _has_infinity(dtype) else jnp.finfo(dtype).max


def _smallest(dtype: DType) -> float | np.floating:
    if dtype == jnp.bool_:
        return False
    if not jnp.issubdtype(dtype, jnp.inexact):
        return jnp.iinfo(dtype).min
    # Not the negative of the largest: `float8_e8m0fnu` has no sign.
    return -np.inf if _has_infinity(dtype) else jnp.finfo(dtype).min


def _has_infinity(dtype: DType) -> bool:
    return bool(np.isinf(np.asarray(np.inf).astype(dtype)))


def _single(which: Literal["first", "last"], choose: Callable) -> Reduction:
    """Return one of the rows. `choose` tells whether it is the later of two."""

    def combine(a, b):
        later = choose(a[0], b[0])
        return a[0] | b[0], jnp.where(later, b[1], a[1])

    return Reduction(
        empty=_no_row,
        lift=_one_row,
        combine=combine,
        finish=lambda acc: acc[1],
        steps=which,
        name=f"'{which}'",
        dtype=lambda dtype: dtype,
    )


def _no_row(row: jax.Array) -> tuple:
    return jnp.zeros((), bool), jnp.zeros(row.shape, row.dtype)


def _one_row(row: jax.Array) -> tuple:
    return jnp.ones((), bool), row


_last = _single("last", lambda a, b: b)

_named: dict[str, Reduction | None] = {
    "mean": _mean(),
    "sum": _total(_wide),
    "min": _extreme("'min'", jnp.minimum, _largest),
    "max": _extreme("'max'", jnp.maximum, _smallest),
    "first": _single("first", lambda a, b: jnp.logical_and(b, jnp.logical_not(a))),
    "last": _last,
    "count": Reduction(
        empty=lambda row: jnp.zeros((), jnp.int32),
        lift=lambda row: jnp.ones((), jnp.int32),
        combine=jnp.add,
        finish=lambda count: count,
        name="'count'",
    ),
    "std": _spread("'std'", jnp.sqrt),
    "var": _spread("'var'", lambda variance: variance),
    "replace": _last,
    "append": None,
}
