"""Columns of the frames of a session, each frame read once.

Most sessions hold one program under `vmap`, whose rows repeat the same runs over and over.
The order of runs that repeats is their *tile*. A column of such rows is a matrix already:

    runs    4 2 7 4 2 7 4 2 7         tile = 4 2 7
    loss    a b c d e f g h i         matrix (rows, runs) = [a b c], [d e f], [g h i]
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from lox_host.store import RUN, Frame, FrameReader
from lox_host.view.data.growing_arrays import GrowingArray, SharedColumn
from lox_host.view.data.series import float_type, follows, tile_of


@dataclasses.dataclass
class _Index:
    """Which run each row of a group belongs to.

    Attributes:
        tile: The runs that repeat, `(runs,)`. None: no rows are read, or no order repeats.
        rows: How many rows have been read.
        frames: How many frames have been read.
        is_regular: Whether all rows so far repeat the tile.
    """

    tile: np.ndarray | None = None
    rows: int = 0
    frames: int = 0
    is_regular: bool = True


class FrameColumns:
    """Columns that have been read so far. A call reads only frames that are new.

    Attributes:
        frames: All frames by the number of their group, in the order of writing.
        files: Reads them. None as long as there are no frames.
    """

    def __init__(self):
        self.frames: dict[int, list[Frame]] = {}
        self.files: FrameReader | None = None
        self._indexes: dict[int, _Index] = {}
        self._columns: dict[tuple[int, int], GrowingArray] = {}
        self._read: dict[tuple[int, int], int] = {}
        self._shared: dict[tuple[int, int], SharedColumn] = {}

    @property
    def nbytes(self) -> int:
        """How much memory the columns take, in bytes."""
        return sum(column.nbytes for column in self._columns.values())

    def add(self, frames: Mapping[int, Sequence[Frame]]) -> bool:
        """Add frames by group, and return whether there are any."""
        for group, some in frames.items():
            self.frames.setdefault(group, []).extend(some)
        return any(frames.values())

    def frames_of(self, group: int) -> Sequence[Frame]:
        """Return the frames of a group, in the order of writing."""
        return self.frames.get(group, ())

    def reader(self) -> FrameReader:
        """Return the reader, for a `with` statement."""
        assert self.files is not None
        return self.files

    def forget(self, group: int, number: int) -> None:
        """Free the memory of a column."""
        self._columns.pop((group, number), None)
        self._read.pop((group, number), None)

    def tile(self, group: int) -> np.ndarray | None:
        """Return the tile of a group, reading new frames only. None: it has no tile."""
        index = self._indexes.setdefault(group, _Index())
        with self.reader() as files:
            for frame in self.frames_of(group)[index.frames :]:
                if not index.is_regular:
                    break
                runs = runs_of(files, frame)
                if runs is None:
                    index.is_regular = False
                    break
                # Until the tile has repeated once, it may still grow.
                if index.tile is None or index.rows < len(index.tile):
                    runs = runs if index.tile is None else np.append(index.tile, runs)
                    index.tile = tile_of(runs)
                    index.is_regular = index.tile is not None
                else:
                    index.is_regular = follows(runs, index.tile, index.rows)
                index.rows += frame.rows
                index.frames += 1
        return index.tile if index.is_regular else None

    def shared_positions(self, group: int, number: int, runs: int) -> np.ndarray | None:
        """Return a step that is the same for all runs, `(rows,)`. None if it differs.

        So the steps of a thousand runs take the memory of one.
        """
        known = self._shared.setdefault((group, number), SharedColumn())
        with self.reader() as files:
            for frame in self.frames_of(group)[known.frames :]:
                new = files.column(frame, number) if known.is_shared else None
                if new is None or not known.add(new, runs):
                    known.is_shared = False
                    return None
        return known.positions.array

    def column(self, group: int, number: int) -> np.ndarray | None:
        """Return a column of all frames, reading only new ones. None if it is damaged."""
        frames = self.frames_of(group)
        place = group, number
        known = self._read.get(place, 0)
        with self.reader() as files:
            for frame in frames[known:]:
                new = files.column(frame, number)
                if new is None:
                    return None
                column = self._columns.get(place)
                if column is None:
                    column = self._columns[place] = GrowingArray(float_type(new.dtype))
                    column.reserve(sum(frame.rows for frame in frames))
                column.append(new)
                known += 1
                self._read[place] = known
        column = self._columns.get(place)
        return np.zeros(0) if column is None else column.array


def runs_of(files: FrameReader, frame: Frame) -> np.ndarray | None:
    low, high = frame.runs
    # If all rows are of one run, there is nothing to read.
    return np.full(frame.rows, low) if low == high else files.column(frame, RUN)
