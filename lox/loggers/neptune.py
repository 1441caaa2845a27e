"""Runs in Neptune, whose service has ended."""

from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.neptune import NeptuneWriter


class NeptuneLogger(Logger):
    """Writes runs with Neptune's client, one for each seed.

    Neptune's hosted service ended on 5 March 2026. There is no server to send runs to any
    more, unless you have one of your own (`mode="async"`); the client still writes them to
    files, which is what this logger does by default (`mode="offline"`). Each run is a
    folder with a database in `.neptune`, or in `log_directory`, which nothing but Neptune's
    client reads. For anything new, take another tracker.

    Neptune wants steps that increase: each row is at its number among those of the run, and
    its steps are series beside the others. The runs of one `init` have the same group,
    `lox/group`. Arrays are histograms, `key/nonfinite` says how many of their elements are
    NaN or infinite. Numbers that are not finite, which Neptune does not take, are texts in
    `key/nonfinite`. Trees are `key/path`, complex values `key/real` and `key/imag`, typed
    PRNG keys `key/0`, `key/1`, ...

    Args:
        config: The configuration of the runs, in `config/...`.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        patience: See `Logger`.
        every: See `Logger`.
        **init_kwargs: Any of `neptune_scale.Run`. `run_id` is put before those of the runs.
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
