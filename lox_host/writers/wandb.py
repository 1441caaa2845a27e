"""The writer of `WandbLogger`."""

import os
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from lox_host.extras import import_extra
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.runs.run_config import plain_config
from lox_host.writers._files import check_exists
from lox_host.writers._media import Media, check_kinds
from lox_host.writers._run_info import run_title
from lox_host.writers._tracker_rows import TrackerRow, nonfinite_counts, tracker_rows

# What wandb does for each run beside taking its rows is too much for hundreds of them.
CHEAP = {"silent": True, "console": "off", "x_disable_stats": True}
# How many bins wandb takes.
BINS = 512
# Names that wandb has for itself.
RESERVED = {"_step", "_runtime", "_timestamp", "_wandb"}


class WandbWriter:
    """The back end of `WandbLogger`."""

    def __init__(self, kinds: Mapping[str, str] | None = None, **init_kwargs: Any):
        self._wandb = import_extra("wandb", "WandbLogger", "wandb")
        self._options, self._kinds = init_kwargs, check_kinds(kinds)
        self._runs: dict[int, Any] = {}
        self._defined: dict[int, set[str]] = {}
        self._folders: dict[int, str] = {}

    def open(self, run: Run) -> None:
        # What differs from run to run. It takes the options of the user into account.
        of_run = {
            "name": run_title(run, self._options.get("name")),
            "id": self._id(run),
            "tags": [*(self._options.get("tags") or ()), *run.tags],
            "settings": self._settings(),
        }
        if run.group:
            of_run["group"] = run.group
        if run.resumed:
            of_run["resume"] = "allow"
        self._runs[run.id] = self._wandb.init(
            **{
                "group": run.launch,
                "reinit": "create_new",
                "config": plain_config(run.config),
                **self._options,
                **of_run,
            }
        )
        self._defined[run.id] = set()
        folder = self._runs[run.id].dir
        if folder and os.path.exists(folder):
            self._folders[run.id] = folder

    def write(self, batch: Batch) -> None:
        for row in tracker_rows(batch, self._kinds):
            data = {**row.numbers, **row.step_values, **nonfinite_counts(row.arrays)}
            for key, histogram in row.histograms.items():
                fewer = tuple(histogram.with_at_most(BINS))
                data[key] = self._wandb.Histogram(np_histogram=fewer)
            self._define(row)
            # wandb copies the files of videos when it is given them.
            with tempfile.TemporaryDirectory() if row.media else nullcontext("") as folder:
                for i, (key, media) in enumerate(row.media.items()):
                    data[key] = self._media(media, os.path.join(folder, f"{i}.gif"))
                named = {_name(key): x for key, x in data.items()}
                self._runs[row.run].log({**named, "_timestamp": row.time})

    def flush(self) -> None:
        """Check that files are where they were: wandb has a process that writes them."""
        for folder in self._folders.values():
            check_exists(folder)

    def close(self, run: Run) -> None:
        del self._defined[run.id]
        self._folders.pop(run.id, None)
        self._runs.pop(run.id).finish()

    def _id(self, run: Run) -> str:
        """Return W&B's id of a run: a new one, or that of the run that it continues."""
        if "id" in self._options:
            return run_title(run, self._options["id"])
        process = f"-{run.process}" if run.process else ""
        identity = run.identity[:12]
        if run.resumed:
            # The folders of runs are called after their date and id.
            folder = Path(self._options.get("dir") or os.environ.get("WANDB_DIR") or ".")
            found = folder.glob(f"*wandb/*run-*-{identity}????????{process}")
            dates = {path.name.split("run-")[-1]: path for path in found}
            if dates:
                return max(dates).split("-", 1)[1]
        return f"{identity}{run.launch}{process}"

    def _media(self, media: Media, path: str) -> Any:
        if media.kind == "image":
            return self._wandb.Image(media.plain_pixels)
        # From an array, wandb would need another library to make a file.
        media.write(path, "WandbLogger", "wandb")
        return self._wandb.Video(path, format="gif")

    def _settings(self) -> Any:
        given = self._options.get("settings") or {}
        if not isinstance(given, Mapping):
            given = {name: getattr(given, name) for name in given.model_fields_set}
        # To list what is installed takes wandb long, and one of the runs will do.
        first = {"x_save_requirements": not self._runs}
        return self._wandb.Settings(**{**CHEAP, **first, **given})

    def _define(self, row: TrackerRow) -> None:
        """Say against what the keys of a row are plotted, if it is not known yet."""
        if row.plot_against is None:
            return
        # A star would mean all keys that begin so.
        keys = {key for key in row.names if "*" not in key}
        step = _name(row.plot_against)
        for key in keys - self._defined[row.run]:
            self._runs[row.run].define_metric(_name(key), step_metric=step)
        self._defined[row.run] |= keys


def _name(key: str) -> str:
    return f"{key}_" if key in RESERVED else key
