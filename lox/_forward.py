"""`lox.export`: the runs of a store, sent to any logger."""

import dataclasses
import functools as ft
import itertools as it
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ._save import key_words
from ._store._folder import existing
from ._store._frames import Frame
from ._store._layout import ROW, RUN, filled
from ._store._read import Reader, Snapshot, Stale, snapshot, snapshots, warn
from ._writer import Batch, Block, Run, Writer, mapped
from .loggers._logger import BaseLogger
from .loggers._scribe import scribe

# How many rows a writer is given at once.
ROWS = 10_000


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
        >>> import pathlib
        >>> lox.save(lox.logdict({"loss": 0.5}), "results")
        >>> lox.export("results", lox.loggers.CSVLogger("tables"))
        >>> print(pathlib.Path("tables/saved.csv").read_text())
        loss
        0.5
    """
    writers = to._desk.writers if isinstance(to, BaseLogger) else [_checked(to)]
    words = None if key is None else tuple(key_words(key).tolist())
    found = [_recorded(now, words) for now in snapshots(existing(path))]
    if not any(runs for runs, _ in found):
        what = "runs yet" if key is None else f"run with the key {words}: see `lox.runs`"
        raise LookupError(f"The store in {str(path)!r} has no {what}.")
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
        some = [_taken(x, (low <= x.order) & (x.order < high)) for x in blocks]
        yield Batch([block for block in some if len(block)])


def _recorded(now: Snapshot, key: tuple[int, ...] | None) -> tuple[list[Run], list[Block]]:
    """The runs of a session, and all that they logged."""
    fields = [{**run, "key": tuple(run["key"])} for run in now.runs.values()]
    names = [field.name for field in dataclasses.fields(Run)]
    runs = [Run(**{name: run[name] for name in names}) for run in fields]
    chosen = [run for run in runs if key in (None, run.key)]
    ids = [run.id for run in chosen]
    try:
        with Reader(now) as reader:
            frames = [frame for group in now.frames.values() for frame in group]
            blocks = [_block(reader, frame) for frame in frames]
    except Stale:
        return _recorded(snapshot(now.folder), key)
    whole = [_taken(x, np.isin(x.runs, ids)) for x in blocks if x is not None]
    return chosen, [block for block in whole if len(block)]


def _block(reader: Reader, frame: Frame) -> Block | None:
    """The rows of a frame. None if they are damaged."""
    layout = reader.now.layouts[frame.group]
    columns = [reader.column(frame, i) for i in range(len(layout.columns))]
    if any(column is None for column in columns):
        warn(reader.now.folder, f"A frame of {frame.rows} rows")
        return None
    get: Any = columns.__getitem__
    keys = layout.keys.items()
    return Block(
        runs=get(RUN),
        steps={name: get(i) for name, i in layout.steps.items()},
        values={key: filled(own.tree, get) for key, own in keys},
        forms={key: own.form for key, own in keys},
        valid={key: get(own.valid) for key, own in keys if own.valid is not None},
        masks={name: get(i) for name, i in layout.masks.items()},
        order=get(ROW),
    )


def _taken(block: Block, which: np.ndarray) -> Block:
    """Some rows of a block."""
    names = ("runs", "steps", "values", "valid", "masks", "order")
    arrays = {name: mapped(lambda x: x[which], getattr(block, name)) for name in names}
    return dataclasses.replace(block, **arrays)


def _checked(to: Any) -> Writer:
    if all(hasattr(to, name) for name in ("open", "write", "flush", "close")):
        return to
    raise TypeError(
        f"`to` is {type(to).__name__!r}. Give a logger, such as "
        '`lox.loggers.CSVLogger("path")`, or a writer with `open`, `write`, `flush` and '
        "`close`."
    )
