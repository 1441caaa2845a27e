"""Runs as event files of TensorBoard, written with neither TensorFlow nor torch."""

import itertools as it
import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lox._writer import Batch, Run

from ._desk import OnError
from ._events import Events
from ._flat import Flat, flat
from ._logger import Logger
from ._tracker import parameters, title


class TensorBoardLogger(Logger):
    """Writes runs for TensorBoard, each to a folder of its own, called after its key.

    Numbers are scalars, which TensorBoard holds as float32. They are at the step called
    `step`, or else the first one that is an integer, or else at the number of the row among
    those of the key. All steps but `step` are scalars, too. Arrays are histograms,
    `key/nonfinite` says how many of their elements are NaN or infinite; those of uint8 with
    the shape `(height, width, channels)` and 1, 3 or 4 channels are images. Trees are
    `key/path`, complex values `key/real` and `key/imag`, typed PRNG keys `key/0`, `key/1`,
    ... The configuration is shown as hyperparameters.

    Args:
        dir: Where the folders are made. Those that are there already stay as they are.
        images: Keys of other arrays that are images: `(height, width)` or with channels,
            integers up to 255 or floats up to 1, or several of them along further axes in
            front.
        texts: Keys of arrays that are texts: the bytes of UTF-8, zeros at the end do not
            count.
        config: The configuration of the runs.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        every: See `Logger`.
    """

    def __init__(
        self,
        dir: str | os.PathLike,
        *,
        images: Iterable[str] = (),
        texts: Iterable[str] = (),
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        every: float = 0.5,
    ):
        super().__init__(
            TensorBoardWriter(dir, images, texts),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            every=every,
        )


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
        self._counts: dict[int, Counter[str]] = {}

    def open(self, run: Run) -> None:
        folder = _new_folder(self._dir, title(run))
        name = f"events.out.tfevents.{int(run.start)}.{socket.gethostname()}.{os.getpid()}"
        file = self._events.file((folder / name).open("xb"))
        self._files[run.id], self._counts[run.id] = file, Counter()
        file.write(self._events.version())
        if run.config:
            file.write(self._events.config(parameters(run.config), run.start))
        file.flush()

    def write(self, batch: Batch) -> None:
        for row in flat(batch):
            at = self._steps(row)
            by_step: dict[int, list[Any]] = {}
            for key, value in self._events.values(row):
                by_step.setdefault(at[key], []).append(value)
            for step, values in by_step.items():
                self._files[row.run].write(self._events.event(step, values))

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def close(self, run: Run) -> None:
        self._files.pop(run.id).close()
        del self._counts[run.id]

    def _steps(self, row: Flat) -> dict[str, int]:
        """At which step each value of a row is."""
        names = [*row.numbers, *row.arrays, *row.beside]
        counts = self._counts[row.run]
        counts.update(names)
        if row.place is None:
            return {name: counts[name] - 1 for name in names}
        return dict.fromkeys(names, row.place)


def _new_folder(parent: Path, name: str) -> Path:
    folder, number = parent / name, it.count(2)
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            folder = parent / f"{name}-{next(number)}"
