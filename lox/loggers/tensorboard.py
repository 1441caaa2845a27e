"""Runs as event files of TensorBoard, written with neither TensorFlow nor torch."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.tensorboard import TensorBoardWriter


class TensorBoardLogger(Logger):
    """Writes runs for TensorBoard, each to a folder of its own, called after its key.

    Numbers are scalars, which TensorBoard holds as float32. They are at the step called
    `step`, or else the first one that is an integer, or else at the number of the row among
    those of the key. All steps but `step` are scalars, too. Arrays are histograms,
    `key/nonfinite` says how many of their elements are NaN or infinite; those of uint8 with
    the shape `(height, width, channels)` and 1, 3 or 4 channels are images. Trees are
    `key/path`, complex values `key/real` and `key/imag`, typed PRNG keys `key/0`, `key/1`,
    ... The configuration is shown as hyperparameters.

    Args:
        dir: Where the folders are made. Those that are there already stay as they are.
        images: Keys of other arrays that are images: `(height, width)` or with channels,
            integers up to 255 or floats up to 1, or several of them along further axes in
            front.
        texts: Keys of arrays that are texts: the bytes of UTF-8, zeros at the end do not
            count.
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
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
        every: float = 0.5,
    ):
        super().__init__(
            TensorBoardWriter(dir, images, texts),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
            every=every,
        )
