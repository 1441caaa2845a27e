"""Logs as NumPy arrays, and what other conversions need: names of arrays and of axes.

Tables, plots and writers are host code, which knows no `Rows`. They take `FlatRows`: the
rows of a key with the axis of rows in front, whatever `vmap` put there, and all batch axes
behind it.

    rows    (*leading, [time,] *batch, ...)      (4, 100, 2)    4 seeds, 100 rows, a pair
    flat    (rows, *examples, ...)               (100, 4, 2)
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

import jax
import numpy as np
from jax.core import Tracer

from lox._rows.rows import Rows, without_keys
from lox_host.batch_axes import batch_axis_names

if TYPE_CHECKING:
    from lox_host.rows import FlatRows
    from lox_host.wide_table import RunLabels


class HasRows(Protocol):
    """A `logdict`, for the functions that are methods of it."""

    def rows(self) -> Mapping[str, Rows]: ...
    def _run_labels(self) -> "RunLabels | None": ...


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
    from lox_host.wide_table import plain

    for path, leaf in jax.tree_util.tree_flatten_with_path(rows.value)[0]:
        parts = [key, jax.tree_util.keystr(path, simple=True, separator="/")]
        yield "/".join(parts[: 1 + bool(path)]), plain(leaf)


def axis_names(rows: Mapping[str, Rows]) -> dict[str, tuple[str, ...]]:
    """Name the batch axes of each key, from the outermost to the innermost."""
    return batch_axis_names({key: sizes(key_rows) for key, key_rows in rows.items()})


def flat_rows(rows: Mapping[str, Rows]) -> "dict[str, FlatRows]":
    """Return the rows of each key, all on the host, with the axis of rows in front."""
    return {key: _flat_rows(key, key_rows) for key, key_rows in rows.items()}


def _flat_rows(key: str, rows: Rows) -> "FlatRows":
    from lox_host.rows import FlatRows

    # (*leading, [time,] *batch, ...) -> (rows, *leading, *batch, ...)
    first = rows.map(lambda x: np.moveaxis(x, rows.leading, 0) if rows.time else x[None])
    return FlatRows(
        arrays=dict(leaves(key, first)),
        steps=first.steps,
        masks=first.masks,
        valid=first.valid,
        examples=sizes(rows),
        has_time=rows.time,
    )


def sizes(rows: Rows) -> tuple[int, ...]:
    """Return the sizes of all batch axes, those in front of time first."""
    front = np.shape(jax.tree.leaves(rows.value)[0])[: rows.leading]
    return (*front, *rows.batch)
