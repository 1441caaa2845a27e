"""Recorded runs, given to writers once more. No JAX."""

import functools as ft
import itertools as it
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from lox_host.rows import Batch, Block
from lox_host.store.reader import Snapshot, Stale, snapshot
from lox_host.store.recorded import recorded, run_of, taken
from lox_host.worker import writer_thread
from lox_host.writer import Run, Writer

# How many rows a writer is given at once.
ROWS = 10_000

# Runs of a session, and all that they logged.
Recorded = tuple[list[Run], list[Block]]


def forward(found: Iterable[Recorded], writers: Sequence[Writer]) -> None:
    """Give what was recorded to writers."""
    # Trackers want one thread to call them, which is that of all loggers.
    writer_thread.start()
    for runs, blocks in found:
        for writer in writers:
            writer_thread.run(ft.partial(_send, writer, runs, blocks))


def _send(writer: Writer, runs: Sequence[Run], blocks: Sequence[Block]) -> None:
    opened: list[Run] = []
    try:
        for run in runs:
            writer.open(run)
            opened.append(run)
        for batch in _batches(blocks):
            writer.write(batch)
        writer.flush()
    finally:
        for run in opened:
            writer.close(run)


def _batches(blocks: Sequence[Block]) -> Iterator[Batch]:
    """The rows in the order of logging, some at a time."""
    if not blocks:
        return
    order = np.sort(np.concatenate([block.order for block in blocks]))
    edges = np.unique([*order[::ROWS], order[-1] + 1])
    for low, high in it.pairwise(edges):
        some = [taken(x, (low <= x.order) & (x.order < high)) for x in blocks]
        yield Batch([block for block in some if len(block)])


def of_session(now: Snapshot, ids: Collection[int]) -> Recorded:
    """Runs of a session, and all that they logged."""
    runs = [run_of(now.runs[id]) for id in ids]
    frames = [frame for group in now.frames.values() for frame in group]
    try:
        return runs, list(recorded(now, frames, ids))
    except Stale:
        return of_session(snapshot(now.folder), ids)
