"""The writer of `TensorBoardLogger`."""

import itertools as it
import os
import socket
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lox_host.rows import Batch
from lox_host.writer import Run
from lox_host.writers._events import Events
from lox_host.writers._files import check_exists, file_name
from lox_host.writers._run_info import flat_config, run_title
from lox_host.writers._tracker_rows import TrackerRow, tracker_rows


class TensorBoardWriter:
    """The back end of `TensorBoardLogger`."""

    def __init__(
        self,
        dir: str | os.PathLike,
        images: Iterable[str] = (),
        texts: Iterable[str] = (),
    ):
        self._dir = Path(dir).expanduser().absolute()
        self._events = Events(images, texts)
        self._files: dict[int, Any] = {}
        self._paths: dict[int, Path] = {}
        self._counts: dict[int, Counter[str]] = {}

    def open(self, run: Run) -> None:
        folder = _new_folder(self._dir, file_name(run_title(run)))
        name = f"events.out.tfevents.{int(run.start)}.{socket.gethostname()}.{os.getpid()}"
        self._paths[run.id] = folder / name
        file = self._events.file(self._paths[run.id].open("xb"))
        self._files[run.id], self._counts[run.id] = file, Counter()
        file.write(self._events.version())
        if run.config:
            file.write(self._events.config(flat_config(run.config), run.start))
        file.flush()

    def write(self, batch: Batch) -> None:
        for row in tracker_rows(batch):
            step_of = self._steps(row)
            by_step: dict[int, list[Any]] = {}
            for key, value in self._events.values(row):
                by_step.setdefault(step_of[key], []).append(value)
            for step, values in by_step.items():
                self._files[row.run].write(self._events.event(step, values))

    def flush(self) -> None:
        for run, file in self._files.items():
            file.flush()
            check_exists(self._paths[run])

    def close(self, run: Run) -> None:
        self._files.pop(run.id).close()
        del self._paths[run.id]
        del self._counts[run.id]

    def _steps(self, row: TrackerRow) -> dict[str, int]:
        """Return the step of each value of a row."""
        names = [*row.numbers, *row.arrays, *row.other_step_values]
        counts = self._counts[row.run]
        counts.update(names)
        if row.integer_step is None:
            return {name: counts[name] - 1 for name in names}
        return dict.fromkeys(names, row.integer_step)


def _new_folder(parent: Path, name: str) -> Path:
    folder, number = parent / name, it.count(2)
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            folder = parent / f"{name}-{next(number)}"
