"""The writer of `OpenTelemetryLogger`."""

import math
import re
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from lox_host.extras import import_extra
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.runs.run_config import flat_config
from lox_host.writers._tracker_rows import Number, tracker_rows

# How many points wait for a receiver that is down; what comes after them is refused.
KEPT = 100_000


class OpenTelemetryWriter:
    """The back end of `OpenTelemetryLogger`.

    Each number is a point of a gauge, at the time at which it reached the host. The SDK
    would keep only the last one of each interval, so points are given to its exporter.

    Args:
        endpoint: Where the receiver is. None: `OTEL_EXPORTER_OTLP_ENDPOINT`.
        service: The `service.name`.
        headers: Sent with each request.
        timeout: How many seconds a request may take.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        service: str = "lox",
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ):
        who, extra = "OpenTelemetryLogger", "opentelemetry"
        self._metrics = import_extra("opentelemetry.sdk.metrics.export", who, extra)
        exporter = import_extra(
            "opentelemetry.exporter.otlp.proto.http.metric_exporter", who, extra
        )
        resources = import_extra("opentelemetry.sdk.resources", who, extra)
        scopes = import_extra("opentelemetry.sdk.util.instrumentation", who, extra)
        self._endpoint = _metrics_url(endpoint)
        self._exporter = exporter.OTLPMetricExporter(
            endpoint=self._endpoint, headers=dict(headers or {}), timeout=timeout
        )
        self._resource = resources.Resource.create({"service.name": service})
        self._scope = scopes.InstrumentationScope("lox")
        self._attributes: dict[int, dict[str, Any]] = {}
        # By metric, then by run and time: a series has one value at a time.
        self._waiting: dict[str, dict[tuple[int, int], Number]] = {}

    def open(self, run: Run) -> None:
        """Note the attributes of a run."""
        config = {f"config.{name}": x for name, x in flat_config(run.config).items()}
        known = {"run": run.name, "seed": str(run.seed), "process": run.process, **config}
        if run.group:
            known["group"] = run.group
        plain = (bool, int, float, str)
        self._attributes[run.id] = {
            name: value if isinstance(value, plain) else str(value)
            for name, value in known.items()
            if value is not None
        }

    def write(self, batch: Batch) -> None:
        """Take the numbers of a batch; they are sent by the next `flush`."""
        if sum(map(len, self._waiting.values())) >= KEPT:
            raise ConnectionError(
                f"{KEPT} points wait for the receiver at {self._endpoint or 'the endpoint'}"
            )
        for row in tracker_rows(batch):
            # Rows of stores that older versions wrote have no time.
            seconds = time.time() if math.isnan(row.time) else row.time
            place = row.run, int(seconds * 1e9)
            for key, value in {**row.numbers, **row.step_values}.items():
                self._waiting.setdefault(metric_name(key), {})[place] = value

    def flush(self) -> None:
        """Send what waits. What could not be sent is tried again by the next flush."""
        if not self._waiting:
            return
        result = self._exporter.export(self._data())
        if result is not self._metrics.MetricExportResult.SUCCESS:
            where = self._endpoint or "the endpoint in the environment"
            raise ConnectionError(
                f"The OTLP receiver at {where} did not accept the metrics."
            )
        self._waiting = {}

    def close(self, run: Run) -> None:
        """Forget the run, unless points of it still wait."""
        # A point that is sent later still needs the attributes.
        if not any(id == run.id for points in self._waiting.values() for id, _ in points):
            self._attributes.pop(run.id, None)

    def _data(self) -> Any:
        """Return what waits in the types of the SDK."""
        export = self._metrics
        metrics = []
        for name, points in self._waiting.items():
            found = [
                export.NumberDataPoint(
                    attributes=self._attributes[run],
                    start_time_unix_nano=0,
                    time_unix_nano=nanoseconds,
                    value=value,
                )
                for (run, nanoseconds), value in points.items()
            ]
            gauge = export.Gauge(data_points=found)
            metrics.append(export.Metric(name=name, description="", unit="", data=gauge))
        scoped = export.ScopeMetrics(scope=self._scope, metrics=metrics, schema_url="")
        resource = export.ResourceMetrics(
            resource=self._resource, scope_metrics=[scoped], schema_url=""
        )
        return export.MetricsData(resource_metrics=[resource])


def metric_name(key: str) -> str:
    """Return a name that OpenTelemetry takes: letters, digits, and `_ . - /`."""
    name = re.sub(r"[^A-Za-z0-9_./-]", "_", key)
    return (name if name[:1].isalpha() else f"_{name}".replace("_", "lox_", 1))[:255]


def _metrics_url(endpoint: str | None) -> str | None:
    """Return where metrics go: a receiver without a path has them in `/v1/metrics`."""
    if endpoint is None:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(
            f"`endpoint` is {endpoint!r}. Give the address of an OTLP receiver over HTTP, "
            "such as 'http://localhost:4318'."
        )
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/metrics"
