"""Read a session, even while it is written: what its journal says, and rows of its frames.

Everything that looks at rows of a store goes through `Reader.blocks(runs, keys, since)`. It
yields a block per frame, and reads no more than it has to:

    frames without rows of these runs    known from the journal, not read
    columns of other keys                not read
    rows up to `since`                   read where they share a frame with later ones

What is damaged is left out: a key from each block in which one of its columns has another
checksum, and all keys of a block if that is the column of a step or of the runs.
"""

import contextlib
import dataclasses
import functools as ft
import itertools as it
import pathlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from lox_host.rows import Block
from lox_host.store import journal
from lox_host.store.content import Content, read_content
from lox_host.store.dtypes import dtype_named
from lox_host.store.folder import Path, sessions_of, warn_of_store
from lox_host.store.frame_reader import FrameReader, StaleSession
from lox_host.store.frames import Frame, is_finite
from lox_host.store.journal import Entry, read_journal, warn_left_out, warn_of_problems
from lox_host.store.layout import ROW, RUN, Layout
from lox_host.tree import leaves
from lox_host.writer import Run

P = ParamSpec("P")
T = TypeVar("T")


def open_store(path: Path) -> "list[Reader]":
    """Open all sessions of a store as they are now, the oldest first.

    What is damaged or missing is warned of, and left out.
    """
    folders, problems = sessions_of(path)
    names = {folder.name for folder in folders}
    readers = []
    for folder in folders:
        try:
            reader = open_session(folder)
        except FileNotFoundError:  # it has just been removed
            continue
        except OSError as error:
            problems.append(f"the session {folder.name} cannot be read: {error}")
            continue
        if reader.original != folder.name:
            problems.append(f"the session {folder.name} is a copy of {reader.original}")
            if reader.original in names:
                continue
        readers.append(reader)
    warn_of_store(path, problems)
    return readers


def open_session(folder: pathlib.Path) -> "Reader":
    """Open a session as it is now, and warn of what is wrong with it."""
    reader = read_session(folder)
    warn_of_problems(folder, reader.problems)
    return reader


def read_session(folder: pathlib.Path) -> "Reader":
    """Open a session as it is now."""
    journal = read_journal(folder)
    return Reader(folder, journal.entries, journal_problems=journal.problems)


def retry_if_stale(fun: Callable[P, T]) -> Callable[P, T]:
    """Make a function that reads a store start again if a session changes under it.

    At its end, a session is rewritten, and the files that a reader knew are removed.
    """

    @ft.wraps(fun)
    def retried(*args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            with contextlib.suppress(StaleSession):
                return fun(*args, **kwargs)

    return retried


class NonFinite(NamedTuple):
    """How many rows of a key are NaN or infinite, and the step of the first of them.

    Rows without steps have the empty name, and their number in the session.
    """

    rows: int
    step: str
    first: float


@dataclasses.dataclass(frozen=True, eq=False)
class Reader:
    """A session at one moment.

    Attributes:
        folder: Its folder, which has the name of the session.
        entries: What its journal says.
        is_whole: Whether the entries are all of the journal.
        journal_problems: What is wrong with the journal and the files, in words.
    """

    folder: pathlib.Path
    entries: list[Entry]
    is_whole: bool = True
    journal_problems: tuple[str, ...] = ()

    @property
    def runs(self) -> dict[int, Run]:
        """The runs by their id."""
        return self._content.runs

    @property
    def layouts(self) -> dict[int, Layout]:
        """The layouts by the number of the group."""
        return self._content.layouts

    @property
    def frames(self) -> dict[int, list[Frame]]:
        """The frames of each group, in order."""
        return self._content.frames

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the session, but for what is found when columns are read."""
        return *self.journal_problems, *self._content.problems

    @property
    def journal_version(self) -> int:
        """The format of its journal."""
        return self._content.version

    @property
    def original(self) -> str:
        """The name that the session began with."""
        return self._content.name or self.folder.name

    @ft.cached_property
    def _content(self) -> Content:
        return read_content(self.entries)

    @ft.cached_property
    def _ids(self) -> np.ndarray:
        return np.array(sorted(self.runs), np.int64)

    @ft.cached_property
    def keys(self) -> list[str]:
        """All keys, those of `lox.save` in the order that they had."""
        known = dict.fromkeys(it.chain(*(layout.keys for layout in self.layouts.values())))
        ordered = dict.fromkeys(it.chain(*self._content.saved_keys.values()))
        return [key for key in {**ordered, **known} if key in known]

    @property
    def ended(self) -> bool:
        return self._content.end is not None

    @ft.cached_property
    def last_change(self) -> float:
        """When it ended or was last written to, in seconds since 1970."""
        # Sessions of early versions say that they ended, and not when.
        if self._content.end not in (None, True):
            return self._content.end
        return (self.folder / journal.NAME).stat().st_mtime

    def keys_without_rows(self, run: int) -> frozenset[str]:
        """Return the keys that a run was saved with, from loops without iterations."""
        return self._keys_without_rows.intersection(self._content.saved_keys[run])

    @ft.cached_property
    def _keys_without_rows(self) -> frozenset[str]:
        filled = (layout for group, layout in self.layouts.items() if self.frames[group])
        return frozenset(self.keys).difference(*(layout.keys for layout in filled))

    def saved_keys(self, run: int) -> list[str]:
        """Return the keys that a run was saved with, in their order."""
        return self._content.saved_keys[run]

    def frame_reader(self) -> FrameReader:
        """Return what reads single frames."""
        entries = self.entries if self.is_whole else None
        all_runs = np.array(sorted(self._content.saved_keys), np.int64)
        return FrameReader(self.folder, self.layouts, entries, all_runs)

    def blocks(
        self,
        runs: Collection[int] | None = None,
        keys: Collection[str] | None = None,
        since: Mapping[int, int] | None = None,
    ) -> Iterator[Block]:
        """Yield the rows of some runs and keys, a block per frame.

        What is damaged is left out, with a warning at the end.

        Args:
            runs: The ids of the runs. None: all.
            keys: The keys. None: all.
            since: By group, the number of the last row that is known already, from
                `last_rows`.
        """
        ids = self._known_ids(runs)
        with self.frame_reader() as frames:
            for frame in it.chain.from_iterable(self.frames.values()):
                block = frames.read(frame, ids, keys)
                if block is not None and since is not None:
                    block = block.select(block.order > since.get(frame.group, -1))
                if block:
                    yield block
            frames.warn_of_damage()

    def _known_ids(self, runs: Collection[int] | None) -> np.ndarray:
        """Return the ids of runs that there are, in order. None: all of them."""
        if runs is None:
            return self._ids
        return np.intersect1d(self._ids, np.array(sorted(runs), np.int64))

    def last_blocks(
        self, rows: int, runs: Collection[int], keys: Collection[str]
    ) -> Iterator[Block]:
        """Yield the last rows, at least so many of each group where there are."""
        ids = self._known_ids(runs)
        with self.frame_reader() as frames:
            for group in self.frames.values():
                missing = rows
                for frame in reversed(group):
                    if missing <= 0:
                        break
                    block = frames.read(frame, ids, keys)
                    if block is not None:
                        missing -= len(block)
                        yield _end_of(block, rows)
            frames.warn_of_damage()

    def last_rows(self) -> dict[int, int]:
        """Return by group the number of its last row, for `blocks(since=...)`."""
        found = {}
        with self.frame_reader() as frames:
            for number, group in self.frames.items():
                rows = frames.column(group[-1], ROW) if group else None
                if rows is not None:
                    found[number] = int(rows.max())
        return found

    def last_values(self) -> dict[int, dict[str, np.generic]]:
        """Return by run the last value of each key that is a real number.

        Each group is read from its end until all runs have been found there, so that this
        takes as few frames as it can.
        """
        # The same key may be in several groups: the row with the highest number counts.
        newest: dict[tuple[int, str], tuple[int, np.generic]] = {}
        with self.frame_reader() as frames:
            for number, layout in self.layouts.items():
                keys = [key for key in layout.keys if layout.is_number(key)]
                # A run that logs other keys is never found, and its frames are skipped by
                # the ids in the journal.
                missing = self._ids
                for frame in reversed(self.frames[number]):
                    if not missing.size:
                        break
                    block = frames.read(frame, missing, keys)
                    if block is None:
                        continue
                    rows = _last_row_of_each_run(block)
                    missing = np.setdiff1d(missing, block.runs[rows], assume_unique=True)
                    found = block.runs[rows].tolist(), block.order[rows].tolist()
                    for key, array in block.values.items():
                        for run, order, value in zip(*found, array[rows], strict=True):
                            if order > newest.get((run, key), (-1,))[0]:
                                newest[run, key] = order, value
            frames.warn_of_damage()
        values: dict[int, dict[str, np.generic]] = {run: {} for run in self.runs}
        for key in self.keys:
            for run, its_values in values.items():
                if (run, key) in newest:
                    its_values[key] = newest[run, key][1]
        return values

    def nonfinite(self) -> dict[int, dict[str, NonFinite]]:
        """Return by run and key how many rows are not finite, and the first of them.

        The journal says which columns to look at. In the first format it did not: of these
        sessions, only keys that are numbers are looked at.
        """
        found: dict[int, dict[str, NonFinite]] = {}
        with self.frame_reader() as frames:
            for frame in it.chain.from_iterable(self.frames.values()):
                layout = self.layouts[frame.group]
                keys = [key for key in layout.keys if _may_be_nonfinite(layout, key, frame)]
                block = frames.read(frame, self._ids, keys) if keys else None
                if block is not None:
                    for key in block.values:
                        _count_nonfinite(found, block, key)
        return found

    def lost_rows(self) -> Counter[str]:
        """Read everything, and return by key how many rows are damaged."""
        with self.frame_reader() as frames:
            for frame in it.chain.from_iterable(self.frames.values()):
                frames.read(frame, self._ids, None)
            return frames.lost

    def row_counts(self) -> dict[str, Counter[int]]:
        """Return by key how many rows each run has."""
        counts = {key: Counter[int]() for key in self.keys}
        with self.frame_reader() as frames:
            for number, layout in self.layouts.items():
                rows = Counter[int]()
                for frame in self.frames[number]:
                    rows.update(self._rows_by_run(frames, frame))
                for key in layout.keys:
                    counts[key] += rows
        return counts

    def _rows_by_run(self, frames: FrameReader, frame: Frame) -> dict[int, int]:
        low, high = frame.runs
        # The frames of a run that logs alone need not be read at all.
        if low == high:
            return {low: frame.rows}
        ids = frames.column(frame, RUN)
        if ids is None:
            warn_left_out(self.folder, f"A frame of {frame.rows} rows")
            return {}
        runs, rows = np.unique(ids, return_counts=True)
        return dict(zip(runs.tolist(), rows.tolist(), strict=True))


def _may_be_nonfinite(layout: Layout, key: str, frame: Frame) -> bool:
    if frame.nonfinite is not None:
        return not set(layout.keys[key].columns).isdisjoint(frame.nonfinite)
    if not layout.is_number(key):
        return False
    (number,) = layout.keys[key].columns[-1:]
    return dtype_named(layout.columns[number].dtype).kind not in "biu"


def _count_nonfinite(
    found: dict[int, dict[str, NonFinite]], block: Block, key: str
) -> None:
    """Add the rows of a key that are not finite, where an example that logged is not."""
    is_bad = np.zeros(len(block), bool)
    for _, array in leaves(block.values[key]):
        bad = ~is_finite(array)
        valid = block.valid.get(key)
        if valid is not None:
            bad = bad & valid.reshape(valid.shape + (1,) * (bad.ndim - valid.ndim))
        is_bad |= bad.reshape(len(block), -1).any(1)
    rows = np.flatnonzero(is_bad)
    names = sorted(block.steps, key=lambda name: name != "step")
    steps = block.steps[names[0]] if names else block.order
    runs, firsts, counts = np.unique(
        block.runs[rows], return_index=True, return_counts=True
    )
    for run, at, number in zip(runs.tolist(), rows[firsts], counts.tolist(), strict=True):
        first = NonFinite(number, names[0] if names else "", float(np.max(steps[at])))
        before = found.setdefault(run, {}).get(key)
        if before is not None:
            number += before.rows
            first = before if before.first <= first.first else first
        found[run][key] = first._replace(rows=number)


def _end_of(block: Block, rows: int) -> Block:
    """Return the last rows of a block, at least so many."""
    if len(block) <= rows:
        return block
    return block.select(block.order >= np.partition(block.order, -rows)[-rows])


def _last_row_of_each_run(block: Block) -> np.ndarray:
    _, from_end = np.unique(block.runs[::-1], return_index=True)
    return len(block) - 1 - from_end
