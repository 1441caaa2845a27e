"""Put logs into a `Dataset` of xarray, for `logs.to_xarray()`."""

import dataclasses
import itertools as it
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from lox._logdict.numpy import HasRows, axis_names, leaves, to_numpy
from lox._rows.rows import Rows
from lox_host.extras import import_extra
from lox_host.wide_table import check_names, filled, plain

if TYPE_CHECKING:
    import xarray


def dataset(logs: HasRows) -> "xarray.Dataset":
    """Return the `Dataset`. See `to_xarray`."""
    xr = import_extra("xarray", "`logs.to_xarray()`", "xarray")
    rows = to_numpy(logs.rows(), "to_xarray")
    variables, coordinates = {}, {}
    names, times = axis_names(rows), _time_axes(rows)
    for key, key_rows in rows.items():
        dims = _dims(key_rows, names[key], times[key].dim)
        coordinates.update(times[key].steps)
        if key_rows.valid is not None:
            coordinates[f"valid_{key}"] = dims, key_rows.valid
        attributes = {"tags": list(key_rows.tags)} if key_rows.tags else {}
        for name, leaf in leaves(key, key_rows):
            # Integers stay what they are, as there is a mask.
            values = filled(leaf, key_rows.valid) if leaf.dtype.kind in "fc" else leaf
            inner = [f"{name}_{i}" for i in range(leaf.ndim - len(dims))]
            variables[name] = [*dims, *inner], values, attributes
    arrays = it.chain(coordinates.values(), variables.values())
    all_dims = {dim for dims, *_ in arrays for dim in dims}
    # A step called like its axis is the index of it.
    index = {name for name, (dims, _) in coordinates.items() if dims == (name,)}
    check_names([*all_dims - index, *coordinates, *variables], "to_xarray")
    return xr.Dataset(variables, coordinates)


# The names of the axes of an array, and the array.
Variable = tuple[tuple[str, ...], np.ndarray]


@dataclasses.dataclass(frozen=True)
class _TimeAxis:
    """The axis of time of one or several keys, and their steps.

    Attributes:
        dim: The name of the axis. Empty: there is none.
        length: How long it is, or -1.
        steps: The steps by name.
    """

    dim: str
    length: int
    steps: dict[str, Variable]

    def is_same(self, other: "_TimeAxis") -> bool:
        """Tell whether two keys have the same rows and steps, and can share an axis."""
        if self.length != other.length or self.steps.keys() != other.steps.keys():
            return False
        both = [(self.steps[name], other.steps[name]) for name in self.steps]
        return all(x[0] == y[0] and _equal(x[1], y[1]) for x, y in both)

    def renamed(self, key: str, dims: Counter[str], steps: Counter[str]) -> "_TimeAxis":
        """Put the key behind those names that other axes use, too."""
        dim = f"{self.dim}_{key}" if dims[self.dim] > 1 else self.dim
        renamed = {}
        for name, (step_dims, values) in self.steps.items():
            new_name = f"{name}_{key}" if steps[name] > 1 else name
            renamed[new_name] = tuple(dim if d == "time" else d for d in step_dims), values
        return _TimeAxis(dim, self.length, renamed)


def _time_axes(rows: Mapping[str, Rows]) -> dict[str, _TimeAxis]:
    """Return the axis of each key: the same one for keys with the same rows and steps."""
    names = axis_names(rows)
    axes: dict[str, _TimeAxis] = {}  # by the first key that has it
    first_keys: dict[str, str] = {}
    for key, key_rows in rows.items():
        axis = _time_axis(key_rows, names[key])
        same = (first for first, other in axes.items() if axis.is_same(other))
        first_keys[key] = next(same, key)
        axes.setdefault(first_keys[key], axis)
    dims = Counter(axis.dim for axis in axes.values())
    steps = Counter(name for axis in axes.values() for name in axis.steps)
    renamed = {key: axis.renamed(key, dims, steps) for key, axis in axes.items()}
    return {key: renamed[first] for key, first in first_keys.items()}


def _time_axis(rows: Rows, names: tuple[str, ...]) -> _TimeAxis:
    """Return the axis of one key, called `time`."""
    dims = _dims(rows, names, "time")
    steps = {}
    for name, step in rows.steps.items():
        present = rows.masks.get(name, np.True_)
        present = present if rows.valid is None else present & rows.valid
        inner = [f"{name}_{i}" for i in range(step.ndim - len(dims))]
        steps[name] = _collapsed((*dims, *inner), filled(plain(step), present), names)
    if rows.time:
        return _TimeAxis("time", rows.length, steps)
    return _TimeAxis("", -1, steps)


def _collapsed(
    dims: tuple[str, ...], values: np.ndarray, batch_dims: tuple[str, ...]
) -> Variable:
    """Drop the batch axes along which the values are all the same."""
    for name in batch_dims:
        axis = dims.index(name)
        first = values.take([0], axis) if values.shape[axis] else values
        if first.size and _equal(np.broadcast_to(first, values.shape), values):
            dims, values = dims[:axis] + dims[axis + 1 :], first.squeeze(axis)
    return dims, values


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc" and b.dtype.kind in "fc")


def _dims(rows: Rows, names: tuple[str, ...], time: str) -> tuple[str, ...]:
    """Name the axes in front of those of a value: (*leading, [time,] *batch)."""
    return (*names[: rows.leading], *([time] if rows.time else []), *names[rows.leading :])
