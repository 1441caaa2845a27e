"""Runs in Neptune, whose service has ended."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from lox._extras import imported
from lox._writer import Batch, Run

from ._desk import OnError
from ._flat import Flat, flat
from ._logger import Logger
from ._tracker import histograms, outside, parameters, title


class NeptuneLogger(Logger):
    """Writes runs with Neptune's client, one for each seed.

    Neptune's hosted service ended on 5 March 2026. There is no server to send runs to any
    more, unless you have one of your own (`mode="async"`); the client still writes them to
    files, which is what this logger does by default (`mode="offline"`). Each run is a
    folder with a database in `.neptune`, or in `log_directory`, which nothing but Neptune's
    client reads. For anything new, take another tracker.

    Neptune wants steps that increase: each row is at its number among those of the run, and
    its steps are series beside the others. The runs of one `init` have the same group,
    `lox/group`. Arrays are histograms, `key/nonfinite` says how many of their elements are
    NaN or infinite. Numbers that are not finite, which Neptune does not take, are texts in
    `key/nonfinite`. Trees are `key/path`, complex values `key/real` and `key/imag`, typed
    PRNG keys `key/0`, `key/1`, ...

    Args:
        config: The configuration of the runs, in `config/...`.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        every: See `Logger`.
        **init_kwargs: Any of `neptune_scale.Run`. `run_id` is put before those of the runs.
    """

    def __init__(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        every: float = 0.5,
        **init_kwargs: Any,
    ):
        super().__init__(
            NeptuneWriter(**init_kwargs),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            every=every,
        )


class NeptuneWriter:
    """The back end of `NeptuneLogger`."""

    def __init__(self, **init_kwargs: Any):
        self._neptune = imported("neptune_scale", "NeptuneLogger", "neptune")
        self._types = imported("neptune_scale.types", "NeptuneLogger", "neptune")
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
        own = f"{title(run, self._options.get('run_id'))}-{run.group}"
        opened = self._neptune.Run(**{**self._options, "run_id": own})
        self._runs[run.id] = opened
        config = {f"config/{name}": x for name, x in parameters(run.config).items()}
        entries = {"lox/name": title(run), "lox/group": run.group, **config}
        opened.log_configs(entries, cast_unsupported=True)

    def write(self, batch: Batch) -> None:
        for row in flat(batch):
            self._log(self._runs[row.run], row, self._counts[row.run])
            self._counts[row.run] += 1

    def flush(self) -> None:
        """There is nothing to do: the client writes each row to its file."""

    def close(self, run: Run) -> None:
        del self._counts[run.id]
        self._runs.pop(run.id).close()

    def _log(self, run: Any, row: Flat, step: int) -> None:
        numbers = {**row.numbers, **row.all_steps, **outside(row.arrays)}
        texts = {k: str(x) for k, x in numbers.items() if not math.isfinite(x)}
        finite = {k: x for k, x in numbers.items() if k not in texts}
        if finite:
            run.log_metrics(finite, step)
        if texts:
            run.log_string_series({f"{k}/nonfinite": x for k, x in texts.items()}, step)
        if row.arrays:
            kind, each = self._types.Histogram, histograms(row.arrays)
            drawn = {k: kind(edges, counts) for k, (counts, edges) in each.items()}
            run.log_histograms(drawn, step)
