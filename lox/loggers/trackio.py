"""Runs in trackio."""

from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.trackio import TrackioWriter


class TrackioLogger(Logger):
    """Send runs to trackio, one per seed.

    The runs of one `init` are a group, and each is named after its key. Rows are at the
    step called `step`, or else at the first step that is an integer, or else where trackio
    puts them, one after the other. All other steps are logged with the values. Arrays
    become histograms, and `key/nonfinite` says how many of their elements are NaN or
    infinite. Images and videos of `uint8` are shown as such. Trees become `key/path`,
    complex values `key/real` and `key/imag`, and typed PRNG keys `key/0`, `key/1`, ...
    trackio reserves the names `project`, `run`, `timestamp`, `step`, `time` and `metrics`:
    keys with these names get an underscore, as in `time_`. Several underscores at the
    start of a key become one.

    trackio reports its own errors as warnings.

    Args:
        project: The name of the project.
        kinds: By key, `"image"`, `"video"` or `"histogram"`, for arrays whose shape and
            dtype do not say what they are. Images are `(height, width)`, videos have time
            in front, and both can have channels at the end; values are integers up to 255
            or floats up to 1.
        config: The configuration of the runs.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        patience: See `Logger`.
        every: See `Logger`.
        **init_kwargs: Arguments of `trackio.init`. A `name` is put before the names of the
            runs.
    """

    def __init__(
        self,
        project: str,
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
            TrackioWriter(project, kinds, **init_kwargs),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
            every=every,
        )
