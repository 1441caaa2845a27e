"""`lox compare`: print configs and last values of runs side by side."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from lox_host.cli.errors import CLIError
from lox_host.cli.output import print_json, screen
from lox_host.display.columns import GAP, Column, cut, room
from lox_host.display.text import clean, count, digits
from lox_host.reading.names import select_names
from lox_host.reading.run_fields import in_words
from lox_host.reading.runs import describe_runs, plain_number, select_meant, short_name
from lox_host.reading.where import is_equal
from lox_host.store import StoredRun, retry_if_stale

DIFFERS = "*"  # before what differs
NARROWEST = 10  # width of a name that is cut


@retry_if_stale
def compare(
    where: Sequence[str], keys: Sequence[str], *, differing: bool, as_json: bool
) -> None:
    """Print a line for each entry of the configs and each last value, a column per run."""
    runs = describe_runs(select_meant(where, None))
    if len(runs) < 2:
        raise CLIError(f"{' '.join(where)} is one run. Give two runs or more to compare.")
    known = dict.fromkeys(key for run in runs for key in run.last)
    shown = select_names(known, keys, " ".join(where)) if keys else list(known)
    entries = list(dict.fromkeys(name for run in runs for name in run.settings))
    if as_json:
        print_json([_for_programs(run, shown) for run in runs])
        return
    table = [
        _line("state", [run.state for run in runs]),
        _line("rows", [run.rows for run in runs]),
    ]
    for entry in entries:
        table.append(_line(f"config {entry}", [run.settings.get(entry) for run in runs]))
    for key in shown:
        table.append(_line(f"last {key}", [run.last.get(key) for run in runs]))
    if differing:
        table = [line for line in table if line[0]]
    # From lines to columns. Without lines, there is still a column for each run.
    marks, names, *cells = (
        zip(*table, strict=True) if table else ((), (), *[()] * len(runs))
    )
    lines = [Column("", marks, style="red"), Column("", names)]
    columns = [
        Column(label, of_run, right=True, numbers=True)
        for label, of_run in zip(_labels(runs), cells, strict=True)
    ]
    out = screen()
    for some in _tables(columns, None if out.width is None else room(lines, out.width)):
        out.table([*lines, *some])
    number = sum(bool(mark) for mark, *_ in table)
    total = count(len(table), "line")
    out.line((f"[{number} of {total} differ, marked {DIFFERS}]", "dim"))


def _tables(columns: Sequence[Column], width: int | None) -> list[Sequence[Column]]:
    """Divide the columns of runs into tables that are no wider than this.

    Names are cut if that saves a table, as long as they still differ.
    """
    if width is None:
        return [columns]
    widest_cell = max(len(cell) for column in columns for cell in column.cells or [""])
    widest_name = max(len(column.head) for column in columns)
    least = max(widest_cell, min(widest_name, NARROWEST))

    def names(per_table: int) -> list[str]:
        return [cut(column.head, width // per_table - GAP) for column in columns]

    def fits(per_table: int) -> bool:
        is_wide_enough = width // per_table - GAP >= least
        return is_wide_enough and len({*names(per_table)}) == len(columns)

    per_table = next(filter(fits, range(len(columns), 1, -1)), None)
    if per_table is None:
        return [[column] for column in columns]
    narrow = [
        dataclasses.replace(column, head=name)
        for column, name in zip(columns, names(per_table), strict=True)
    ]
    return [narrow[i : i + per_table] for i in range(0, len(narrow), per_table)]


def _line(name: str, values: Sequence[object]) -> tuple[str, ...]:
    """Return a line of the table: whether values differ, the name, a cell for each run."""
    plain = [plain_number(x) if isinstance(x, np.generic) else x for x in values]
    # Compare values, not texts: numbers may differ in digits that are not shown.
    mark = "" if all(is_equal(x, plain[0]) for x in plain) else DIFFERS
    return mark, clean(name), *map(_text, values)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, np.generic):
        return digits(float(value), value.dtype.kind)
    return clean(in_words(value))


def _labels(runs: Sequence[StoredRun]) -> list[str]:
    """Return the names of runs, with their stores if they have the same ones."""
    names = [short_name(run) for run in runs]
    if len({*names}) < len(names):
        names = [run.path for run in runs]
    return [clean(name) for name in names]


def _for_programs(run: StoredRun, keys: Sequence[str]) -> dict[str, Any]:
    last = {key: plain_number(run.last[key]) for key in keys if key in run.last}
    about = {"run": run.path, "state": run.state, "start": run.start, "took": run.took}
    return {**about, "rows": run.rows, "config": dict(run.config), "last": last}
