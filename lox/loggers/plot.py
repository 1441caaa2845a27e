"""`PlotLogger`: learning curves that are drawn while the runs go on."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.plot import PlotWriter


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
        patience: How many seconds the program waits at its end for what gets nothing done.

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
        patience: float = 30.0,
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
            writer,
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
        )
