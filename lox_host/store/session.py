"""A session: what a process writes to a store, from its first run to its last."""

import dataclasses
import os
import pathlib
import time
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from lox_host.rows import Block
from lox_host.store import journal
from lox_host.store.compact import compact
from lox_host.store.frames import Encoder
from lox_host.store.layout import Layout, flatten
from lox_host.store.segments import Segments, create_file, sync
from lox_host.writer import Run

# A frame is written at the latest when this many bytes or blocks wait for it.
BYTES, BLOCKS = 4 << 20, 10_000


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
    disk, leaves the files as they were, and the rows wait for the next `flush`.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self._journal = create_file(folder / journal.NAME)
        self._segments = Segments(folder)
        self._groups: dict[Hashable, _Group] = {}
        self._rows = 0

    def open(self, run: Run, keys: tuple[str, ...] = ()) -> None:
        """Note a run, and in which order its keys are to be loaded."""
        fields = {**dataclasses.asdict(run), "config": _to_json(dict(run.config))}
        self._note({"run": {**fields, "keys": keys}})

    def append(self, blocks: Sequence[Block]) -> None:
        """Take rows; they are written by the next `flush`, or now if there are many."""
        # Numbers restart with each call, so those of earlier calls come in front.
        numbers = _row_numbers(blocks)
        for block, its_numbers in zip(blocks, numbers, strict=True):
            self._add(block, its_numbers + self._rows)
        self._rows += max((int(rows.max(initial=-1)) + 1 for rows in numbers), default=0)
        for group in self._groups.values():
            if group.nbytes >= BYTES or len(group.waiting) >= BLOCKS:
                self._write(group)

    def flush(self) -> None:
        """Give everything to the operating system: it outlives the process."""
        for group in self._groups.values():
            self._write(group)

    def end(self) -> None:
        """Bring everything to the disk, small frames joined to large ones."""
        self.flush()
        self._note({"end": round(time.time())})
        self._segments.close()
        os.close(self._journal)
        compact(self.folder, first=self._segments.count)
        for path in (*self.folder.iterdir(), self.folder):
            sync(path)

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

    def _write(self, group: _Group) -> None:
        """Write what waits in a group as one frame, and then its line in the journal."""
        if group.layout is not None:
            layout = dataclasses.asdict(group.layout)
            self._note({"group": group.number, "layout": layout})
            group.layout = None
        if not group.waiting:
            return
        runs, *others = (_concatenate(parts) for parts in zip(*group.waiting, strict=True))
        columns = [runs, _concatenate(group.numbers), *others]
        frame = self._segments.write(group.number, group.encoder, columns)
        # A frame without its line does not count, and readers would warn of it.
        try:
            self._note({"frame": frame._asdict()})
        except BaseException:
            self._segments.undo(frame)
            raise
        # Only now: rows that could not be written are written by the next flush.
        group.waiting, group.numbers, group.nbytes = [], [], 0

    def _note(self, entry: journal.Entry) -> None:
        journal.append(self._journal, journal.encode([entry]))


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
