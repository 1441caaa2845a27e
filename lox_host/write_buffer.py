"""What waits to be written by one back end.

    packets, as devices send them           blocks of rows              a batch

    source A: packets 0, 2, 3  --decode-->  3 rows of loss, acc  --+
    source B: packets 1, 4     --decode-->  2 rows of lr         --+--merge-->  writer.write
    blocks that a MultiLogger has decoded already  ----------------+

Threads of JAX put packets here, and the worker's thread takes them out. Packets wait as
they came. Those of one layout are decoded together, by stacking their arrays: thousands of
them cost little more than one. That happens when the oldest has waited `every` seconds,
when there are very many, and whenever somebody waits for it: then the writer gets a batch.
Packets are numbered as they arrive, and `Block.order` carries these numbers, so that a
batch knows the order of logging although its blocks are sorted by layout.

Nothing is dropped: if there is no room, the program waits. There is one exception. A writer
that has failed or stalled must not hold up the program and all other writers, so rows that
it has no room for are counted and left out.
"""

import contextlib
import itertools as it
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from lox_host.guarded_writer import GuardedWriter
from lox_host.interrupts import Interrupt
from lox_host.rows import Batch, Block, merge_blocks
from lox_host.run_registry import RunRegistry
from lox_host.worker import Worker, current_worker
from lox_host.writer import Run

# How much is collected before it is written, even if it is not yet time.
MAX_ROWS = 10_000
MAX_BYTES = 16 * 2**20
# How many times as much may wait before the program does.
ROOM = 2


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

    def decoded(self) -> list[Block]:
        return self.source.blocks(self.packets, np.array(self.numbers))


class WriteBuffer:
    """Collects rows for a writer.

    Methods are called on the worker's thread, but for those that say otherwise.

    Args:
        writer: The back end.
        registry: The runs of the logger. Rows of others are refused.
        worker: Calls `flush` from time to time.
        every: How many seconds rows are collected before they are written.
    """

    def __init__(
        self, writer: GuardedWriter, registry: RunRegistry, worker: Worker, *, every: float
    ):
        self._writer, self._registry = writer, registry
        self._worker, self._every = worker, every
        self._program_error: Exception | None = None
        self.discard()

    def discard(self) -> None:
        """Write nothing of what waits. On any thread."""
        self._lock = threading.Lock()  # may be held where the process has been forked
        self._packets: dict[tuple[int, int], Waiting] = {}
        self._blocks: list[Block] = []
        self._rows = self._bytes = 0
        # Whether the worker has been asked to flush some time, and to write now.
        self._is_scheduled = self._is_urgent = False

    def open(self, run: Run) -> None:
        """Begin a run at the writer, and raise what that raises."""
        self._writer.open(run)

    def add(self, source: PacketSource, layout: object, packet: Any, nbytes: int) -> None:
        """Take a packet, which stays as it is until it is written. On any thread."""
        # The ids last as long as the packet that is waiting, which holds both objects.
        place = id(source), id(layout)
        with self._lock:
            waiting = self._packets.get(place)
            if waiting is None:
                waiting = self._packets[place] = Waiting(source, [], [])
            waiting.packets.append(packet)
            waiting.numbers.append(next(_packet_numbers))
            self._rows += 1
            self._bytes += nbytes
        self._schedule()

    def add_blocks(self, blocks: Sequence[Block]) -> None:
        """Take rows that are decoded already. On any thread."""
        if self._is_full() and self._writer.is_down():
            self._leave_out(blocks)
            return
        with self._lock:
            self._blocks += blocks
            self._rows += sum(map(len, blocks))
            self._bytes += sum(block.nbytes for block in blocks)
        self._schedule()

    def has_room(self) -> bool:
        """Return whether a packet may be added, after waiting for that. On any thread."""
        if not self._is_full():
            return True
        start = time.monotonic()
        # A back end that logs while it writes cannot wait for itself, nor for another one
        # that may be waiting for it.
        while self._is_full() and current_worker() is None and self._worker.is_running():
            if self._writer.is_down() or self._writer.has_stalled(start):
                return False
            if Interrupt.is_pending:
                return True
            time.sleep(0.001)  # to be told after each call would cost more
        return True

    def leave_out(self, source: PacketSource, packet: Any) -> None:
        """Count the rows of a packet that there is no room for. On any thread."""
        self._leave_out(source.blocks([packet], np.zeros(1, int)))

    def write(self) -> None:
        """Give all that waits to the writer, as one batch."""
        with self._lock:
            packets, blocks = self._packets, self._blocks
            self._packets, self._blocks = {}, []
            self._rows = self._bytes = 0
            self._is_urgent = False
        for waiting in packets.values():
            try:
                blocks += waiting.decoded()
            except Exception as error:
                self.refuse(error)
        blocks = self._of_known_runs(blocks)
        rows = sum(map(len, blocks))
        if rows and self._writer.runs:
            self._writer.write(Batch(merge_blocks(blocks)), rows)

    def flush(self) -> None:
        """Write all that waits to where it outlives the process."""
        self._is_scheduled = False
        # What a writer that is down has taken waits there: that must not grow for ever.
        if not self._writer.is_down() or self._writer.unflushed_rows < ROOM * MAX_ROWS:
            self.write()
        if self._writer.runs:
            self._writer.flush()
        if self._writer.runs and self._writer.is_down():
            self._schedule()

    def close(self, runs: Sequence[Run]) -> None:
        """End runs at the writer. What they have logged is flushed already."""
        for run in runs:
            if run.id in self._writer.runs:
                self._writer.close(run)

    def refuse(self, error: Exception) -> None:
        """Keep what is wrong with what the program sends, to be raised by `check`."""
        self._program_error = self._program_error or error

    def check(self, *, at_end: bool = False) -> None:
        """Raise what is wrong with what the program sent, and what the writer raised.

        On any thread.

        Args:
            at_end: Raise even if the writer's failure need not stop a program.
        """
        if self._program_error is not None:
            error, self._program_error = self._program_error, None
            raise error
        self._writer.check(at_end=at_end)

    def waiting_rows(self) -> int:
        """Count the rows that the writer has not been given. On any thread."""
        with self._lock:
            packets, blocks = list(self._packets.values()), list(self._blocks)
        for waiting in packets:
            with contextlib.suppress(Exception):
                blocks += waiting.decoded()
        return sum(map(len, blocks))

    def _is_full(self) -> bool:
        return self._rows >= ROOM * MAX_ROWS or self._bytes >= ROOM * MAX_BYTES

    def _leave_out(self, blocks: Sequence[Block]) -> None:
        with self._lock:
            self._writer.lost_rows += sum(map(len, blocks))

    def _schedule(self) -> None:
        """Have the worker flush when it is time, and write now if there is very much."""
        if not self._is_scheduled:
            self._is_scheduled = True
            pause = max(self._every, self._writer.retry_at - time.monotonic())
            self._worker.submit(lambda: self._worker.call_later(self.flush, pause))
        is_much = self._rows >= MAX_ROWS or self._bytes >= MAX_BYTES
        if is_much and not self._is_urgent and not self._writer.is_down():
            self._is_urgent = True
            self._worker.submit(self.write)

    def _of_known_runs(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the rows of runs that there are, and refuse the others."""
        known = self._registry.runs
        for block in blocks:
            for id in np.unique(block.runs).tolist():
                if id not in known:
                    self.refuse(self._registry.unknown(id))
        return [block.of_runs(known) for block in blocks]


# The packets of all loggers are numbered together, so that what goes to a logger alone, and
# what goes to it in a MultiLogger, comes in the order of logging.
_packet_numbers = it.count()
