"""`OpenTelemetryLogger`, against an OTLP receiver that decodes what it is sent."""

import gzip
import http.server
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

import lox
from lox_host.writers.opentelemetry import metric_name
from support.object_server import free_port


class Receiver:
    """An OTLP receiver over HTTP, which keeps what it got, or refuses."""

    def __init__(self):
        self.port, self.requests, self.status = free_port(), [], 200
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): text for name, text in self.headers.items()}
                if receiver.status == 200:
                    message = ExportMetricsServiceRequest.FromString(body)
                    receiver.requests.append((self.path, headers, message))
                self.send_response(receiver.status)
                self.end_headers()

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._http.serve_forever, args=(0.05,)).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def points(self):
        """By metric, the points: attributes, nanoseconds and value."""
        found = {}
        for _, _, message in self.requests:
            for resource in message.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        assert metric.WhichOneof("data") == "gauge"
                        for point in metric.gauge.data_points:
                            value = getattr(point, point.WhichOneof("value"))
                            attributes = {a.key: _value(a.value) for a in point.attributes}
                            row = attributes, point.time_unix_nano, value
                            found.setdefault(metric.name, []).append(row)
        return found

    def close(self):
        self._http.shutdown()
        self._http.server_close()


def _value(value):
    return getattr(value, value.WhichOneof("value"))


@pytest.fixture
def receiver():
    receiver = Receiver()
    yield receiver
    receiver.close()


def test_numbers_arrive_as_gauges_with_the_attributes_of_their_run(receiver):
    logger = lox.loggers.OpenTelemetryLogger(
        receiver.url, headers={"X-Token": "secret"}, config={"lr": 0.1, "net": {"width": 8}}
    )
    run = logger.init(jax.random.key(3))

    def f(x):
        lox.log({"train/loss": x, "ok": x > 0, "v": jnp.ones(3)}, step=7)
        return x

    logger.tap(f, run)(jnp.float32(0.5))
    logger.log(run, {"bad": np.float32("nan")}, step=8)
    logger.finish(run)
    path, headers, message = receiver.requests[0]
    assert path == "/v1/metrics"
    assert headers["x-token"] == "secret"
    (resource,) = {
        _value(a.value)
        for r in message.resource_metrics
        for a in r.resource.attributes
        if a.key == "service.name"
    }
    assert resource == "lox"
    points = receiver.points()
    assert points.keys() == {"train/loss", "ok", "step", "bad"}
    ((attributes, nanoseconds, value),) = points["train/loss"]
    assert value == 0.5
    assert attributes["config.lr"] == 0.1
    assert attributes["config.net/width"] == 8
    assert attributes["seed"] == "3"
    assert attributes["run"]
    assert abs(nanoseconds / 1e9 - time.time()) < 60
    assert points["ok"][0][2] == 1
    assert [point[2] for point in points["step"]] == [7, 8]
    assert np.isnan(points["bad"][0][2])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_a_receiver_refuses_is_sent_again(receiver):
    receiver.status = 400
    logger = lox.loggers.OpenTelemetryLogger(receiver.url, every=0.1)
    run = logger.init(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        logger.log(run, {"x": 1.0})
        with pytest.raises(RuntimeError, match="did not accept the metrics"):
            logger.finish(logger.init(4))
    assert any("OpenTelemetryLogger failed" in str(w.message) for w in caught)
    receiver.status = 200
    logger.log(run, {"x": 2.0})
    logger.finish(run)
    assert [point[2] for point in receiver.points()["x"]] == [1.0, 2.0]


def test_names_and_endpoints():
    assert metric_name("train/loss") == "train/loss"
    assert metric_name("Verlust (µ)") == "Verlust____"
    assert metric_name("0") == "lox_0"
    with pytest.raises(ValueError, match=r"`endpoint` is 'localhost:4318'. Give the"):
        lox.loggers.OpenTelemetryLogger("localhost:4318")
