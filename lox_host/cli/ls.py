"""`lox ls`: the runs of a store."""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lox_host.cli.describe import describe, settings, short_date, stored, time_taken
from lox_host.cli.errors import CLIError
from lox_host.cli.match import select_names
from lox_host.cli.output import Column, Screen, print_json, screen
from lox_host.cli.select_runs import SelectedRun, all_runs, by_session, locate, select_all
from lox_host.display.text import (
    clean,
    count,
    deviation,
    digits,
    diverged,
    not_finite,
)
from lox_host.store import NonFinite, StoredRun, retry_if_stale

NOT_FINITE = 20  # runs that are named because some of their values are not finite
KEYS = 4  # as many are shown as there is room for, and no more


class Item(NamedTuple):
    """A session of a run, what is in it, its last values, and how many are not finite."""

    run: SelectedRun
    stored: StoredRun
    last_values: dict[str, np.generic]
    nonfinite: dict[str, NonFinite]


class Line(NamedTuple):
    """What one line of the table is about: a run, or all runs of a session.

    Attributes:
        items: The runs.
        is_inner: Whether the line of all runs of the session is above it.
    """

    items: list[Item]
    is_inner: bool

    @property
    def label(self) -> str:
        run = self.items[0].run
        if len(self.items) > 1:
            session = shlex.quote(clean(os.path.join(run.store, run.session)))
            return f"{session} ({count(len(self.items), 'run')})"
        return f"  {run.address}" if self.is_inner else run.address

    @property
    def rows(self) -> str:
        rows = [item.stored.rows for item in self.items]
        low, high = min(rows), max(rows)
        return str(low) if low == high else f"{low}-{high}"

    def value(self, key: str) -> tuple[str, str]:
        """Return the last value, or the mean over runs of theirs, and its deviation."""
        found = [item.last_values[key] for item in self.items if key in item.last_values]
        if not found:
            return "", ""
        if len(self.items) == 1:
            return digits(float(found[0]), found[0].dtype.kind), ""
        with np.errstate(all="ignore"):
            numbers = np.array(found, np.float64)
            finite = numbers[np.isfinite(numbers)]
            gone = diverged(len(numbers) - len(finite), len(numbers))
            if not len(finite):
                return digits(numbers.mean()), gone
            return digits(finite.mean()), f" ± {deviation(finite.std())}{gone}"


@retry_if_stale
def ls(where: str, keys: Sequence[str], *, config: bool, as_json: bool) -> None:
    """List the runs of a store, or those that are meant."""
    items = _items(where)
    if as_json:
        print_json([_for_programs(item) for item in items])
        return
    if not items:
        raise CLIError(f"The store in {where!r} has no runs yet.")
    # Without `-k`, the keys that most runs have, in the order of logging where it is a tie.
    known = Counter(key for item in items for key in item.last_values)
    shown = [key for key, _ in known.most_common(KEYS)]
    if keys:
        shown = select_names(known, keys, f"What `lox ls {where}` lists")
    lines = _lines(items)
    strong = [i for i, line in enumerate(lines) if len(line.items) > 1]
    columns = _columns(lines)
    columns += [_value_column(lines, key, is_optional=not keys) for key in shown]
    if config:
        columns.append(Column("CONFIG", [_config(line.items[0]) for line in lines]))
    out = screen()
    out.table(columns, strong)
    _print_nonfinite(out, [item for item in items if item.nonfinite])


def _print_nonfinite(out: Screen, items: list[Item]) -> None:
    """Print which keys of which runs are not finite, and since when."""
    if items:
        out.line()
    for item in items[:NOT_FINITE]:
        for key, bad in item.nonfinite.items():
            text = not_finite(bad.rows, bad.step, bad.first)
            out.line((f"{item.run.address}: {clean(key)} {text}", "red"))
    if len(items) > NOT_FINITE:
        more = count(len(items) - NOT_FINITE, "more run")
        out.line((f"and values that are not finite in {more}", "red"))


def _items(where: str) -> list[Item]:
    store, name = locate(where)
    runs = select_all([where]) if name else all_runs(store)
    last_values = {reader: reader.last_values() for reader in by_session(runs)}
    nonfinite = {reader: reader.nonfinite() for reader in last_values}
    return [
        Item(
            run,
            its_stored,
            last_values[run.reader][run.id],
            nonfinite[run.reader].get(run.id, {}),
        )
        for run, its_stored in zip(runs, stored(runs), strict=True)
    ]


def _for_programs(item: Item) -> dict[str, Any]:
    bad = {
        key: {
            "count": found.rows,
            "first": {found.step: found.first} if found.step else None,
        }
        for key, found in item.nonfinite.items()
    }
    values = {"values": item.last_values, "nonfinite": bad}
    return {**describe(item.run, item.stored), **values}


def _lines(items: list[Item]) -> list[Line]:
    """Return a line for a run alone, or for all runs of a session and then each of them."""
    sessions: dict[str, list[Item]] = {}
    for item in items:
        sessions.setdefault(item.stored.session, []).append(item)
    lines: list[Line] = []
    for group in sessions.values():
        lines.append(Line(group, is_inner=False))
        if len(group) > 1:
            lines += [Line([item], is_inner=True) for item in group]
    return lines


def _columns(lines: list[Line]) -> list[Column]:
    firsts = [None if line.is_inner else line.items[0].run for line in lines]
    started = [short_date(run.run.start) if run else "" for run in firsts]
    took = [time_taken(run) if run else "" for run in firsts]
    return [
        Column("RUN", [line.label for line in lines]),
        Column("STARTED", started, style="dim", optional=True),
        Column("TOOK", took, right=True, optional=True),
        Column("ROWS", [line.rows for line in lines], right=True),
    ]


def _value_column(lines: list[Line], key: str, *, is_optional: bool) -> Column:
    """Return the numbers of each line below each other, and their deviations."""
    pairs = [line.value(key) for line in lines]
    width = max(len(number) for number, _ in pairs)
    cells = [f"{number:>{width}}{spread}" for number, spread in pairs]
    return Column(clean(key), cells, numbers=True, optional=is_optional)


def _config(item: Item) -> str:
    return " ".join(f"{name}={value}" for name, value in settings(item.stored.config))
