"""The table of runs that a console shows on a terminal.

    lox  8 runs  step 40  ━━━━━━━━╺━━━━━━━━━━  40%  320/800 rows  32/s  0:15 left
              mean  ± std      min    max  trend
    loss    0.4981  ± 0.02  0.4512  2.301  █▆▅▄▃▂▂▁
    weights 3×4 ...

It imports rich, which takes as long as NumPy: import it where a table is shown.
"""

import itertools as it
import math

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lox_host.display.progress_bar import eta, progress_numbers
from lox_host.display.statistics import Statistics
from lox_host.display.summary import Summary
from lox_host.display.text import clean, count, digits, duration, sparkline

BAR = 8  # least width of the bar
TREND = 8, 32  # least and most width of a trend
NAME = 24  # width that a name has in any case
LEFT_OUT = (), ("min", "max")  # columns to do without where it is narrow


def height(summary: Summary, most: int) -> int:
    """Return how many lines the table has with at most this many keys."""
    keys = len(summary.statistics)
    return 1 + bool(keys) + min(keys, most) + (keys > most)


def table(summary: Summary, now: float, *, title: str, width: int, lines: int) -> Group:
    """Make a line that says how far the runs are, and one for each name that fits."""
    room = lines - 2
    is_tall = len(summary.statistics) > room
    shown = dict(it.islice(summary.statistics.items(), max(0, room - is_tall)))
    parts = [_head(summary, now, title, width)]
    if shown:
        parts.append(_body(shown, width, has_several_runs=summary.runs > 1))
    if is_tall:
        left_out = count(len(summary.statistics) - len(shown), "more key")
        parts.append(Text(f"… and {left_out}", "dim"))
    return Group(*parts[:lines])


def _head(summary: Summary, now: float, title: str, width: int) -> RenderableType:
    done, total = summary.progress.done(summary.runs)
    left = _spaced(_titles(summary, title))
    parts = _progress(summary, now)
    right = _spaced(parts)
    room = width - left.cell_len - right.cell_len - 4
    if total == math.inf:
        return _spaced([left, right])
    # The bar says most: where it is narrow, the speed goes, and then the number of rows.
    for needed in (parts[:2] + parts[3:], parts[:1] + parts[3:]):
        if room < BAR:
            right = _spaced(needed)
            room = width - left.cell_len - right.cell_len - 4
    if room < BAR:
        return _spaced([left, right])
    grid = Table.grid(padding=(0, 2))
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_row(left, ProgressBar(total, done, width=room), right)
    return grid


def _titles(summary: Summary, title: str) -> list[Text]:
    runs, unit = count(summary.runs, "run").split()
    steps = [
        Text.assemble((clean(name), "dim"), " ", digits(step, "i"))
        for name, step in summary.steps.items()
    ]
    return [Text(clean(title), "bold"), Text.assemble(runs, (f" {unit}", "dim")), *steps]


def _progress(summary: Summary, now: float) -> list[Text]:
    """Say how far the runs are, and how long the rest takes, or how long it took."""
    done, total = summary.progress.done(summary.runs)
    rate = summary.progress.rate(now)
    parts = [
        Text.assemble(number, (unit, "dim"))
        for number, unit in progress_numbers(done, total, rate, "rows")
    ]
    if total == math.inf or done == total or not rate:
        return [*parts, Text(duration(now - summary.start), "dim")]
    return [*parts, Text.assemble(eta(done, total, rate), (" left", "dim"))]


def _spaced(texts: list[Text]) -> Text:
    return Text("  ", no_wrap=True, overflow="ellipsis").join(texts)


def _body(shown: dict[str, Statistics], width: int, *, has_several_runs: bool) -> Table:
    # Names may take what is left of the width, but `NAME` letters in any case.
    labels = [f"{clean(name)} {statistics.note}" for name, statistics in shown.items()]
    name_width = min(NAME, max(map(len, labels)))
    # Of several runs, the last value would be that of any of them.
    heads = ["last", "min", "max"]
    if has_several_runs:
        heads = ["mean", "± std", "min", "max"]
    cells = [statistics.texts() for statistics in shown.values()]
    columns = {head: [row.get(head, "") for row in cells] for head in heads}
    columns, rest = _fitting(columns, width - name_width)
    trend_width = min(rest, TREND[1])
    body = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    body.add_column("", no_wrap=True, max_width=name_width + rest - trend_width)
    for head in columns:
        body.add_column(head, no_wrap=True, justify="left" if head == "± std" else "right")
    body.add_column("trend" if trend_width else "", no_wrap=True)
    for i, (name, statistics) in enumerate(shown.items()):
        label = Text.assemble(clean(name), (f" {statistics.note}".rstrip(), "dim"))
        numbers = [_number(column[i]) for column in columns.values()]
        trend = sparkline(statistics.trend.points(trend_width)) if trend_width else ""
        body.add_row(label, *numbers, Text(trend, "cyan"))
    return body


def _fitting(columns: dict[str, list[str]], room: int) -> tuple[dict[str, list[str]], int]:
    """Return the columns that fit beside a trend, and how much room is left for that.

    Digits are not cut off; where it is narrow, columns are left out, and the trend at last.
    """
    for left_out in LEFT_OUT:
        columns = {head: cells for head, cells in columns.items() if head not in left_out}
        widths = [max(map(len, [head, *cells])) for head, cells in columns.items()]
        rest = room - sum(2 + width for width in widths) - 2
        if rest >= TREND[0]:
            return columns, rest
    return columns, 0


def _number(text: str) -> Text:
    return Text(text, "red" if "nan" in text or "inf" in text else "")
