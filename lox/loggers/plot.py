"""`PlotLogger`: live learning curves."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.plot import PlotWriter


class PlotLogger(Logger):
    r"""Draw live curves of what is logged.

    Each key that is a real number has a panel with one line per run and their mean on top.
    With more than eight runs, it shows the mean and a band that contains 80% of them.
    If there are more rows than `points`, each point is the mean of several rows, and for a
    single run a band shows their range. So memory and drawing time do not grow with the
    number of rows. Finished runs stay in the picture.

    Where the curves appear:

    - In a notebook (Jupyter, Colab, VS Code), below the cell that starts the first run,
      with any backend of matplotlib.
    - With a display, in a window. It belongs to a separate process, since toolkits only
      draw on the main thread, which waits for JAX. So you can move and zoom it at any time,
      with TkAgg, QtAgg, GTK, wx and macOS alike, and it stays open after the program has
      ended until you close it.
    - Elsewhere (no display, or the backend agg), in the file `path`, or `lox.png`. The file
      is a complete picture at any time.

    Args:
        path: A PNG file. If given, it is kept up to date wherever else curves appear.
        keys: What to draw: a key or several. By default all, in the order of logging.
        x: The step to draw against; `"row"` for the number of the row. By default `step`,
            or else the first one of a key, or else the row.
        every: The smallest number of seconds between two refreshes. They are less frequent
            if drawing takes more than a tenth of the time. The last one is when all runs
            are finished.
        show: Whether to show a window or use the notebook. False: only the file.
        title: The title above the panels.
        points: The largest number of points of a line; 2, 4, 8, ... are all used. Fewer
            points give smoother lines.
        max_panels: The largest number of panels.
        config: For other loggers; it is not shown.
        on_error: What happens if drawing fails: "warn" or "raise".
        all_processes: Whether each process of `jax.distributed` draws its own runs.
        patience: How many seconds to wait for a writer that does not return, see `Logger`.

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
