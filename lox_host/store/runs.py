"""`lox.runs`: what is in a store. No JAX."""

import dataclasses
import datetime
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lox_host.store.folder import existing
from lox_host.store.frames import Frame
from lox_host.store.layout import RUN
from lox_host.store.reader import Reader, Snapshot, Stale, snapshots, warn


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """One session of a run.

    Attributes:
        name: The name of the run.
        key: The data of its PRNG key, for `lox.load(path, key=run.key)`.
        config: What the logger was given as `config`.
        start: When it was started, in seconds since 1970.
        rows: How many rows its longest key has.
        keys: Its keys.
        session: The name of the session, which is a folder in the store.
        process: The number of the process that wrote it.
        group: The same for all runs that were started by one call.
    """

    name: str
    key: tuple[int, ...]
    config: Mapping[str, Any]
    start: float
    rows: int
    keys: tuple[str, ...]
    session: str
    process: int
    group: str

    def __repr__(self) -> str:
        start = datetime.datetime.fromtimestamp(self.start).isoformat(" ", "seconds")
        config = f", config={dict(self.config)}" if self.config else ""
        return (
            f"<run {self.name}: {self.rows} rows of {', '.join(self.keys) or 'nothing'}, "
            f"key={self.key}, started {start}{config}>"
        )


def runs(path: str | os.PathLike) -> list[StoredRun]:
    """List the runs in a store, each session of them, the oldest first.

    Args:
        path: The folder of the store.

    Example:
        >>> lox.save(lox.logdict({"loss": 0.5}), "results")
        >>> [run] = lox.runs("results")
        >>> run.name, run.rows, run.keys
        ('saved', 1, ('loss',))
    """
    while True:
        try:
            return [run for now in snapshots(existing(path)) for run in of_session(now)]
        except Stale:
            continue


def of_session(now: Snapshot) -> Iterator[StoredRun]:
    """The runs of one session."""
    counts = _counts(now)
    for run in now.runs.values():
        own, empty = {key: counts[key][run["id"]] for key in now.keys}, now.empty(run["id"])
        yield StoredRun(
            name=run["name"],
            key=tuple(run["key"]),
            config=run["config"],
            start=run["start"],
            rows=max(own.values(), default=0),
            keys=tuple(key for key in own if own[key] or key in empty),
            session=now.folder.name,
            process=run["process"],
            group=run["group"],
        )


def _counts(now: Snapshot) -> dict[str, Counter[int]]:
    """By key, how many rows each run has."""
    counts = {key: Counter[int]() for key in now.keys}
    with Reader(now) as reader:
        for number, layout in now.layouts.items():
            rows = sum(
                (_rows(reader, frame) for frame in now.frames[number]), Counter[int]()
            )
            for key in layout.keys:
                counts[key] += rows
    return counts


def _rows(reader: Reader, frame: Frame) -> Counter[int]:
    """How many rows of a frame each run has."""
    low, high = frame.runs
    if low == high:
        return Counter({low: frame.rows})
    column = reader.column(frame, RUN)
    if column is None:
        warn(reader.now.folder, f"A frame of {frame.rows} rows")
        return Counter()
    ids, rows = np.unique(column, return_counts=True)
    return Counter(dict(zip(ids.tolist(), rows.tolist(), strict=True)))
