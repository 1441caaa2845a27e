"""Warn if a run cannot be resumed because its configuration has changed."""

import contextlib
import warnings

from lox_host.runs.run import Run
from lox_host.runs.run_config import Config, flat_config
from lox_host.runs.run_id import Key
from lox_host.store.folder import Path, is_store, sessions_of
from lox_host.store.reader import read_session

# How many entries of a configuration a warning names.
MOST = 5


class EarlierRuns:
    """The runs that a store has at one moment.

    Args:
        path: The folder of the store.
    """

    def __init__(self, path: Path):
        self._path = path
        self._identities: set[str] = set()
        self._configs: dict[Key, Config] = {}
        self._has_warned = False
        # A session that cannot be read is no reason not to start a run.
        for folder in sessions_of(path)[0] if is_store(path) else []:
            with contextlib.suppress(OSError):
                for run in read_session(folder).runs.values():
                    self._identities.add(run.identity)
                    self._configs[run.key] = dict(run.config)

    def check(self, run: Run) -> None:
        """Warn once if the store has the run to resume only with another configuration."""
        # The same key with another configuration is what looks like a mistake. A key that
        # the store does not have is a new run, and resuming that is usual.
        config = self._configs.get(run.key)
        if config is None or run.identity in self._identities or self._has_warned:
            return
        self._has_warned = True
        old = flat_config(config, separator=".")
        new = flat_config(run.config, separator=".")
        names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        listed = ", ".join(map(repr, names[:MOST])) + (", ..." if len(names) > MOST else "")
        warnings.warn(
            f"Cannot resume the run {run.name!r}: the store in {str(self._path)!r} has its "
            f"key only with another configuration, which differs in {listed}. lox starts a "
            "new run. Do not put values into `config` that change between sessions.",
            stacklevel=2,
        )
