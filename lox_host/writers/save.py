"""The writer of `SaveLogger`."""

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.store import (
    EarlierRuns,
    Session,
    absolute,
    begin_session,
    check_mode,
    is_url,
)
from lox_host.writer import Writer

Environment: TypeAlias = Callable[[], Mapping[str, Any]]

# A session of a few seconds has few frames. Joining them takes longer than writing them,
# and saves a reader nothing.
SMALL_FRAMES = 4


@runtime_checkable
class StoreWriter(Writer, Protocol):
    """A writer whose rows `lox.load` can read.

    Attributes:
        path: Where the store is.
    """

    path: str

    def push(self) -> None:
        """Bring what has been flushed to where readers look. Called on any thread."""
        ...


def save_writer(
    path: str | os.PathLike, mode: str = "a", environment: Environment | None = None
) -> StoreWriter:
    """Return the writer for a folder, or for an address such as `s3://bucket/exp1`."""
    if not is_url(path):
        return SaveWriter(path, mode, environment)
    from lox_host.writers.save_remote import RemoteSaveWriter

    return RemoteSaveWriter(absolute(path), mode, environment)


class SaveWriter:
    """Write runs to a store.

    A session begins with the first run and ends with the last: then its small frames are
    joined, if there are more than a few. A run that is opened later begins another one.

    Args:
        path: The folder of the store.
        mode: `"a"` adds to what is there, `"w"` first removes what lox wrote there before,
            but for what another logger is writing, `"x"` raises if there is a store.
        environment: Returns what is to be stored of where the process runs. None: nothing.
        small_frames: How many small frames of a group stay as they are at the end.

    Attributes:
        path: The folder of the store.
        session: The folder of the session that is being written, or None.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        mode: str = "a",
        environment: Environment | None = None,
        *,
        small_frames: int = SMALL_FRAMES,
    ):
        check_mode(mode)
        # Runs are opened later, and the process may be in another folder by then.
        self.path, self._mode = absolute(path), mode
        self.session: pathlib.Path | None = None
        self._session: Session | None = None
        self._small_frames = small_frames
        self._environment, self._is_described = environment, False
        self._open: set[int] = set()
        # Read when the first run is to be resumed, until the session ends.
        self._earlier: EarlierRuns | None = None

    def open(self, run: Run) -> None:
        """Begin a run, and a session if it is the first run."""
        if run.resumed:
            self._earlier = self._earlier or EarlierRuns(self.path)
            self._earlier.check(run)
        # Later runs of this writer join the session. Its mode concerns the first one only:
        # "w" must not remove what this process has just written.
        if self._session is None:
            self.session = begin_session(self.path, self._mode, run.process, run.job)
            self._session = Session(self.session)
            self._mode, self._is_described = "a", self._environment is None
        self._session.open(run)
        self._open.add(run.id)

    def write(self, batch: Batch) -> None:
        """Take rows; they are on disk after the next `flush` at the latest."""
        assert self._session is not None
        self._session.append(batch)

    def flush(self) -> None:
        """Give all rows to the operating system: they outlive the process."""
        if self._session is not None:
            self._describe(self._session)
            self._session.flush()

    def push(self) -> None:
        """Do nothing: what has been flushed is where readers look."""

    def close(self, run: Run) -> None:
        """End a run, and with the last one the session."""
        self._open.discard(run.id)
        if self._open:
            self.flush()
        elif self._session is not None:
            session, self._session, self.session = self._session, None, None
            self._earlier = None
            try:
                self._describe(session)
            finally:
                session.end(small_frames=self._small_frames)

    def _describe(self, session: Session) -> None:
        """Store the environment once, with the first flush.

        Not with the first run: git takes its time, and `logger.init` waits for that.
        """
        if not self._is_described and self._environment is not None:
            session.describe(self._environment())
            self._is_described = True
