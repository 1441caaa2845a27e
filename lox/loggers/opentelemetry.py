"""Runs as metrics of OpenTelemetry."""

from collections.abc import Mapping
from typing import Any

from lox.loggers.base import Logger
from lox_host.guarded_writer import OnError
from lox_host.writers.opentelemetry import OpenTelemetryWriter


class OpenTelemetryLogger(Logger):
    """Send numbers as gauges over OTLP, for Prometheus, Grafana and cloud monitors.

    Each key is a gauge, and each step too. A point has the time at which the row reached
    the host; where several rows of a run have the same time, the last one counts, since a
    gauge has one value at a time. Points carry the name of the run, its seed, group and
    process, and its configuration as `config.name`, so that monitors can select by them.
    Trees become `key/path` and complex values `key/real` and `key/imag`. Arrays are left
    out: send them to a store or a tracker.

    If the receiver is down, up to 100,000 points wait for it.

    Args:
        endpoint: The receiver, such as `"http://localhost:4318"`. None: what
            `OTEL_EXPORTER_OTLP_ENDPOINT` says.
        service: The attribute `service.name`.
        headers: Sent with each request, such as for authentication.
        timeout: How many seconds a request may take.
        config: The configuration of the runs.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        patience: See `Logger`.
        every: See `Logger`.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        service: str = "lox",
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        patience: float = 30.0,
        every: float = 0.5,
    ):
        super().__init__(
            OpenTelemetryWriter(
                endpoint, service=service, headers=headers, timeout=timeout
            ),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            patience=patience,
            every=every,
        )
