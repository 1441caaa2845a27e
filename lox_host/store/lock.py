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
    """Take the lock of an open journal, and return whether nobody else has it.

    Where a file system has no locks, nobody has it.
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
    """Return whether somebody, in this process or in another, writes a session."""
    with contextlib.suppress(OSError):
        file = open_file(journal)
        try:
            return not lock(file)
        finally:
            os.close(file)
    return False
