"""A session: what a process writes to a store, from its first run to its last."""

import contextlib
import dataclasses
import os
import pathlib
import time
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np

from lox_host.rows import Block
from lox_host.store import journal
from lox_host.store.compact import compact
from lox_host.store.files import open_file
from lox_host.store.folder import FORMAT, list_session
from lox_host.store.frame_reader import StaleSession
from lox_host.store.frames import Encoder, Frame
from lox_host.store.layout import Layout, flatten
from lox_host.store.lock import lock
from lox_host.store.reader import Reader
from lox_host.store.segments import Segments, create_file, sync
from lox_host.writer import Run

# What waits is written at the latest when a group has this many bytes or blocks.
BYTES, BLOCKS = 4 << 20, 10_000
# How many bytes wait for a disk that is full; what comes after them is left out.
KEPT = 64 << 20


class SessionBusy(Exception):
    """A session cannot be continued, because another writer has it open."""


@dataclasses.dataclass
class _Group:
    """The rows of one layout that wait to be written.

    Attributes:
        number: The number of the group.
        layout: What its rows look like. None once the journal has it.
        encoder: What makes frames of them.
        waiting: The columns of each block.
        numbers: The numbers of the rows of each block.
        nbytes: The size of all that waits.
    """

    number: int
    layout: Layout | None
    encoder: Encoder
    waiting: list[list[np.ndarray]] = dataclasses.field(default_factory=list)
    numbers: list[np.ndarray] = dataclasses.field(default_factory=list)
    nbytes: int = 0


class Session:
    """Write to the folder of a session that has just begun.

    Nothing that is in a journal or in a data file is changed. What fails, such as on a full
    disk, leaves the files as they were, and the rows wait for the next `flush`. If more
    than `KEPT` bytes wait then, later rows are left out, and the journal says how many.
    """

    def __init__(self, folder: pathlib.Path):
        self._begin(folder, create_file(folder / journal.NAME), Segments(folder))
        self._note({"session": {"name": folder.name, "format": FORMAT}})
        list_session(folder)

    @classmethod
    def reopen(cls, reader: Reader) -> "Session | None":
        """Continue a session. None if it is not whole, or of an older format.

        Raises:
            SessionBusy: If another writer has it open.
            StaleSession: If it is no longer what the reader has read.
        """
        file = open_file(reader.folder / journal.NAME, os.O_RDWR | os.O_APPEND)
        try:
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
        session._lines = now.next_number
        for number, layout in reader.layouts.items():
            kind, _ = flatten(layout.empty_block())
            session._groups[kind] = _Group(number, None, Encoder(layout))
        session._rows = 1 + max(reader.last_rows().values(), default=-1)
        return session

    def _begin(self, folder: pathlib.Path, file: int, segments: Segments) -> None:
        self._folder, self._journal, self._segments = folder, file, segments
        lock(file)
        self._groups: dict[Hashable, _Group] = {}
        self._lines = self._rows = self._lost_rows = 0
        self._has_failed = False

    def open(self, run: Run, keys: tuple[str, ...] = ()) -> None:
        """Note a run, and in which order its keys are to be loaded."""
        fields = {**dataclasses.asdict(run), "config": _to_json(dict(run.config))}
        self._note({"run": {**fields, "keys": keys}})

    def remove(self, runs: Collection[int]) -> None:
        """Remove runs: they no longer count."""
        self._note({"removed": sorted(runs)})

    def append(self, blocks: Sequence[Block]) -> None:
        """Take rows; they are written by the next `flush`, or now if there are many."""
        # Numbers restart with each call, so those of earlier calls come in front.
        numbers = _row_numbers(blocks)
        waiting = sum(group.nbytes for group in self._groups.values())
        if self._has_failed and waiting > KEPT:
            self._lost_rows += sum(map(len, blocks))
            blocks = [block.select(slice(0)) for block in blocks]
        for block, its_numbers in zip(blocks, numbers, strict=True):
            self._add(block, its_numbers[: len(block)] + self._rows)
        self._rows += max((int(rows.max(initial=-1)) + 1 for rows in numbers), default=0)
        groups = self._groups.values()
        if any(of.nbytes >= BYTES or len(of.waiting) >= BLOCKS for of in groups):
            # All of the rows are taken by now. If they cannot be written, that is for the
            # next flush to say: who is told here would send them again.
            with contextlib.suppress(OSError):
                self.flush()

    def flush(self) -> None:
        """Give everything to the operating system: it outlives the process.

        All of it counts at once, when its line is in the journal, so that the keys of a
        record are there together or not at all.
        """
        self._check_folder()
        groups = [of for of in self._groups.values() if of.waiting or of.layout is not None]
        if not groups and not self._lost_rows:
            return
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
            fields = [frame._asdict() for frame in frames]
            self._note({"flush": {**gap, "layouts": layouts, "frames": fields}})
        except BaseException:
            self._has_failed = True
            # Frames without a line do not count, and readers would warn of them.
            for frame in reversed(frames):
                with contextlib.suppress(OSError):
                    self._segments.undo(frame)
            raise
        # Only now: rows that could not be written are written by the next flush.
        self._has_failed, self._lost_rows = False, 0
        for group in groups:
            group.layout = None
            group.waiting, group.numbers, group.nbytes = [], [], 0

    def end(self, seconds: float | None = None, *, small_frames: int = 1) -> None:
        """Bring everything to the disk, small frames joined to large ones.

        Whatever fails, the files are closed.

        Args:
            seconds: When it ended, in seconds since 1970. None: now.
            small_frames: How many small frames may stay as they are.
        """
        try:
            self.flush()
            self._note({"end": round(time.time() if seconds is None else seconds)})
        finally:
            self.close()
        compact(self._folder, self._segments.count, small_frames)
        for path in (*self._folder.iterdir(), self._folder):
            sync(path)

    def close(self) -> None:
        """Close all files, without an end."""
        self._segments.close()
        os.close(self._journal)

    def _add(self, block: Block, numbers: np.ndarray) -> None:
        kind, columns = flatten(block)
        group = self._groups.get(kind)
        if group is None:
            # Not written yet: a block without rows has a layout, and that may be all.
            layout = Layout.of(block)
            group = _Group(len(self._groups), layout, Encoder(layout))
            self._groups[kind] = group
        if len(block):
            group.waiting.append(columns)
            group.numbers.append(numbers)
            group.nbytes += sum([column.nbytes for column in columns])

    def _write(self, group: _Group) -> Frame:
        """Write what waits in a group as one frame."""
        runs, *others = (_concatenate(parts) for parts in zip(*group.waiting, strict=True))
        columns = [runs, _concatenate(group.numbers), *others]
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
    """Return whether an open journal is the one in the folder of a session."""
    try:
        return os.path.samestat(os.fstat(file), (session / journal.NAME).lstat())
    except FileNotFoundError:
        return False


def _row_numbers(blocks: Sequence[Block]) -> list[np.ndarray]:
    """Number the rows of all blocks in the order of logging, without gaps.

    Rows of several blocks that were logged together have the same number: the orders
    `[3, 9]` and `[3, 7]` become `[0, 2]` and `[0, 1]`.
    """
    if len(blocks) < 2:
        return [np.arange(len(block)) for block in blocks]
    orders = [block.order for block in blocks]
    rank = np.unique(_concatenate(orders), return_inverse=True)[1]
    return np.split(rank, np.cumsum([len(order) for order in orders])[:-1])


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _to_json(value: Any) -> Any:
    """Return the value in what JSON has; what it has not, as text."""
    if isinstance(value, dict):
        return {str(name): _to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(inner) for inner in value]
    if hasattr(value, "tolist"):
        return _to_json(value.tolist())
    return value if value is None or isinstance(value, str | int | float) else str(value)
