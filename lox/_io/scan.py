"""`lox.scan`: the rows of many runs as a lazy table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import lox_host.scan
from lox._io.flush_first import flush_first
from lox_host.store import Path

if TYPE_CHECKING:
    import polars


def scan(path: Path, argnames: str | Sequence[str] | None = None) -> "polars.LazyFrame":
    """Return the rows of all runs in one or many stores, as a Polars `LazyFrame`.

    There is a row for each time something was logged, with columns for the store, the
    session, the run, the time, each entry of the configuration, each step and each key. On
    object storage, Polars reads only the columns and rows that you use. From a folder, and
    for runs that were resumed, all rows of the keys that you ask for are read at once. A
    resumed run is one run, with the rows that `lox.load` gives.

    Args:
        path: A store, such as `"results"` or `"s3://bucket/exp1"`, or several:
            `"s3://bucket/exp*"`.
        argnames: The key or keys. None: all.

    Raises:
        LookupError: If no run has one of the keys.

    Example:
        >>> lox.save(lox.logdict({"loss": 0.5}), "results")
        >>> table = lox.scan("results", "loss").collect()
        >>> table["run"].item(), table["loss"].item()
        ('saved', 0.5)
    """
    flush_first(path)
    keys = [argnames] if isinstance(argnames, str) else argnames
    return lox_host.scan.scan(path, keys)
