"""Replay recorded runs to writers. No JAX."""

import dataclasses
import functools as ft
import itertools as it
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lox_host.rows import Batch, Block
from lox_host.runs.run import Run
from lox_host.store import Reader, reopen, retry_if_stale
from lox_host.worker_thread import Worker
from lox_host.writer import Writer

# How many rows a writer is given at once.
ROWS = 10_000


class Recording(NamedTuple):
    """Runs of a session with all of their rows."""

    runs: list[Run]
    blocks: list[Block]


@retry_if_stale
def read_recording(reader: Reader, ids: Collection[int]) -> Recording:
    """Read all rows that some runs of a session have now."""
    # All sessions of a run are one here, which does not continue anything elsewhere.
    runs = [dataclasses.replace(reader.runs[id], resumed=False) for id in ids]
    return Recording(runs, list(reopen(reader).blocks(ids)))


def replay(
    recording: Recording, writers: Sequence[Writer], worker: Worker | None = None
) -> None:
    """Give what was recorded to writers, on the thread of a worker if they have one."""
    # Otherwise on one and the same thread: some trackers keep what is theirs by thread.
    worker = _replay_thread if worker is None else worker
    worker.start()
    for writer in writers:
        worker.run(ft.partial(_send, writer, *recording))


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
    """Yield the rows in the order of logging, some at a time."""
    if not blocks:
        return
    order = np.sort(np.concatenate([block.order for block in blocks]))
    edges = np.unique([*order[::ROWS], order[-1] + 1])
    for low, high in it.pairwise(edges):
        parts = [b.select((low <= b.order) & (b.order < high)) for b in blocks]
        yield Batch([part for part in parts if len(part)])


_replay_thread = Worker("lox-replay")
