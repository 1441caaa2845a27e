"""Open files of a store that may be damaged, or made to do harm.

A store may come from anybody. lox opens only regular files in it: it follows no links, and
opens no devices or pipes, at which a reader would wait forever.
"""

import os
import pathlib
import stat

# Windows has none of these, nor what they protect from.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def open_file(path: pathlib.Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file, and return its descriptor.

    Raises:
        FileNotFoundError: If there is nothing.
        OSError: If it is a link, a folder, a pipe or a device.
    """
    if stat.S_ISLNK(path.lstat().st_mode):
        raise OSError(f"{path.name!r} is a link, which is not followed")
    file = os.open(path, flags | _FLAGS)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path.name!r} is not a file")
    return file


def read_file(path: pathlib.Path) -> bytes:
    """Return what is in a regular file."""
    with open(open_file(path), "rb") as file:
        return file.read()


def is_file(path: pathlib.Path) -> bool:
    """Return whether there is a regular file, and not a link to one."""
    return file_size(path) is not None


def file_size(path: pathlib.Path) -> int | None:
    """Return the size of a regular file, or None if there is no such file."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
