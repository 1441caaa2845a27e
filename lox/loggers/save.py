"""`SaveLogger`: a store on disk for all runs."""

import os
from collections.abc import Mapping
from typing import Any

from lox._runs.environment import environment as current_environment
from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.save import save_writer


class SaveLogger(Logger):
    """Save runs to a folder, from which `lox.load` and `lox.runs` read them.

    The files are Arrow streams, which polars, pyarrow and pandas can read too. Rows are
    flushed twice a second, and then survive a crash of the process. Several loggers and
    processes may write to one folder.

    Args:
        path: The folder, which is created if it does not exist. Or an address on object
            storage, such as `"s3://bucket/exp1"`; this needs `jax-lox[remote]`.
        mode: `"a"` adds to the store; `"w"` first removes what lox wrote there before,
            except for what another logger is writing; `"x"` raises if there is a store.
        config: Stored with each run, and listed by `lox.runs`.
        environment: Whether to store once per session where the process runs: host, user,
            command line, git commit and whether files differ from it, versions of Python,
            JAX and lox, and the devices.
        on_error: What happens if writing fails: "warn" or "raise".
        all_processes: Whether each process of `jax.distributed` writes its own runs.
        patience: How many seconds to wait for a writer that does not return, see `Logger`.

    Example:
        >>> logger = lox.loggers.SaveLogger("results")
        >>> state = logger.init(jax.random.key(0))
        >>> logger.tap(lambda x: lox.log({"x": x}, step=0) and None, state)(1.5)
        >>> logger.finish(state)
        >>> lox.load("results")
        {'x': 1.5}
    """

    def __init__(
        self,
        path: str | os.PathLike,
        mode: str = "a",
        *,
        config: Mapping[str, Any] | None = None,
        environment: bool = True,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
    ):
        super().__init__(
            save_writer(path, mode, current_environment if environment else None),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
        )
