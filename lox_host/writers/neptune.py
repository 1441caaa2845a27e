"""The writer of `NeptuneLogger`."""

import datetime
import math
from collections import Counter
from typing import Any

import numpy as np

from lox_host.extras import import_extra
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.runs.run_config import flat_config
from lox_host.writers._run_info import run_title
from lox_host.writers._tracker_rows import (
    TrackerRow,
    nonfinite_counts,
    tracker_rows,
)


class NeptuneWriter:
    """The back end of `NeptuneLogger`."""

    def __init__(self, **init_kwargs: Any):
        self._neptune = import_extra("neptune_scale", "NeptuneLogger", "neptune")
        self._types = import_extra("neptune_scale.types", "NeptuneLogger", "neptune")
        self._options = {
            "project": "lox/runs",
            "mode": "offline",
            "enable_console_log_capture": False,
            "source_tracking_config": None,
            **init_kwargs,
        }
        self._runs: dict[int, Any] = {}
        self._counts: Counter[int] = Counter()

    def open(self, run: Run) -> None:
        # Neptune takes the same id for the same run, and refuses to begin it again.
        run_id = f"{run_title(run, self._options.get('run_id'))}-{run.launch}"
        opened = self._neptune.Run(**{**self._options, "run_id": run_id})
        self._runs[run.id] = opened
        config = {f"config/{name}": x for name, x in flat_config(run.config).items()}
        entries = {
            "lox/name": run_title(run),
            "lox/group": run.group or run.launch,
            **config,
        }
        opened.log_configs(entries, cast_unsupported=True)
        if run.tags:
            opened.add_tags(list(run.tags))

    def write(self, batch: Batch) -> None:
        for row in tracker_rows(batch):
            self._log(self._runs[row.run], row, self._counts[row.run])
            self._counts[row.run] += 1

    def flush(self) -> None:
        """Do nothing: the client writes each row to its file."""

    def close(self, run: Run) -> None:
        del self._counts[run.id]
        self._runs.pop(run.id).close()

    def _log(self, run: Any, row: TrackerRow, step: int) -> None:
        numbers = {**row.numbers, **row.step_values, **nonfinite_counts(row.arrays)}
        texts = {k: str(x) for k, x in numbers.items() if not math.isfinite(x)}
        finite = {k: x for k, x in numbers.items() if k not in texts}
        when = datetime.datetime.fromtimestamp(row.time, datetime.UTC)
        if finite:
            run.log_metrics(finite, step, timestamp=when)
        if texts:
            series = {f"{k}/nonfinite": x for k, x in texts.items()}
            run.log_string_series(series, step, timestamp=when)
        if row.histograms:
            drawn = {
                # Neptune drops a histogram whose counts are floats, with a line of its log.
                key: self._types.Histogram(edges, counts.astype(np.int64))
                for key, (counts, edges) in row.histograms.items()
            }
            run.log_histograms(drawn, step, timestamp=when)
