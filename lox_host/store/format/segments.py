"""Write the data files of a session, each from beginning to end by one writer.

Only `lox.save` appends to files of a session that has ended, and only if it is undamaged.
"""

import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from lox_host.store.format.files import open_file
from lox_host.store.format.frames import (
    ColumnParts,
    Encoder,
    Frame,
    concatenate,
    nonfinite_columns,
)
from lox_host.store.format.journal import append
from lox_host.store.format.layout import RUN

# The size in bytes at which a new file begins, and how many files are open at a time.
# Programs that log hundreds of groups must not run out of file descriptors.
SIZE, OPEN = 256 << 20, 64
# Frames with fewer bytes are written with one call.
SMALL = 64 << 10
# From this size on, one thread reads the bytes of a frame while another one writes them.
LARGE = 1 << 20

T = TypeVar("T")


class Segments:
    """Writes frames to numbered files. Frames of one group share a file.

    Args:
        folder: The folder of the files.
        first: The number of the first file.
        suffix: Appended to the names until the files count.
    """

    def __init__(self, folder: pathlib.Path, first: int = 0, suffix: str = ""):
        self.count = first
        self._folder, self._suffix = folder, suffix
        self._files: dict[int, tuple[str, int]] = {}

    @classmethod
    def after(
        cls, folder: pathlib.Path, frames: Mapping[int, Sequence[Frame]]
    ) -> "Segments":
        """Continue the last files of a session, if they have room."""
        numbers = [int(p.name.split(".")[0]) for p in folder.glob("*.arrows")]
        segments = cls(folder, max(numbers, default=-1) + 1)
        for group in [group for group in frames if frames[group]][:OPEN]:
            last = frames[group][-1]
            file = open_file(folder / last.file, os.O_WRONLY | os.O_APPEND)
            if last.end == os.fstat(file).st_size < SIZE:
                segments._files[group] = last.file, file
            else:
                os.close(file)
        return segments

    def write(self, group: int, encoder: Encoder, columns: Sequence[ColumnParts]) -> Frame:
        """Write a frame at the end of the file of its group."""
        name, file = self._file_of(group)
        frame = encoder.frame(columns)
        # `append` cuts off incomplete frames, so the end of the file is the right place.
        start = os.fstat(file).st_size
        schema = b"" if start else encoder.schema()
        # The checksums of large arrays take as long as writing them.
        checked = frame.extents if frame.size < LARGE else in_background(frame.extents)
        parts = [schema, *frame.parts]
        # One call for what is small, and no copy of what is large.
        append(file, *([b"".join(parts)] if frame.size < SMALL else parts))
        try:
            nonfinite, extents = nonfinite_columns(columns), checked()
        except BaseException:
            os.ftruncate(file, start)
            raise
        offset, runs = start + len(schema), concatenate(columns[RUN])
        return Frame(
            group=group,
            file=name,
            start=start,
            end=offset + frame.size,
            rows=len(runs),
            runs=(int(runs.min()), int(runs.max())),
            columns=tuple(e._replace(offset=offset + e.offset) for e in extents),
            nonfinite=nonfinite,
        )

    def undo(self, frame: Frame) -> None:
        """Remove a frame that was just written."""
        # Use the name: the file may have been closed to make room for another group.
        os.truncate(self._folder / (frame.file + self._suffix), frame.start)

    def close(self) -> None:
        """Close all files."""
        for group in list(self._files):
            self._close(group)

    def _file_of(self, group: int) -> tuple[str, int]:
        name, file = self._files.get(group, ("", -1))
        if name and os.fstat(file).st_size < SIZE:
            return name, file
        # Never reopen a file, so that each has one writer from beginning to end. The group
        # continues in a new file.
        if name or len(self._files) >= OPEN:
            self._close(group if name else next(iter(self._files)))
        name = f"{self.count:04d}.arrows"
        self._files[group] = name, create_file(self._folder / (name + self._suffix))
        self.count += 1
        return self._files[group]

    def _close(self, group: int) -> None:
        os.close(self._files.pop(group)[1])


def sync(path: pathlib.Path) -> None:
    """Force a file, or the list of names in a folder, to the disk."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def start_sync(paths: Iterable[pathlib.Path]) -> Callable[[], None]:
    """Start to force files to the disk on another thread.

    Returns:
        A function that waits for it. It raises if a file could not be written.
    """
    files = [os.open(path, os.O_RDONLY) for path in paths]

    def sync_files() -> None:
        errors: list[OSError] = []
        for file in files:
            try:
                os.fsync(file)
            except OSError as error:
                errors.append(error)
            os.close(file)
        if errors:
            raise errors[0]

    return in_background(sync_files)


def in_background(call: Callable[[], T]) -> Callable[[], T]:
    """Start a call on another thread. Return a function that waits for its result."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run).start()
    except RuntimeError:  # Python is ending, and starts no more threads
        run()
    return future.result


def create_file(path: pathlib.Path) -> int:
    """Create a new file and open it for appending. Raise if it exists."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
