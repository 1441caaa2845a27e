"""A thread that uploads a session while it is being written, and survives all failures.

    writer thread     rows -> journal of the session, on this disk, twice a second
                                   |
    uploader thread                +--> segments, every few seconds or megabytes
                                        fails: warn once, wait, try again, say when it works

The invariant: rows are on this disk before they are uploaded, and stay there until the
store has them, so a failed upload never loses any. The program waits for the thread only
at the end, and when it reads from the store that it writes.
"""

import atexit
import contextlib
import os
import pathlib
import shutil
import threading
import time
import warnings

from lox_host.remote.bucket import Bucket, BucketError
from lox_host.remote.push import push_others
from lox_host.remote.upload import SEGMENT_BYTES, SessionUpload

# Seconds between two uploads, unless the environment says otherwise.
EVERY = 5.0
# How many seconds the end of the process waits for what other processes have left.
AT_EXIT = 10.0
# The longest pause after failures, in seconds.
LONGEST_PAUSE = 30.0
# Warn when the disk will be full in `HORIZON` seconds, or has `LITTLE` bytes left.
HORIZON, LITTLE = 1800.0, 256 << 20


class Uploader:
    """Uploads a session that this process is writing.

    Args:
        bucket: The store to upload to.
        folder: The folder of the session.
        every: Seconds between two uploads. None: `LOX_UPLOAD_EVERY`, or 5.
    """

    def __init__(self, bucket: Bucket, folder: pathlib.Path, every: float | None = None):
        self._bucket, self._folder = bucket, folder
        self._every = _every() if every is None else every
        self.upload = SessionUpload(bucket, folder, is_written=True)
        self._change = threading.Condition()
        # `flush` counts `_asked` up. The thread sets `_answered` to the value of `_asked`
        # that it saw before an upload, so all requests up to it are covered.
        self._asked = self._answered = 0
        self._is_ending = False
        self._failure: Exception | None = None
        self._pause = 0.0
        self._disk = _Disk(folder)
        self._has_pushed_others = False
        name = "lox-upload"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Upload what is in the journal now, and return whether that worked in time."""
        with self._change:
            self._asked += 1
            mine, deadline = self._asked, time.monotonic() + seconds
            self._change.notify_all()
            while self._answered < mine and not self.upload.is_done:
                if not self._change.wait(deadline - time.monotonic()):
                    return False
        return self._failure is None

    def finish(self, seconds: float) -> None:
        """Upload the rest of a session that has ended. Warn if that fails."""
        with self._change:
            self._is_ending, self.upload.is_written = True, False
        self.flush(seconds)
        if self.upload.is_done:
            self._thread.join(1.0)
            return
        rows, size = self.upload.waiting()
        why = f" ({str(self._failure).rstrip('.')})" if self._failure else ""
        _warn(
            f"{rows} rows, {_megabytes(size)}, are not uploaded to {self._bucket.url!r}"
            f"{why}. They are safe in {str(self._folder)!r}. lox uploads them while this "
            "process runs, when the next one on this machine logs there, or with `lox "
            f"push {self._bucket.url}`."
        )

    def _run(self) -> None:
        while True:
            # Read before the upload: a later request is for the next one.
            with self._change:
                asked = self._asked
            self._attempt()
            size, pushed = self._size(), time.monotonic()
            with self._change:
                self._answered = asked
                self._change.notify_all()
                if self.upload.is_done:
                    return
                while self._asked == asked and not self._is_due(pushed, size):
                    self._change.wait(min(self._every, 0.5))

    def _is_due(self, pushed: float, size: int) -> bool:
        """Return whether it is time to upload again."""
        waited = time.monotonic() - pushed
        if self._failure is not None:
            return waited >= self._pause
        is_large = self._size() - size >= SEGMENT_BYTES
        return self._is_ending or waited >= self._every or is_large

    def _size(self) -> int:
        """Return how many bytes of rows the session has on this disk."""
        with contextlib.suppress(FileNotFoundError):
            return sum(path.stat().st_size for path in self._folder.glob("*.arrows"))
        return 0

    def _attempt(self) -> None:
        try:
            self.upload.push()
        except Exception as error:
            self._fails(error)
            return
        if self._failure is not None:
            self._failure, self._pause = None, 0.0
            _warn(f"Uploads to {self._bucket.url!r} work again. No rows are missing.")
        self._disk.reset()
        if not self._has_pushed_others:
            self._has_pushed_others = True
            # Upload what killed processes on this machine have left. Use another thread,
            # so that this session does not wait for it.
            arguments = self._bucket.url, self._folder.parent
            others = threading.Thread(target=_push_quietly, args=arguments, daemon=True)
            others.start()
            # A daemon thread that is in native code when Python ends aborts the process.
            atexit.register(others.join, AT_EXIT)

    def _fails(self, error: Exception) -> None:
        is_first, self._failure = self._failure is None, error
        self._pause = min(LONGEST_PAUSE, 2 * self._pause or 1.0)
        if is_first:
            what = f"{type(error).__name__}: {error}."
            what = str(error) if isinstance(error, BucketError) else what
            _warn(
                f"Uploads to {self._bucket.url!r} fail at the moment: {what} The program "
                f"continues. Its rows are safe in {str(self._folder.parent)!r}, and lox "
                "keeps trying."
            )
        with contextlib.suppress(Exception):
            self._bucket.reconnect()
        self._disk.watch(self.upload.waiting()[1], self._bucket.url)


def _every() -> float:
    """Return the number of seconds between two uploads."""
    given = os.environ.get("LOX_UPLOAD_EVERY", str(EVERY))
    try:
        return max(0.05, float(given))
    except ValueError:
        raise ValueError(
            f"`LOX_UPLOAD_EVERY` is {given!r}, not a number of seconds."
        ) from None


class _Disk:
    """Warns before the disk with the rows to upload is full."""

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self.reset()

    def reset(self) -> None:
        """Start over after everything has been uploaded."""
        self._is_warned = False
        self._since = time.monotonic()

    def watch(self, waiting: int, url: str) -> None:
        """Warn once if the disk will soon be full at this rate."""
        try:
            free = shutil.disk_usage(self._folder).free
        except OSError:
            return
        seconds = max(time.monotonic() - self._since, 1.0)
        left = free / max(waiting / seconds, 1e-9)
        if self._is_warned or not waiting or (left > HORIZON and free > LITTLE):
            return
        self._is_warned = True
        _warn(
            f"The disk of {str(self._folder.parent)!r} is filling up: "
            f"{_megabytes(waiting)} wait there to be uploaded to {url!r}, and "
            f"{_megabytes(free)} are free, enough for about {_duration(left)}. Make room, "
            "repair the uploads, or set `LOX_SPOOL` to a folder on another disk and "
            "restart."
        )


def _push_quietly(url: str, spool: pathlib.Path) -> None:
    """Upload what other processes have left, and ignore failures until the next time."""
    with contextlib.suppress(Exception):
        push_others(url, spool)


def _warn(text: str) -> None:
    # If warnings are errors, swallow this one: it must not end the thread.
    with contextlib.suppress(RuntimeWarning):
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.1f} MB"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
