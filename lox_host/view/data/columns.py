"""Read columns of a session for the viewer: each byte once, and only what a page shows.

A session may have a thousand runs and many gigabytes. The viewer must open it at once, and
follow it while it grows. A key is one column of numbers in the frames of its group. The run
and the step of each row are in other columns, which all keys of the group share:

    frames of a group      | @run | @step | loss | accuracy |   | @run | @step | loss | ...
    the index, once        |------|-------|                     |------|-------|
    a key, when it is seen                |------|                             |------|

While a session is being written, `refresh` reads the new lines of its journal. The next
request for a key then reads only its columns in new frames.

Most sessions hold one program under `vmap`, whose columns are matrices already (see
`frame_columns.py`). For all other sessions, the rows have to be sorted by run.
"""

import dataclasses
import math
import pathlib
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from lox_host.runs.run import Run
from lox_host.store import (
    ROW,
    RUN,
    Frame,
    FrameReader,
    JournalTail,
    Layout,
    Reader,
    StaleSession,
)
from lox_host.view.data.frame_columns import FrameColumns, runs_of
from lox_host.view.data.series import Part, make_parts, to_float

# Positions that are not steps: the number of a row in its run, and the seconds from the
# start of the run until the row reached the host.
ROWS, TIME = "row", "time"
EXAMPLES = 1024  # the most elements of a row to draw as lines; more become a heat map


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A real number that a group logs in each row.

    Attributes:
        group: The number of the group.
        column: The number of its column.
        valid: The number of the column that says which rows count. None: all do.
        examples: How many elements a row has. More than one if a `vmap` is inside the run.
    """

    group: int
    column: int
    valid: int | None
    examples: int = 1


class SessionColumns:
    """The columns of one session, as far as a page has asked for them.

    Args:
        folder: The folder of the session.

    Attributes:
        runs: The runs by id.
        layouts: The layouts by the number of the group.
        environment: The host, command, commit and so on.
        ended: Whether no more rows will come.
        lost: How many rows are damaged, by the name of the key.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.lost: dict[str, int] = {}
        self.runs: dict[int, Run] = {}
        self.layouts: dict[int, Layout] = {}
        self.environment: dict[str, Any] = {}
        self.ended = False
        self._tail, self._restarts = JournalTail(folder), -1
        self._lock = threading.RLock()
        self._columns = FrameColumns()
        self._parts: dict[tuple[str, str], tuple[int, list[Part]]] = {}

    @property
    def rows(self) -> int:
        """The number of rows of the longest group, for all runs together."""
        sizes = (sum(f.rows for f in frames) for frames in self._columns.frames.values())
        return max(sizes, default=0)

    @property
    def nbytes(self) -> int:
        """How much memory the rows take, in bytes."""
        # Parts that are views of a column take no memory.
        return self._columns.nbytes + sum(
            part.values.nbytes + part.x.nbytes
            for _, parts in self._parts.values()
            for part in parts
            if part.values.base is None
        )

    def refresh(self) -> bool:
        """Read new lines of the journal, and return whether anything has changed."""
        with self._lock:
            new = self._tail.poll()
            is_replaced = self._tail.restarts != self._restarts
            if is_replaced:
                # The files have been replaced, so forget all rows.
                self._columns, self._parts = FrameColumns(), {}
                self._restarts = self._tail.restarts
            before = len(self.runs), len(self.layouts), self.ended
            self.runs, self.layouts, self.ended = new.runs, new.layouts, new.ended
            self.environment = new.environment
            self._columns.files = new.frame_reader()
            has_frames = self._columns.add(new.frames)
            after = len(self.runs), len(self.layouts), self.ended
            return is_replaced or has_frames or before != after

    def frame_reader(self) -> FrameReader:
        """Return a reader for single columns of frames."""
        return Reader(self.folder, self._tail.known, is_whole=False).frame_reader()

    def frames_of(self, group: int) -> list[Frame]:
        """Return the frames of a group, in the order of writing."""
        return list(self._columns.frames_of(group))

    def leaves(self) -> dict[str, list[Leaf]]:
        """Return the real numbers that are logged, by name, in the order of logging."""
        found: dict[str, list[Leaf]] = {}
        for group, layout in self.layouts.items():
            for key in layout.keys.values():
                if key.form.keys:
                    continue  # data of PRNG keys
                for number in key.columns:
                    column = layout.columns[number]
                    if number == key.valid or not _is_real(column.dtype):
                        continue
                    examples = math.prod(column.shape)
                    is_number = len(column.shape) == key.form.batch
                    if is_number and 1 <= examples <= EXAMPLES:
                        leaf = Leaf(group, number, key.valid, examples)
                        others = found.setdefault(column.name, [])
                        if not others or others[0].examples == examples:
                            others.append(leaf)
        return found

    def steps(self, leaves: Iterable[Leaf]) -> list[str]:
        """Return the names of the steps that all given leaves have, `step` first."""
        names: list[list[str]] = []
        for leaf in leaves:
            layout = self.layouts[leaf.group]
            # A step is a number, or has the same `vmap` axes as the values.
            shapes = (), layout.columns[leaf.column].shape
            scalar = [
                n for n, i in layout.steps.items() if layout.columns[i].shape in shapes
            ]
            names.append([name for name in scalar if name not in layout.masks])
        common = [name for name in names[0] if all(name in others for others in names)]
        return sorted(common, key=lambda name: name != "step")

    def suspects(self) -> list[str]:
        """Return the names of numbers that may have non-finite values.

        The journal says which columns of each frame have some.
        """
        found = []
        for name, leaves in self.leaves().items():
            frames = ((f, leaf) for leaf in leaves for f in self.frames_of(leaf.group))
            if any(f.nonfinite is None or leaf.column in f.nonfinite for f, leaf in frames):
                found.append(name)
        return found

    def has_times(self, leaves: Iterable[Leaf]) -> bool:
        """Return whether the store has the times of the rows of all given leaves."""
        return all(self.layouts[leaf.group].time is not None for leaf in leaves)

    def last_times(self, leaves: Iterable[Leaf]) -> dict[int, float]:
        """Return when the last row of each run reached the host, by run."""
        # Go backwards, and stop once each run has been found: that reads few frames.
        found: dict[int, float] = {}
        with self._lock, self.frame_reader() as files:
            for leaf in leaves:
                time, missing = self.layouts[leaf.group].time, set(self.runs)
                for frame in reversed(self._columns.frames_of(leaf.group)):
                    if time is None or not missing:
                        break
                    runs, times = runs_of(files, frame), files.column(frame, time)
                    if runs is None or times is None:
                        continue
                    ids, rows = np.unique(runs[::-1], return_index=True)
                    for run, last in zip(ids.tolist(), times[::-1][rows], strict=True):
                        found[run] = max(found.get(run, -np.inf), float(last))
                        missing.discard(run)
        return found

    def parts(self, name: str, step: str) -> list[Part]:
        """Return the rows of a number against a step, `ROWS` or `TIME`.

        The runs in the result are ids.
        """
        with self._lock:
            while True:
                try:
                    return self._cached_parts(name, step)
                except StaleSession:
                    # The session has ended, and its files were joined to larger ones.
                    if not self.refresh():
                        raise OSError(
                            f"A file of the session in {str(self.folder)!r} is missing."
                        ) from None

    def _cached_parts(self, name: str, step: str) -> list[Part]:
        leaves = self.leaves().get(name, [])
        known = sum(len(self._columns.frames_of(leaf.group)) for leaf in leaves)
        cached = self._parts.get((name, step))
        if cached is not None and cached[0] == known:
            return cached[1]
        parts = self._regular_parts(leaves, step)
        if parts is None:
            parts = self._sorted_parts(name, leaves, step)
        self._parts[name, step] = known, parts
        return parts

    def forget(self, name: str) -> None:
        """Free the memory of a number. The next request for it reads it again."""
        with self._lock:
            for leaf in self.leaves().get(name, []):
                self._columns.forget(leaf.group, leaf.column)
            for key in [key for key in self._parts if key[0] == name]:
                del self._parts[key]

    def _regular_parts(self, leaves: list[Leaf], step: str) -> list[Part] | None:
        """Return the rows of a group that repeats a tile. Return None if it does not."""
        if len(leaves) != 1 or leaves[0].valid is not None or leaves[0].examples > 1:
            return None
        [leaf] = leaves
        tile = self._columns.tile(leaf.group)
        if tile is None or not len(tile):
            return None
        values = self._columns.column(leaf.group, leaf.column)
        if values is None:
            return None
        # The last repetition may be incomplete: its first runs have one row more.
        rows = len(values)
        lengths = rows // len(tile) + (np.arange(len(tile)) < rows % len(tile))
        matrix = _as_matrix(values, len(tile))
        if not set(tile.tolist()) <= self.runs.keys():
            return None
        x = self._positions(leaf.group, step, tile, len(matrix))
        return None if x is None else [Part(tile, x, matrix, lengths)]

    def _positions(
        self, group: int, step: str, tile: np.ndarray, rows: int
    ) -> np.ndarray | None:
        if step == ROWS:
            return np.arange(rows, dtype=np.float64)
        number = self._number_of(group, step)
        shared = self._columns.shared_positions(group, number, len(tile))
        starts = np.array([self.runs[id].start for id in tile.tolist()])
        if shared is not None and (step != TIME or np.ptp(starts) == 0):
            return shared - starts[0] if step == TIME else shared
        column = self._columns.column(group, number)
        if column is None:
            return None
        matrix = _as_matrix(column, len(tile)).astype(np.float64)
        return matrix - starts if step == TIME else matrix

    def _number_of(self, group: int, step: str) -> int:
        """Return the number of the column with a step or with the times."""
        layout = self.layouts[group]
        number = layout.time if step == TIME else layout.steps.get(step, ROW)
        return ROW if number is None else number

    def _sorted_parts(self, name: str, leaves: list[Leaf], step: str) -> list[Part]:
        """Return the rows of one number from all groups, sorted by run."""
        found: list[tuple[np.ndarray, ...]] = []
        lost = 0
        with self._columns.reader() as files:
            for leaf in leaves:
                x = self._number_of(leaf.group, step)
                for frame in self._columns.frames_of(leaf.group):
                    columns = [files.column(frame, i) for i in (RUN, ROW, x, leaf.column)]
                    whole = [column for column in columns if column is not None]
                    if len(whole) < len(columns):
                        lost += frame.rows
                        continue
                    # (rows, *examples) -> (rows * examples,). Columns without examples,
                    # such as the runs, are repeated.
                    numbers = np.tile(np.arange(leaf.examples), frame.rows)
                    whole = [numbers, *(_repeated(c, leaf.examples) for c in whole)]
                    if leaf.valid is not None:
                        valid = files.column(frame, leaf.valid)
                        if valid is not None:
                            shown = _repeated(valid, leaf.examples)
                            whole = [column[shown] for column in whole]
                    example, run, order, x_, value = whole
                    found.append((example, run, order, x_.astype(float), to_float(value)))
        self.lost[name] = lost
        if not found:
            return []
        example, runs, order, x, values = (
            np.concatenate(parts) for parts in zip(*found, strict=True)
        )
        # Sort by run, then example, then row. Drop the rows of unknown runs.
        known = np.isin(runs, list(self.runs))
        place = np.lexsort((order, example, runs))
        place = place[known[place]]
        if step == TIME:
            starts = {id: run.start for id, run in self.runs.items()}
            x = x - [starts.get(id, np.nan) for id in runs.tolist()]
        positions = None if step == ROWS else x[place]
        # Each example of a run becomes a line: line = run * examples + example.
        examples = leaves[0].examples
        lines = runs[place].astype(np.int64) * examples + example[place]
        parts = make_parts(lines, positions, values[place])
        if examples == 1:
            return parts
        return [
            dataclasses.replace(
                part, runs=part.runs // examples, examples=part.runs % examples
            )
            for part in parts
        ]


def _repeated(column: np.ndarray, examples: int) -> np.ndarray:
    """Return a column with one row per example, repeated if it has no examples."""
    flat = column.reshape(len(column), -1)
    return np.broadcast_to(flat, (len(flat), examples)).reshape(-1)


def _as_matrix(flat: np.ndarray, runs: int) -> np.ndarray:
    """Reshape a column to `(rows, runs)`, with NaN for rows that are not logged yet."""
    missing = -len(flat) % runs
    if missing:
        wide = flat.astype(np.float64) if flat.dtype.kind in "biu" else flat
        flat = np.append(wide, np.full(missing, np.nan, wide.dtype))
    return flat.reshape(-1, runs)


def _is_real(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "int", "uint", "bool"))
