"""Who writes a session: its writer holds a lock on the journal, until it ends or dies."""

import contextlib
import os
import pathlib
import time
from collections.abc import Iterator

from lox_host.store.format.files import file_size, open_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def lock(file: int) -> bool:
    """Take the lock of an open journal, and return whether that worked.

    It always works on file systems without locks.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def lock_soon(file: int, seconds: float = 1.0) -> bool:
    """Take the lock, even if another process is just testing it."""
    deadline = time.monotonic() + seconds
    while not lock(file):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@contextlib.contextmanager
def lock_folder(folder: pathlib.Path) -> Iterator[None]:
    """Wait until no other process or thread of this machine is in the same folder."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def has_writer(session: pathlib.Path) -> bool:
    """Return whether a session is being written, or has only just begun."""
    # A writer takes the lock before its first line.
    journal = session / "journal"
    return not file_size(journal) or is_locked(journal)


def is_locked(journal: pathlib.Path) -> bool:
    """Return whether a session is being written, in this process or in another."""
    with contextlib.suppress(OSError):
        file = open_file(journal)
        try:
            return not lock(file)
        finally:
            os.close(file)
    return False
