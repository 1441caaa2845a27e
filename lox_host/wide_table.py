"""One table of all keys, for pandas, polars and Parquet. NumPy only.

Rows of different keys share a line if they have the same labels, which are their batch
indices and their steps:

    loss at steps 0, 1, 2           step  loss  test
    test at step 2            ->       0   6.0
                                       1   3.0
                                       2   2.0   6.0

NumPy finds the lines, not the joins of pandas and polars. So both tables have one source,
steps may be arrays, on which neither library joins, and integers stay integers in a column
that is not full.
"""

import functools as ft
import itertools as it
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lox_host.batch_axes import batch_axis_names
from lox_host.rows import FlatRows

if TYPE_CHECKING:
    import pandas
    import polars


class Cells(NamedTuple):
    """Values, and which of them there are."""

    values: np.ndarray
    present: np.ndarray


class LabelledRows(NamedTuple):
    """The rows of one key that exist, those of the first example first.

    Attributes:
        labels: The indices of the examples and the steps, by name.
        values: The arrays of the value, by name.
        length: How many rows there are.
        time: When each of them reached the host. None: unknown.
    """

    labels: dict[str, Cells]
    values: dict[str, np.ndarray]
    length: int
    time: np.ndarray | None


class RunLabels(NamedTuple):
    """Which runs some rows are of.

    Attributes:
        names: The names of the runs.
        settings: The config of each, nested entries as `outer.inner`.
        is_axis: Whether the first axis of examples is that of the runs. If not, there is
            only one.
    """

    names: Sequence[str]
    settings: Sequence[Mapping[str, Any]]
    is_axis: bool


def table(rows: Mapping[str, FlatRows], runs: RunLabels | None = None) -> dict[str, Cells]:
    """Return the columns: runs, batch indices, `row`, steps, and the arrays of all keys.

    There is a line for each run, batch index and combination of steps. Where a key has
    several rows with the same of these, its n-th is put beside the n-th of another key;
    without steps, that is the number of the row. Of each run, the name and the config are
    columns.
    """
    columns = _columns(rows, has_runs=runs is not None and runs.is_axis)
    if runs is None or not columns:
        return columns
    height = len(next(iter(columns.values())).present)
    index = columns.pop(_RUN).values if runs.is_axis else np.zeros(height, int)
    labels = {"run": column_of(runs.names)}
    for name in dict.fromkeys(it.chain(*runs.settings)):
        # A key may be called like an entry of the config, as the rate that was in force.
        free = f"config.{name}" if name in columns or name == "run" else name
        labels[free] = column_of([settings.get(name) for settings in runs.settings])
    spread = {
        name: Cells(values[index], present[index])
        for name, (values, present) in labels.items()
    }
    check_names([*spread, *columns], "to_pandas` or `to_polars")
    return {**spread, **columns}


_RUN = "@run"  # the index of the run, which is in no table


def column_of(values: Sequence[Any]) -> Cells:
    """Return a column of values of any kind: numbers as numbers, all else as text."""
    present = np.array([value is not None for value in values], bool)
    known = [value for value in values if value is not None]
    kinds = {type(value) for value in known}
    if kinds <= {bool}:
        array = np.array([bool(value) for value in values], bool)
    elif kinds <= {int} and all(abs(value) < 2**63 for value in known):
        array = np.array([value or 0 for value in values], np.int64)
    elif kinds <= {int, float}:
        array = np.array([value or 0.0 for value in values], np.float64)
    else:
        array = np.array(["" if value is None else str(value) for value in values], str)
    return Cells(array, present)


def _columns(rows: Mapping[str, FlatRows], *, has_runs: bool) -> dict[str, Cells]:
    """Return the columns, with the index of the run in `_RUN` if there are several."""
    if not rows:
        return {}
    front = (_RUN,) if has_runs else ()
    batches = {key: flat.examples[len(front) :] for key, flat in rows.items()}
    axes = {key: (*front, *names) for key, names in batch_axis_names(batches).items()}
    batch = dict.fromkeys(it.chain(*axes.values()))
    steps = dict.fromkeys(it.chain(*(flat.steps for flat in rows.values())))
    keys = [_labelled(flat, axes[key]) for key, flat in rows.items()]
    for name in steps:
        _check_shape(name, [key.labels[name] for key in keys if name in key.labels])
    # From here on, the rows of all keys are in one array, one key after the other.
    labels = {name: _concatenated(keys, name) for name in [*batch, *steps]}
    owner = np.repeat(np.arange(len(keys)), [key.length for key in keys])
    # The line of each row, and for rows without steps their number, which is the column
    # `row`. From then on, each column is spread over the lines by itself.
    lines, numbers = _lines(labels.values(), owner)
    height = lines.max(initial=-1) + 1
    columns = [(name, _spread(height, lines, labels[name])) for name in batch]
    if any(map(_has_bare_rows, rows.values())):
        has_step = ft.reduce(np.logical_or, [labels[n].present for n in steps], owner < 0)
        columns.append(("row", _spread(height, lines, Cells(numbers, ~has_step))))
    columns += [(name, _spread(height, lines, labels[name])) for name in steps]
    if any(key.time is not None and np.isfinite(key.time).any() for key in keys):
        name = "@time" if "time" in steps else "time"
        columns.append((name, _times(height, lines, keys)))
    for i, key in enumerate(keys):
        everywhere = np.ones(key.length, bool)
        for name, values in key.values.items():
            cells = Cells(values, everywhere)
            columns.append((name, _spread(height, lines[owner == i], cells)))
    check_names([name for name, _ in columns], "to_pandas` or `to_polars")
    return dict(columns)


def _labelled(rows: FlatRows, names: tuple[str, ...]) -> LabelledRows:
    """Return the rows of one key that exist, one by one, with their labels."""
    shape = *rows.examples, len(rows)
    valid = np.ones(shape, bool)
    if rows.valid is not None:
        valid = np.moveaxis(rows.valid, 0, -1)

    def flat(x: np.ndarray) -> np.ndarray:
        # (rows, *examples, ...) -> (*examples, rows, ...) -> (rows that exist, ...)
        x = np.moveaxis(x, 0, len(rows.examples))
        return plain(x.reshape(math.prod(shape), *x.shape[len(shape) :])[valid.reshape(-1)])

    indices = np.argwhere(valid)
    everywhere = np.ones(len(indices), bool)
    labels = {name: Cells(indices[:, i], everywhere) for i, name in enumerate(names)}
    for name, step in rows.steps.items():
        present = flat(rows.masks[name]) if name in rows.masks else everywhere
        labels.setdefault(name, Cells(flat(step), present))
    values = {name: flat(array) for name, array in rows.arrays.items()}
    time = None
    if rows.time is not None:
        # (rows, [runs]) -> (rows, *examples)
        inner = (1,) * (len(shape) - rows.time.ndim)
        wide = rows.time.reshape(*rows.time.shape, *inner)
        time = flat(np.broadcast_to(wide, (len(rows), *rows.examples)))
    return LabelledRows(labels, values, len(indices), time)


def _times(height: int, lines: np.ndarray, keys: list[LabelledRows]) -> Cells:
    """Return when what is on each line reached the host first."""
    unknown = [np.full(key.length, np.nan) for key in keys]
    pairs = zip(keys, unknown, strict=True)
    times = [nothing if key.time is None else key.time for key, nothing in pairs]
    first = np.full(height, np.nan)
    np.fmin.at(first, lines, np.concatenate(times))
    return Cells(first, ~np.isnan(first))


def _has_bare_rows(rows: FlatRows) -> bool:
    """Return whether there is a time axis, and some rows may have no step."""
    return rows.has_time and rows.steps.keys() <= rows.masks.keys()


def _concatenated(keys: list[LabelledRows], name: str) -> Cells:
    """Return a label of the rows of all keys, of which some may not have it."""
    parts = []
    for key in keys:
        nothing = Cells(np.zeros(key.length, int), np.zeros(key.length, bool))
        parts.append(key.labels.get(name, nothing))
    # Type and shape are those of the keys that have it.
    known = [part for part in parts if part.present.any()]
    like = [part.values for part in known or parts]
    present = np.concatenate([part.present for part in parts])
    dtype = np.result_type(*(values.dtype for values in like))
    values = np.zeros((len(present), *like[0].shape[1:]), dtype)
    if known:
        values[present] = np.concatenate([part.values[part.present] for part in known])
    return Cells(values, present)


def _lines(labels: Iterable[Cells], owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the line of each row, and its number among those of its key and labels."""
    # Rows with the same labels are on one line, unless they are of one key: its second row
    # with these labels is number 1, and goes with number 1 of other keys.
    #     key     loss loss loss loss    test test
    #     step       0    1    1    2       1    2
    #     label      0    1    1    2       1    2
    #     number     0    0    1    0       0    0
    #     line       0    1    2    3       1    3
    label = _ranks([owner * 0, *map(_codes, labels)])
    number = _numbered(_ranks([label, owner]))
    line = _ranks([label, number])
    grows = np.diff(line) > 0
    if not grows[np.diff(owner) == 0].all():
        # Steps that do not grow: the lines stay in the order of logging.
        # Number them by where each appears first.
        _, first = np.unique(line, return_index=True)
        line = np.argsort(np.argsort(first))[line]
    return line, number


def _codes(cells: Cells) -> np.ndarray:
    """Number the values in their order, with the largest number where there is none."""
    values = cells.values[cells.present]
    axis = 0 if values.ndim > 1 else None
    unique, inverse = np.unique(values, return_inverse=True, axis=axis)
    codes = np.full(len(cells.present), len(unique))
    codes[cells.present] = inverse.reshape(-1)
    return codes


def _ranks(codes: Iterable[np.ndarray]) -> np.ndarray:
    """Return one number in place of several, in their lexicographic order."""

    def fold(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        # As digits of one number, made dense again so that it never overflows.
        return np.unique(a * (b.max(initial=0) + 1) + b, return_inverse=True)[1]

    return ft.reduce(fold, codes)


def _numbered(group: np.ndarray) -> np.ndarray:
    """Return for each element how many equal ones there are before it."""
    # Sorted by group, each group counts from where it starts.
    sizes = np.bincount(group)
    number = np.empty_like(group)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    number[np.argsort(group, kind="stable")] = np.arange(len(group)) - starts
    return number


def _spread(height: int, lines: np.ndarray, cells: Cells) -> Cells:
    """Put values on their lines of a column."""
    values = np.zeros((height, *cells.values.shape[1:]), cells.values.dtype)
    present = np.zeros(height, bool)
    values[lines[cells.present]] = cells.values[cells.present]
    present[lines[cells.present]] = True
    return Cells(values, present)


def in_pandas(pd: ModuleType, columns: Mapping[str, Cells]) -> "pandas.DataFrame":
    """Return the table in pandas, which is given."""
    return pd.DataFrame({name: _in_pandas(pd, cells) for name, cells in columns.items()})


def in_polars(pl: ModuleType, columns: Mapping[str, Cells]) -> "polars.DataFrame":
    """Return the table in polars, which is given."""
    return pl.DataFrame([_in_polars(pl, name, cells) for name, cells in columns.items()])


def _in_pandas(
    pd: ModuleType, cells: Cells
) -> "np.ndarray | pandas.api.extensions.ExtensionArray":
    values, present = cells
    # Arrays are objects in pandas, and None where there is none.
    if values.ndim > 1 or values.dtype.kind not in "biufc":
        column = np.empty(len(values), object)
        for i in np.flatnonzero(present):
            column[i] = values[i]
        return column
    if present.all() or values.dtype.kind in "fc":
        return filled(values, present)
    kind = pd.arrays.BooleanArray if values.dtype == bool else pd.arrays.IntegerArray
    return kind(values, ~present)


def _in_polars(pl: ModuleType, name: str, cells: Cells) -> "polars.Series":
    values, present = cells
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    if values.dtype.kind == "c":
        parts = {"real": np.real(values), "imag": np.imag(values)}
        fields = [_in_polars(pl, part, Cells(x, present)) for part, x in parts.items()]
        column = pl.DataFrame(fields).to_struct(name)
    elif values.ndim > 1:
        inner = pl.Series(values[:0].reshape(-1)).dtype
        lists = [x.tolist() if ok else None for x, ok in zip(values, present, strict=True)]
        return pl.Series(name, lists, dtype=pl.Array(inner, values.shape[1:]))
    else:
        column = pl.Series(name, values)
    if present.all():
        return column
    nothing = pl.repeat(None, len(present), dtype=column.dtype, eager=True)
    return column.zip_with(pl.Series(present), nothing)


def _check_shape(name: str, steps: list[Cells]) -> None:
    """Raise if keys have a step of this name in different shapes."""
    shapes = {step.values.shape[1:] for step in steps}
    if len(shapes) > 1:
        raise ValueError(
            f"The step {name!r} has different shapes for different keys, {sorted(shapes)}, "
            "so they do not fit into one column. Make several tables: "
            "`logs.filter(...).to_pandas()`."
        )


def plain(x: np.ndarray) -> np.ndarray:
    """Return the array in a dtype of NumPy's own, which tables know."""
    if x.dtype.isbuiltin != 2:  # none of those that `ml_dtypes` adds
        return x
    # 4-bit integers fit int8, and all small floats fit float32.
    if "int" not in x.dtype.name:
        return x.astype(np.float32)
    return x.astype(np.uint8 if x.dtype.name.startswith("uint") else np.int8)


def filled(values: np.ndarray, present: np.ndarray | None) -> np.ndarray:
    """Put NaN where a value is missing. Then integers become floats."""
    if present is None or np.all(present):
        return values
    if values.dtype.kind not in "fc":
        values = values.astype(np.float64)
    shape = np.shape(present) + (1,) * (values.ndim - np.ndim(present))
    return np.where(np.reshape(present, shape), values, values.dtype.type(np.nan))


def check_names(names: Sequence[str], method: str) -> None:
    """Raise if two columns would have the same name."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise ValueError(
            f"`logs.{method}` would make two columns called {twice[0]!r}. Keys, steps and "
            "axes (`batch`, `row`, `time`) need different names. Rename the keys, for "
            'example with `logs.prefix("log/")`.'
        )
