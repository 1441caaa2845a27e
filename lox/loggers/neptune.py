"""Runs in Neptune, whose service has ended."""

from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.neptune import NeptuneWriter


class NeptuneLogger(Logger):
    """Write runs with Neptune's client, one per seed.

    Neptune's hosted service ended on 5 March 2026. There is no longer a server to send runs
    to, unless you have your own (`mode="async"`). The client still writes runs to files,
    which is what this logger does by default (`mode="offline"`). Each run is a folder with
    a database in `.neptune`, or in `log_directory`, which only Neptune's client can read.
    For anything new, use another tracker.

    Neptune needs increasing steps, so the step of a row is its number in the run, and its
    own steps are logged as further series. The runs of one `init` have the same group,
    `lox/group`. Arrays become histograms, and `key/nonfinite` says how many of their
    elements are NaN or infinite. Numbers that are not finite, which Neptune does not
    accept, become strings in `key/nonfinite`. Trees become `key/path`, complex values
    `key/real` and `key/imag`, and typed PRNG keys `key/0`, `key/1`, ...

    Args:
        config: The configuration of the runs, in `config/...`.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        patience: See `Logger`.
        every: See `Logger`.
        **init_kwargs: Arguments of `neptune_scale.Run`. A `run_id` is put before the ids of
            the runs.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
        every: float = 0.5,
        **init_kwargs: Any,
    ):
        super().__init__(
            NeptuneWriter(**init_kwargs),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
            every=every,
        )
