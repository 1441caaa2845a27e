"""`JSONLogger`: JSON lines, one file per run."""

import os
from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.json import JSONWriter, Special


class JSONLogger(Logger):
    """Write JSON lines, one file per run: `PATH/NAME.jsonl`.

    Each line is an object with what a run logged at one step, `{"@step": 3, "loss": 0.5}`:
    the steps with an `@` before their names, then the keys. A key that itself begins with
    `@` gets another one. Arrays are nested lists, trees are objects and lists, complex
    numbers are `[real, imaginary]`, and examples of a `vmap` that did not log are null. The
    lines are strict JSON.

    Files of earlier sessions are kept: the next one of the same name is `NAME-2.jsonl`.
    Rows are flushed twice a second, and then survive a crash of the process.

    Args:
        path: A folder. It is created if it does not exist.
        nan: What to write for NaN and infinities: "null"; "text", for the strings "NaN",
            "Infinity" and "-Infinity"; or a mapping with other values for some of "nan",
            "inf" and "-inf".
        config: Written to `NAME.config.json`, next to the rows.
        on_error: What happens if writing fails: "warn" or "raise".
        all_processes: Whether each process of `jax.distributed` writes its own runs.
        patience: How many seconds to wait for a writer that does not return, see `Logger`.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        nan: Special = "null",
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
    ):
        super().__init__(
            JSONWriter(path, nan=nan),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
        )
