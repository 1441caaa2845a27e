"""`SaveLogger`: a store on disk, for all runs."""

import os
from collections.abc import Mapping
from typing import Any

from lox._store._folder import begun, check_mode
from lox._store._session import Session
from lox._writer import Batch, Run

from ._desk import OnError
from ._logger import Logger


class SaveLogger(Logger):
    """Save runs to a folder, from which `lox.load` and `lox.runs` read them.

    The files are Arrow streams, which polars, pyarrow and pandas read, too. What was
    flushed, twice a second, outlives the process. Several loggers and processes may write
    to one folder.

    Args:
        path: The folder. It is made if it is not there.
        mode: `"a"` adds to what is there, `"w"` first removes what lox wrote there before,
            `"x"` raises if there is a store.
        config: Kept with each run; `lox.runs` has it.
        on_error: What happens if writing fails: "warn" or "raise".
        all_processes: Whether each process of `jax.distributed` writes its own runs.

    Example:
        >>> logger = lox.loggers.SaveLogger("results")
        >>> state = logger.init(jax.random.key(0))
        >>> logger.tap(lambda x: lox.log({"x": x}, step=0) and None, state)(1.5)
        >>> logger.finish(state)
        >>> lox.load("results")
        {'x': 1.5}
    """

    def __init__(
        self,
        path: str | os.PathLike,
        mode: str = "a",
        *,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
    ):
        super().__init__(
            SaveWriter(path, mode),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
        )


class SaveWriter:
    """Write runs to a store.

    A session begins with the first run and ends with the last: then its small frames are
    joined. A run that is opened later begins another one.

    Args:
        path: The folder of the store.
        mode: `"a"` adds to what is there, `"w"` first removes what lox wrote there before,
            `"x"` raises if there is a store.
    """

    def __init__(self, path: str | os.PathLike, mode: str = "a"):
        check_mode(mode)
        # Runs are opened later, and the process may be in another folder by then.
        self._path, self._mode = os.path.abspath(os.path.expanduser(path)), mode
        self._session: Session | None = None
        self._open: set[int] = set()

    def open(self, run: Run) -> None:
        """Begin a run, and a session if there is none."""
        if self._session is None:
            self._session = Session(begun(self._path, self._mode, run.process))
            self._mode = "a"
        self._session.open(run)
        self._open.add(run.id)

    def write(self, batch: Batch) -> None:
        """Take rows; they are on disk after the next `flush` at the latest."""
        assert self._session is not None
        self._session.append(batch)

    def flush(self) -> None:
        """Give all rows to the operating system: they outlive the process."""
        if self._session is not None:
            self._session.flush()

    def close(self, run: Run) -> None:
        """End a run, and with the last one the session."""
        self._open.discard(run.id)
        self.flush()
        if not self._open and self._session is not None:
            session, self._session = self._session, None
            session.end()
