"""Some rows of logs (`slice`), those that exist (`compact`), those of two logs (`+`)."""

import functools as ft
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lox._rows.merge import concatenate
from lox._rows.rows import Rows

Logs = TypeVar("Logs")


class Slice(Generic[Logs]):
    """`logs.slice[i:j:k]`: makes logs of some of the rows."""

    def __init__(
        self, rows: Mapping[str, Rows], make: Callable[[Mapping[str, Rows]], Logs]
    ):
        self._rows, self._make = rows, make

    def __getitem__(self, index: slice) -> Logs:
        if not isinstance(index, slice):
            raise TypeError(
                f"`logs.slice` takes a slice of rows such as `logs.slice[10:20]`, not "
                f"{index!r}. For a single row use `logs.slice[i : i + 1]`."
            )
        return self._make({key: _take(rows, index) for key, rows in self._rows.items()})


def join(key: str, first: Rows, second: Rows) -> Rows:
    """Join the rows in time, the first before the second, example by example."""
    for rows in (first, second):
        if rows.altered:
            raise ValueError(
                f"Cannot add the rows of {key!r}, because they have already been "
                f"{rows.altered}. Add logs that have all of their rows, and reduce or thin "
                "them afterwards: "
                '`(a + b).reduce("mean")`, `(a + b).slice[::k]`.'
            )
    # Leading axes are mapped over: what is left is (time, *batch, ...).
    concatenated = ft.partial(_concatenate, key)
    for _ in range(first.leading):
        concatenated = jax.vmap(concatenated)
    return concatenated(*(rows.map(jnp.asarray) for rows in (first, second)))


def _concatenate(key: str, *parts: Rows) -> Rows:
    """Join rows without leading axes."""
    # The value of rows is a tuple there, with the value of each key.
    of_keys = [rows.replace(value=(rows.value,)) for rows in parts]
    joined = concatenate((key,), of_keys)
    return joined.replace(value=joined.value[0], bound=1)


def compact(key: str, rows: Rows) -> Rows | None:
    """Keep only the rows that exist; return None if there are none."""
    if rows.valid is None:
        return rows
    # How long the result is depends on the values of the mask.
    if isinstance(rows.valid, Tracer):
        raise TypeError(
            "`logs.compact()` was called under `jit`, but the number of rows of "
            f"{key!r} is known only when the program runs. Call it on the logs that the "
            "jitted function returns, or use `logs.valid` as a mask."
        )
    valid = np.asarray(rows.valid)
    if not valid.any():
        return None
    if rows.time:
        # The rows of each example that exist, in order, before those that do not.
        order = np.argsort(~valid, axis=rows.leading, kind="stable")
        length = valid.sum(axis=rows.leading).max()
        rows = _take(rows.map(lambda x: _reorder(x, order, rows.leading)), slice(length))
        valid = np.asarray(rows.valid)
    return rows.replace(valid=None) if valid.all() else rows


def _take(rows: Rows, index: slice) -> Rows:
    """Return some of the rows, of their steps and of their masks."""
    if rows.time:
        # (*leading, time, ...)
        axes = (slice(None),) * rows.leading + (index,)
        return rows.map(lambda x: x[axes])
    # A slice of a single row has it, and then it stays one, or has no rows at all.
    if len(range(1)[index]) == 1:
        return rows
    single = rows.map(lambda x: jnp.expand_dims(x, rows.leading), time=True)
    return _take(single, index)


def _reorder(
    x: jax.Array | np.ndarray, order: np.ndarray, axis: int
) -> jax.Array | np.ndarray:
    """Take the rows of an array in another order, which each example has its own of."""
    # (*leading, time, *batch) -> (*leading, time, *batch, 1, ...)
    shape = order.shape + (1,) * (x.ndim - order.ndim)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = jnp.asarray(_reorder(jax.random.key_data(x), order, axis))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    taken = np.take_along_axis(np.asarray(x), order.reshape(shape), axis)
    return taken if isinstance(x, np.ndarray) else jnp.asarray(taken)
