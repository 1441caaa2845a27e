"""The writer of `MLflowLogger`."""

import math
import os
import re
import socket
import tempfile
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from lox_host.extras import import_extra
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.runs.run_config import flat_config
from lox_host.writers._media import check_kinds
from lox_host.writers._run_info import run_title
from lox_host.writers._tracker_rows import TrackerRow, free_name, tracker_rows

# What MLflow takes with one call.
METRICS, PARAMETERS = 1000, 100
# How many seconds its server has to answer.
TIMEOUT = 5.0
# Arrays with at most this many elements are written in full.
ELEMENTS = 64


# The tag by which a run is found again.
IDENTITY = "lox.identity"


class Point(NamedTuple):
    """A value of a metric, at a time in milliseconds since 1970."""

    name: str
    value: float
    step: int
    time: int


class MLflowWriter:
    """The back end of `MLflowLogger`."""

    def __init__(
        self,
        experiment_name: str = "Default",
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
        kinds: Mapping[str, str] | None = None,
    ):
        self._kinds = check_kinds(kinds)
        mlflow = import_extra("mlflow", "MLflowLogger", "mlflow")
        self._client = mlflow.MlflowClient(tracking_uri)
        self._metric, self._param = mlflow.entities.Metric, mlflow.entities.Param
        self._experiment_name, self._tags = experiment_name, dict(tags or {})
        self._runs: dict[int, str] = {}
        self._counts: dict[int, Counter[str]] = {}
        self._unsent: dict[int, list[Any]] = {}
        self._names: dict[str, str] = {}
        self._latest: dict[int, int] = {}

    def open(self, run: Run) -> None:
        experiment = self._experiment()
        run_id = self._earlier_run(experiment, run) if run.resumed else None
        if run_id is None:
            run_id = self._new_run(experiment, run)
        self._runs[run.id], self._counts[run.id] = run_id, Counter()
        self._unsent[run.id], self._latest[run.id] = [], 0

    def _new_run(self, experiment: str, run: Run) -> str:
        of_run = {"group": run.group or run.launch, IDENTITY: _identity(run)}
        tags = dict.fromkeys(map(self._name, run.tags), "true")
        opened = self._client.create_run(
            experiment,
            run_name=run_title(run),
            start_time=int(1000 * run.start),
            tags={**tags, **of_run, **self._tags},
        )
        entries = flat_config(run.config).items()
        params = [self._param(self._name(name), str(value)) for name, value in entries]
        for some in _chunks(params, PARAMETERS):
            self._client.log_batch(opened.info.run_id, params=some)
        return opened.info.run_id

    def _earlier_run(self, experiment: str, run: Run) -> str | None:
        """Return MLflow's id of the newest run to resume, or None."""
        text = f"tags.`{IDENTITY}` = '{_identity(run)}'"
        order = ["attributes.start_time DESC"]
        found = self._client.search_runs([experiment], text, 1, 1, order)
        if not found:
            return None
        run_id = found[0].info.run_id
        self._client.update_run(run_id, status="RUNNING")
        return run_id

    def write(self, batch: Batch) -> None:
        found: dict[int, list[Point]] = {}
        for row in tracker_rows(batch, self._kinds):
            found.setdefault(row.run, []).extend(self._points(row))
            self._save_media(row)
        for run, points in found.items():
            self._unsent[run] += self._metrics(run, points)

    def flush(self) -> None:
        """Send all metrics. If that fails, the next flush sends them again."""
        for run, metrics in self._unsent.items():
            if metrics:
                self._check_server()
            # Forget a chunk only when MLflow has it.
            while metrics:
                self._client.log_batch(self._runs[run], metrics=metrics[:METRICS])
                del metrics[:METRICS]

    def close(self, run: Run) -> None:
        self._unsent.pop(run.id)
        self._latest.pop(run.id)
        self._counts.pop(run.id)
        name = self._runs.pop(run.id)
        self._check_server()
        self._client.set_terminated(name)

    def _check_server(self) -> None:
        """Raise if the server does not answer. MLflow itself would retry for minutes."""
        address = urllib.parse.urlsplit(self._client.tracking_uri)
        is_server = address.scheme in ("http", "https") and address.hostname
        if not is_server or address.scheme in urllib.request.getproxies():
            return
        port = address.port or {"http": 80, "https": 443}[address.scheme]
        try:
            socket.create_connection((address.hostname, port), TIMEOUT).close()
        except OSError as error:
            raise ConnectionError(
                f"MLflow's server {address.scheme}://{address.hostname}:{port} does not "
                f"answer: {error}"
            ) from error

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment_name)
        if found is not None:
            return found.experiment_id
        return self._client.create_experiment(self._experiment_name)

    def _points(self, row: TrackerRow) -> Iterator[Point]:
        numbers = {**row.numbers, **row.other_step_values}
        for key, array in row.arrays.items():
            numbers.update(_elements(key, array))
        for key, histogram in row.counted.items():
            found = histogram.statistics().items()
            numbers.update({f"{key}/{name}": number for name, number in found})
        counts = self._counts[row.run]
        counts.update(numbers.keys())
        for key, number in numbers.items():
            step = counts[key] - 1 if row.integer_step is None else row.integer_step
            yield Point(self._name(key), float(number), step, int(1000 * row.time))

    def _save_media(self, row: TrackerRow) -> None:
        """Save images and videos as files among the artifacts, `key/step.png`."""
        counts = self._counts[row.run]
        counts.update(row.media.keys())
        for key, media in row.media.items():
            step = counts[key] - 1 if row.integer_step is None else row.integer_step
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, f"{step:08d}.{media.suffix}")
                media.write(path, "MLflowLogger", "mlflow")
                self._client.log_artifact(self._runs[row.run], path, self._name(key))

    def _metrics(self, run: int, points: list[Point]) -> list[Any]:
        """Return points as MLflow has them.

        It takes two points of a key with the same value, step and time for one, so that
        each repetition is a millisecond later, and all come after those sent before.
        """
        first = self._latest[run] + 1
        # By point, the time of the next one that is the same.
        free: dict[tuple, int] = {}
        metrics = []
        for point in points:
            # NaN is not equal to itself, and would never be found again.
            number = None if math.isnan(point.value) else point.value
            place = point.name, point.step, number
            time = max(point.time, free.get(place, first))
            free[place] = time + 1
            metrics.append(self._metric(point.name, point.value, time, point.step))
            self._latest[run] = max(self._latest[run], time)
        return metrics

    def _name(self, key: str) -> str:
        if key not in self._names:
            # MLflow refuses other letters, and names that are no plain paths.
            parts = re.sub(r"[^\w\-. :/]", "_", key).split("/")
            name = "/".join("_" if part in ("", ".", "..") else part for part in parts)
            self._names[key] = free_name(name, self._names.values())
        return self._names[key]


def _elements(key: str, array: np.ndarray) -> dict[str, float]:
    if array.size <= ELEMENTS:
        # `tolist` has None for what is masked.
        elements = enumerate(array.reshape(-1).tolist())
        return {f"{key}/{i}": x for i, x in elements if x is not None}
    statistics = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}
    return {f"{key}/{name}": float(f(array)) for name, f in statistics.items()}


def _identity(run: Run) -> str:
    """Return what the same run has in every session. Each process has its own."""
    return f"{run.identity}-{run.process}" if run.process else run.identity


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))
