"""`lox ls`: the runs of a store."""

import itertools as it
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lox_host.cli.describe import date, described, settings, stored_runs, took
from lox_host.cli.errors import Trouble, missing_key
from lox_host.cli.last_values import lasts
from lox_host.cli.match import within
from lox_host.cli.output import Column, print_json, screen
from lox_host.cli.select_runs import Choice, every, located, several
from lox_host.display.text import clean, count, deviation, digits
from lox_host.store.reader import Stale
from lox_host.store.runs import StoredRun

KEYS = 4  # as many are shown as there is room for, and no more


class Item(NamedTuple):
    """A session of a run, and what is in it."""

    choice: Choice
    stored: StoredRun
    last: dict[str, Any]


class Line(NamedTuple):
    """What stands in one line: a run, or all runs of a session.

    Attributes:
        items: The runs.
        is_inner: Whether the line of all runs of the session is above it.
    """

    items: list[Item]
    is_inner: bool


def ls(where: str, keys: Sequence[str], *, config: bool, as_json: bool) -> None:
    """List the runs of a store, or those that are meant."""
    items = _items(where)
    if as_json:
        print_json([{**described(*item[:2]), "values": item.last} for item in items])
        return
    if not items:
        raise Trouble(f"The store in {where!r} has no runs yet.")
    shown = _shown(where, items, keys)
    lines = _lines(items)
    strong = [i for i, line in enumerate(lines) if len(line.items) > 1]
    columns = _columns(lines, shown, are_asked_for=bool(keys), config=config)
    screen().table(columns, strong)


def _items(where: str) -> list[Item]:
    store, name = located(where)
    while True:
        try:
            choices = several([where]) if name else every(store)
            sessions = {choice.now.folder: choice.now for choice in choices}
            last = {folder: lasts(now) for folder, now in sessions.items()}
            stored = stored_runs(choices)
        except Stale:
            continue
        return [
            Item(choice, run, last[choice.now.folder][choice.id])
            for choice, run in zip(choices, stored, strict=True)
        ]


def _shown(where: str, items: list[Item], keys: Sequence[str]) -> list[str]:
    """The keys that get a column: those that are asked for, or that most runs have."""
    there = Counter(key for item in items for key in item.last)
    if not keys:
        return [key for key, _ in there.most_common(KEYS)]
    found = [[own for own in there if within(own, key)] for key in keys]
    for key, own in zip(keys, found, strict=True):
        if not own:
            raise missing_key(key, f"What `lox ls {where}` lists", there)
    return list(dict.fromkeys(it.chain(*found)))


def _lines(items: list[Item]) -> list[Line]:
    """A run alone, or all runs of a session and then each of them."""
    lines: list[Line] = []
    for _, own in it.groupby(items, key=lambda item: item.choice.now.folder):
        group = list(own)
        lines.append(Line(group, is_inner=False))
        lines += [Line([item], is_inner=True) for item in group if len(group) > 1]
    return lines


def _columns(
    lines: list[Line], keys: list[str], *, are_asked_for: bool, config: bool
) -> list[Column]:
    firsts = [(line.items[0], line.is_inner) for line in lines]
    columns = [
        Column("RUN", [_label(line) for line in lines]),
        Column(
            "STARTED",
            ["" if inner else date(item.stored.start) for item, inner in firsts],
            style="dim",
            optional=True,
        ),
        Column(
            "TOOK",
            ["" if inner else took(item.choice) for item, inner in firsts],
            right=True,
            optional=True,
        ),
        Column("ROWS", [_rows(line) for line in lines], right=True),
    ]
    for key in keys:
        look: Any = {"numbers": True, "optional": not are_asked_for}
        columns.append(Column(clean(key), _values(lines, key), **look))
    if config:
        columns.append(Column("CONFIG", [_config(item) for item, _ in firsts]))
    return columns


def _label(line: Line) -> str:
    first, *others = (item.choice for item in line.items)
    if others:
        session = shlex.quote(os.path.join(first.store, first.session))
        return f"{session} ({count(len(line.items), 'run')})"
    return f"  {first.address}" if line.is_inner else first.address


def _rows(line: Line) -> str:
    low, *_, high = sorted(2 * [item.stored.rows for item in line.items])
    return str(low) if low == high else f"{low}-{high}"


def _values(lines: list[Line], key: str) -> list[str]:
    """The numbers of each line below each other, and their deviations."""
    pairs = [_value(line, key) for line in lines]
    width = max(len(number) for number, _ in pairs)
    return [f"{number:>{width}}{spread}" for number, spread in pairs]


def _value(line: Line, key: str) -> tuple[str, str]:
    """The last value, or the mean over runs of theirs and its deviation."""
    found = [item.last[key] for item in line.items if key in item.last]
    if len(line.items) == 1 or not found:
        return (digits(float(found[0]), found[0].dtype.kind) if found else "", "")
    with np.errstate(all="ignore"):
        numbers = np.array(found, np.float64)
        return digits(numbers.mean()), f" ± {deviation(numbers.std())}"


def _config(item: Item) -> str:
    return " ".join(f"{name}={value}" for name, value in settings(item.stored.config))
