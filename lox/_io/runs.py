"""`lox.runs`: list the runs in stores."""

from collections.abc import Iterable

from lox._io.flush_first import flush_first
from lox_host.reading import Runs, Where, list_runs
from lox_host.store import Path


def runs(path: Path | Iterable[Path], where: Where | None = None) -> Runs:
    """List the runs in a store, with an entry for each session, oldest first.

    What this process has logged to the store so far is written first. The list prints as a
    table, in notebooks too, and has `to_pandas` and `to_polars`.

    Args:
        path: A store, which is a folder or an address such as `"s3://bucket/exp1"`; a
            folder that contains stores; a glob such as `"multirun/*/results"`; or several
            of these.
        where: Which runs: a mapping such as `{"lr": 1e-3}`, or a string such as
            `'lr > 1e-3 and env == "CartPole"'`, over the config (`optim.lr` for nested
            entries), the last values of keys, and `name`, `state`, `rows` and so on.

    Raises:
        LookupError: If `where` has a name that no run has.

    Example:
        >>> lox.save(lox.logdict({"loss": 0.5}), "results")
        >>> [run] = lox.runs("results")
        >>> run.name, run.rows, run.keys
        ('saved', 1, ('loss',))
        >>> lox.runs("results", where="loss < 0.1")
        no runs
    """
    flush_first(path)
    return list_runs(path, where)
