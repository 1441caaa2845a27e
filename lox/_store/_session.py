"""A session: what a process writes to a store, from its first run to its last."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lox.loggers._writer import Block, Run

from ._compact import compact
from ._frames import Encoder
from ._journal import append, lines
from ._layout import RUN, Layout, flat, layout, to_json
from ._segments import Segments, created, synced

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
        first: The number of the first row of each block.
        nbytes: The size of all that waits.
    """

    number: int
    layout: Layout | None
    encoder: Encoder
    waiting: list[list[np.ndarray]] = dataclasses.field(default_factory=list)
    first: list[int] = dataclasses.field(default_factory=list)
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

    def append(self, blocks: Iterable[Block]) -> None:
        """Take rows; they are written by the next `flush`, or now if there are many."""
        for block in blocks:
            self._take(block)
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
        self._note({"end": True})
        self._segments.close()
        os.close(self._journal)
        compact(self._folder, first=self._segments.count)
        for path in (*self._folder.iterdir(), self._folder):
            synced(path)

    def _take(self, block: Block) -> None:
        kind, columns = flat(block)
        group = self._groups.get(kind)
        if group is None:
            found = layout(block)
            group = _Group(len(self._groups), found, Encoder(found))
            self._groups[kind] = group
        if len(block):
            group.waiting.append(columns)
            group.first.append(self._rows)
            group.nbytes += sum([column.nbytes for column in columns])
            self._rows += len(block)

    def _write(self, group: _Group) -> None:
        if group.layout is not None:
            self._note({"group": group.number, "layout": to_json(group.layout)})
            group.layout = None
        if not group.waiting:
            return
        runs, *others = (_joined(parts) for parts in zip(*group.waiting, strict=True))
        columns = [runs, _numbers(group), *others]
        frame = self._segments.write(group.number, group.encoder, columns)
        try:
            self._note({"frame": frame._asdict()})
        except BaseException:
            self._segments.undo(frame)
            raise
        group.waiting, group.first, group.nbytes = [], [], 0

    def _note(self, entry: dict[str, Any]) -> None:
        append(self._journal, lines([entry]))


def _numbers(group: _Group) -> np.ndarray:
    """The numbers of all rows that wait."""
    lengths = np.array([len(columns[RUN]) for columns in group.waiting])
    before = lengths.cumsum() - lengths
    return np.arange(lengths.sum()) + np.repeat(np.array(group.first) - before, lengths)


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
