"""The writer of `WandbLogger`."""

import os
from collections.abc import Mapping
from typing import Any

from lox_host.extras import import_extra
from lox_host.rows import Batch
from lox_host.writer import Run
from lox_host.writers._files import check_exists
from lox_host.writers._run_info import plain_config, run_title
from lox_host.writers._tracker_rows import (
    TrackerRow,
    histograms,
    nonfinite_counts,
    tracker_rows,
)

# What wandb does for each run beside taking its rows is too much for hundreds of them.
CHEAP = {"silent": True, "console": "off", "x_disable_stats": True}
# Names that wandb has for itself.
RESERVED = {"_step", "_runtime", "_timestamp", "_wandb"}


class WandbWriter:
    """The back end of `WandbLogger`."""

    def __init__(self, **init_kwargs: Any):
        self._wandb = import_extra("wandb", "WandbLogger", "wandb")
        self._options = init_kwargs
        self._runs: dict[int, Any] = {}
        self._defined: dict[int, set[str]] = {}
        self._folders: dict[int, str] = {}

    def open(self, run: Run) -> None:
        names = {"name": run_title(run, self._options.get("name"))}
        if "id" in self._options:
            names["id"] = run_title(run, self._options["id"])
        self._runs[run.id] = self._wandb.init(
            **{
                "group": run.group,
                "reinit": "create_new",
                "config": plain_config(run.config),
                **self._options,
                **names,
                "settings": self._settings(),
            }
        )
        self._defined[run.id] = set()
        folder = self._runs[run.id].dir
        if folder and os.path.exists(folder):
            self._folders[run.id] = folder

    def write(self, batch: Batch) -> None:
        for row in tracker_rows(batch):
            data = {**row.numbers, **row.step_values, **nonfinite_counts(row.arrays)}
            for key, histogram in histograms(row.arrays).items():
                data[key] = self._wandb.Histogram(np_histogram=histogram)
            self._define(row)
            self._runs[row.run].log({_name(key): value for key, value in data.items()})

    def flush(self) -> None:
        """Check that files are where they were: wandb has a process that writes them."""
        for folder in self._folders.values():
            check_exists(folder)

    def close(self, run: Run) -> None:
        del self._defined[run.id]
        self._folders.pop(run.id, None)
        self._runs.pop(run.id).finish()

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
        keys = {key for key in (*row.numbers, *row.arrays) if "*" not in key}
        step = _name(row.plot_against)
        for key in keys - self._defined[row.run]:
            self._runs[row.run].define_metric(_name(key), step_metric=step)
        self._defined[row.run] |= keys


def _name(key: str) -> str:
    return f"{key}_" if key in RESERVED else key
