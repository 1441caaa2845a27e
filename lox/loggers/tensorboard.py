"""Runs as event files of TensorBoard, written with neither TensorFlow nor torch."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.tensorboard import TensorBoardWriter


class TensorBoardLogger(Logger):
    """Write runs for TensorBoard, each to its own folder, named after its key.

    Numbers become scalars, which TensorBoard stores as float32, at the step called `step`,
    or else at the first step that is an integer, or else at the number of the row among
    those of the key. All other steps become scalars too. Arrays become histograms,
    and `key/nonfinite` says how many of their elements are NaN or infinite. Arrays of uint8
    with the shape `(height, width, channels)` and 1, 3 or 4 channels become images, and
    those with time in front become videos (GIFs). A `lox.Histogram` is shown as one. Trees
    become `key/path`, complex values `key/real` and `key/imag`, and typed PRNG keys
    `key/0`, `key/1`, ... The configuration is shown as hyperparameters.

    Args:
        dir: Where to create the folders. Existing ones stay as they are.
        images: Keys of other arrays that are images: `(height, width)`, with or without
            channels at the end, of integers up to 255 or floats up to 1. Axes in front of
            these mean several images.
        texts: Keys of arrays that are text: bytes of UTF-8, with or without zeros at the
            end.
        kinds: By key, `"image"`, `"video"` or `"histogram"`, for arrays whose shape and
            dtype do not say what they are. Images are `(height, width)`, videos have time
            in front, and both can have channels at the end; values are integers up to 255
            or floats up to 1.
        config: The configuration of the runs.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        patience: See `Logger`.
        every: See `Logger`.
    """

    def __init__(
        self,
        dir: str | os.PathLike,
        *,
        images: Iterable[str] = (),
        texts: Iterable[str] = (),
        kinds: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
        every: float = 0.5,
    ):
        super().__init__(
            TensorBoardWriter(dir, images, texts, kinds),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
            every=every,
        )
