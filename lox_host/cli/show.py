"""`lox show`: what is in a run, or in several of them together."""

import itertools as it
import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lox_host.cli.describe import described, moment, settings, stored_runs, took
from lox_host.cli.errors import missing_key
from lox_host.cli.match import within
from lox_host.cli.output import GAP, Column, Screen, print_json, room, screen
from lox_host.cli.select_runs import Choice, several
from lox_host.display.statistics import Statistics
from lox_host.display.summary import Summary
from lox_host.display.text import clean, count, digits, sparkline
from lox_host.store.reader import Stale
from lox_host.store.recorded import recorded
from lox_host.tree import leaves

CURVE = 8, 32  # least and most width of a curve
MARGIN = 9  # where the names of facts stand


class Content(NamedTuple):
    """All that some runs logged, in a few numbers.

    Attributes:
        summary: Statistics of each name.
        rows: How many rows each name has.
        steps: How far each step has come.
    """

    summary: Summary
    rows: Counter[str]
    steps: dict[str, float]


def show(where: Sequence[str], keys: Sequence[str], *, as_json: bool) -> None:
    """Show the keys of runs: rows, last values, the smallest and the largest, a curve."""
    while True:
        try:
            choices = several(where)
            content = _content(choices)
            break
        except Stale:
            continue
    names = _names(choices, content, keys)
    if as_json:
        print_json(_for_programs(choices, content, names))
        return
    out = screen()
    _head(out, choices, content)
    if names:
        out.line()
        series = {name: content.summary.statistics[name] for name in names}
        _body(out, series, content.rows, several=len(choices) > 1)


def _content(choices: Sequence[Choice]) -> Content:
    summary, rows, steps = Summary(0.0), Counter[str](), dict[str, float]()
    number = {(choice.now.folder, choice.id): i for i, choice in enumerate(choices)}
    for now, own in it.groupby(choices, key=lambda choice: choice.now):
        ids = {choice.id: number[now.folder, choice.id] for choice in own}
        frames = [frame for group in now.frames.values() for frame in group]
        for block in recorded(now, frames, ids):
            summary.add(block.renamed(ids), 0.0)
            for name, step in block.steps.items():
                steps[name] = max(steps.get(name, -math.inf), float(step.max()))
            for key, tree in block.values.items():
                rows.update({name: len(block) for name, _ in leaves(tree, key)})
    return Content(summary, rows, steps)


def _names(choices: Sequence[Choice], content: Content, keys: Sequence[str]) -> list[str]:
    """The names to be shown: all of them, or those of the keys that are asked for."""
    there = list(content.summary.statistics)
    if not keys:
        return there
    found = [[name for name in there if within(name, key)] for key in keys]
    for key, own in zip(keys, found, strict=True):
        if not own:
            raise missing_key(key, _title(choices), there)
    return list(dict.fromkeys(it.chain(*found)))


def _title(choices: Sequence[Choice]) -> str:
    first, *others = choices
    if not others:
        return first.address
    stores = ", ".join(dict.fromkeys(choice.store for choice in choices))
    return f"{count(len(choices), 'run')} in {stores}"


def _head(out: Screen, choices: Sequence[Choice], content: Content) -> None:
    first, *others = choices
    session = f"  session {first.number} of {first.sessions}"
    said = session if first.sessions > 1 and not others else ""
    out.line((_title(choices), "bold"), (said, "dim"))
    started = moment(min(choice.run["start"] for choice in choices))
    times = dict.fromkeys(took(choice) for choice in choices)
    lines = [("started", started), ("took", next(iter(times)) if len(times) == 1 else "")]
    configs = [settings(choice.run["config"]) for choice in choices]
    if all(config == configs[0] for config in configs):
        lines.append(("config", "  ".join(f"{k}={value}" for k, value in configs[0])))
    steps = content.steps.items()
    lines.append(("steps", "  ".join(f"{clean(k)} {digits(x, 'i')}" for k, x in steps)))
    for name, text in lines:
        if text:
            out.line((f"{name:{MARGIN}}", "dim"), (_wrapped(text, out.width), ""))


def _wrapped(text: str, width: int | None) -> str:
    """The text beside the margin, in as many lines as it needs there."""
    if width is None:
        return text
    size = max(width - MARGIN, 1)
    lines = textwrap.wrap(text, size, break_long_words=False, break_on_hyphens=False)
    return f"\n{'':{MARGIN}}".join(lines)


def _body(
    out: Screen, every: dict[str, Statistics], rows: Counter[str], *, several: bool
) -> None:
    labels = [f"{clean(name)} {series.note}".rstrip() for name, series in every.items()]
    numbers = [_numbers(series) for series in every.values()]
    heads = ["MEAN", "± STD", "MIN", "MAX"] if several else ["LAST", "MIN", "MAX"]
    columns = [
        Column("KEY", labels),
        Column("ROWS", [str(rows[name]) for name in every], right=True),
    ]
    for head in heads:
        cells = [own.get(head, "") for own in numbers]
        look: Any = {"right": head != "± STD", "optional": head in ("MIN", "MAX")}
        columns.append(Column(head, cells, numbers=True, **look))
    out.table(columns if out.width is None else _with_trend(columns, every, out.width))


def _with_trend(
    columns: list[Column], every: dict[str, Statistics], width: int
) -> list[Column]:
    """The columns and a curve, rather than those that there is then no room for."""
    for shown in (columns, [column for column in columns if not column.optional]):
        size = min(CURVE[1], room(shown, width) - GAP)
        if size >= CURVE[0]:
            curves = [sparkline(series.trend.points(size)) for series in every.values()]
            return [*shown, Column("TREND", curves, style="cyan")]
    return columns


def _numbers(statistics: Statistics) -> dict[str, str]:
    texts = {head.upper(): text for head, text in statistics.texts().items()}
    if statistics.low > statistics.high:  # there is no number
        return texts | {"MIN": "", "MAX": ""}
    return texts


def _for_programs(
    choices: Sequence[Choice], content: Content, names: Sequence[str]
) -> dict[str, Any]:
    runs = list(map(described, choices, stored_runs(choices)))
    series = content.summary.statistics
    keys = {name: _figures(series[name], content.rows[name]) for name in names}
    return {"runs": runs, "steps": content.steps, "keys": keys}


def _figures(series: Statistics, rows: int) -> dict[str, Any]:
    if not series:
        return {"rows": rows, "note": series.note}
    spread = series.spread()
    return {
        "rows": rows,
        "note": series.note,
        "last": series.last,
        "mean": spread.mean,
        "std": spread.std,
        "min": series.low,
        "max": series.high,
    }
