"""What is in a store, for `lox.runs` and the command line. No JAX."""

import dataclasses
import datetime
import functools as ft
from collections.abc import Mapping
from typing import Any

import numpy as np

from lox_host.runs.run_config import flat_config
from lox_host.store.address import shown
from lox_host.store.reader import Reader
from lox_host.store.run_statistics import NonFinite
from lox_host.store.summary import summary_of


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """One session of a run.

    Attributes:
        name: The name of the run.
        key: The data of its PRNG key, for `lox.load(path, key=run.key)`.
        config: Its configuration.
        start: When it was started, in seconds since 1970.
        rows: How many rows its longest key has.
        keys: Its keys.
        session: The name of the session, which is a folder in the store.
        process: The number of the process that wrote it.
        launch: The same for all runs that were started by one call.
        group: The name that the user gave to runs that belong together. Empty: none.
        tags: Words that the user gave to find the run by.
        store: The folder of the store.
        state: `ended`, `live`, or `unfinished`: killed, or silent for a while.
        took: How many seconds it took until it ended or was last written to.
        last: The last value of each key that is a real number.
        nonfinite: By key, how many rows are NaN or infinite, and the first of them.
        path: Its name for `lox show` and other commands.
        index: The number of its line in `lox ls`, from 0.
    """

    name: str
    key: tuple[int, ...]
    config: Mapping[str, Any]
    start: float
    rows: int
    keys: tuple[str, ...]
    session: str
    process: int
    launch: str
    group: str = ""
    tags: tuple[str, ...] = ()
    store: str = ""
    state: str = ""
    took: float = 0.0
    last: Mapping[str, np.generic] = dataclasses.field(default_factory=dict)
    nonfinite: Mapping[str, NonFinite] = dataclasses.field(default_factory=dict)
    path: str = ""
    index: int = 0

    @ft.cached_property
    def settings(self) -> dict[str, Any]:
        """The config with the names of nested entries joined, `optim.lr`."""
        return flat_config(self.config, separator=".")

    def __repr__(self) -> str:
        start = datetime.datetime.fromtimestamp(self.start).isoformat(" ", "seconds")
        config = f", config={dict(self.config)}" if self.config else ""
        text = (
            f"<run {self.name}: {self.rows} rows of {', '.join(self.keys) or 'nothing'}, "
            f"key={self.key}, started {start}{config}>"
        )
        # A store may come from anybody, and its names may hold what moves the cursor.
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def stored_runs(reader: Reader) -> dict[int, StoredRun]:
    """Return what is in the runs of one session, by their ids."""
    summary = summary_of(reader)
    found = {}
    for id, run in reader.runs.items():
        rows, last, nonfinite = summary[id]
        found[id] = StoredRun(
            name=run.name,
            key=run.key,
            config=run.config,
            start=run.start,
            rows=max(rows.values(), default=0),
            keys=tuple(rows),
            session=reader.folder.name,
            process=run.process,
            launch=run.launch,
            group=run.group,
            tags=run.tags,
            store=shown(reader.folder.parent),
            state=reader.state,
            took=max(0.0, reader.last_change - run.start),
            last=last,
            nonfinite=nonfinite,
        )
    return found
