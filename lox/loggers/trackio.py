"""Runs in trackio."""

from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.trackio import TrackioWriter


class TrackioLogger(Logger):
    """Sends runs to trackio, one for each seed.

    The runs of one `init` are a group, and each is called after its key. Rows are at the
    step called `step`, or else the first one that is an integer, or else where trackio puts
    them, one after the other. All steps but `step` are logged along. Arrays are histograms,
    `key/nonfinite` says how many of their elements are NaN or infinite. Trees are
    `key/path`, complex values `key/real` and `key/imag`, typed PRNG keys `key/0`, `key/1`,
    ... The names `project`, `run`, `timestamp`, `step`, `time` and `metrics` are trackio's
    own: keys that are called so get an underscore, `time_`. Of several underscores at the
    beginning of a key one is kept.

    Errors of trackio's are warnings of its own.

    Args:
        project: The name of the project.
        config: The configuration of the runs.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        patience: See `Logger`.
        every: See `Logger`.
        **init_kwargs: Any of `trackio.init`. `name` is put before those of the runs.
    """

    def __init__(
        self,
        project: str,
        *,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
        every: float = 0.5,
        **init_kwargs: Any,
    ):
        super().__init__(
            TrackioWriter(project, **init_kwargs),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
            every=every,
        )
