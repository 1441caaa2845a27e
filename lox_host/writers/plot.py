"""The writer of `PlotLogger`."""

import contextlib
import os
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

from lox_host.display.live_curves import LiveCurves, key_list
from lox_host.display.panels import Picture
from lox_host.display.plot_outputs import DEFAULT, Plot, PlotOutput, plot_outputs
from lox_host.extras import import_extra
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.worker_thread import current_worker
from lox_host.writers._files import naming_folder

SHARE = 0.1  # of the time that may be spent on drawing


class PlotWriter:
    """The host side of `PlotLogger`."""

    def __init__(
        self,
        path: str | os.PathLike | None = None,
        *,
        keys: str | Iterable[str] | None = None,
        x: str | None = None,
        every: float = 2.0,
        show: bool = True,
        title: str = "",
        points: int = 1024,
        max_panels: int = 12,
    ):
        figure = import_extra("matplotlib.figure", "PlotLogger", "plot")
        if max_panels < 1:
            raise ValueError(f"`max_panels` must be at least 1, not {max_panels}.")
        if points < 2:
            raise ValueError(f"`points` must be at least 2, not {points}.")
        self._path = None if path is None else os.path.abspath(os.path.expanduser(path))
        self._show, self._title, self._every = show, title, every
        self._most = max_panels
        self._curves = LiveCurves(key_list(keys), x, 1 << (points.bit_length() - 1))
        self._open: set[int] = set()
        self._outputs: list[PlotOutput] = []
        self._picture = Picture(figure.Figure(layout="none"))
        self._due = 0.0
        self._is_new = False

    def open(self, run: Run) -> None:
        if not self._outputs:
            folder = Path(self._path or DEFAULT).absolute().parent
            with naming_folder(folder, run):
                self._outputs = plot_outputs(self._path, show=self._show)
        self._open.add(run.id)

    def write(self, batch: Batch) -> None:
        for block in batch:
            self._curves.add(block)
            self._is_new = True

    def flush(self) -> None:
        """Draw what is new, if it is time, or else as soon as it is."""
        wait = self._due - time.monotonic()
        if self._is_new and wait <= 0:
            self._refresh()
        elif self._is_new and (worker := current_worker()) is not None:
            worker.call_later(self._flush_quietly, wait)

    def close(self, run: Run) -> None:
        self._open.discard(run.id)
        if self._open:
            return
        self._refresh()
        if missing := self._curves.missing():
            warnings.warn(f"PlotLogger: {missing}", UserWarning, stacklevel=2)

    def _flush_quietly(self) -> None:
        # What this raises, the next one will, where the buffer sees it.
        with contextlib.suppress(Exception):
            self.flush()

    def _refresh(self) -> None:
        start = time.monotonic()
        panels = self._curves.panels()
        plot = Plot(panels[: self._most], self._titled(len(panels)), self._picture)
        for output in self._outputs if panels else ():
            output.show(plot)
        self._is_new = False
        end = time.monotonic()
        self._due = end + max(self._every, (end - start) / SHARE)

    def _titled(self, count: int) -> str:
        if count <= self._most:
            return self._title
        return f"{self._title} ({self._most} of {count} keys)".strip()
