"""Read a session, even while it is being written: its journal and the rows of its frames.

All code that needs rows of a store calls `Reader.blocks(runs, keys, since)`. It yields one
block per frame, and reads no more than it has to:

    frames without rows of these runs    not read, as the journal has their run ids
    columns of other keys                not read
    rows up to `since`                   read only if they share a frame with later ones

Damaged data is left out, and never returned as if it were right. A key is missing from a
block if one of its columns has a wrong checksum. All keys of the block are missing if that
column holds a step or the runs.
"""

import contextlib
import dataclasses
import functools as ft
import itertools as it
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from lox_host.rows import Block
from lox_host.store.address import url_of
from lox_host.store.ended_session import EndedSession, read_ended
from lox_host.store.folder import Path, sessions_of, warn_of_store
from lox_host.store.format import journal
from lox_host.store.format.content import Content, read_content
from lox_host.store.format.dtypes import dtype_named
from lox_host.store.format.files import read_file
from lox_host.store.format.frame_reader import FrameReader, StaleSession
from lox_host.store.format.frames import Frame, is_finite
from lox_host.store.format.journal import Entry, read_journal, warn_of_problems
from lox_host.store.format.layout import ROW, RUN, Layout
from lox_host.store.history import History, Limits, Links, first_steps, link_sessions
from lox_host.tree import leaves
from lox_host.writer import Run

# A session without an end that changed within this many seconds counts as live.
LIVE = 60.0

P = ParamSpec("P")
T = TypeVar("T")


def open_store(path: Path) -> "list[Reader]":
    """Open all sessions of a store as they are now, the oldest first.

    A session that resumes runs includes the rows of their earlier sessions: see
    `history.py`. In the earlier sessions, these runs are `continued`.

    Warn of damaged or missing parts and leave them out.
    """
    folders, problems = sessions_of(path)
    names = {folder.name for folder in folders}
    readers = []
    for folder in folders:
        try:
            reader = open_session(folder)
        except FileNotFoundError:  # the session has just been removed
            continue
        except OSError as error:
            problems.append(f"the session {folder.name} cannot be read: {error}")
            continue
        # A copy has the runs of its original, which must not appear twice.
        if reader.original != folder.name:
            problems.append(f"the session {folder.name} is a copy of {reader.original}")
            if reader.original in names:
                continue
        readers.append(reader)
    warn_of_store(path, problems)
    return link_sessions(readers)


def reopen(reader: "Reader") -> "Reader":
    """Open a session again, as it is now, with the history of its runs."""
    if reader.history is None:
        return open_session(reader.folder)
    store = reader.folder.parent
    for other in open_store(url_of(store) or store):
        if other.folder == reader.folder:
            return other
    raise FileNotFoundError(f"The session in {str(reader.folder)!r} has been removed.")


def open_session(folder: pathlib.Path) -> "Reader":
    """Open a session as it is now, and warn of its problems."""
    reader = read_session(folder)
    warn_of_problems(folder, reader.problems)
    return reader


def read_session(folder: pathlib.Path) -> "Reader":
    """Open a session as it is now."""
    # Look at the files before the journal. The journal then describes at least as much as
    # the files held, even while a writer adds to both.
    sizes = journal.data_files(folder)
    ended = read_ended(read_file(folder / journal.NAME), sizes)
    if ended is not None:
        return Reader(folder, ended)
    found = read_journal(folder)
    return Reader(folder, found.entries, journal_problems=found.problems)


def retry_if_stale(fun: Callable[P, T]) -> Callable[P, T]:
    """Make a function that reads a store start over when a session changes.

    When a session ends, it is rewritten, and the files that a reader knew are removed.
    """

    @ft.wraps(fun)
    def retried(*args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            with contextlib.suppress(StaleSession):
                return fun(*args, **kwargs)

    return retried


class NonFinite(NamedTuple):
    """How many rows of a key are NaN or infinite, and the step of the first of them.

    Rows without steps have an empty name for the step, and `first` is their number in the
    session.
    """

    rows: int
    step: str
    first: float


@dataclasses.dataclass(frozen=True, eq=False)
class Reader:
    """A session at one moment.

    Attributes:
        folder: The folder of the session, which has its name.
        source: The entries of the journal, or a part of them if the session has ended.
        is_whole: Whether the entries are the complete journal.
        journal_problems: Problems of the journal and the files, in words.
        is_strict: Whether to raise an `OSError` for damaged data, instead of a warning.
        links: The links to other sessions of the store.
    """

    folder: pathlib.Path
    source: list[Entry] | EndedSession
    is_whole: bool = True
    journal_problems: tuple[str, ...] = ()
    is_strict: bool = False
    links: Links = dataclasses.field(default_factory=Links)

    @property
    def ended_session(self) -> EndedSession | None:
        """The quick summary of a session that has ended and is not damaged, or None."""
        return None if isinstance(self.source, list) else self.source

    def in_full(self) -> "Reader":
        """Return the session with its complete journal, to examine each frame."""
        return dataclasses.replace(self, source=self.entries)

    @property
    def entries(self) -> list[Entry]:
        """All entries of the journal."""
        return self.source if isinstance(self.source, list) else self.source.entries

    @property
    def history(self) -> History | None:
        """The earlier sessions of its runs. None: there are none."""
        return self.links.history

    @property
    def continued(self) -> set[int]:
        """The ids of runs that a later session of the store resumes.

        The later session includes their rows, except for superseded ones.
        """
        return self.links.continued

    @ft.cached_property
    def first_steps(self) -> dict[int, Limits]:
        """The first value of each step in this session, by run."""
        return first_steps(self)

    @property
    def runs(self) -> dict[int, Run]:
        """The runs by their id."""
        return self._known.runs

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
        """Problems of the session that show without reading its columns."""
        if self.ended_session is not None and "_content" not in self.__dict__:
            return self.journal_problems
        return *self.journal_problems, *self._content.problems

    @property
    def journal_version(self) -> int:
        """The format of its journal."""
        return self._content.version

    @property
    def environment(self) -> dict[str, Any]:
        """The environment: host, user, command line, commit, versions and devices.

        Empty for sessions of earlier versions, which did not store it.
        """
        return self._content.environment

    @property
    def original(self) -> str:
        """The name of the session when it began. Its folder may have been renamed."""
        return self._known.name or self.folder.name

    @property
    def _known(self) -> Content | EndedSession:
        """The source for runs, their keys and the end."""
        return self.ended_session or self._content

    @ft.cached_property
    def _content(self) -> Content:
        return read_content(self.entries)

    @ft.cached_property
    def _ids(self) -> np.ndarray:
        return np.array(sorted(self.runs), np.int64)

    @ft.cached_property
    def keys(self) -> list[str]:
        """All keys, with those of earlier sessions first."""
        before = [] if self.history is None else self.history.keys
        return list(dict.fromkeys([*before, *self.own_keys]))

    @ft.cached_property
    def own_keys(self) -> list[str]:
        """The keys of this session alone. Keys of `lox.save` keep their order."""
        if self.ended_session is not None:
            return self.ended_session.keys
        known = dict.fromkeys(it.chain(*(layout.keys for layout in self.layouts.values())))
        ordered = dict.fromkeys(it.chain(*self._content.saved_keys.values()))
        return [key for key in {**ordered, **known} if key in known]

    @property
    def ended(self) -> bool:
        return self._known.end is not None

    @ft.cached_property
    def last_change(self) -> float:
        """When it ended or was last written to, in seconds since 1970."""
        # Sessions of early versions say that they ended, and not when.
        if self._known.end not in (None, True):
            return self._known.end
        return (self.folder / journal.NAME).stat().st_mtime

    @property
    def state(self) -> str:
        """One of `ended`, `live` and `unfinished`, which is killed or silent for long."""
        if self.ended:
            return "ended"
        return "live" if time.time() - self.last_change < LIVE else "unfinished"

    def keys_without_rows(self, run: int) -> frozenset[str]:
        """Return the saved keys of a run that have no rows: loops without iterations."""
        return self._keys_without_rows.intersection(self._known.saved_keys[run])

    @ft.cached_property
    def _keys_without_rows(self) -> frozenset[str]:
        known = frozenset(it.chain(*(layout.keys for layout in self.layouts.values())))
        filled = (layout for group, layout in self.layouts.items() if self.frames[group])
        return known.difference(*(layout.keys for layout in filled))

    def saved_keys(self, run: int) -> list[str]:
        """Return the keys that a run was saved with, in their order."""
        return self._known.saved_keys[run]

    def frame_reader(self) -> FrameReader:
        """Return what reads single frames."""
        entries = self.entries if self.is_whole else None
        all_runs = np.array(sorted(self._known.saved_keys), np.int64)
        reader = FrameReader(self.folder, self.layouts, entries, all_runs)
        reader.is_strict = self.is_strict
        return reader

    def blocks(
        self,
        runs: Collection[int] | None = None,
        keys: Collection[str] | None = None,
        since: Mapping[int, int] | None = None,
    ) -> Iterator[Block]:
        """Yield the rows of some runs and keys, a block per frame.

        Those that earlier sessions have of resumed runs come first. What is damaged is left
        out, with a warning at the end.

        Args:
            runs: The ids of the runs. None: all.
            keys: The keys. None: all.
            since: By group, the number of the last row that is known already, from
                `last_rows`.
        """
        if self.history is None:
            yield from self.own_blocks(runs, keys, since)
            return
        if since is None:
            yield from self.history.blocks(runs, keys)
        # Rows of this session come after all of the earlier ones.
        before = self.history.rows
        for block in self.own_blocks(runs, keys, since):
            yield dataclasses.replace(block, order=block.order + before)

    def own_blocks(
        self,
        runs: Collection[int] | None = None,
        keys: Collection[str] | None = None,
        since: Mapping[int, int] | None = None,
    ) -> Iterator[Block]:
        """Yield the same without what earlier sessions have of these runs."""
        ids = self._known_ids(runs)
        with self.frame_reader() as frames:
            frames.prefetch(it.chain.from_iterable(self.frames.values()), ids, keys)
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
        """Yield at least `rows` rows from the end of each group, if it has as many."""
        ids = self._known_ids(runs)
        with self.frame_reader() as frames:
            # From the end, frame by frame, until there are enough rows.
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
        if self.history is not None:
            for pair, value in _last_of(self.history.blocks(None, None)).items():
                newest.setdefault(pair, value)
        values: dict[int, dict[str, np.generic]] = {run: {} for run in self.runs}
        for key in self.keys:
            for run, its_values in values.items():
                if (run, key) in newest:
                    its_values[key] = newest[run, key][1]
        return values

    def nonfinite(self) -> dict[int, dict[str, NonFinite]]:
        """Return how many rows are not finite, and the first of them, by run and key.

        The journal says which columns to look at. In the first format it does not, so this
        only looks at keys that are numbers.
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
        if self.history is not None:
            for block in self.history.blocks(None, None):
                for key in block.values:
                    _count_nonfinite(found, block, key)
        return found

    def lost_rows(self) -> Counter[str]:
        """Read everything, and return how many rows are damaged, by key."""
        with self.frame_reader() as frames:
            for frame in it.chain.from_iterable(self.frames.values()):
                frames.read(frame, self._ids, None)
            return frames.lost

    def row_counts(self) -> dict[str, Counter[int]]:
        """Return how many rows each run has, by key."""
        counts = {key: Counter[int]() for key in self.keys}
        if self.history is not None:
            counts.update(self.history.row_counts())
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
        # If all rows are of one run, the journal is enough.
        if low == high:
            return {low: frame.rows}
        ids = frames.column(frame, RUN)
        if ids is None:
            frames.leave_out(f"A frame of {frame.rows} rows")
            return {}
        runs, rows = np.unique(ids, return_counts=True)
        return dict(zip(runs.tolist(), rows.tolist(), strict=True))


def _last_of(
    blocks: Iterable[Block],
) -> dict[tuple[int, str], tuple[int, np.generic]]:
    """Return the row number and value of the last scalar, by run and key."""
    last: dict[tuple[int, str], tuple[int, np.generic]] = {}
    for block in blocks:
        rows = _last_row_of_each_run(block)
        for key, array in block.values.items():
            is_number = isinstance(array, np.ndarray) and array.ndim == 1
            if not is_number or array.dtype.kind == "c" or block.forms[key].keys:
                continue
            found = block.runs[rows].tolist(), block.order[rows].tolist()
            for run, order, value in zip(*found, array[rows], strict=True):
                if order > last.get((run, key), (-1,))[0]:
                    last[run, key] = order, value
    return last


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
    """Add the rows of a key in which some example that logged is not finite."""
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
    # Once per run: its first bad row in this block, and how many there are.
    for run, row, number in zip(runs.tolist(), rows[firsts], counts.tolist(), strict=True):
        first = NonFinite(number, names[0] if names else "", float(np.max(steps[row])))
        before = found.setdefault(run, {}).get(key)
        if before is not None:
            number += before.rows
            first = before if before.first <= first.first else first
        found[run][key] = first._replace(rows=number)


def _end_of(block: Block, rows: int) -> Block:
    """Return at least `rows` rows from the end of a block.

    Rows with the same number were logged together, and are not separated.
    """
    if len(block) <= rows:
        return block
    return block.select(block.order >= np.partition(block.order, -rows)[-rows])


def _last_row_of_each_run(block: Block) -> np.ndarray:
    _, from_end = np.unique(block.runs[::-1], return_index=True)
    return len(block) - 1 - from_end
