"""Read the rows of many runs at once, if they form a grid: equally many rows of each run.

The runs of a `vmap` log together, so their rows come in pieces of equal length, in the same
order again and again. Two runs that log three rows in batches of at most two, for example:

    run     7 7 9 9 7 9          is not a grid: the pieces have the lengths 2, 2, 1, 1
    run     7 7 9 9              is one: 1 time, 2 runs, pieces of 2 rows
    run     7 9 7 9 7 9          is one: 3 times, 2 runs, pieces of 1 row

A grid is turned into arrays (runs, rows, ...) with a reshape, where `read_key_rows` makes
an object for each run. Whatever is not a grid, or is damaged, is left to `read_key_rows`.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from lox_host.frozen import frozen
from lox_host.rows import Form
from lox_host.store.format.column_pattern import Pattern
from lox_host.store.format.dtypes import dtype_named
from lox_host.store.format.frame_reader import FrameReader
from lox_host.store.format.frames import Frame
from lox_host.store.format.layout import ROW, RUN, Layout, fill_tree
from lox_host.store.reader import Reader
from lox_host.tree import Tree


class Grid(NamedTuple):
    """The order of rows in a grid.

    Attributes:
        times: How often all runs come.
        runs: The ids of the runs, in their order.
        length: The number of rows of a run, each time.
    """

    times: int
    runs: np.ndarray
    length: int

    @classmethod
    def of(cls, ids: np.ndarray) -> "Grid | None":
        """Return the grid that rows with these runs form, or None."""
        # A piece begins where another run does. All pieces must have the same length.
        starts = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        starts = np.concatenate([[0], starts])
        length = int(starts[1]) if len(starts) > 1 else len(ids)
        if len(starts) * length != len(ids):
            return None
        if not np.array_equal(starts, np.arange(0, len(ids), length)):
            return None
        # The same runs must come in the same order each time.
        pieces = ids[starts]
        runs = len(np.unique(pieces))
        times = len(pieces) // runs
        if not np.array_equal(np.tile(pieces[:runs], times), pieces):
            return None
        return cls(times, pieces[:runs], length)

    @classmethod
    def of_pattern(cls, pattern: Pattern) -> "Grid | None":
        """Return the grid that rows form whose runs have this pattern, or None."""
        grid = None if pattern.step else cls.of(pattern.starts(np.dtype(np.int32)))
        if grid is None:
            return None
        return cls(grid.times * pattern.times, grid.runs, grid.length * pattern.each)

    def arrange_pattern(
        self, pattern: Pattern, dtype: np.dtype, places: np.ndarray
    ) -> np.ndarray:
        """Return the rows of the runs at some places: (rows,) -> (runs, rows)."""
        if pattern.times > 1 or self.length % pattern.each:
            return self.arrange(pattern.column(dtype), places)
        # Only the beginnings of pieces change their places: this moves fewer numbers.
        of_pieces = self._replace(length=self.length // pattern.each)
        return pattern.expand(of_pieces.arrange(pattern.starts(dtype), places))

    def arrange(self, column: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return the rows of the runs at some places: (rows, ...) -> (runs, rows, ...)."""
        inner = column.shape[1:]
        # (times * runs * length, ...) -> (runs, times, length, ...)
        grid = column.reshape(self.times, len(self.runs), self.length, *inner)
        by_run = grid.swapaxes(0, 1)
        if not np.array_equal(places, np.arange(len(self.runs))):
            by_run = by_run[places]
        return by_run.reshape(len(places), -1, *inner)


@frozen
class StackedRows:
    """Rows of one key of several runs. The arrays have an axis of runs, and one of rows.

    Attributes:
        steps: The steps by name.
        masks: Which rows or examples have a step, by its name, if some do not have it.
        valid: Which examples logged. None: all of them.
        value: The value, a tree of arrays.
        form: Facts about the key that its arrays do not show.
        rows: The number of rows of each run.
    """

    steps: dict[str, np.ndarray]
    masks: dict[str, np.ndarray]
    valid: np.ndarray | None
    value: Tree
    form: Form
    rows: int

    def __len__(self) -> int:
        return self.rows


def read_stacked(
    reader: Reader, runs: Sequence[int], keys: Collection[str] | None = None
) -> dict[str, StackedRows] | None:
    """Return the rows of several runs by key.

    Return None if the rows of one of the keys are not a grid with all of these runs.

    Args:
        reader: The session.
        runs: The ids of the runs.
        keys: The keys. None: all.
    """
    if reader.history is not None:
        return None
    wanted = reader.keys if keys is None else [key for key in keys if key in reader.keys]
    stacked: dict[str, StackedRows] = {}
    with reader.frame_reader() as files:
        for group, layout in reader.layouts.items():
            own = [key for key in layout.keys if key in wanted]
            if not own:
                continue
            # A key in two layouts has to be put in order. A layout without rows may be that
            # of a loop without iterations.
            if not reader.frames[group] or not stacked.keys().isdisjoint(own):
                return None
            found = _read_group(files, layout, reader.frames[group], own, runs)
            if found is None:
                return None
            stacked |= found
    return {key: stacked[key] for key in wanted} if stacked else None


def _read_group(
    files: FrameReader,
    layout: Layout,
    frames: Sequence[Frame],
    keys: Sequence[str],
    runs: Sequence[int],
) -> dict[str, StackedRows] | None:
    """Return the rows of keys that were logged together, or None if they are no grid."""
    grid = _grid(files, frames)
    if grid is None or not _are_in_order(files, frames):
        return None
    place_of = {run: place for place, run in enumerate(grid.runs.tolist())}
    if not all(run in place_of for run in runs) or not files.knows(grid.runs):
        return None
    # Read each column once, as keys share those of their steps.
    places = np.array([place_of[run] for run in runs])
    arrays: dict[int, np.ndarray] = {}
    numbers = {*layout.shared, *(i for key in keys for i in layout.keys[key].columns)}
    for number in numbers - {RUN, ROW}:
        pattern = _pattern(files, frames, number)
        if pattern is not None:
            dtype = dtype_named(layout.columns[number].dtype)
            arrays[number] = grid.arrange_pattern(pattern, dtype, places)
            continue
        column = _column(files, frames, number)
        if column is None:
            return None
        arrays[number] = grid.arrange(column, places)
    found = {}
    for name in keys:
        key = layout.keys[name]
        found[name] = StackedRows(
            steps={step: arrays[i] for step, i in layout.steps.items()},
            masks={step: arrays[i] for step, i in layout.masks.items()},
            valid=None if key.valid is None else arrays[key.valid],
            value=fill_tree(key.tree, arrays.__getitem__),
            form=key.form,
            rows=grid.times * grid.length,
        )
    return found


def _grid(files: FrameReader, frames: Sequence[Frame]) -> Grid | None:
    """Return the grid that the rows of some frames form, or None."""
    pattern = _pattern(files, frames, RUN)
    grid = None if pattern is None else Grid.of_pattern(pattern)
    # The range of the ids is known, too. If it is another one, reading them will tell.
    if grid is not None and (grid.runs.min(), grid.runs.max()) == frames[0].runs:
        return grid
    ids = _column(files, frames, RUN)
    return None if ids is None else Grid.of(ids)


def _are_in_order(files: FrameReader, frames: Sequence[Frame]) -> bool:
    """Return whether the numbers of rows grow."""
    pattern = _pattern(files, frames, ROW)
    if pattern is not None and pattern.is_increasing:
        return True
    rows = _column(files, frames, ROW)
    return rows is not None and bool((rows[1:] > rows[:-1]).all())


def _pattern(files: FrameReader, frames: Sequence[Frame], number: int) -> Pattern | None:
    """Return the pattern of a column of all frames of a group, if it is known."""
    return files.pattern(frames[0], number) if len(frames) == 1 else None


def _column(files: FrameReader, frames: Sequence[Frame], number: int) -> np.ndarray | None:
    """Read a column of all frames of a group. Return None if one is damaged."""
    parts = []
    for frame in frames:
        part = files.column(frame, number)
        if part is None:
            return None
        parts.append(part)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
