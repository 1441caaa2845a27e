"""Logs as a `Dataset` of xarray."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from lox._logdict.numpy import (
    HasRows,
    axis_names,
    check_names,
    filled,
    leaves,
    plain,
    to_numpy,
)
from lox._rows.rows import Rows
from lox_host.extras import imported

if TYPE_CHECKING:
    import xarray


def to_xarray(logs: HasRows) -> "xarray.Dataset":
    """All keys in one `Dataset`, the steps as coordinates.

    The axes of a key are `time`, `batch` (`batch_0`, ... if there are several) and
    those of its values, `key_0`, `key_1`, ..., in the order that they have. Keys with
    the same rows and steps share the axis `time` and its coordinates, such as `step`.
    If there are several of these groups, each is named after its first key:
    `time_loss`, `step_loss`. A step that is the same for the whole batch is a
    coordinate of time alone.

    Where rows may not have been logged, the coordinate `valid_key` says which were;
    floats and steps are NaN where they were not. Pytrees become one variable for each
    array, `key/a/b`.

    Needs the extra `jax-lox[xarray]`.

    Example:
        >>> logs = lox.logdict({"x": 1.0}, step={"x": 5})
        >>> logs += lox.logdict({"x": 2.0}, step={"x": 6})
        >>> dataset = logs.to_xarray()
        >>> dataset["x"].dims, dataset["step"].values.tolist()
        (('time',), [5, 6])
    """
    xr = imported("xarray", "`logs.to_xarray()`", "xarray")
    rows = to_numpy(logs.rows(), "to_xarray")
    variables, coordinates = {}, {}
    clocks = _clocks(rows)
    names = axis_names(rows)
    for key, own in rows.items():
        clock = clocks[key]
        dims = _dims(own, names[key], clock.dim)
        coordinates.update(clock.coordinates)
        if own.valid is not None:
            coordinates[f"valid_{key}"] = dims, own.valid
        attributes = {"tags": list(own.tags)} if own.tags else {}
        for name, leaf in leaves(key, own):
            values = filled(leaf, own.valid, keep=True)
            inner = [f"{name}_{i}" for i in range(leaf.ndim - len(dims))]
            variables[name] = [*dims, *inner], values, attributes
    every = {**coordinates, **variables}
    dims = {dim for own in every.values() for dim in own[0]}
    # A step called like its axis is the index of it.
    index = {name for name, own in coordinates.items() if own[0] == (name,)}
    check_names([*dims - index, *coordinates, *variables], "to_xarray")
    return xr.Dataset(variables, coordinates)


@dataclasses.dataclass(frozen=True)
class _Clock:
    """What tells the time of one or several keys in a `Dataset`."""

    dim: str
    coordinates: dict[str, tuple[tuple[str, ...], np.ndarray]]

    def renamed(self, key: str, dims: Counter, steps: Counter) -> "_Clock":
        """With the key behind those names that other clocks have, too."""
        dim = f"{self.dim}_{key}" if dims[self.dim] > 1 else self.dim
        return _Clock(
            dim,
            {
                f"{name}_{key}" if steps[name] > 1 else name: (
                    tuple(dim if each == "time" else each for each in own),
                    values,
                )
                for name, (own, values) in self.coordinates.items()
            },
        )


def _clocks(rows: Mapping[str, Rows]) -> dict[str, _Clock]:
    """The clock of each key: the same one for keys with the same rows and steps."""
    names = axis_names(rows)
    groups: list[tuple[str, int, _Clock]] = []
    found: dict[str, int] = {}
    for key, own in rows.items():
        clock = _clock(own, names[key])
        length = own.length if own.time else -1
        same = [i for i, group in enumerate(groups) if _same(group[1:], (length, clock))]
        found[key] = same[0] if same else len(groups)
        groups += [] if same else [(key, length, clock)]
    steps = Counter(name for *_, clock in groups for name in clock.coordinates)
    dims = Counter(clock.dim for *_, clock in groups if clock.dim)
    clocks = [clock.renamed(key, dims, steps) for key, _, clock in groups]
    return {key: clocks[i] for key, i in found.items()}


def _clock(rows: Rows, names: tuple[str, ...]) -> _Clock:
    dim = "time" if rows.time else ""
    dims = _dims(rows, names, dim)
    coordinates = {}
    for name, step in rows.steps.items():
        there = rows.masks.get(name, np.True_)
        there = there if rows.valid is None else there & rows.valid
        values = filled(plain(step), there)
        own = [f"{name}_{i}" for i in range(step.ndim - len(dims))]
        coordinates[name] = _collapsed((*dims, *own), values, names)
    return _Clock(dim, coordinates)


def _collapsed(
    dims: tuple[str, ...], values: np.ndarray, names: tuple[str, ...]
) -> tuple[tuple[str, ...], np.ndarray]:
    """Without the batch axes along which the values are all the same."""
    for name in names:
        axis = dims.index(name)
        first = values.take([0], axis) if values.shape[axis] else values
        if first.size and _equal(np.broadcast_to(first, values.shape), values):
            dims, values = dims[:axis] + dims[axis + 1 :], first.squeeze(axis)
    return dims, values


def _same(a: tuple[int, _Clock], b: tuple[int, _Clock]) -> bool:
    mine, others = a[1].coordinates, b[1].coordinates
    if a[0] != b[0] or mine.keys() != others.keys():
        return False
    both = [(mine[name], others[name]) for name in mine]
    return all(x[0] == y[0] and _equal(x[1], y[1]) for x, y in both)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc" and b.dtype.kind in "fc")


def _dims(rows: Rows, names: tuple[str, ...], time: str) -> tuple[str, ...]:
    return (*names[: rows.lead], *([time] if rows.time else []), *names[rows.lead :])
