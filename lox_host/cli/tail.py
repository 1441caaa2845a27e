"""`lox tail`: print the last rows of runs, and then each new row."""

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from lox_host.cli.output import Part, Screen, print_json, screen
from lox_host.display.text import clean, digits
from lox_host.display.values import short
from lox_host.reading.names import find_names, missing_key, wanted_names
from lox_host.reading.select import select_runs
from lox_host.rows import Batch, Row
from lox_host.store import Follower, Reader
from lox_host.tree import leaves

PAUSE = 0.25  # seconds between two looks
TOGETHER = 0.05  # seconds within which the keys of a flush are written


def tail(
    where: str, keys: Sequence[str], number: int, *, follow: bool, as_json: bool
) -> None:
    """Print the last rows of the newest matching session, then new rows until it ends."""
    runs = select_runs(where)
    reader = max((run.reader for run in runs), key=lambda reader: reader.folder)
    names = {run.id: clean(run.name) for run in runs if run.reader.folder == reader.folder}
    # Which keys are wanted is asked again when new ones appear.
    follower = Follower(reader.folder, names, lambda known: wanted_names(known, keys))
    rows = list(Batch(follower.last(number)).rows())
    if len(rows) < number:
        rows = _earlier_rows(reader, names, keys) + rows
    _check_keys([*reader.keys, *follower.keys], follower.ended, keys, where, follow=follow)
    out = None if as_json else screen()
    _print(out, rows[len(rows) - min(number, len(rows)) :], names)
    while follow and not follower.ended:
        time.sleep(PAUSE)
        blocks = follower.new()
        if blocks:
            # Each group of keys has its own frame. Wait for the frames of the same step, so
            # that they are printed in one row.
            time.sleep(TOGETHER)
            blocks += follower.new()
        _print(out, list(Batch(blocks).rows()), names)
    if follow:
        print(f"lox: {clean(where)} has ended.", file=sys.stderr)


def _earlier_rows(reader: Reader, names: Collection[int], keys: Sequence[str]) -> list[Row]:
    """Return what earlier sessions have of runs that were resumed."""
    if reader.history is None:
        return []
    wanted = wanted_names(reader.history.keys, keys)
    return list(Batch(list(reader.history.blocks(names, wanted))).rows())


def _check_keys(
    known: Sequence[str], ended: bool, keys: Sequence[str], where: str, *, follow: bool
) -> None:
    """Raise if a key is missing, or warn if it may still come."""
    for key in keys:
        if find_names(known, key):
            continue
        error = missing_key(key, where, dict.fromkeys(known))
        if ended or not follow:
            raise error
        print(f"lox: {clean(str(error))} Waiting for it.", file=sys.stderr)


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
