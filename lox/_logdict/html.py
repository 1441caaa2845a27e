"""What notebooks show of logs: a table, with a line for each array."""

import html

import jax
import numpy as np
from jax.core import Tracer

from lox._logdict.numpy import HasRows, flat_rows, to_numpy
from lox._rows.rows import Rows


def repr_html(logs: HasRows) -> str:
    """Return the logs as an HTML table: last values, ranges, what is not finite, curves."""
    from lox_host.display.html import logs_table

    rows = logs.rows()
    # Under `jit` there are no values, and other processes may have them.
    if not all(map(_is_readable, jax.tree.leaves(dict(rows)))):
        return f"<pre>{html.escape(repr(logs))}</pre>"
    kinds: dict[str, str] = {}
    for key, key_rows in rows.items():
        kinds |= _kinds(key, key_rows)
    return logs_table(flat_rows(to_numpy(rows)), kinds)


def _is_readable(leaf: object) -> bool:
    if isinstance(leaf, Tracer):
        return False
    return not isinstance(leaf, jax.Array) or (
        leaf.is_fully_addressable and not leaf.is_deleted()
    )


def _kinds(key: str, rows: Rows) -> dict[str, str]:
    """Return the dtype and the shape of each array of a value, by name."""
    kinds = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(rows.value)[0]:
        parts = [key, jax.tree_util.keystr(path, simple=True, separator="/")]
        dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
        shape = ",".join(map(str, np.shape(leaf)))
        kinds["/".join(parts[: 1 + bool(path)])] = f"{dtype}[{shape}]"
    return kinds
