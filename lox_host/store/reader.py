"""A session as a reader sees it, also while it is written."""

import contextlib
import dataclasses
import functools as ft
import os
import pathlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from lox_host.store.folder import sessions
from lox_host.store.frames import Frame, read
from lox_host.store.journal import entries
from lox_host.store.layout import Layout, from_json

# How long a writer may take from a frame to its line in the journal.
PATIENCE = 0.1


class Stale(Exception):
    """The session has been rewritten or removed in the meantime."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What the journal of a session says at one moment."""

    folder: pathlib.Path
    entries: list[dict[str, Any]]

    @ft.cached_property
    def runs(self) -> dict[int, dict[str, Any]]:
        """The runs by their id."""
        found = (entry["run"] for entry in self.entries if "run" in entry)
        return {run["id"]: run for run in found}

    @ft.cached_property
    def layouts(self) -> dict[int, Layout]:
        """The layouts by the number of the group."""
        found = (entry for entry in self.entries if "layout" in entry)
        return {entry["group"]: from_json(entry["layout"]) for entry in found}

    @ft.cached_property
    def frames(self) -> dict[int, list[Frame]]:
        """The frames of each group, in order."""
        found = [Frame.of(entry["frame"]) for entry in self.entries if "frame" in entry]
        groups: dict[int, list[Frame]] = {number: [] for number in self.layouts}
        for frame in found:
            groups.get(frame.group, []).append(frame)
        return groups

    @ft.cached_property
    def keys(self) -> list[str]:
        """All keys, those of `lox.save` in the order that they had."""
        known = dict.fromkeys(
            key for layout in self.layouts.values() for key in layout.keys
        )
        ordered = dict.fromkeys(key for run in self.runs.values() for key in run["keys"])
        return [key for key in {**ordered, **known} if key in known]

    @property
    def ended(self) -> bool:
        return any("end" in entry for entry in self.entries)

    @ft.cached_property
    def last(self) -> float:
        """When it ended or was last written to, in seconds since 1970."""
        said = [entry["end"] for entry in self.entries if "end" in entry]
        # A session may have noted that it ended, and not when.
        if said and said[0] is not True:
            return said[0]
        return (self.folder / "journal").stat().st_mtime

    @ft.cached_property
    def without_rows(self) -> frozenset[str]:
        """The keys that no run has rows of."""
        some = [layout for number, layout in self.layouts.items() if self.frames[number]]
        return frozenset(self.keys) - {key for layout in some for key in layout.keys}

    def empty(self, run: int) -> frozenset[str]:
        """The keys that a run was saved with, from loops without iterations."""
        return self.without_rows.intersection(self.runs[run]["keys"])


def snapshots(folder: pathlib.Path) -> Iterator[Snapshot]:
    """All sessions of a store, the oldest first."""
    for session in sessions(folder):
        with contextlib.suppress(FileNotFoundError):
            yield snapshot(session)


def snapshot(folder: pathlib.Path) -> Snapshot:
    """What counts in a session now. What is not whole is left out, with a warning."""
    before = None
    while True:
        sizes = {path.name: _size(path) for path in folder.glob("*.arrows")}
        data = (folder / "journal").read_bytes()
        found, whole = entries(data)
        now = Snapshot(folder, found)
        if whole and (now.ended or not _has_more(now, sizes)):
            return now
        if before == (sizes, data):
            break
        # A writer may be between a frame and its line: look again.
        before = sizes, data
        time.sleep(PATIENCE)
    warn(folder, "What is not whole")
    return now


def warn(folder: pathlib.Path, what: str) -> None:
    """Say that something has been left out."""
    warnings.warn(
        f"{what} in the session {folder.name} of {str(folder.parent)!r} has been left out: "
        "the files are damaged, or their process was ended while it wrote.",
        stacklevel=2,
    )


class Reader:
    """Read columns of a session, each once; use it in a `with` statement."""

    def __init__(self, now: Snapshot):
        self.now = now
        self._files: dict[str, int] = {}
        self._columns: dict[tuple[str, int, int], np.ndarray | None] = {}

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: Any) -> None:
        for file in self._files.values():
            os.close(file)

    def column(self, frame: Frame, number: int) -> np.ndarray | None:
        """A column of a frame. None if it is not what was written."""
        place = frame.file, frame.start, number
        if place not in self._columns:
            self._columns[place] = self._read(frame, number)
        return self._columns[place]

    def _read(self, frame: Frame, number: int) -> np.ndarray | None:
        column = self.now.layouts[frame.group].columns[number]
        file = self._file(frame.file)
        return (
            None if file is None else read(file, frame.columns[number], column, frame.rows)
        )

    def _file(self, name: str) -> int | None:
        if name not in self._files:
            try:
                self._files[name] = os.open(self.now.folder / name, os.O_RDONLY)
            except FileNotFoundError:
                return self._missing()
        return self._files[name]

    def _missing(self) -> None:
        try:
            same = snapshot(self.now.folder).entries == self.now.entries
        except FileNotFoundError:
            same = False
        if not same:
            raise Stale


def _has_more(now: Snapshot, sizes: dict[str, int]) -> bool:
    """Whether there are bytes that the journal does not know."""
    frames = (frame for group in now.frames.values() for frame in group)
    known = {frame.file: frame.end for frame in frames}
    return any(size > known.get(name, 0) for name, size in sizes.items())


def _size(path: pathlib.Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
