"""`lox tail`: the last rows of runs, and those that come."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lox_host.cli.errors import missing_key
from lox_host.cli.follow import Follower
from lox_host.cli.match import within
from lox_host.cli.output import Part, Screen, print_json, screen
from lox_host.cli.select_runs import chosen
from lox_host.display.text import clean, digits
from lox_host.display.values import short
from lox_host.rows import Batch, Block, Row
from lox_host.tree import leaves

PAUSE = 0.25  # seconds between two looks
TOGETHER = 0.05  # seconds within which the keys of a flush are written


def tail(
    where: str, keys: Sequence[str], number: int, *, follow: bool, as_json: bool
) -> None:
    """Print the last rows of the newest session that is meant, and go on until it ends."""
    runs = chosen(where)
    newest = max(runs, key=lambda choice: choice.now.folder.name).now.folder
    own = {choice.id: choice for choice in runs if choice.now.folder == newest}
    names = {id: choice.name for id, choice in own.items()}
    follower = Follower(next(iter(own.values())).now, own, keys)
    rows = _rows(follower.last(number) if number else _skipped(follower))
    _check(follower, keys, where, follow=follow)
    out = None if as_json else screen()
    _print(out, rows[len(rows) - min(number, len(rows)) :], names)
    while follow and not follower.ended:
        time.sleep(PAUSE)
        blocks = follower.new()
        if blocks:
            time.sleep(TOGETHER)
            blocks += follower.new()
        _print(out, _rows(blocks), names)
    if follow:
        print(f"lox: {where} has ended.", file=sys.stderr)


def _skipped(follower: Follower) -> list[Block]:
    follower.last(0)
    return []


def _check(follower: Follower, keys: Sequence[str], where: str, *, follow: bool) -> None:
    for key in keys:
        if any(within(own, key) for own in follower.keys):
            continue
        error = missing_key(key, where, follower.keys)
        if follower.ended or not follow:
            raise error
        print(f"lox: {error} It may come.", file=sys.stderr)


def _rows(blocks: Sequence[Block]) -> list[Row]:
    return list(Batch(blocks).rows())


def _print(out: Screen | None, rows: Sequence[Row], names: dict[int, str]) -> None:
    for row in rows:
        if out is None:
            print_json(_for_programs(row, names))
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


def _for_programs(row: Row, names: dict[int, str]) -> dict[str, Any]:
    return {"run": names[row.run], "steps": row.steps, "values": row.values}
