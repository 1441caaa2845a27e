"""Text files that only grow, one per run."""

import contextlib
import itertools as it
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from lox_host.rows import Batch, Row
from lox_host.runs.run import Run
from lox_host.writers._json_values import to_json


class RunFile(Protocol):
    """The file of one run. Flushed rows outlive the process.

    It is open only during a flush, as there may be more runs than a process can have open
    files.
    """

    def add(self, row: Row) -> None:
        """Keep a row until the next flush."""
        ...

    def flush(self) -> None:
        """Append all added rows, or nothing if that fails."""
        ...


class FileWriter:
    """A writer with one file per run.

    Args:
        create: Makes the file of a run.
    """

    def __init__(self, create: Callable[[Run], RunFile]):
        self._create = create
        self._files: dict[int, RunFile] = {}

    def open(self, run: Run) -> None:
        self._files[run.id] = self._create(run)

    def write(self, batch: Batch) -> None:
        for row in batch.rows():
            self._files[row.run].add(row)

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def close(self, run: Run) -> None:
        self._files[run.id].flush()
        del self._files[run.id]


def create_file(folder: Path, run: Run, ending: str) -> Path:
    """Make an empty file for a run, without replacing an existing one.

    The config of the run, if it has any, is written into another, `NAME.config.json`.
    """
    with naming_folder(folder, run):
        folder.mkdir(parents=True, exist_ok=True)
        path = _new_file(folder, run.file_name, ending)
        if run.config:
            path.with_name(path.name.removesuffix(ending) + ".config.json").write_text(
                json.dumps(to_json(dict(run.config)), indent=2, allow_nan=False)
            )
    return path


@contextlib.contextmanager
def naming_folder(folder: Path, run: Run) -> Iterator[None]:
    """Make errors of the file system say which folder was to hold which run."""
    try:
        yield
    except OSError as error:
        raise type(error)(
            f"Cannot write run `{run.name}` into the folder `{folder}`: {error}. "
            "Give the logger the path of a folder that can be made or written to."
        ) from error


def append(path: Path, text: str) -> None:
    """Append to a file, and leave it as it was if that fails."""
    data = memoryview(encode(text))
    file = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
    try:
        # A write may be cut short. Nothing of the text must stay if it does not all fit.
        size = os.fstat(file).st_size
        try:
            while data:
                data = data[os.write(file, data) :]
        except OSError:  # the disk is full
            os.ftruncate(file, size)
            raise
    finally:
        os.close(file)


def check_exists(path: str | os.PathLike) -> None:
    """Raise if a file was removed while it is being written."""
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"`{path}` was removed while lox was writing to it. Its rows are lost."
        )


def encode(text: str) -> bytes:
    """Encode a text as UTF-8, even if a key has invalid characters."""
    return text.encode("utf-8", "backslashreplace")


def candidates(name: str) -> Iterator[str]:
    """Yield a name, and the alternatives if it is taken: `name-2`, `name-3`, ..."""
    return it.chain([name], (f"{name}-{number}" for number in it.count(2)))


def _new_file(folder: Path, stem: str, ending: str) -> Path:
    paths = (folder / f"{name}{ending}" for name in candidates(stem))
    return next(path for path in paths if _make(path))


def _make(path: Path) -> bool:
    """Make a file, unless there is one, even if another process is about to."""
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True
