"""Runs in trackio."""

import contextvars
from collections.abc import Mapping
from typing import Any

from lox._extras import imported
from lox._writer import Batch, Run

from ._desk import OnError
from ._flat import flat
from ._logger import Logger
from ._tracker import histograms, outside, plain, title

# Names that trackio has for itself.
RESERVED = {"project", "run", "timestamp", "step", "time", "metrics"}


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
        every: float = 0.5,
        **init_kwargs: Any,
    ):
        super().__init__(
            TrackioWriter(project, **init_kwargs),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            every=every,
        )


class TrackioWriter:
    """The back end of `TrackioLogger`."""

    def __init__(self, project: str, **init_kwargs: Any):
        self._trackio = imported("trackio", "TrackioLogger", "trackio")
        self._options = {
            "project": project,
            "embed": False,
            "auto_log_gpu": False,
            "auto_log_cpu": False,
            **init_kwargs,
        }
        self._runs: dict[int, Any] = {}

    def open(self, run: Run) -> None:
        options = {"group": run.group, "config": plain(run.config), **self._options}
        options["name"] = title(run, self._options.get("name"))
        # In a context of its own, or it would end the run before.
        context = contextvars.Context()
        self._runs[run.id] = context.run(self._trackio.init, **options)

    def write(self, batch: Batch) -> None:
        for row in flat(batch):
            data = {**row.numbers, **row.beside, **outside(row.arrays)}
            for key, histogram in histograms(row.arrays).items():
                data[key] = self._trackio.Histogram(np_histogram=histogram)
            named = {_name(key): value for key, value in data.items()}
            self._runs[row.run].log(named, step=row.place)

    def flush(self) -> None:
        """There is nothing to do: trackio has a thread of its own, which writes."""

    def close(self, run: Run) -> None:
        self._runs.pop(run.id).finish()


def _name(key: str) -> str:
    if key in RESERVED:
        return f"{key}_"
    return f"_{key.lstrip('_')}" if key.startswith("__") else key
