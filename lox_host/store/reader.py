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
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np

from lox_host.rows import Block
from lox_host.runs.run import Run
from lox_host.store.address import url_of
from lox_host.store.ended_session import EndedSession, read_ended
from lox_host.store.folder import Path, sessions_of, warn_of_store
from lox_host.store.format import journal
from lox_host.store.format.files import read_file
from lox_host.store.format.frame_reader import FrameReader, StaleSession
from lox_host.store.format.frames import Frame
from lox_host.store.format.journal import Entry, read_journal, warn_of_problems
from lox_host.store.format.journal_content import Content, read_content
from lox_host.store.format.layout import ROW, Layout
from lox_host.store.history import History, Limits, Links, first_steps, link_sessions

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
        ended = self.ended_session
        if ended is None:
            return read_content(self.entries)
        return read_content(ended.entries_without_runs, ended.runs, ended.saved_keys)

    @ft.cached_property
    def run_ids(self) -> np.ndarray:
        """The ids of all runs, sorted."""
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
        entries = (lambda: self.entries) if self.is_whole else None
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
            return self.run_ids
        return np.intersect1d(self.run_ids, np.array(sorted(runs), np.int64))

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


def _end_of(block: Block, rows: int) -> Block:
    """Return at least `rows` rows from the end of a block.

    Rows with the same number were logged together, and are not separated.
    """
    if len(block) <= rows:
        return block
    return block.select(block.order >= np.partition(block.order, -rows)[-rows])
