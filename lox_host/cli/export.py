"""`lox export`: runs in another format, or in a tracker."""

import contextlib
import importlib
import itertools as it
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lox_host.cli.describe import stored_runs
from lox_host.cli.errors import Trouble
from lox_host.cli.select_runs import Choice, several
from lox_host.display.text import count
from lox_host.extras import imported
from lox_host.store.recorded import run_of
from lox_host.writer import Writer
from lox_host.writers._files import create
from lox_host.writers.replay import forward, of_session

# Where the writers are: only the one that is needed is imported.
FOLDERS = {
    "csv": ("csv", "CSVWriter"),
    "json": ("json", "JSONWriter"),
    "tensorboard": ("tensorboard", "TensorBoardWriter"),
}
PROJECTS = {
    "mlflow": ("mlflow", "MLflowWriter"),
    "neptune": ("neptune", "NeptuneWriter"),
    "trackio": ("trackio", "TrackioWriter"),
    "wandb": ("wandb", "WandbWriter"),
}


def export(where: Sequence[str], to: str, *, out: str | None, project: str | None) -> None:
    """Send runs to a tracker, or into files in a folder."""
    _check(to, out, project)
    choices = several(where)
    folder = out or to
    if to == "parquet":
        _to_parquet(choices, Path(folder).expanduser())
    else:
        writer = _writer(to, folder, project or "lox")
        sessions = it.groupby(choices, key=lambda choice: choice.now)
        found = (of_session(now, [c.id for c in own]) for now, own in sessions)
        for own in found:
            with _said_by(to):
                forward([own], [writer])
    target = f"the project {project or 'lox'!r} of {to}" if to in PROJECTS else folder
    print(f"{count(len(choices), 'run')} exported to {target}")


@contextlib.contextmanager
def _said_by(to: str) -> Iterator[None]:
    """What a tracker has against it, such as that nobody is logged in, in one line."""
    try:
        yield
    except Exception as error:
        if to not in PROJECTS:
            raise
        raise Trouble(f"{to} raised {type(error).__name__}: {error}") from error


def _writer(to: str, folder: str, project: str) -> Writer:
    module, name = (FOLDERS | PROJECTS)[to]
    kind = getattr(importlib.import_module(f"lox_host.writers.{module}"), name)
    if to in FOLDERS:
        return kind(folder)
    return kind(**{"experiment_name" if to == "mlflow" else "project": project})


def _to_parquet(choices: Sequence[Choice], folder: Path) -> None:
    imported("polars", "`lox export --to parquet`", "polars")
    from lox._io.load import of_run  # with JAX

    for choice, stored in zip(choices, stored_runs(choices), strict=True):
        logs = of_run(choice.store, choice.now, choice.id, stored.keys)
        table: Any = logs.to_polars()
        table.write_parquet(create(folder, run_of(choice.run), ".parquet"))


def _check(to: str, out: str | None, project: str | None) -> None:
    if to in PROJECTS and out is not None:
        raise Trouble(f"{to} has projects, not folders. Give `--project`, not `--out`.")
    if to not in PROJECTS and project is not None:
        raise Trouble(f"{to} is written to a folder. Give `--out`, not `--project`.")
