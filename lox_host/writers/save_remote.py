"""The writer of `SaveLogger` for a store on object storage."""

from lox_host.remote import Bucket, Uploader, begin_remote, spool_folder
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.store import check_mode
from lox_host.writers.save import Environment, SaveWriter

# How many seconds the end of the last run waits for its uploads. Less than the default
# patience of loggers, so that it is this that says what is not uploaded.
PATIENCE = 20.0
# How many small frames a session of the spool keeps: all, since it is removed soon.
ALL = 1 << 62


class RemoteSaveWriter:
    """Write runs to the spool on this machine, from which they are uploaded.

    Args:
        url: The address of the store.
        mode: `"a"` adds to what is there, `"w"` first removes the sessions that no process
            is writing, `"x"` raises if there is a store.
        environment: Returns what is to be stored of where the process runs. None: nothing.

    Attributes:
        path: The address of the store.
    """

    def __init__(self, url: str, mode: str = "a", environment: Environment | None = None):
        check_mode(mode)
        self.path, self._mode = url, mode
        self._bucket = Bucket(url)
        spool = spool_folder(url)
        self._local = SaveWriter(spool, "a", environment, small_frames=ALL)
        self._uploader: Uploader | None = None

    def open(self, run: Run) -> None:
        """Begin a run, and a session if it is the first run."""
        if self._uploader is None:
            begin_remote(self._bucket, self._mode, run.process, run.job)
        self._local.open(run)
        if self._uploader is None and self._local.session is not None:
            self._uploader = Uploader(self._bucket, self._local.session)
            self._mode = "a"

    def write(self, batch: Batch) -> None:
        """Take rows; they are on this disk after the next `flush` at the latest."""
        self._local.write(batch)

    def flush(self) -> None:
        """Give all rows to the operating system: they outlive the process."""
        self._local.flush()

    def push(self) -> None:
        """Upload all rows that have been flushed, as far as that works now."""
        uploader = self._uploader
        if uploader is not None:
            uploader.flush(PATIENCE)

    def close(self, run: Run) -> None:
        """End a run, and with the last one the session."""
        self._local.close(run)
        if self._local.session is None and self._uploader is not None:
            uploader, self._uploader = self._uploader, None
            uploader.finish(PATIENCE)
