"""`ConsoleLogger`: a live table of the runs, on the terminal."""

from collections.abc import Mapping
from typing import Any, TextIO

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.console import ConsoleWriter


class ConsoleLogger(Logger):
    """Show the runs while they are running.

    On a terminal and in a notebook, this is a live table. For each key it shows the last
    value (for several runs, the mean and standard deviation of their last values), the
    smallest and the largest value of all rows, and a curve of the mean over runs. The line
    on top shows the progress of the runs. What the program prints appears above the table.
    When all runs are finished, the table stays.

    Elsewhere (a file, a cluster's log), it prints a plain line every ten seconds and one at
    the end, with the mean over runs of the last values.

    Arrays are shown by their mean, smallest and largest element, and complex numbers by
    their magnitude. Each array in a tree has its own line.

    Args:
        every: Seconds between two lines where there is no terminal.
        file: Where to write. By default standard error.
        max_keys: The largest number of keys to show.
        title: The title of the table.
        config: For other loggers; it is not shown.
        on_error: What happens if the console fails: "warn" or "raise".
        all_processes: Whether each process of `jax.distributed` shows its own runs.
        patience: How many seconds to wait for a writer that does not return, see `Logger`.
    """

    def __init__(
        self,
        *,
        every: float = 10.0,
        file: TextIO | None = None,
        max_keys: int = 40,
        title: str = "lox",
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
    ):
        writer = ConsoleWriter(every=every, file=file, max_keys=max_keys, title=title)
        super().__init__(
            writer,
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
        )
