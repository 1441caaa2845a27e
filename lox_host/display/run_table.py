"""What a console shows of its runs: a table on a terminal, a line elsewhere."""

import itertools as it
import math
from typing import Any

from lox_host.display.eta import duration, pace, speed
from lox_host.display.statistics import Statistics
from lox_host.display.summary import Summary
from lox_host.display.text import clean, count, deviation, digits, sparkline

BAR = 8  # least width of the bar
CURVE = 8, 32  # least and most width of a curve
NAME = 24  # width that a name has in any case
# What to do without where it is narrow, of one run and of several.
LEFT_OUT = {False: ((), ("min", "max")), True: ((), ("last",), ("min", "max"))}


def line(summary: Summary, now: float, *, title: str, most: int) -> str:
    """All in one line: `lox: 8 runs, step 40, 40%, 320/800 rows, 32/s, 0:15 left | ...`."""
    progress = summary.progress
    parts = [count(summary.runs, "run")]
    parts += [f"{clean(name)} {digits(s, 'i')}" for name, s in summary.steps.items()]
    rate, seconds = progress.rate(now), now - summary.start
    parts += [pace(*progress.done(summary.runs), rate, seconds, "rows")]
    values = [
        f"{clean(name)} {digits(series.spread().mean)}"
        for name, series in summary.statistics.items()
        if series
    ]
    if len(values) > most:
        values = [*values[:most], f"{len(values) - most} more"]
    return f"{clean(title)}: {', '.join(parts)} | {', '.join(values)}"


def height(summary: Summary, most: int) -> int:
    """How many lines the table has."""
    keys = len(summary.statistics)
    return 1 + bool(keys) + min(keys, most) + (keys > most)


def table(summary: Summary, now: float, *, title: str, width: int, lines: int) -> Any:
    """A line that says how far the runs are, and one for each name, as many as fit."""
    from rich.console import Group

    room = lines - 2
    is_tall = len(summary.statistics) > room
    shown = dict(it.islice(summary.statistics.items(), max(0, room - is_tall)))
    left_out = count(len(summary.statistics) - len(shown), "more key")
    parts = [
        _head(summary, now, title, width),
        _body(shown, summary.runs > 1, width) if shown else None,
        _styled(f"… and {left_out}", "dim") if is_tall else None,
    ]
    return Group(*[part for part in parts if part is not None][:lines])


def _head(summary: Summary, now: float, title: str, width: int) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    done, total = summary.progress.done(summary.runs)
    left = _spaced(_titles(summary, title))
    right = _spaced(_figures(summary, now))
    room = width - left.cell_len - right.cell_len - 4
    if total == math.inf or room < BAR:
        return _spaced([left, right])
    grid = Table.grid(padding=(0, 2))
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_row(left, ProgressBar(total, done, width=room), right)
    return grid


def _titles(summary: Summary, title: str) -> list[Any]:
    from rich.text import Text

    runs, unit = count(summary.runs, "run").split()
    steps = [
        Text.assemble((clean(name), "dim"), " ", digits(step, "i"))
        for name, step in summary.steps.items()
    ]
    return [Text(clean(title), "bold"), Text.assemble(runs, (f" {unit}", "dim")), *steps]


def _figures(summary: Summary, now: float) -> list[Any]:
    from rich.text import Text

    done, total = summary.progress.done(summary.runs)
    rate = summary.progress.rate(now)
    per_second = Text.assemble(speed(rate), ("/s", "dim"))
    if total == math.inf:
        rows = Text.assemble(f"{done}", (" rows", "dim"))
        return [rows, per_second, _elapsed(summary, now)]
    share = Text(f"{done / total:.0%}")
    rows = Text.assemble(f"{done}/{total}", (" rows", "dim"))
    if done == total or not rate:
        return [share, rows, per_second, _elapsed(summary, now)]
    left = Text.assemble(duration((total - done) / rate), (" left", "dim"))
    return [share, rows, per_second, left]


def _elapsed(summary: Summary, now: float) -> Any:
    return _styled(duration(now - summary.start), "dim")


def _spaced(texts: list[Any]) -> Any:
    from rich.text import Text

    return Text("  ", no_wrap=True, overflow="ellipsis").join(texts)


def _body(every: dict[str, Statistics], several: bool, width: int) -> Any:
    from rich.table import Table

    names = max(len(clean(name)) + 1 + len(series.note) for name, series in every.items())
    columns, rest = _fitting(_columns(every, several=several), width - min(names, NAME))
    curve = min(rest, CURVE[1])
    body = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    body.add_column("", no_wrap=True, max_width=min(names, NAME) + rest - curve)
    for head in columns:
        body.add_column(head, no_wrap=True, justify="left" if head == "± std" else "right")
    body.add_column("trend" if curve else "", no_wrap=True)
    for i, (name, series) in enumerate(every.items()):
        cells = [_number(column[i + 1]) for column in columns.values()]
        trend = sparkline(series.trend.points(curve)) if curve else ""
        body.add_row(_name(name, series), *cells, _styled(trend, "cyan"))
    return body


def _fitting(columns: dict[str, list[str]], room: int) -> tuple[dict[str, list[str]], int]:
    """The columns that fit beside a curve, and how much room is left for that.

    Digits are not cut off; where it is narrow, columns are left out, and the curve at last.
    """
    for left_out in LEFT_OUT["mean" in columns]:
        columns = {head: cells for head, cells in columns.items() if head not in left_out}
        rest = room - sum(2 + max(map(len, cells)) for cells in columns.values()) - 2
        if rest >= CURVE[0]:
            return columns, rest
    return columns, 0


def _columns(every: dict[str, Statistics], *, several: bool) -> dict[str, list[str]]:
    """The numbers of all names by column. The first cell of each is its head."""
    rows = [_numbers(series, several=several) for series in every.values()]
    heads = ["last", "mean", "± std", "min", "max"] if several else ["last", "min", "max"]
    return {head: [head, *(row.get(head, "") for row in rows)] for head in heads}


def _numbers(series: Statistics, *, several: bool) -> dict[str, str]:
    if not series:
        return {}
    spread = series.spread()
    nans = f" ({spread.nans} nan)" if spread.nans else ""
    over_runs = {"mean": digits(spread.mean), "± std": f"± {deviation(spread.std)}{nans}"}
    return {
        "last": digits(series.last, series.kind),
        **(over_runs if several else {}),
        "min": digits(series.low, series.kind),
        "max": digits(series.high, series.kind),
    }


def _name(name: str, series: Statistics) -> Any:
    from rich.text import Text

    return Text.assemble(clean(name), (f" {series.note}".rstrip(), "dim"))


def _number(text: str) -> Any:
    return _styled(text, "red" if "nan" in text or "inf" in text else "")


def _styled(text: str, style: str) -> Any:
    from rich.text import Text

    return Text(text, style)
