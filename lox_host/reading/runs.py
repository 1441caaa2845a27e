"""`Runs`: the list that `lox.runs` returns, which displays as a table."""

import dataclasses
import shutil
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from lox_host.display.columns import Column, fit, html_table, text_lines
from lox_host.display.text import clean, count
from lox_host.extras import import_extra
from lox_host.reading.garbage_collector import paused_collector
from lox_host.reading.overview import health, overview
from lox_host.reading.select import SelectedRun, all_runs, by_session, select_all
from lox_host.reading.where import Where, select_where
from lox_host.store import Path, StoredRun, retry_if_stale, stored_runs
from lox_host.wide_table import Cells, column_of, in_pandas, in_polars, plain

if TYPE_CHECKING:
    import pandas
    import polars

LINES = 40  # runs that are shown
LATEST = 10  # of them, those at the end


class Runs(list[StoredRun]):
    """Runs of stores, the oldest first. They print as a table, in notebooks too.

    `to_pandas` and `to_polars` return all of it as a table of these libraries.
    """

    @overload
    def __getitem__(self, i: SupportsIndex, /) -> StoredRun: ...
    @overload
    def __getitem__(self, i: slice, /) -> "Runs": ...
    def __getitem__(self, i: SupportsIndex | slice, /) -> "StoredRun | Runs":
        found = super().__getitem__(i)
        return Runs(found) if isinstance(i, slice) else found  # pyright: ignore[reportArgumentType, reportReturnType]

    def where(self, where: Where) -> "Runs":
        """Return the runs for which a condition is true, such as `"lr > 1e-3"`."""
        return Runs(select_where(self, where))

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a table with a line for each run: name, state, config and last values.

        A config entry with the same name as a key has `config.` in front of its name.
        Needs the extra `jax-lox[pandas]`.
        """
        pd = import_extra("pandas", "`runs.to_pandas()`", "pandas")
        return in_pandas(pd, run_columns(self))

    def to_polars(self) -> "polars.DataFrame":
        """Return the table of `to_pandas` in polars. Needs the extra `jax-lox[polars]`."""
        pl = import_extra("polars", "`runs.to_polars()`", "polars")
        return in_polars(pl, run_columns(self))

    def __repr__(self) -> str:
        width = shutil.get_terminal_size().columns
        lines = text_lines(fit(self._table(), width))
        return "\n".join([*lines, self._note()]) if self else "no runs"

    def _repr_html_(self) -> str:
        return html_table(self._table(), self._note())

    # Without this, IPython would show the list element by element.
    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _table(self) -> list[Column]:
        shown = list(self)
        if len(shown) > LINES:
            shown = shown[: LINES - LATEST] + shown[-LATEST:]
        stores = {run.store for run in self}
        labels = [clean(run.path if len(stores) > 1 else short_name(run)) for run in shown]
        return overview(shown, labels, among=self)

    def _note(self) -> str:
        hidden = len(self) - LINES
        left_out = f", {count(hidden, 'line')} left out in the middle" if hidden > 0 else ""
        return f"[{health(self)}{left_out}]"


def short_name(run: StoredRun) -> str:
    """Return the name of a run for `lox.load(path, run=...)`."""
    # The path without the store: the name, which may contain a slash, and `@2`.
    return run.path[run.path.rfind(run.name) :] if run.name in run.path else run.name


@retry_if_stale
def list_runs(paths: Path | Iterable[Path], where: Where | None = None) -> Runs:
    """Return every session of every run in stores, the oldest first."""
    runs = describe_runs(all_runs(paths))
    return Runs(select_where(runs, where))


@paused_collector()
def describe_runs(selected: Sequence[SelectedRun]) -> list[StoredRun]:
    """Return a description of each run. This reads each session once."""
    sessions = {reader: stored_runs(reader) for reader in by_session(selected)}
    return [
        dataclasses.replace(sessions[run.reader][run.id], path=run.path, index=run.index)
        for run in selected
    ]


def select_meant(texts: Iterable[str], where: Where | None) -> list[SelectedRun]:
    """Return the runs that match words and a condition, each in its newest session."""
    runs = select_all(texts)
    if where is None:
        return runs
    # Lines of several stores may have the same numbers.
    stored = describe_runs(runs)
    # By identity: descriptions of two runs may be equal.
    meant = {id(run) for run in select_where(stored, where)}
    found = [run for run, its in zip(runs, stored, strict=True) if id(its) in meant]
    if not found:
        raise LookupError(f"{count(len(runs), 'run')} found, but none matches {where}.")
    return found


def run_columns(runs: Sequence[StoredRun]) -> dict[str, Cells]:
    """Return the columns of a table with one line per run."""
    keys = dict.fromkeys(key for run in runs for key in run.last)
    columns = {
        "run": column_of([run.path for run in runs]),
        "name": column_of([run.name for run in runs]),
        "state": column_of([run.state for run in runs]),
        "start": column_of([float(run.start) for run in runs]),
        "took": column_of([float(run.took) for run in runs]),
        "rows": column_of([run.rows for run in runs]),
    }
    # A config entry may be called like a key or a column. Both stay, under longer names.
    taken = {*columns, *keys}
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        free = f"config.{name}" if name in taken else name
        columns[free] = column_of([run.settings.get(name) for run in runs])
    for key in keys:
        values = [run.last.get(key) for run in runs]
        free = f"last.{key}" if key in columns else key
        columns[free] = column_of([None if x is None else plain_number(x) for x in values])
    return columns


def plain_number(value: Any) -> bool | int | float:
    """Convert a number of NumPy or another library to a Python number."""
    return plain(value.reshape(1))[0].item()
