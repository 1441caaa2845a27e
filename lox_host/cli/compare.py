"""`lox compare`: print configs and last values of runs side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lox_host.cli.errors import CLIError
from lox_host.cli.output import print_json, screen
from lox_host.display.columns import Column
from lox_host.display.text import clean, count, digits
from lox_host.reading.fields import in_words
from lox_host.reading.names import select_names
from lox_host.reading.runs import describe_runs, plain_number, select_meant, short_name
from lox_host.reading.where import is_equal
from lox_host.store import StoredRun, retry_if_stale

DIFFERS = "*"  # before what differs


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
    columns = [Column("", marks, style="red"), Column("", names)]
    labels = _labels(runs)
    columns += [
        Column(label, of_run, right=True, numbers=True)
        for label, of_run in zip(labels, cells, strict=True)
    ]
    out = screen()
    out.table(columns)
    number = sum(bool(mark) for mark, *_ in table)
    lines = count(len(table), "line")
    out.line((f"[{number} of {lines} differ, marked {DIFFERS}]", "dim"))


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
