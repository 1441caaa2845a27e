"""Logs as NumPy arrays, and what other conversions need: their names and axes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lox._rows.rows import Rows, embedding, without_keys


class HasRows(Protocol):
    """A `logdict`, for the functions that are methods of it."""

    def rows(self) -> Mapping[str, Rows]: ...


def to_numpy(rows: Mapping[str, Rows], method: str = "to_numpy") -> dict[str, Rows]:
    """Return the rows with NumPy arrays, typed PRNG keys as their key data."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(dict(rows))):
        raise TypeError(
            f"`logs.{method}()` was called under `jit` or another transformation, where "
            "the values are not known yet. Call it on what the transformed function "
            "returns."
        )
    return {
        key: jax.tree.map(np.asarray, without_keys(key_rows))
        for key, key_rows in rows.items()
    }


def leaves(key: str, rows: Rows) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a value with their names, `key` or `key/path/in/the/tree`."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(rows.value)[0]:
        parts = [key, jax.tree_util.keystr(path, simple=True, separator="/")]
        yield "/".join(parts[: 1 + bool(path)]), plain(leaf)


def axis_names(rows: Mapping[str, Rows]) -> dict[str, tuple[str, ...]]:
    """Name the batch axes of each key, from the outermost to the innermost."""
    shapes = {key: sizes(key_rows) for key, key_rows in rows.items()}
    widest = max(shapes.values(), key=len, default=())
    names = _numbered("batch", len(widest))
    found = {}
    for key, shape in shapes.items():
        axes = embedding(shape, widest)
        # Where it cannot be told which of the axes these are, they have names of their own.
        own_names = _numbered(f"batch_{key}", len(shape))
        found[key] = own_names if axes is None else tuple(names[i] for i in axes)
    return found


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return (name,) if count == 1 else tuple(f"{name}_{i}" for i in range(count))


def by_example(rows: Rows, x: np.ndarray) -> np.ndarray:
    """Bring an array of rows to the axes `*examples, time, ...`."""
    lead, n = rows.lead, len(rows.batch)
    if rows.time:
        return np.moveaxis(x, lead, lead + n)
    return np.expand_dims(x, lead + n)


def sizes(rows: Rows) -> tuple[int, ...]:
    """Return the sizes of all batch axes, those in front of time first."""
    front = np.shape(jax.tree.leaves(rows.value)[0])[: rows.lead]
    return (*front, *rows.batch)


def filled(values: np.ndarray, present: np.ndarray | None) -> np.ndarray:
    """Put NaN where a value is missing. Then integers become floats."""
    if present is None or np.all(present):
        return values
    if values.dtype.kind not in "fc":
        values = values.astype(np.float64)
    shape = np.shape(present) + (1,) * (values.ndim - np.ndim(present))
    return np.where(np.reshape(present, shape), values, values.dtype.type(np.nan))


def plain(x: np.ndarray) -> np.ndarray:
    """Return the array in a dtype of NumPy's own, which tables know."""
    if x.dtype.isbuiltin == 1 or x.dtype.kind in "OSU":
        return x
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x.astype(np.float32)
    unsigned = jnp.issubdtype(x.dtype, jnp.unsignedinteger)
    return x.astype(np.uint8 if unsigned else np.int8)


def check_names(names: Sequence[str], method: str) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(
            f"`logs.{method}` would have two things called {twice[0]!r}: the keys, the "
            "steps and the axes (`batch`, `row`, `time`) need different names. Rename "
            'the keys, such as with `logs.prefix("log/")`.'
        )
