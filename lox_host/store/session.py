"""A session: what a process writes to a store, from its first run to its last."""

import dataclasses
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from lox_host.rows import Block
from lox_host.store.compact import compact
from lox_host.store.frames import Encoder
from lox_host.store.journal import append, lines
from lox_host.store.layout import Layout, flat, layout, to_json
from lox_host.store.segments import Segments, created, synced
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
        self._folder = folder
        self._journal = created(folder / "journal")
        self._segments = Segments(folder)
        self._groups: dict[tuple, _Group] = {}
        self._rows = 0

    def open(self, run: Run, keys: tuple[str, ...] = ()) -> None:
        """Note a run, and in which order its keys are to be loaded."""
        fields = {**dataclasses.asdict(run), "config": _plain(dict(run.config))}
        self._note({"run": {**fields, "keys": keys}})

    def append(self, blocks: Sequence[Block]) -> None:
        """Take rows; they are written by the next `flush`, or now if there are many."""
        numbers = _numbers(blocks)
        for block, own in zip(blocks, numbers, strict=True):
            self._take(block, own + self._rows)
        self._rows += max((int(own.max(initial=-1)) + 1 for own in numbers), default=0)
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
        compact(self._folder, first=self._segments.count)
        for path in (*self._folder.iterdir(), self._folder):
            synced(path)

    def _take(self, block: Block, numbers: np.ndarray) -> None:
        kind, columns = flat(block)
        group = self._groups.get(kind)
        if group is None:
            found = layout(block)
            group = _Group(len(self._groups), found, Encoder(found))
            self._groups[kind] = group
        if len(block):
            group.waiting.append(columns)
            group.numbers.append(numbers)
            group.nbytes += sum([column.nbytes for column in columns])

    def _write(self, group: _Group) -> None:
        if group.layout is not None:
            self._note({"group": group.number, "layout": to_json(group.layout)})
            group.layout = None
        if not group.waiting:
            return
        runs, *others = (_joined(parts) for parts in zip(*group.waiting, strict=True))
        columns = [runs, _joined(group.numbers), *others]
        frame = self._segments.write(group.number, group.encoder, columns)
        try:
            self._note({"frame": frame._asdict()})
        except BaseException:
            self._segments.undo(frame)
            raise
        group.waiting, group.numbers, group.nbytes = [], [], 0

    def _note(self, entry: dict[str, Any]) -> None:
        append(self._journal, lines([entry]))


def _numbers(blocks: Sequence[Block]) -> list[np.ndarray]:
    """The numbers of the rows of each block, in the order of logging and without gaps."""
    if len(blocks) < 2:
        return [np.arange(len(block)) for block in blocks]
    orders = [block.order for block in blocks]
    rank = np.unique(_joined(orders), return_inverse=True)[1]
    return np.split(rank, np.cumsum([len(order) for order in orders])[:-1])


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _plain(value: Any) -> Any:
    """The value in what JSON has; what it has not, as text."""
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value if value is None or isinstance(value, str | int | float) else str(value)
