"""`lox.runs`: list the runs in a store."""

import lox_host.store
from lox._io.flush_first import flush_first
from lox_host.store import Path, StoredRun


def runs(path: Path) -> list[StoredRun]:
    """List the runs in a store, with an entry for each session, oldest first.

    What this process has logged to the store so far is written first.

    Args:
        path: The folder of the store.

    Example:
        >>> lox.save(lox.logdict({"loss": 0.5}), "results")
        >>> [run] = lox.runs("results")
        >>> run.name, run.rows, run.keys
        ('saved', 1, ('loss',))
    """
    flush_first(path)
    return lox_host.store.runs(path)
