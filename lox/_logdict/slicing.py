"""Rows that were collected: some of them, those of two logs, those that exist."""

from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lox._rows.rows import Rows, concatenate

L = TypeVar("L")


class Slice(Generic[L]):
    """`logs.slice[i:j:k]`."""

    def __init__(self, logs: L):
        self._logs: Any = logs

    def __getitem__(self, index: slice) -> L:
        if not isinstance(index, slice):
            raise TypeError(
                f"`logs.slice` takes a slice of rows such as `logs.slice[10:20]`, not "
                f"{index!r}. For a single row use `logs.slice[i : i + 1]`."
            )
        return self._logs.of({k: _take(own, index) for k, own in self._logs.rows().items()})


def join(key: str, first: Rows, second: Rows) -> Rows:
    """First the one, then the other, under every axis that both have in front."""
    for rows in (first, second):
        if rows.altered:
            raise ValueError(
                f"Cannot add the rows of {key!r}: they have been {rows.altered} already, "
                "and no longer say what the two together would be. Add the logs with all "
                "of their rows first, and reduce or thin them afterwards: "
                '`(a + b).reduce("mean")`, `(a + b).slice[::k]`.'
            )
    joined = lambda a, b: concatenate(key, [a, b]).replace(bound=1)  # noqa: E731
    for _ in range(first.lead):
        joined = jax.vmap(joined)
    return joined(*(rows.map(jnp.asarray) for rows in (first, second)))


def compact(key: str, rows: Rows) -> Rows | None:
    """Only the rows that exist; None if there are none."""
    if rows.valid is None:
        return rows
    if isinstance(rows.valid, Tracer):
        raise TypeError(
            f"`logs.compact()` was called under `jit`, but how many rows of {key!r} were "
            "logged is known only when the program runs. Call it on what `jit` returns, "
            "or use `logs.valid` as a mask."
        )
    valid = np.asarray(rows.valid)
    if not valid.any():
        return None
    if rows.time:
        # The rows of each example that exist, in order, before those that do not.
        order = np.argsort(~valid, axis=rows.lead, kind="stable")
        length = valid.sum(axis=rows.lead).max()
        at = (slice(None),) * rows.lead + (slice(length),)
        rows = rows.map(lambda x: _reorder(x, order, rows.lead)[at])
        valid = np.asarray(rows.valid)
    return rows.replace(valid=None) if valid.all() else rows


def _take(rows: Rows, index: slice) -> Rows:
    if rows.time:
        at = (slice(None),) * rows.lead + (index,)
        return rows.map(lambda x: x[at])
    if len(range(1)[index]) == 1:
        return rows
    empty = rows.map(lambda x: jnp.expand_dims(x, rows.lead), time=True)
    return _take(empty, index)


def _reorder(x: Any, order: np.ndarray, axis: int) -> Any:
    shape = order.shape + (1,) * (x.ndim - order.ndim)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _reorder(jax.random.key_data(x), order, axis)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    taken = np.take_along_axis(np.asarray(x), order.reshape(shape), axis)
    return taken if isinstance(x, np.ndarray) else jnp.asarray(taken)
