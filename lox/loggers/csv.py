"""`CSVLogger`: comma-separated values, one file per run."""

import os
from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.csv import CSVWriter


class CSVLogger(Logger):
    """Write comma-separated values, one file per run: `PATH/NAME.csv`.

    Each line is what a run logged at one step. The columns are the steps, with an `@`
    before their names, then the keys; a key that itself begins with `@` gets another one.
    The arrays in a tree have a column each, `key/path`. A cell is a number, `true` or
    `false`, `NaN` or `inf`, a complex number as Python writes it (`1+2j`), or for an array
    a JSON text: `"[1.0, 2.0]"`, with null for NaN and infinities. It is empty where nothing
    was logged.

    A key may appear late: the file then gets another column. A file of more than 64 MiB is
    left as it is, and the run continues in `NAME-2.csv`. Files of earlier sessions are kept
    in the same way. Rows are flushed twice a second, and then survive a crash of the
    process.

    Args:
        path: A folder. It is created if it does not exist.
        config: Written to `NAME.config.json`, next to the rows.
        on_error: What happens if writing fails: "warn" or "raise".
        all_processes: Whether each process of `jax.distributed` writes its own runs.
        patience: How many seconds to wait for a writer that does not return, see `Logger`.
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
