"""Who writes a session: its writer holds a lock on the journal, until it ends or dies."""

import contextlib
import os
import pathlib

from lox_host.store.files import open_file

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


def is_locked(journal: pathlib.Path) -> bool:
    """Return whether a session is being written, in this process or in another."""
    with contextlib.suppress(OSError):
        file = open_file(journal)
        try:
            return not lock(file)
        finally:
            os.close(file)
    return False
