"""The writer of `TrackioLogger`."""

import contextvars
import os
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from lox_host.extras import import_extra
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.runs.run_config import plain_config
from lox_host.writers._media import Media, check_kinds
from lox_host.writers._run_info import run_title
from lox_host.writers._tracker_rows import nonfinite_counts, tracker_rows

# Names that trackio has for itself.
RESERVED = {"project", "run", "timestamp", "step", "time", "metrics"}


class TrackioWriter:
    """The back end of `TrackioLogger`."""

    def __init__(
        self, project: str, kinds: Mapping[str, str] | None = None, **init_kwargs: Any
    ):
        self._kinds = check_kinds(kinds)
        self._trackio = import_extra("trackio", "TrackioLogger", "trackio")
        self._options = {
            "project": project,
            "embed": False,
            "auto_log_gpu": False,
            "auto_log_cpu": False,
            **init_kwargs,
        }
        self._runs: dict[int, Any] = {}

    def open(self, run: Run) -> None:
        options = {"group": run.launch, "config": plain_config(run.config)}
        options |= self._options
        options["name"] = run_title(run, self._options.get("name"))
        if run.group:
            options["group"] = run.group
        if run.resumed:
            options["resume"] = "allow"
        # In a context of its own, or it would end the run before.
        context = contextvars.Context()
        self._runs[run.id] = context.run(self._trackio.init, **options)

    def write(self, batch: Batch) -> None:
        for row in tracker_rows(batch, self._kinds):
            data = {**row.numbers, **row.other_step_values, **nonfinite_counts(row.arrays)}
            for key, histogram in row.histograms.items():
                data[key] = self._trackio.Histogram(np_histogram=tuple(histogram))
            # trackio copies the files of videos when it is given them.
            with tempfile.TemporaryDirectory() if row.media else nullcontext("") as folder:
                for i, (key, media) in enumerate(row.media.items()):
                    data[key] = self._media(media, os.path.join(folder, f"{i}.gif"))
                named = {_name(key): value for key, value in data.items()}
                self._runs[row.run].log(named, step=row.integer_step)

    def flush(self) -> None:
        """Do nothing: trackio writes on a thread of its own."""

    def close(self, run: Run) -> None:
        self._runs.pop(run.id).finish()

    def _media(self, media: Media, path: str) -> Any:
        if media.kind == "image":
            return self._trackio.Image(media.plain_pixels)
        # From an array, trackio would need a program of its own to make a file.
        media.write(path, "TrackioLogger", "trackio")
        return self._trackio.Video(path)


def _name(key: str) -> str:
    if key in RESERVED:
        return f"{key}_"
    return f"_{key.lstrip('_')}" if key.startswith("__") else key
