"""`CSVLogger`: comma-separated values, a file for each run."""

import os
from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.csv import CSVWriter


class CSVLogger(Logger):
    """Write comma-separated values, one file for each run: `PATH/NAME.csv`.

    Each line is what a run logged at one step. The columns are the steps, with an `@`
    before their names, then the keys; a key that itself begins with `@` gets another one.
    The arrays in a tree have a column each, `key/path`. A cell is a number, `true` or
    `false`, `NaN` or `inf`, a complex number as Python writes it (`1+2j`), or for an array
    a JSON text: `"[1.0, 2.0]"`, with null for NaN and infinities. It is empty where nothing
    was logged.

    A key may come late: the file then gets another column. One of more than 64 MiB is left
    as it is, and the run goes on in the file `NAME-2.csv`. Files of earlier sessions stay
    in the same way. What was flushed, twice a second, outlives the process.

    Args:
        path: A folder. It is made if it is not there.
        config: Written beside the rows, into `NAME.config.json`.
        on_error: What happens if writing fails: "warn" or "raise".
        all_processes: Whether each process of `jax.distributed` writes its own runs.
        patience: How many seconds the program waits at its end for what gets nothing done.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
    ):
        super().__init__(
            CSVWriter(path),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
        )
