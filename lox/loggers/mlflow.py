"""Runs in MLflow."""

from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.mlflow import MLflowWriter


class MLflowLogger(Logger):
    """Sends runs to MLflow, one for each seed, many rows at a time.

    The runs of one `init` have the same tag `group`. Numbers are metrics, at the step
    called `step`, or else the first one that is an integer, or else at the number of the
    row among those of the key. All steps but `step` are metrics, too. MLflow has nothing
    for arrays: up to 64 elements are metrics `key/0`, `key/1`, ..., of larger ones there
    are `key/mean`, `key/std`, `key/min` and `key/max`, without examples that did not log.
    Trees are `key/path`, complex values
    `key/real` and `key/imag`, typed PRNG keys `key/0`, `key/1`, ... Characters that MLflow
    has not in names are underscores. Its databases hold infinities as the largest floats.

    Args:
        experiment_name: Where the runs are listed; made if it is not there.
        tracking_uri: A server or a local database, such as `"sqlite:///mlflow.db"`.
            Otherwise what MLflow is set to.
        tags: For each run.
        config: The configuration of the runs, which are their parameters.
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
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
        every: float = 0.5,
    ):
        super().__init__(
            MLflowWriter(experiment_name, tracking_uri, tags),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
            every=every,
        )
