"""`lox export`: runs in another format, or in a tracker."""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lox_host.cli.errors import CLIError
from lox_host.cli.select_runs import SelectedRun, by_session, select_all
from lox_host.display.text import count
from lox_host.extras import imported
from lox_host.writer import Writer
from lox_host.writers._files import create
from lox_host.writers.replay import read_recording, replay

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
    runs = select_all(where)
    folder = out or to
    if to == "parquet":
        _write_parquet(runs, Path(folder).expanduser())
    else:
        writer = _writer(to, folder, project or "lox")
        for reader, selected in by_session(runs).items():
            recording = read_recording(reader, [run.id for run in selected])
            with _errors_of(to):
                replay(recording, [writer])
    target = f"the project {project or 'lox'!r} of {to}" if to in PROJECTS else folder
    print(f"{count(len(runs), 'run')} exported to {target}")


@contextlib.contextmanager
def _errors_of(to: str) -> Iterator[None]:
    """Show what a tracker raises, such as that nobody is logged in, in one line."""
    try:
        yield
    except Exception as error:
        if to not in PROJECTS:
            raise
        raise CLIError(f"{to} raised {type(error).__name__}: {error}") from error


def _writer(to: str, folder: str, project: str) -> Writer:
    module, name = (FOLDERS | PROJECTS)[to]
    writer_class = getattr(importlib.import_module(f"lox_host.writers.{module}"), name)
    if to in FOLDERS:
        return writer_class(folder)
    return writer_class(**{"experiment_name" if to == "mlflow" else "project": project})


def _write_parquet(runs: Sequence[SelectedRun], folder: Path) -> None:
    imported("polars", "`lox export --to parquet`", "polars")
    from lox._io.load import of_run  # with JAX

    for run in runs:
        table: Any = of_run(run.reader, run.id).to_polars()
        table.write_parquet(create(folder, run.run, ".parquet"))


def _check(to: str, out: str | None, project: str | None) -> None:
    if to in PROJECTS and out is not None:
        raise CLIError(f"{to} has projects, not folders. Give `--project`, not `--out`.")
    if to not in PROJECTS and project is not None:
        raise CLIError(f"{to} is written to a folder. Give `--out`, not `--project`.")
