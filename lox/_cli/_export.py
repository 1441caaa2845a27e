"""`lox export`: runs in another format, or in a tracker."""

import itertools as it
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lox._extras import imported
from lox._forward import forward, of_session
from lox._load import of_run
from lox._recorded import run_of
from lox._runs import of_session as stored_runs
from lox._writer import Writer
from lox.loggers._csv import CSVWriter
from lox.loggers._json import JSONWriter
from lox.loggers._lines import create
from lox.loggers._mlflow import MLflowWriter
from lox.loggers._neptune import NeptuneWriter
from lox.loggers._tensorboard import TensorBoardWriter
from lox.loggers._trackio import TrackioWriter
from lox.loggers._wandb import WandbWriter
from lox.loggers._words import count

from ._choose import Choice, several
from ._trouble import Trouble

FOLDERS: dict[str, Callable[[str], Writer]] = {
    "csv": CSVWriter,
    "json": JSONWriter,
    "tensorboard": TensorBoardWriter,
}
PROJECTS: dict[str, Callable[[str], Writer]] = {
    "mlflow": MLflowWriter,
    "neptune": lambda project: NeptuneWriter(project=project),
    "trackio": TrackioWriter,
    "wandb": lambda project: WandbWriter(project=project),
}


def export(where: Sequence[str], to: str, *, out: str | None, project: str | None) -> None:
    """Send runs to a tracker, or into files in a folder."""
    _check(to, out, project)
    choices = several(where)
    folder = out or to
    if to == "parquet":
        _to_parquet(choices, Path(folder).expanduser())
    else:
        writer = PROJECTS[to](project or "lox") if to in PROJECTS else FOLDERS[to](folder)
        sessions = it.groupby(choices, key=lambda choice: choice.now)
        found = (of_session(now, [c.id for c in own]) for now, own in sessions)
        forward(found, [writer])
    target = f"the project {project or 'lox'!r} of {to}" if to in PROJECTS else folder
    print(f"{count(len(choices), 'run')} exported to {target}")


def _to_parquet(choices: Sequence[Choice], folder: Path) -> None:
    imported("polars", "`lox export --to parquet`", "polars")
    for choice in choices:
        stored = dict(zip(choice.now.runs, stored_runs(choice.now), strict=True))
        logs = of_run(choice.store, choice.now, choice.id, stored[choice.id].keys)
        table: Any = logs.to_polars()
        table.write_parquet(create(folder, run_of(choice.run), ".parquet"))


def _check(to: str, out: str | None, project: str | None) -> None:
    if to in PROJECTS and out is not None:
        raise Trouble(f"{to} has projects, not folders. Give `--project`, not `--out`.")
    if to not in PROJECTS and project is not None:
        raise Trouble(f"{to} is written to a folder. Give `--out`, not `--project`.")
