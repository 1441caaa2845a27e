"""`lox export`: convert runs to another format, or send them to a tracker."""

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from lox_host.cli.errors import CLIError
from lox_host.display.text import clean, count
from lox_host.extras import import_extra
from lox_host.reading.select import SelectedRun, by_session, select_all
from lox_host.store import KeyRows, Reader, read_key_rows, reopen, retry_if_stale
from lox_host.wide_table import in_polars, table
from lox_host.writer import Writer
from lox_host.writers._files import create_file
from lox_host.writers.replay import read_recording, replay

# The module of each writer. Only the one that is needed is imported.
FOLDERS = {
    "csv": ("csv", "CSVWriter"),
    "json": ("json", "JSONWriter"),
    "tensorboard": ("tensorboard", "TensorBoardWriter"),
}
TABLES = ("delta", "iceberg", "lance")
PROJECTS = {
    "mlflow": ("mlflow", "MLflowWriter"),
    "neptune": ("neptune", "NeptuneWriter"),
    "trackio": ("trackio", "TrackioWriter"),
    "wandb": ("wandb", "WandbWriter"),
}


def export(where: Sequence[str], to: str, *, out: str | None, project: str | None) -> None:
    """Send runs to a tracker, or write them to files in a folder."""
    _check(to, out, project)
    runs = select_all(where)
    folder = out or to
    if to == "parquet":
        _write_parquet(runs, Path(folder).expanduser())
    elif to in TABLES:
        from lox_host.cli.export_table import write_table

        write_table(runs, to, Path(folder).expanduser())
    else:
        writer = _writer(to, folder, project or "lox")
        for reader, selected in by_session(runs).items():
            recording = read_recording(reader, [run.id for run in selected])
            with _errors_of(to):
                replay(recording, [writer])
    target = f"the project {project or 'lox'!r} of {to}" if to in PROJECTS else folder
    print(clean(f"{count(len(runs), 'run')} exported to {target}"))


@contextlib.contextmanager
def _errors_of(to: str) -> Iterator[None]:
    """Print an error of a tracker in one line, for example if you are not logged in."""
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
    pl = import_extra("polars", "`lox export --to parquet`", "polars")
    for reader, selected in by_session(runs).items():
        key_rows = _read(reader, [run.id for run in selected])
        for run in selected:
            flat = {key: rows.flat(key) for key, rows in key_rows[run.id].items()}
            path = create_file(folder, run.run, ".parquet")
            in_polars(pl, table(flat)).write_parquet(path)


@retry_if_stale
def _read(session: Reader, ids: Sequence[int]) -> dict[int, dict[str, KeyRows]]:
    return read_key_rows(reopen(session), ids)


def _check(to: str, out: str | None, project: str | None) -> None:
    if to in PROJECTS and out is not None:
        raise CLIError(f"{to} has projects, not folders. Give `--project`, not `--out`.")
    if to not in PROJECTS and project is not None:
        raise CLIError(f"{to} is written to a folder. Give `--out`, not `--project`.")
