"""The writer of `TensorBoardLogger`."""

import contextlib
import itertools as it
import json
import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.runs.run_config import flat_config
from lox_host.writers._files import candidates, check_exists, naming_folder
from lox_host.writers._json_values import to_json
from lox_host.writers._media import Kind, check_kinds
from lox_host.writers._tensorboard_events import Events
from lox_host.writers._tracker_rows import TrackerRow, tracker_rows

# What is known of a run, in its folder.
INFO = "run.json"


class TensorBoardWriter:
    """The back end of `TensorBoardLogger`."""

    def __init__(
        self,
        dir: str | os.PathLike,
        images: Iterable[str] = (),
        texts: Iterable[str] = (),
        kinds: Mapping[str, str] | None = None,
    ):
        texts = tuple(texts)
        # A text is no image, whatever it looks like.
        as_text: dict[str, Kind] = dict.fromkeys(texts, "histogram")
        as_image: dict[str, Kind] = dict.fromkeys(images, "image")
        self._kinds: dict[str, Kind] = {**as_image, **as_text, **check_kinds(kinds)}
        self._dir = Path(dir).expanduser().absolute()
        self._events = Events(texts)
        self._files: dict[int, Any] = {}
        self._paths: dict[int, Path] = {}
        self._counts: dict[int, Counter[str]] = {}
        # The runs that continue earlier ones, and have not written anything yet.
        self._resumed: set[int] = set()

    def open(self, run: Run) -> None:
        with naming_folder(self._dir, run):
            self._open(run)

    def _open(self, run: Run) -> None:
        folder = _earlier_folder(self._dir, run) if run.resumed else None
        is_new = folder is None
        if folder is None:
            folder = _new_folder(self._dir, run.file_name)
            (folder / INFO).write_text(json.dumps(_info(run), indent=2))
        else:
            self._resumed.add(run.id)
        # TensorBoard reads the files of a folder in the order of their names.
        host = socket.gethostname()
        name = f"events.out.tfevents.{run.start:017.6f}.{host}.{os.getpid()}"
        self._paths[run.id] = folder / name
        file = self._events.file(self._paths[run.id].open("xb"))
        self._files[run.id], self._counts[run.id] = file, Counter()
        file.write(self._events.version(run.start))
        if run.config and is_new:
            file.write(self._events.config(flat_config(run.config), run.start))
        file.flush()

    def write(self, batch: Batch) -> None:
        rows = list(tracker_rows(batch, self._kinds))
        if self._resumed:
            self._take_back(rows)
        for row in rows:
            step_of = self._steps(row)
            # An event has one step, and without steps each key counts its own.
            by_step: dict[int, list[Any]] = {}
            for key, value in self._events.values(row):
                by_step.setdefault(step_of[key], []).append(value)
            for step, values in by_step.items():
                self._files[row.run].write(self._events.event(step, values, row.time))

    def _take_back(self, rows: Sequence[TrackerRow]) -> None:
        """Supersede what earlier sessions wrote from the first step of this one on."""
        for run in list(self._resumed):
            steps = [row.integer_step for row in rows if row.run == run]
            known = [step for step in steps if step is not None]
            if known:
                time = next(row.time for row in rows if row.run == run)
                self._files[run].write(self._events.restart(min(known), time))
                self._resumed.discard(run)

    def flush(self) -> None:
        for run, file in self._files.items():
            file.flush()
            check_exists(self._paths[run])

    def close(self, run: Run) -> None:
        self._files.pop(run.id).close()
        del self._paths[run.id]
        del self._counts[run.id]
        self._resumed.discard(run.id)

    def _steps(self, row: TrackerRow) -> dict[str, int]:
        """Return the step of each value of a row."""
        names = [*row.names, *row.other_step_values]
        counts = self._counts[row.run]
        counts.update(names)
        if row.integer_step is None:
            return {name: counts[name] - 1 for name in names}
        return dict.fromkeys(names, row.integer_step)


def _info(run: Run) -> dict[str, Any]:
    """Return what is written beside the events of a run."""
    fields = ("name", "key", "config", "group", "tags", "identity")
    return to_json({name: getattr(run, name) for name in fields})


def _earlier_folder(parent: Path, run: Run) -> Path | None:
    """Return the newest folder with events of a run, or None."""
    found = None
    for name in candidates(run.file_name):
        if not (parent / name).is_dir():
            break
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            if json.loads((parent / name / INFO).read_text())["identity"] == run.identity:
                found = parent / name
    return found


def _new_folder(parent: Path, name: str) -> Path:
    folder, number = parent / name, it.count(2)
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            folder = parent / f"{name}-{next(number)}"
