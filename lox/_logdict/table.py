"""Logs as one table, in pandas or polars."""

import dataclasses
import functools as ft
import itertools as it
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lox._logdict.numpy import (
    HasRows,
    axis_names,
    by_example,
    check_names,
    filled,
    leaves,
    plain,
    sizes,
    to_numpy,
)
from lox._rows.rows import Rows
from lox_host.extras import imported

if TYPE_CHECKING:
    import pandas
    import polars


def to_pandas(logs: HasRows) -> "pandas.DataFrame":
    """All keys in one `DataFrame`, with a line for each step.

    The columns are `batch` (`batch_0`, `batch_1`, ... if there are several batch
    axes), the steps, and the keys. Values of different keys stand in one line if
    their batch indices and all of their steps are the same; the second value that a
    key has at these stands beside the second one of other keys, and so on. So keys
    without steps are put side by side row by row, with a column `row`.

    The lines are sorted by batch index and steps, or, if the steps of some key do not
    grow, in the order of logging. Rows that were not really logged are left out; what
    a line lacks is missing (`NaN`, `<NA>`, `None`). Pytrees become one column for
    each array, `key/a/b`. Arrays are kept as objects, and 16-bit and smaller floats
    that NumPy does not have become float32.

    Needs the extra `jax-lox[pandas]`.

    Example:
        >>> def f(x):
        ...     for i in range(3):
        ...         lox.log({"loss": x / (i + 1)}, step=i)
        ...     lox.log({"test": x}, step=2)
        >>> print(lox.spool(f)(6.0)[1].to_pandas())
           step  loss  test
        0     0   6.0   NaN
        1     1   3.0   NaN
        2     2   2.0   6.0
    """
    pd = imported("pandas", "`logs.to_pandas()`", "pandas")
    columns = table(to_numpy(logs.rows(), "to_pandas"))
    return pd.DataFrame({name: _in_pandas(pd, *of) for name, of in columns.items()})


def to_polars(logs: HasRows) -> "polars.DataFrame":
    """All keys in one `DataFrame` of polars: the table of `to_pandas`.

    What is missing is null. Arrays become columns of the type `Array`, complex
    numbers structs of `real` and `imag`.

    Needs the extra `jax-lox[polars]`.

    Example:
        >>> logs = lox.logdict({"loss": 0.5}, step={"loss": 3})
        >>> logs.to_polars().to_dicts()
        [{'step': 3, 'loss': 0.5}]
    """
    pl = imported("polars", "`logs.to_polars()`", "polars")
    columns = table(to_numpy(logs.rows(), "to_polars"))
    return pl.DataFrame([_in_polars(pl, name, *of) for name, of in columns.items()])


# A column: its values, and which of them there are.
Column = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Part:
    """The rows of one key in a table: where they stand, and what stands there.

    Attributes:
        index: The batch axes, by name.
        steps: The steps, by name.
        columns: The arrays of the value, by name.
        length: How many rows there are.
    """

    index: dict[str, Column]
    steps: dict[str, Column]
    columns: dict[str, np.ndarray]
    length: int

    def place(self, name: str) -> Column:
        """A batch axis or a step; nothing where the key has no such."""
        nowhere = np.zeros(self.length, int), np.zeros(self.length, bool)
        return self.index.get(name, self.steps.get(name, nowhere))


def table(rows: Mapping[str, Rows]) -> dict[str, Column]:
    """One table of all keys, with a line for each batch index and combination of steps.

    Rows of two keys that have the same of these stand in one line. Where a key has
    several, its n-th stands beside the n-th of another key; without steps, that is the
    number of the row.
    """
    if not rows:
        return {}
    names = axis_names(rows)
    parts = [_part(key, own, names[key]) for key, own in rows.items()]
    batch = list(dict.fromkeys(name for part in parts for name in part.index))
    steps = list(dict.fromkeys(name for part in parts for name in part.steps))
    for name in steps:
        _check_shape(name, [part.steps[name][0] for part in parts if name in part.steps])
    at, number = _lines(parts, [*batch, *steps])
    size = max((int(each.max()) + 1 for each in at if each.size), default=0)
    lines: list[tuple[str, Column]] = [
        (name, _spread(size, at, [part.place(name) for part in parts])) for name in batch
    ]
    if any(own.time and own.steps.keys() <= own.masks.keys() for own in rows.values()):
        bare = [~_any([c[1] for c in p.steps.values()], p.length) for p in parts]
        lines.append(("row", _spread(size, at, list(zip(number, bare, strict=True)))))
    for name in steps:
        lines.append((name, _spread(size, at, [part.place(name) for part in parts])))
    for each, part in zip(at, parts, strict=True):
        there = np.ones(part.length, bool)
        for name, values in part.columns.items():
            lines.append((name, _spread(size, [each], [(values, there)])))
    check_names([name for name, _ in lines], "to_pandas` or `to_polars")
    return dict(lines)


def _part(key: str, rows: Rows, names: tuple[str, ...]) -> _Part:
    n = len(names) + 1
    shape = (*sizes(rows), rows.length)
    valid = np.ones(shape, bool) if rows.valid is None else by_example(rows, rows.valid)
    indices = np.indices(shape)

    def flat(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1, *x.shape[n:])[valid.reshape(-1)]

    def step(name: str) -> Column:
        values = flat(by_example(rows, rows.steps[name]))
        if name not in rows.masks:
            return plain(values), np.ones(len(values), bool)
        return plain(values), flat(by_example(rows, rows.masks[name]))

    there = np.ones(int(valid.sum()), bool)
    return _Part(
        index={name: (flat(indices[i]), there) for i, name in enumerate(names)},
        steps={name: step(name) for name in rows.steps},
        columns={name: flat(by_example(rows, x)) for name, x in leaves(key, rows)},
        length=len(there),
    )


def _lines(
    parts: list[_Part], names: list[str]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The line of each row of each part, and its number among those at one place."""
    lengths = [part.length for part in parts]
    owner = np.repeat(np.arange(len(parts)), lengths)
    codes = [_coded([part.place(name) for part in parts]) for name in names]
    place = _folded([np.zeros(sum(lengths), int), *codes])
    number = _numbered(_folded([place, owner]))
    line = _folded([place, number])
    ends = list(it.accumulate(lengths))[:-1]
    if not all(np.all(np.diff(own) > 0) for own in np.split(line, ends)):
        # Steps that do not grow: the lines stay in the order of logging.
        _, first = np.unique(line, return_index=True)
        line = np.argsort(np.argsort(first))[line]
    return np.split(line, ends), np.split(number, ends)


def _coded(columns: list[Column]) -> np.ndarray:
    """Numbers in the order of the values, the largest where there is none."""
    there = np.concatenate([mask for _, mask in columns])
    values = np.concatenate([of[mask] for of, mask in columns if mask.any()] or [there[:0]])
    axis = 0 if values.ndim > 1 else None
    unique, inverse = np.unique(values, return_inverse=True, axis=axis)
    codes = np.full(there.shape, len(unique))
    codes[there] = inverse.reshape(-1)
    return codes


def _folded(codes: Iterable[np.ndarray]) -> np.ndarray:
    """One number in place of several, in their lexicographic order."""

    def fold(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.unique(a * (b.max(initial=0) + 1) + b, return_inverse=True)[1]

    return ft.reduce(fold, codes)


def _numbered(group: np.ndarray) -> np.ndarray:
    """For each element, how many equal ones there are before it."""
    sizes = np.bincount(group)
    number = np.empty_like(group)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    number[np.argsort(group, kind="stable")] = np.arange(len(group)) - starts
    return number


def _spread(size: int, at: list[np.ndarray], columns: list[Column]) -> Column:
    """Put the values of each part on its lines."""
    given = [(i, of, mask) for i, (of, mask) in zip(at, columns, strict=True)]
    own = [each for each in given if each[2].any()] or given
    dtype = np.result_type(*(of.dtype for _, of, _ in own))
    values, there = np.zeros((size, *own[0][1].shape[1:]), dtype), np.zeros(size, bool)
    for i, of, mask in own:
        values[i[mask]] = of[mask]
        there[i[mask]] = True
    return values, there


def _in_pandas(pd: Any, values: np.ndarray, there: np.ndarray) -> Any:
    if values.ndim > 1 or values.dtype.kind not in "biufc":
        column = np.empty(len(values), object)
        for i in np.flatnonzero(there):
            column[i] = values[i]
        return column
    if there.all() or values.dtype.kind in "fc":
        return filled(values, there)
    kind = pd.arrays.BooleanArray if values.dtype == bool else pd.arrays.IntegerArray
    return kind(values, ~there)


def _in_polars(pl: Any, name: str, values: np.ndarray, there: np.ndarray) -> Any:
    if values.dtype.kind == "c":
        parts = {"real": np.real(values), "imag": np.imag(values)}
        column = [_in_polars(pl, part, of, there) for part, of in parts.items()]
        return _or_null(pl, pl.DataFrame(column).to_struct(name), there)
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    if values.ndim == 1:
        return _or_null(pl, pl.Series(name, values), there)
    inner = pl.Series(values[:0].reshape(-1)).dtype
    each = [x.tolist() if ok else None for x, ok in zip(values, there, strict=True)]
    return pl.Series(name, each, dtype=pl.Array(inner, values.shape[1:]))


def _or_null(pl: Any, column: Any, there: np.ndarray) -> Any:
    nothing = pl.repeat(None, len(there), dtype=column.dtype, eager=True)
    return column if there.all() else column.zip_with(pl.Series(there), nothing)


def _check_shape(name: str, steps: list[np.ndarray]) -> None:
    shapes = {step.shape[1:] for step in steps}
    if len(shapes) > 1:
        raise ValueError(
            f"The step {name!r} has the shapes {sorted(shapes)} for different keys, which "
            "one column cannot hold. Make several tables: `logs.filter(...).to_pandas()`."
        )


def _any(masks: list[np.ndarray], length: int) -> np.ndarray:
    return ft.reduce(np.logical_or, masks, np.zeros(length, bool))
