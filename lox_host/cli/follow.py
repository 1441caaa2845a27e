"""What comes to a session, read while it is written."""

import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from lox_host.cli.errors import Trouble
from lox_host.cli.match import within
from lox_host.rows import Block
from lox_host.store.frames import Frame
from lox_host.store.journal import entries
from lox_host.store.layout import ROW
from lox_host.store.reader import Reader, Snapshot, Stale
from lox_host.store.recorded import recorded, taken


class Follower:
    """The rows of some runs of a session: the last ones, and then what is new.

    A journal is read on from where it ended, so that looking again costs what has come.
    When the session ends it is replaced, and rows that were read already are known by
    their numbers.

    Args:
        now: The session.
        ids: The runs.
        keys: The keys. None: all.
    """

    def __init__(self, now: Snapshot, ids: Collection[int], keys: Sequence[str]):
        self._folder, self._ids, self._keys = now.folder, ids, keys
        self._begin()
        # By the number of a layout, that of the last row that has been read.
        self._seen: dict[int, int] = {}

    @property
    def keys(self) -> list[str]:
        """All keys that the session has by now."""
        return self._now.keys

    @property
    def ended(self) -> bool:
        return self._now.ended

    def last(self, number: int) -> list[Block]:
        """Rows from the end, at least so many of each layout where there are."""
        return self._read(lambda frames: self._last(frames, number))

    def new(self) -> list[Block]:
        """All rows that have come since."""
        return self._read(self._new)

    def _read(self, select: Any) -> list[Block]:
        while True:
            seen = dict(self._seen)
            try:
                return list(select(self._frames()))
            except Stale:
                self._seen = seen
                self._check_replaced()
                self._begin()
            except FileNotFoundError:
                # Somebody has removed the session: nothing more will come.
                self._now = Snapshot(self._folder, [*self._now.entries, {"end": True}])
                return []

    def _check_replaced(self) -> None:
        """A file that is gone belongs to a journal that is gone, or somebody took it."""
        if (self._folder / "journal").stat().st_ino == self._inode:
            raise Trouble(f"A file of the session in {str(self._folder)!r} is missing.")

    def _begin(self) -> None:
        self._now = Snapshot(self._folder, [])
        self._offset, self._inode = 0, -1

    def _frames(self) -> list[Frame]:
        """The frames that the journal has told of since it was last read."""
        with (self._folder / "journal").open("rb") as journal:
            if os.fstat(journal.fileno()).st_ino != self._inode:
                self._begin()
                self._inode = os.fstat(journal.fileno()).st_ino
            journal.seek(self._offset)
            data = journal.read()
        # A line may be half written.
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found, _ = entries(whole)
        others = [entry for entry in found if "frame" not in entry]
        if others:
            self._now = Snapshot(self._folder, [*self._now.entries, *others])
        return [Frame.of(entry["frame"]) for entry in found if "frame" in entry]

    def _last(self, frames: Sequence[Frame], number: int) -> Iterator[Block]:
        groups: dict[int, list[Frame]] = {}
        for frame in frames:
            groups.setdefault(frame.group, []).append(frame)
        for group, own in groups.items():
            self._seen[group] = self._highest(own[-1])
            rows = 0
            for frame in reversed(own):
                if rows >= number:
                    break
                for block in self._blocks([frame]):
                    rows += len(block)
                    yield _end(block, number)

    def _new(self, frames: Iterable[Frame]) -> Iterator[Block]:
        for frame in frames:
            seen, highest = self._seen.get(frame.group, -1), self._highest(frame)
            if highest <= seen:
                continue
            self._seen[frame.group] = highest
            for block in self._blocks([frame]):
                own = taken(block, block.order > seen)
                if own:
                    yield own

    def _highest(self, frame: Frame) -> int:
        with Reader(self._now) as reader:
            rows = reader.column(frame, ROW)
        return -1 if rows is None else int(rows.max())

    def _blocks(self, frames: Iterable[Frame]) -> Iterator[Block]:
        for block in recorded(self._now, frames, self._ids):
            own = {k: x for k, x in block.values.items() if self._is_asked_for(k)}
            if own:
                yield dataclasses.replace(block, values=own)

    def _is_asked_for(self, name: str) -> bool:
        return not self._keys or any(within(name, key) for key in self._keys)


def _end(block: Block, number: int) -> Block:
    """The last rows of a block, at least so many."""
    if len(block) <= number:
        return block
    return taken(block, block.order >= np.partition(block.order, -number)[-number])
