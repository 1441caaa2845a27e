"""`lox.export`: the runs of a store, sent to any logger."""

import functools as ft
import itertools as it
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ._recorded import recorded, run_of, taken
from ._save import key_words
from ._store._folder import existing
from ._store._read import Snapshot, Stale, snapshot, snapshots
from ._writer import Batch, Block, Run, Writer
from .loggers._logger import BaseLogger
from .loggers._scribe import scribe

# How many rows a writer is given at once.
ROWS = 10_000

# Runs of a session, and all that they logged.
Recorded = tuple[list[Run], list[Block]]


def export(path: str | os.PathLike, to: BaseLogger | Writer, *, key: Any = None) -> None:
    """Send runs that were saved to a tracker, or into files of another format.

    Each session of a run is a run there, with its name, group and configuration; what
    was recorded where the tracker was not installed gets there in this way. What is there
    already stays, so that exporting twice makes two of each.

    Args:
        path: The folder of the store.
        to: A logger, such as `lox.loggers.TensorBoardLogger("runs")`, or a writer.
        key: The PRNG key of the run to send. None: all runs.

    Raises:
        LookupError: If there is no such run.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> lox.save(lox.logdict({"loss": 0.5}), folder / "store")
        >>> lox.export(folder / "store", lox.loggers.CSVLogger(folder))
        >>> print((folder / "saved.csv").read_text())
        loss
        0.5
    """
    writers = writers_of(to)
    words = None if key is None else tuple(key_words(key).tolist())
    found = [of_session(now, _ids(now, words)) for now in snapshots(existing(path))]
    if not any(runs for runs, _ in found):
        what = "runs yet" if key is None else f"run with the key {words}: see `lox.runs`"
        raise LookupError(f"The store in {str(path)!r} has no {what}.")
    forward(found, writers)


def writers_of(to: BaseLogger | Writer) -> list[Writer]:
    """The writers of a logger."""
    return to._desk.writers if isinstance(to, BaseLogger) else [_checked(to)]


def forward(found: Iterable[Recorded], writers: Sequence[Writer]) -> None:
    """Give what was recorded to writers."""
    # Trackers want one thread to call them, which is that of all loggers.
    scribe.start()
    for runs, blocks in found:
        for writer in writers:
            scribe.run(ft.partial(_send, writer, runs, blocks))


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


def _ids(now: Snapshot, key: tuple[int, ...] | None) -> list[int]:
    return [id for id, run in now.runs.items() if key in (None, tuple(run["key"]))]


def _checked(to: Any) -> Writer:
    if all(hasattr(to, name) for name in ("open", "write", "flush", "close")):
        return to
    raise TypeError(
        f"`to` is {type(to).__name__!r}. Give a logger, such as "
        '`lox.loggers.CSVLogger("path")`, or a writer with `open`, `write`, `flush` and '
        "`close`."
    )
