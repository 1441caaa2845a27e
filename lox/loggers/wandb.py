"""Runs in Weights & Biases."""

from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.wandb import WandbWriter


class WandbLogger(Logger):
    """Send runs to Weights & Biases, one per seed.

    The runs of one `init` are a group, and each is named after its key. Every row becomes a
    row of the history, in any number and with any steps. The steps are logged with the
    values, and W&B plots each key against the step called `step`, or else against its first
    step. Arrays become histograms, and `key/nonfinite` says how many of their elements are
    NaN or infinite. Arrays of uint8 with the shape `(height, width, channels)` become
    images, and those with time in front videos (GIFs). A `lox.Histogram` is shown as one.
    Trees become `key/path`, complex values `key/real` and `key/imag`, and typed PRNG keys
    `key/0`, `key/1`, ... A step with the name of a key in the same row gets an underscore.

    Args:
        kinds: By key, `"image"`, `"video"` or `"histogram"`, for arrays whose shape and
            dtype do not say what they are. Images are `(height, width)`, videos have time
            in front, and both can have channels at the end; values are integers up to 255
            or floats up to 1.
        config: The configuration of the runs.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        patience: See `Logger`.
        every: See `Logger`.
        **init_kwargs: Arguments of `wandb.init`. A `name` or `id` is put before those of
            the runs.
    """

    def __init__(
        self,
        *,
        kinds: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
        every: float = 0.5,
        **init_kwargs: Any,
    ):
        super().__init__(
            WandbWriter(kinds, **init_kwargs),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
            every=every,
        )
