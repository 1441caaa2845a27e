"""Text files that only grow, one for each run."""

import itertools as it
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from lox_host.writer import Run
from lox_host.writers._json_values import to_json
from lox_host.writers._run_info import run_title


class LineFile:
    """A file of lines. What was flushed is with the system, and outlives the process.

    It is open only while it is written to: there may be more runs than a process may have
    open files.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path):
        self.path = path
        self._waiting: list[str] = []

    def add(self, line: str) -> None:
        self._waiting.append(line)

    def flush(self) -> None:
        """Append what was added. All of it, or nothing if that fails."""
        if self._waiting:
            append(self.path, "".join(self._waiting))
            self._waiting = []


def create_file(folder: Path, run: Run, ending: str) -> Path:
    """Make an empty file for a run, beside those that are already there.

    The config of the run, if it has any, is written into another, `NAME.config.json`.
    """
    stem = file_name(run_title(run))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = _new_file(folder, stem, ending)
        if run.config:
            path.with_name(path.name.removesuffix(ending) + ".config.json").write_text(
                json.dumps(to_json(dict(run.config)), indent=2, allow_nan=False)
            )
    except OSError as error:
        raise type(error)(
            f"Cannot write run `{run.name}` into the folder `{folder}`: {error}. "
            "Give the logger the path of a folder that can be made or written to."
        ) from error
    return path


def file_name(title: str) -> str:
    """Return a title as the name of a file or a folder, which leads nowhere else."""
    # The dots keep `..` and hidden files away.
    return re.sub(r"[^\w.-]", "_", title).lstrip(".")[:200] or "run"


def append(path: Path, text: str) -> None:
    """Append to a file, and leave it as it was if that fails."""
    data = memoryview(encode(text))
    file = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
    try:
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
    """Raise if a file was removed while it is open for writing: nobody could read it."""
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"`{path}` has been removed while it was written. What was logged is lost."
        )


def encode(text: str) -> bytes:
    """Return UTF-8, whatever a key is made of."""
    return text.encode("utf-8", "backslashreplace")


def candidates(name: str) -> Iterator[str]:
    """Yield the name, and what to take if there is one already: `name-2`, `name-3`, ..."""
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
