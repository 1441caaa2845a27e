"""Runs in MLflow."""

from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.mlflow import MLflowWriter


class MLflowLogger(Logger):
    """Send runs to MLflow, one per seed, many rows at a time.

    The runs of one `init` have the same tag `group`. Numbers become metrics, at the step
    called `step`, or else at the first step that is an integer, or else at the number of
    the row among those of the key. All other steps become metrics too. MLflow does
    not support arrays: up to 64 elements become the metrics `key/0`, `key/1`, ..., and
    larger arrays `key/mean`, `key/std`, `key/min` and `key/max`, without examples that did
    not log; a `lox.Histogram` becomes these and `key/count`. Images (arrays of uint8 with
    the shape `(height, width, channels)`) and videos (with time in front) are saved as
    artifacts, `key/00000003.png` and `.gif`. Trees become `key/path`, complex values
    `key/real` and `key/imag`, and typed PRNG keys `key/0`, `key/1`, ... Characters that
    MLflow does not allow in names become underscores. Its databases store infinities as the
    largest floats.

    Args:
        experiment_name: The experiment of the runs. It is created if it does not exist.
        tracking_uri: A server or a local database, such as `"sqlite:///mlflow.db"`. By
            default the one that MLflow is set to.
        tags: Tags for each run.
        kinds: By key, `"image"`, `"video"` or `"histogram"`, for arrays whose shape and
            dtype do not say what they are. Images are `(height, width)`, videos have time
            in front, and both can have channels at the end; values are integers up to 255
            or floats up to 1.
        config: The configuration of the runs, which becomes their parameters.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        patience: See `Logger`.
        every: See `Logger`.
    """

    def __init__(
        self,
        experiment_name: str = "Default",
        *,
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
        kinds: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
        every: float = 0.5,
    ):
        super().__init__(
            MLflowWriter(experiment_name, tracking_uri, tags, kinds),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
            every=every,
        )
