"""The buffer of one back end: rows that wait to be written.

    packets, as devices send them           blocks of rows              a batch

    source A: packets 0, 2, 3  --decode-->  3 rows of loss, acc  --+
    source B: packets 1, 4     --decode-->  2 rows of lr         --+--merge-->  writer.write
    blocks that a MultiLogger has decoded already  ----------------+

Threads of JAX put packets here, and the worker's thread takes them out. Packets wait in the
form in which they arrived. Packets of one layout are decoded together, by stacking their
arrays, so that thousands of them cost little more than one. The writer gets a batch when
the oldest packet has waited `every` seconds, when the buffer is large, and whenever a
thread waits for the rows. Packets are numbered as they arrive, and `Block.order` carries
these numbers, so that a batch knows the order of logging although its blocks are sorted by
layout.

The invariant: nothing is dropped. If there is no room, the program waits. There is one
exception. A writer that has failed or stalled must not hold up the program and all other
writers, so rows that do not fit into its buffer are counted and left out.
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
from lox_host.runs.run import Run
from lox_host.runs.run_registry import RunRegistry
from lox_host.worker_thread import Worker, current_worker

# With this many rows or bytes, the buffer is written before it is time.
MAX_ROWS = 10_000
MAX_BYTES = 16 * 2**20
# With this many times as much, the buffer is full and the program waits.
ROOM = 2


class PacketSource(Protocol):
    """Decodes the packets that a program sends."""

    def blocks(
        self, packets: Sequence[Any], numbers: np.ndarray, times: np.ndarray
    ) -> list[Block]:
        """Return the rows of packets of one layout, given their numbers and arrival times.

        Args:
            packets: The packets.
            numbers: The number of each packet, for `Block.order`. `(packets,)`
            times: When each packet arrived, in seconds since 1970. `(packets,)`
        """
        ...


class Waiting(NamedTuple):
    """Packets of one source and one layout, with their numbers and arrival times."""

    source: PacketSource
    packets: list[Any]
    numbers: list[int]
    times: list[float]

    def decoded(self) -> list[Block]:
        numbers, times = np.array(self.numbers), np.array(self.times)
        return self.source.blocks(self.packets, numbers, times)


class WriteBuffer:
    """Collects rows for a writer.

    Call the methods on the worker's thread, unless they say otherwise.

    Args:
        writer: The back end.
        registry: The runs of the logger. Rows of other runs are refused.
        worker: Calls `flush` from time to time.
        every: How many seconds to collect rows before writing them.
    """

    def __init__(
        self, writer: GuardedWriter, registry: RunRegistry, worker: Worker, *, every: float
    ):
        self._writer, self._registry = writer, registry
        self._worker, self._every = worker, every
        self._program_error: Exception | None = None
        self.discard()

    def discard(self) -> None:
        """Drop all buffered rows. On any thread."""
        # A new lock: in a forked process, a thread of the parent may have held the old one.
        self._lock = threading.Lock()
        self._packets: dict[tuple[int, int], Waiting] = {}
        self._blocks: list[Block] = []
        self._rows = self._bytes = 0
        # Whether the worker has been asked to flush later, and to write now.
        self._is_scheduled = self._is_urgent = False

    def open(self, run: Run) -> None:
        """Begin a run at the writer. Errors of the writer are raised here."""
        self._writer.open(run)

    def add(
        self, source: PacketSource, layout: object, packet: object, nbytes: int
    ) -> None:
        """Add a packet, which must not change until it is written. On any thread."""
        # These ids stay valid while the packet waits, because it refers to both objects.
        place = id(source), id(layout)
        with self._lock:
            waiting = self._packets.get(place)
            if waiting is None:
                waiting = self._packets[place] = Waiting(source, [], [], [])
            waiting.packets.append(packet)
            waiting.numbers.append(next(_packet_numbers))
            waiting.times.append(time.time())
            # A packet counts as one row here: how many it has is known once it is decoded.
            self._rows += 1
            self._bytes += nbytes
        self._schedule()

    def add_blocks(self, blocks: Sequence[Block]) -> None:
        """Add decoded rows. On any thread."""
        if self._is_full() and self._writer.is_down():
            self._writer.leave_out(sum(map(len, blocks)))
            return
        with self._lock:
            self._blocks += blocks
            self._rows += sum(map(len, blocks))
            self._bytes += sum(block.nbytes for block in blocks)
        self._schedule()

    def has_room(self) -> bool:
        """Wait for room, and return whether a packet may be added. On any thread.

        The threads of lox do not wait, but add packets to a full buffer, too.
        """
        if not self._is_full():
            return True
        start = time.monotonic()
        while self._is_full() and self._worker.is_running():
            if self._writer.is_down():
                return False
            # A back end that logs while it writes cannot wait for itself, nor for another
            # one that may be waiting for it.
            if Interrupt.is_pending or current_worker() is not None:
                return True
            if self._writer.has_stalled(start):
                return False
            time.sleep(0.001)  # a notification after each call would cost more
        return True

    def leave_out(self, source: PacketSource, packet: object) -> None:
        """Count the rows of a packet that does not fit as lost. On any thread."""
        blocks = source.blocks([packet], np.zeros(1, int), np.zeros(1))
        self._writer.leave_out(sum(map(len, blocks)))

    def write(self) -> None:
        """Pass all buffered rows to the writer as one batch."""
        # Take everything out first: decoding takes long, and threads of JAX go on adding.
        with self._lock:
            packets, blocks = self._packets, self._blocks
            self._packets, self._blocks = {}, []
            self._rows = self._bytes = 0
            self._is_urgent = False
        for waiting in packets.values():
            try:
                blocks += waiting.decoded()
            except Exception as error:
                # One bad packet must not take the others with it.
                self.refuse(error)
        blocks = self._of_known_runs(blocks)
        rows = sum(map(len, blocks))
        if rows and self._writer.runs:
            self._writer.write(Batch(merge_blocks(blocks)), rows)

    def flush(self) -> None:
        """Write all buffered rows and flush the writer. A crash cannot lose them then."""
        self._is_scheduled = False
        # A writer that is down keeps the rows it has accepted in memory. Stop giving it
        # more at some point, or that memory grows for ever.
        if not self._writer.is_down() or self._writer.unflushed_rows < ROOM * MAX_ROWS:
            self.write()
        if self._writer.runs:
            self._writer.flush()
        # Perhaps nothing is ever added again, so try a writer that is down without it.
        if self._writer.runs and self._writer.is_down():
            self._schedule()

    def close(self, runs: Sequence[Run]) -> None:
        """End runs at the writer. Their rows have been flushed before."""
        for run in runs:
            if run.id in self._writer.runs:
                self._writer.close(run)

    def refuse(self, error: Exception) -> None:
        """Remember an error in what the program sent. `check` raises it."""
        self._program_error = self._program_error or error

    def check(self, *, at_end: bool = False) -> None:
        """Raise errors in what the program sent, and errors of the writer.

        On any thread.

        Args:
            at_end: Raise even those errors of the writer that need not stop a program.
        """
        if self._program_error is not None:
            with self._lock:
                error, self._program_error = self._program_error, None
            if error is not None:  # no other thread has raised it meanwhile
                raise error
        self._writer.check(at_end=at_end)

    def waiting_rows(self) -> int:
        """Count the rows that have not been passed to the writer. On any thread."""
        with self._lock:
            packets, blocks = list(self._packets.values()), list(self._blocks)
        for waiting in packets:
            with contextlib.suppress(Exception):
                blocks += waiting.decoded()
        return sum(map(len, blocks))

    def _is_full(self) -> bool:
        return self._rows >= ROOM * MAX_ROWS or self._bytes >= ROOM * MAX_BYTES

    def _schedule(self) -> None:
        """Make the worker flush when it is time, and write now if the buffer is large."""
        if not self._is_scheduled:
            self._is_scheduled = True
            # `call_later` is for the thread of the worker, so the call is submitted.
            pause = max(self._every, self._writer.retry_at - time.monotonic())
            self._worker.submit(lambda: self._worker.call_later(self.flush, pause))
        is_much = self._rows >= MAX_ROWS or self._bytes >= MAX_BYTES
        if is_much and not self._is_urgent and not self._writer.is_down():
            self._is_urgent = True
            self._worker.submit(self.write)

    def _of_known_runs(self, blocks: Sequence[Block]) -> list[Block]:
        """Return the rows of open runs, and refuse the rest."""
        known = self._registry.runs
        for block in blocks:
            for id in np.unique(block.runs).tolist():
                if id not in known:
                    self.refuse(self._registry.unknown(id))
        return [block.of_runs(known) for block in blocks]


# All loggers share one counter. A logger may get packets both directly and through a
# `MultiLogger`, and these must come in the order of logging.
_packet_numbers = it.count()
