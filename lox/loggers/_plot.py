"""`PlotLogger`: learning curves that are drawn while the runs go on."""

import contextlib
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from lox._extras import imported
from lox._panels import Picture
from lox._writer import Batch, Run

from ._curves import Curves, named
from ._desk import OnError
from ._logger import Logger
from ._outlets import Frame, Outlet, outlets
from ._scribe import scribe

SHARE = 0.1  # of the time that may be spent on drawing


class PlotLogger(Logger):
    r"""Draw the curves of what is logged, while it is.

    There is a panel for each key that is a real number: one line for each run, with their
    mean in front; of more than eight runs, the mean and a band that holds 80% of them.
    Where there are more rows than `points`, each point is the mean of some, and of a single
    run a band shows their range. So memory and the time to draw do not grow with the rows.
    Runs that are finished stay in the picture.

    Where it is shown:

    - In a notebook (Jupyter, Colab, VS Code), below the cell that starts the first run,
      with any backend of matplotlib.
    - Where windows can be opened, in a window. It belongs to a process of its own, since
      toolkits draw on the main thread only, which waits for JAX. So it can be moved and
      zoomed at any time, with TkAgg, QtAgg, GTK, wx and macOS alike, and stays when the
      program has ended until you close it.
    - Elsewhere (no display, or the backend agg) in the file `path`, or `lox.png`. Whoever
      reads that file finds a whole picture at any time.

    Args:
        path: A PNG file. If given, it is kept up to date wherever else curves are shown.
        keys: What to draw: a key or several. By default all, in the order of logging.
        x: The step to draw against; `"row"` for the number of the row. By default `step`,
            or else the first one of a key, or else the row.
        every: Seconds between two refreshes, at least. They are fewer where drawing takes
            more than a tenth of the time. The last one is when no run is left.
        show: Whether to show a window or use the notebook. False: only the file.
        title: What stands above.
        points: How many points a line has at most; 2, 4, 8, ... are all used. Fewer are
            smoother.
        max_panels: How many panels there are at most.
        config: For other loggers; it is not shown.
        on_error: What happens if drawing fails: "warn" or "raise".
        all_processes: Whether each process of `jax.distributed` draws its own runs.

    Example:
        >>> import pathlib
        >>> logger = lox.loggers.PlotLogger("curves.png", keys="loss", show=False)
        >>> def train(rate):
        ...     def step(w, i):
        ...         lox.log({"loss": w**2}, step=i)
        ...         return w * (1 - rate), None
        ...     return jax.lax.scan(step, 1.0, jnp.arange(100))[0]
        >>> with logger:
        ...     states = jax.vmap(logger.init)(jnp.arange(3))
        ...     rates = jnp.array([0.01, 0.02, 0.05])
        ...     w = jax.vmap(lambda s, rate: logger.tap(train, s)(rate))(states, rates)
        >>> pathlib.Path("curves.png").read_bytes()[:4]
        b'\x89PNG'
    """

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
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
    ):
        writer = PlotWriter(
            path,
            keys=keys,
            x=x,
            every=every,
            show=show,
            title=title,
            points=points,
            max_panels=max_panels,
        )
        super().__init__(
            writer, config=config, on_error=on_error, all_processes=all_processes
        )


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
        figure = imported("matplotlib.figure", "PlotLogger", "plot")
        if max_panels < 1:
            raise ValueError(f"`max_panels` is {max_panels}; at least one is to be drawn.")
        if points < 2:
            raise ValueError(f"`points` is {points}; a line has at least 2.")
        self._path = None if path is None else os.path.abspath(os.path.expanduser(path))
        self._show, self._title, self._every = show, title, every
        self._most = max_panels
        self._curves = Curves(named(keys), x, 1 << (points.bit_length() - 1))
        self._open: set[int] = set()
        self._outlets: list[Outlet] = []
        self._picture = Picture(figure.Figure(layout="none"))
        self._later = Later(self)
        self._due = 0.0
        self._is_new = False

    def open(self, run: Run) -> None:
        if not self._outlets:
            self._outlets = outlets(self._path, show=self._show)
        self._open.add(run.id)

    def write(self, batch: Batch) -> None:
        for block in batch:
            self._curves.add(block)
            self._is_new = True

    def flush(self) -> None:
        """Draw what is new, if it is time, or else as soon as it is."""
        wait = self._due - time.monotonic()
        if self._is_new and wait > 0:
            scribe.flush_soon(self._later, wait)
        elif self._is_new:
            self._refresh()

    def close(self, run: Run) -> None:
        self._open.discard(run.id)
        if self._open:
            return
        self._refresh()
        if missing := self._curves.missing():
            warnings.warn(f"PlotLogger: {missing}", UserWarning, stacklevel=2)

    def _refresh(self) -> None:
        start = time.monotonic()
        panels = self._curves.panels()
        frame = Frame(panels[: self._most], self._titled(len(panels)), self._picture)
        for outlet in self._outlets if panels else ():
            outlet.show(frame)
        self._is_new = False
        end = time.monotonic()
        self._due = end + max(self._every, (end - start) / SHARE)

    def _titled(self, count: int) -> str:
        if count <= self._most:
            return self._title
        return f"{self._title} ({self._most} of {count} keys)".strip()


class Later:
    """A refresh that waits for its time. What it raises, the next one will."""

    def __init__(self, writer: PlotWriter):
        self._writer = writer

    def flush(self) -> None:
        with contextlib.suppress(Exception):
            self._writer.flush()
