"""What waits to be written by one back end.

    packets, as devices send them           blocks of rows              a batch

    source A: packets 0, 2, 3  --decode-->  3 rows of loss, acc  --+
    source B: packets 1, 4     --decode-->  2 rows of lr         --+--merge-->  writer.write
    blocks that a MultiLogger has decoded already  ----------------+

Packets wait as they came. Those of one layout are decoded together, by stacking their
arrays: thousands of them cost little more than one. That happens when the oldest has waited
`every` seconds, when there are very many, and whenever somebody waits for it: then the
writer gets a batch. Packets are numbered as they arrive, and `Block.order` carries these
numbers, so that a batch knows the order of logging although its blocks are sorted by
layout.

A writer that fails is not called again, and what it lost is counted; `check` raises.
"""

import contextlib
import itertools as it
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from lox_host.rows import Batch, Block, merge_blocks
from lox_host.run_registry import RunRegistry
from lox_host.worker import Worker
from lox_host.writer import Run, Writer

OnError = Literal["warn", "raise"]
# How much is collected before it is written, even if it is not yet time.
MAX_ROWS = 10_000
MAX_BYTES = 16 * 2**20


class PacketSource(Protocol):
    """Decodes the packets that a program sends."""

    def blocks(self, packets: Sequence[Any], numbers: np.ndarray) -> list[Block]:
        """Return what is in packets of one layout, which have these numbers."""
        ...


class Waiting(NamedTuple):
    """Packets of one source and one layout, and their numbers in the order of arrival."""

    source: PacketSource
    packets: list[Any]
    numbers: list[int]


class WriteBuffer:
    """Collects rows for a writer. All methods but `check` run on the worker's thread.

    Args:
        name: What the logger is called in messages.
        writer: The back end.
        registry: The runs of the logger. Rows of others are refused.
        worker: Calls `flush` from time to time.
        on_error: Whether a writer that fails is warned of, or stops the program.
        every: How many seconds rows are collected before they are written.
    """

    def __init__(
        self,
        name: str,
        writer: Writer,
        registry: RunRegistry,
        worker: Worker,
        *,
        on_error: OnError,
        every: float,
    ):
        self._name, self._writer, self._registry = name, writer, registry
        self._worker, self._on_error, self._every = worker, on_error, every
        self._runs: dict[int, Run] = {}
        self.discard()
        self._program_error: Exception | None = None
        self._writer_error: BaseException | None = None
        self._lost_rows = 0

    def discard(self) -> None:
        """Write nothing of what waits."""
        self._packets: dict[tuple[int, int], Waiting] = {}
        self._blocks: list[Block] = []
        self._rows = self._bytes = 0

    def open(self, run: Run) -> None:
        """Begin a run at the writer, and raise what that raises."""
        self._writer.open(run)
        self._runs[run.id] = run

    def add(self, source: PacketSource, layout: object, packet: Any, nbytes: int) -> None:
        """Take a packet, which stays as it is until it is written."""
        # The ids last as long as the packet that is waiting, which holds both objects.
        place = id(source), id(layout)
        waiting = self._packets.get(place)
        if waiting is None:
            waiting = self._packets[place] = Waiting(source, [], [])
        waiting.packets.append(packet)
        waiting.numbers.append(next(_packet_numbers))
        self._grow(1, nbytes)

    def add_blocks(self, blocks: Sequence[Block]) -> None:
        """Take rows that are decoded already."""
        for block in self._of_known_runs(blocks):
            self._blocks.append(block)
            self._grow(len(block), block.nbytes)

    def _grow(self, rows: int, nbytes: int) -> None:
        if not self._rows:
            self._worker.call_later(self.flush, self._every)
        self._rows += rows
        self._bytes += nbytes
        if self._rows >= MAX_ROWS or self._bytes >= MAX_BYTES:
            self.write()

    def write(self) -> None:
        """Give all that waits to the writer, as one batch."""
        packets, blocks = self._packets, self._blocks
        self.discard()
        for waiting in packets.values():
            try:
                numbers = np.array(waiting.numbers)
                decoded = waiting.source.blocks(waiting.packets, numbers)
                blocks += self._of_known_runs(decoded)
            except Exception as error:
                self.refuse(error)
        rows = sum(map(len, blocks))
        if not rows or not self._runs:
            return
        if not self._try(lambda: self._writer.write(Batch(merge_blocks(blocks)))):
            self._lost_rows += rows

    def flush(self) -> None:
        """Write all that waits to where it outlives the process."""
        self.write()
        self._try(self._writer.flush)

    def close(self, runs: Sequence[Run]) -> None:
        """End runs at the writer. What they have logged is flushed already."""
        for run in [run for run in runs if run.id in self._runs]:
            self._try(lambda run=run: self._writer.close(run), even_if_failed=True)
            del self._runs[run.id]

    def refuse(self, error: Exception) -> None:
        """Keep what is wrong with what the program sends, to be raised by `check`."""
        self._program_error = self._program_error or error

    def check(self, *, at_end: bool = False) -> None:
        """Raise what is wrong with what the program sent, and what the writer raised.

        Args:
            at_end: Raise even if the writer's failure need not stop a program.
        """
        if self._program_error is not None:
            error, self._program_error = self._program_error, None
            raise error
        if self._writer_error is not None and (at_end or self._on_error == "raise"):
            error, lost = self._writer_error, self._lost_rows
            if at_end and not self._runs:
                self._writer_error, self._lost_rows = None, 0
            what = f"{lost} rows that were" if lost else "What was"
            raise RuntimeError(
                f"{self._name} failed with {_described(error)}. {what} logged may not be "
                "written."
            ) from error

    def _of_known_runs(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the rows of runs that there are, and refuse the others."""
        known = self._registry.runs
        for block in blocks:
            for id in np.unique(block.runs).tolist():
                if id not in known:
                    self.refuse(self._registry.unknown(id))
        return [block.of_runs(known) for block in blocks]

    def _try(self, call: Callable[[], None], *, even_if_failed: bool = False) -> bool:
        """Call the writer, unless it has failed before, and return whether all is well."""
        if self._writer_error is not None and not even_if_failed:
            return False
        try:
            call()
        except BaseException as error:
            if self._writer_error is None:
                self._writer_error = error
                self._warn(error)
        return self._writer_error is None

    def _warn(self, error: BaseException) -> None:
        names = [run.name for run in self._runs.values()]
        listed = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        # Where warnings are errors, it is `finish` that raises.
        with contextlib.suppress(RuntimeWarning):
            warnings.warn(
                f"{self._name} failed with {_described(error)}. From here on, what the run "
                f"{listed} logs is not written, and `logger.finish` will raise.",
                RuntimeWarning,
                stacklevel=2,
            )


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# The packets of all loggers are numbered together, so that what goes to a logger alone, and
# what goes to it in a MultiLogger, comes in the order of logging.
_packet_numbers = it.count()
