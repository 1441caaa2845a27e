"""The writer of `SaveLogger`."""

import os

from lox_host.rows import Batch
from lox_host.store import Session, begin_session, check_mode
from lox_host.writer import Run


class SaveWriter:
    """Write runs to a store.

    A session begins with the first run and ends with the last: then its small frames are
    joined. A run that is opened later begins another one.

    Args:
        path: The folder of the store.
        mode: `"a"` adds to what is there, `"w"` first removes what lox wrote there before,
            but for what another logger is writing, `"x"` raises if there is a store.

    Attributes:
        path: The folder of the store.
    """

    def __init__(self, path: str | os.PathLike, mode: str = "a"):
        check_mode(mode)
        # Runs are opened later, and the process may be in another folder by then.
        self.path, self._mode = os.path.abspath(os.path.expanduser(path)), mode
        self._session: Session | None = None
        self._open: set[int] = set()

    def open(self, run: Run) -> None:
        """Begin a run, and a session if there is none."""
        if self._session is None:
            folder = begin_session(self.path, self._mode, run.process, run.job)
            self._session = Session(folder)
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
        if self._open:
            self.flush()
        elif self._session is not None:
            session, self._session = self._session, None
            session.end()
