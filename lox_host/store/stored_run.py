"""What is in a store, for `lox.runs` and the command line. No JAX."""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from lox_host.store.folder import Path
from lox_host.store.reader import Reader, open_store, retry_if_stale


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
        text = (
            f"<run {self.name}: {self.rows} rows of {', '.join(self.keys) or 'nothing'}, "
            f"key={self.key}, started {start}{config}>"
        )
        # A store may come from anybody, and its names may hold what moves the cursor.
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


@retry_if_stale
def runs(path: Path) -> list[StoredRun]:
    """List the runs in a store, each session of them, the oldest first."""
    return [run for reader in open_store(path) for run in stored_runs(reader).values()]


def stored_runs(reader: Reader) -> dict[int, StoredRun]:
    """Return what is in the runs of one session, by their ids."""
    counts = reader.row_counts()
    found = {}
    for id, run in reader.runs.items():
        rows = {key: counts[key][id] for key in reader.keys}
        empty = reader.keys_without_rows(id)
        found[id] = StoredRun(
            name=run.name,
            key=run.key,
            config=run.config,
            start=run.start,
            rows=max(rows.values(), default=0),
            keys=tuple(key for key in rows if rows[key] or key in empty),
            session=reader.folder.name,
            process=run.process,
            group=run.group,
        )
    return found
