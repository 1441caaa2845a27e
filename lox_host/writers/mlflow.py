"""The writer of `MLflowLogger`."""

import math
import re
import socket
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lox_host.extras import import_extra
from lox_host.rows import Batch
from lox_host.writer import Run
from lox_host.writers._run_info import flat_config, run_title
from lox_host.writers._tracker_rows import TrackerRow, free_name, tracker_rows

# What MLflow takes with one call.
METRICS, PARAMETERS = 1000, 100
# How many seconds its server has to answer.
TIMEOUT = 5.0
# Arrays of so many elements are written in full.
ELEMENTS = 64


class MLflowWriter:
    """The back end of `MLflowLogger`."""

    def __init__(
        self,
        experiment_name: str = "Default",
        tracking_uri: str | None = None,
        tags: Mapping[str, str] | None = None,
    ):
        mlflow = import_extra("mlflow", "MLflowLogger", "mlflow")
        self._client = mlflow.MlflowClient(tracking_uri)
        self._metric, self._param = mlflow.entities.Metric, mlflow.entities.Param
        self._experiment_name, self._tags = experiment_name, dict(tags or {})
        self._runs: dict[int, str] = {}
        self._counts: dict[int, Counter[str]] = {}
        self._unsent: dict[int, list[Any]] = {}
        self._names: dict[str, str] = {}
        self._latest = 0

    def open(self, run: Run) -> None:
        opened = self._client.create_run(
            self._experiment(),
            run_name=run_title(run),
            start_time=int(1000 * run.start),
            tags={"group": run.group, **self._tags},
        )
        self._runs[run.id], self._counts[run.id] = opened.info.run_id, Counter()
        self._unsent[run.id] = []
        entries = flat_config(run.config).items()
        params = [self._param(self._name(name), str(value)) for name, value in entries]
        for some in _chunks(params, PARAMETERS):
            self._client.log_batch(opened.info.run_id, params=some)

    def write(self, batch: Batch) -> None:
        found: dict[int, list[tuple[str, float, int]]] = {}
        for row in tracker_rows(batch):
            found.setdefault(row.run, []).extend(self._points(row))
        for run, points in found.items():
            self._unsent[run] += self._metrics(points)

    def flush(self) -> None:
        """Send all metrics. Those that MLflow does not get are sent the next time."""
        for run, metrics in self._unsent.items():
            if metrics:
                self._check_server()
            while metrics:
                self._client.log_batch(self._runs[run], metrics=metrics[:METRICS])
                del metrics[:METRICS]

    def close(self, run: Run) -> None:
        self._unsent.pop(run.id)
        self._counts.pop(run.id)
        name = self._runs.pop(run.id)
        self._check_server()
        self._client.set_terminated(name)

    def _check_server(self) -> None:
        """Raise if nobody is there to answer. MLflow would try again for minutes."""
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

    def _points(self, row: TrackerRow) -> Iterator[tuple[str, float, int]]:
        numbers = {**row.numbers, **row.other_step_values}
        for key, array in row.arrays.items():
            numbers.update(_elements(key, array))
        counts = self._counts[row.run]
        counts.update(numbers.keys())
        for key, number in numbers.items():
            step = counts[key] - 1 if row.integer_step is None else row.integer_step
            yield self._name(key), float(number), step

    def _metrics(self, points: list[tuple[str, float, int]]) -> list[Any]:
        """Give times in milliseconds to points.

        MLflow takes two points of a key with the same value, step and time for one, so
        that each repetition is a millisecond later.
        """
        start = max(int(1000 * time.time()), self._latest + 1)
        seen: Counter[tuple] = Counter()
        metrics = []
        for name, number, step in points:
            point = name, step, None if math.isnan(number) else number
            metrics.append(self._metric(name, number, start + seen[point], step))
            seen[point] += 1
        self._latest = start + max(seen.values(), default=1) - 1
        return metrics

    def _name(self, key: str) -> str:
        if key not in self._names:
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


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[i : i + size] for i in range(0, len(items), size))
