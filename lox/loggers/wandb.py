"""Runs in Weights & Biases."""

from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.wandb import WandbWriter


class WandbLogger(Logger):
    """Sends runs to Weights & Biases, one for each seed.

    The runs of one `init` are a group, and each is called after its key. Every row is a row
    of the history, however many there are and whatever their steps: these are logged along,
    and W&B plots each key against the step called `step`, or else its first one. Arrays are
    histograms, `key/nonfinite` says how many of their elements are NaN or infinite. Trees
    are `key/path`, complex values `key/real` and `key/imag`, typed PRNG keys `key/0`,
    `key/1`, ... A step with the name of a key in the same row gets an underscore.

    Args:
        config: The configuration of the runs.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        patience: See `Logger`.
        every: See `Logger`.
        **init_kwargs: Any of `wandb.init`. `name` and `id` are put before the runs' own.
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
            WandbWriter(**init_kwargs),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
            every=every,
        )
