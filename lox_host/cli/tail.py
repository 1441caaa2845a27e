"""`lox tail`: the last rows of runs, and those that come."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lox_host.cli.errors import missing_key
from lox_host.cli.match import is_wanted, matches
from lox_host.cli.output import Part, Screen, print_json, screen
from lox_host.cli.select_runs import select_runs
from lox_host.display.text import clean, digits
from lox_host.display.values import short
from lox_host.rows import Batch, Row
from lox_host.store import Follower
from lox_host.tree import leaves

PAUSE = 0.25  # seconds between two looks
TOGETHER = 0.05  # seconds within which the keys of a flush are written


def tail(
    where: str, keys: Sequence[str], number: int, *, follow: bool, as_json: bool
) -> None:
    """Print the last rows of the newest session that is meant, and go on until it ends."""
    runs = select_runs(where)
    session = max(run.reader.folder for run in runs)
    names = {run.id: clean(run.name) for run in runs if run.reader.folder == session}
    follower = Follower(session, names, lambda key: is_wanted(key, keys))
    blocks = follower.last(number)
    rows = list(Batch(blocks).rows())
    _check_keys(follower, keys, where, follow=follow)
    out = None if as_json else screen()
    _print(out, rows[len(rows) - min(number, len(rows)) :], names)
    while follow and not follower.ended:
        time.sleep(PAUSE)
        blocks = follower.new()
        if blocks:
            # Each group of keys has its own frame: wait for those of the same step, so that
            # they are printed in one row.
            time.sleep(TOGETHER)
            blocks += follower.new()
        _print(out, list(Batch(blocks).rows()), names)
    if follow:
        print(f"lox: {clean(where)} has ended.", file=sys.stderr)


def _check_keys(
    follower: Follower, keys: Sequence[str], where: str, *, follow: bool
) -> None:
    """Raise for a key that is not there, or warn if it may come."""
    for key in keys:
        if any(matches(name, key) for name in follower.keys):
            continue
        error = missing_key(key, where, follower.keys)
        if follower.ended or not follow:
            raise error
        print(f"lox: {clean(str(error))} It may come.", file=sys.stderr)


def _print(out: Screen | None, rows: Sequence[Row], names: dict[int, str]) -> None:
    for row in rows:
        if out is None:
            fields = {"run": names[row.run], "steps": row.steps, "values": row.values}
            print_json(fields)
        else:
            out.line(*_parts(row, names))
    sys.stdout.flush()


def _parts(row: Row, names: dict[int, str]) -> Iterator[Part]:
    if len(names) > 1:
        yield f"{names[row.run]:{max(map(len, names.values()))}}  ", "cyan"
    values = [pair for key, tree in row.values.items() for pair in leaves(tree, key)]
    for i, (name, value) in enumerate([*row.steps.items(), *values]):
        yield f"{'  ' if i else ''}{clean(name)} ", "dim"
        text = _text(value)
        yield text, "red" if text in ("nan", "inf", "-inf") else ""


def _text(value: Any) -> str:
    if np.ndim(value) or np.iscomplexobj(value):
        return clean(short(value))
    return digits(float(value), value.dtype.kind)
