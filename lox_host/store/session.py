"""Write a session: everything that a process stores, from its first run to its last.

    append -> groups, in memory      flush -> frames in data files -> line in the journal

    group 0: rows of loss, acc       0000.arrows | frame | frame |
    group 1: rows of lr              0001.arrows | frame |            {"flush": ...}

Rows of one layout wait in a group. A flush writes each group as one frame and then one
line to the journal. The invariant: a frame counts only once its line is in the journal, so
a process that is killed at any moment leaves whole flushes.
"""

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from lox_host.rows import Block, join_alike
from lox_host.runs.run import Run
from lox_host.runs.run_config import is_plain
from lox_host.store.compact import compact
from lox_host.store.folder import FORMAT, list_session
from lox_host.store.format import journal
from lox_host.store.format.files import open_file
from lox_host.store.format.frame_reader import StaleSession
from lox_host.store.format.frames import LARGE, Encoder, Frame, concatenate
from lox_host.store.format.layout import Layout, flatten
from lox_host.store.format.lock import lock, lock_soon
from lox_host.store.format.segments import Segments, create_file, start_sync, sync
from lox_host.store.reader import Reader
from lox_host.store.summary import note_summary

# A group with this many bytes or blocks is written without waiting for `flush`.
BYTES, BLOCKS = 4 << 20, 10_000
# How many bytes to keep in memory while the disk is full. Later rows are left out.
KEPT = 64 << 20


class SessionBusy(Exception):
    """A session cannot be continued, because another writer has it open."""


@dataclasses.dataclass
class _Group:
    """The rows of one layout that wait to be written.

    Attributes:
        number: The number of the group.
        layout: The layout of its rows. None once it is in the journal.
        encoder: Turns rows into frames.
        waiting: The columns of each waiting block.
        numbers: The row numbers of each waiting block.
        nbytes: The size of all waiting blocks.
    """

    number: int
    layout: Layout | None
    encoder: Encoder
    waiting: list[list[np.ndarray]] = dataclasses.field(default_factory=list)
    numbers: list[np.ndarray] = dataclasses.field(default_factory=list)
    nbytes: int = 0


class Session:
    """Writes to the folder of a new session.

    Bytes that are in a journal or data file never change. If a write fails, for example
    because the disk is full, the files stay as they were, and the rows wait for the next
    `flush`. If more than `KEPT` bytes wait by then, later rows are left out, and the
    journal says how many.
    """

    def __init__(self, folder: pathlib.Path):
        self._begin(folder, create_file(folder / journal.NAME), Segments(folder))
        self._note({"session": {"name": folder.name, "format": FORMAT}})
        list_session(folder)

    @classmethod
    def reopen(cls, reader: Reader) -> "Session | None":
        """Continue a session. Return None if it is damaged or has an older format.

        Raises:
            SessionBusy: If another writer has it open.
            StaleSession: If it has changed since the reader read it.
        """
        file = open_file(reader.folder / journal.NAME, os.O_RDWR | os.O_APPEND)
        try:
            # Read the journal again with the lock: it may have grown in between.
            if not lock(file):
                raise SessionBusy(f"The session in {str(reader.folder)!r} is being written")
            now = journal.read_journal(reader.folder)
            if now.entries != reader.entries or not is_open_at(file, reader.folder):
                raise StaleSession
        except BaseException:
            os.close(file)
            raise
        if reader.problems or reader.journal_version != FORMAT:
            os.close(file)
            return None
        session = cls.__new__(cls)
        session._begin(reader.folder, file, Segments.after(reader.folder, reader.frames))
        # Continue where the last writer stopped: line numbers, groups and row numbers.
        session._lines = now.next_number
        for number, layout in reader.layouts.items():
            kind, _ = flatten(layout.empty_block())
            # New rows have times. An old layout without a column for them must not match.
            kind = kind if layout.time is not None else (kind, "without time")
            session._groups[kind] = _Group(number, None, Encoder(layout))
        session._rows = 1 + max(reader.last_rows().values(), default=-1)
        return session

    def _begin(self, folder: pathlib.Path, file: int, segments: Segments) -> None:
        self._folder, self._journal, self._segments = folder, file, segments
        lock_soon(file)
        self._groups: dict[Hashable, _Group] = {}
        self._lines = self._rows = self._lost_rows = 0
        self._has_failed = False

    def open(self, run: Run, keys: tuple[str, ...] = ()) -> None:
        """Note a run, and the order in which to load its keys."""
        # `dataclasses.asdict` would take longer than everything else here.
        fields = {**vars(run), "keys": keys}
        if not is_plain(run.config):
            fields["config"] = _to_json(dict(run.config))
        self._note({"run": fields})

    def describe(self, environment: Mapping[str, Any]) -> None:
        """Note the environment: host, command line, versions and so on."""
        self._note({"environment": _to_json(dict(environment))})

    def remove(self, runs: Collection[int]) -> None:
        """Note that runs are removed. Readers ignore their rows from now on."""
        self._note({"removed": sorted(runs)})

    def append(self, blocks: Sequence[Block]) -> None:
        """Add rows. The next `flush` writes them, or this call if there are many."""
        numbers, count = _row_numbers([block.order for block in blocks], self._rows)
        # While the disk is full, rows are kept in memory up to a limit. Then they are left
        # out, but their keys are not: an empty block still makes its group.
        waiting = sum(group.nbytes for group in self._groups.values())
        if self._has_failed and waiting > KEPT:
            self._lost_rows += sum(map(len, blocks))
            blocks, numbers = [block.select(slice(0)) for block in blocks], numbers[:0]
        is_small = len(blocks) > 1 and blocks[0].nbytes < LARGE
        joined = join_alike(blocks) if is_small else None
        start = 0
        for block in blocks if joined is None else [joined]:
            self._add(block, numbers[start : start + len(block)])
            start += len(block)
        self._rows += count
        groups = self._groups.values()
        if any(of.nbytes >= BYTES or len(of.waiting) >= BLOCKS for of in groups):
            # All rows are in a group by now. If writing fails, the next `flush` raises. An
            # error here would make the caller send the rows again.
            with contextlib.suppress(OSError):
                self.flush()

    def flush(self) -> None:
        """Hand everything to the operating system, so that it outlives the process.

        One journal line makes all rows of a flush count at once. So a reader finds all keys
        of a record or none.
        """
        groups = [of for of in self._groups.values() if of.waiting or of.layout is not None]
        if not groups and not self._lost_rows:
            return
        self._check_folder()
        layouts = [
            {"group": of.number, "layout": dataclasses.asdict(of.layout)}
            for of in groups
            if of.layout is not None
        ]
        gap = {"gap": {"rows": self._lost_rows}} if self._lost_rows else {}
        frames: list[Frame] = []
        try:
            for group in groups:
                if group.waiting:
                    frames.append(self._write(group))
            fields = [frame.to_json() for frame in frames]
            self._note({"flush": {**gap, "layouts": layouts, "frames": fields}})
        except BaseException:
            self._has_failed = True
            # Readers would warn of frames without a journal line, so cut them off.
            for frame in reversed(frames):
                with contextlib.suppress(OSError):
                    self._segments.undo(frame)
            raise
        # Clear the groups last: after a failure, the next flush writes their rows.
        self._has_failed, self._lost_rows = False, 0
        for group in groups:
            group.layout = None
            group.waiting, group.numbers, group.nbytes = [], [], 0

    def end(self, seconds: float | None = None, *, small_frames: int = 1) -> None:
        """End the session: join small frames to large ones, and sync all to the disk.

        The files are closed even if something fails.

        Args:
            seconds: When it ended, in seconds since 1970. None: now.
            small_frames: How many small frames may stay as they are.
        """
        try:
            self.flush()
            self._note({"end": round(time.time() if seconds is None else seconds)})
        finally:
            self.close()
        # The disk writes the data while this reads the journal.
        wait_for_data = start_sync(self._folder.glob("*.arrows"))
        # The summary describes the files as compacting leaves them, so it comes last.
        compact(self._folder, self._segments.count, small_frames)
        note_summary(self._folder)
        # `compact` has synced what it wrote.
        sync(self._folder / journal.NAME)
        sync(self._folder)
        wait_for_data()

    def close(self) -> None:
        """Close all files without noting an end."""
        self._segments.close()
        os.close(self._journal)

    def _add(self, block: Block, numbers: np.ndarray) -> None:
        kind, columns = flatten(block)
        group = self._groups.get(kind)
        if group is None:
            # The layout is written even if no rows follow: a loop without iterations still
            # has keys.
            layout = Layout.of(block)
            group = _Group(len(self._groups), layout, Encoder(layout))
            self._groups[kind] = group
        if len(block):
            group.waiting.append(columns)
            group.numbers.append(numbers)
            group.nbytes += sum([column.nbytes for column in columns])

    def _write(self, group: _Group) -> Frame:
        """Write the waiting rows of a group as one frame."""
        # Column 0 is the run, column 1 the row number, which only the session knows.
        runs, *others = zip(*group.waiting, strict=True)
        columns = [runs, group.numbers, *others]
        return self._segments.write(group.number, group.encoder, columns)

    def _note(self, entry: journal.Entry) -> None:
        journal.append(self._journal, journal.encode([{"n": self._lines, **entry}]))
        self._lines += 1

    def _check_folder(self) -> None:
        """Raise if the files are no longer where readers look for them."""
        if not is_open_at(self._journal, self._folder):
            raise FileNotFoundError(
                f"The session in {str(self._folder)!r} has been removed or replaced while "
                "it was written."
            )


def is_open_at(file: int, session: pathlib.Path) -> bool:
    """Return whether an open journal is still the file in the folder of the session."""
    try:
        return os.path.samestat(os.fstat(file), (session / journal.NAME).lstat())
    except FileNotFoundError:
        return False


def _row_numbers(orders: Sequence[np.ndarray], first: int) -> tuple[np.ndarray, int]:
    """Number the rows of all blocks in the order of logging, without gaps.

    Rows of several blocks that were logged together have the same number: with `first=5`,
    the orders `[3, 9]` and `[3, 7]` become `[5, 7, 5, 6]`.

    Returns:
        The numbers of all rows, block after block, and how many different ones there are.
    """
    if not orders:
        return np.zeros(0, int), 0
    order = concatenate(orders)
    if len(orders) == 1 or (order[1:] > order[:-1]).all():
        return np.arange(first, first + len(order)), len(order)
    distinct, inverse = np.unique(order, return_inverse=True)
    return inverse + first, len(distinct)


def _to_json(value: Any) -> Any:
    """Convert a value to JSON types. Values without a JSON type become text."""
    if isinstance(value, dict):
        return {str(name): _to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(inner) for inner in value]
    if hasattr(value, "tolist"):
        return _to_json(value.tolist())
    return value if value is None or isinstance(value, str | int | float) else str(value)
