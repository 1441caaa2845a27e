"""`lox show`: what is in a run, or in several of them together."""

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lox_host.cli.describe import describe, full_date, settings, stored, time_taken
from lox_host.cli.match import select_names
from lox_host.cli.output import GAP, Column, Screen, print_json, room, screen
from lox_host.cli.select_runs import SelectedRun, by_session, select_all
from lox_host.display.statistics import Statistics
from lox_host.display.summary import Summary
from lox_host.display.text import clean, count, digits, sparkline
from lox_host.store import retry_if_stale
from lox_host.tree import leaves

CURVE = 8, 32  # least and most width of a curve
MARGIN = 9  # width of the names in front of what is known of all


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


@retry_if_stale
def show(where: Sequence[str], keys: Sequence[str], *, as_json: bool) -> None:
    """Show the keys of runs: rows, last values, the smallest and the largest, a curve."""
    runs = select_all(where)
    content = _read(runs)
    names = list(content.summary.statistics)
    if keys:
        names = select_names(names, keys, _title(runs))
    if as_json:
        print_json(_for_programs(runs, content, names))
        return
    out = screen()
    _print_head(out, runs, content)
    if names:
        out.line()
        statistics = {name: content.summary.statistics[name] for name in names}
        _print_table(out, statistics, content.rows, several=len(runs) > 1)


def _read(runs: Sequence[SelectedRun]) -> Content:
    summary, rows, steps = Summary(0.0), Counter[str](), dict[str, float]()
    # The same id may be in several sessions, for different runs.
    number = {run: i for i, run in enumerate(runs)}
    for reader, its_runs in by_session(runs).items():
        ids = {run.id: number[run] for run in its_runs}
        for block in reader.blocks(ids):
            summary.add(block.renamed(ids), 0.0)
            for name, step in block.steps.items():
                steps[name] = max(steps.get(name, -math.inf), float(step.max()))
            for key, tree in block.values.items():
                rows.update({name: len(block) for name, _ in leaves(tree, key)})
    return Content(summary, rows, steps)


def _title(runs: Sequence[SelectedRun]) -> str:
    if len(runs) == 1:
        return runs[0].address
    stores = ", ".join(dict.fromkeys(clean(run.store) for run in runs))
    return f"{count(len(runs), 'run')} in {stores}"


def _print_head(out: Screen, runs: Sequence[SelectedRun], content: Content) -> None:
    """Print what is known of the runs as a whole, where it is the same for all."""
    first, session = runs[0], ""
    if len(runs) == 1 and first.sessions > 1:
        session = f"  session {first.number} of {first.sessions}"
    out.line((_title(runs), "bold"), (session, "dim"))
    lines = {"started": full_date(min(run.run.start for run in runs))}
    times = {time_taken(run) for run in runs}
    if len(times) == 1:
        lines["took"] = times.pop()
    configs = [settings(run.run.config) for run in runs]
    if all(config == configs[0] for config in configs):
        lines["config"] = "  ".join(f"{name}={value}" for name, value in configs[0])
    steps = content.steps.items()
    lines["steps"] = "  ".join(f"{clean(name)} {digits(x, 'i')}" for name, x in steps)
    for name, text in lines.items():
        if text:
            out.line((f"{name:{MARGIN}}", "dim"), (_wrapped(text, out.width), ""))


def _wrapped(text: str, width: int | None) -> str:
    """Wrap the text next to the margin, in as many lines as it needs."""
    if width is None:
        return text
    size = max(width - MARGIN, 1)
    lines = textwrap.wrap(text, size, break_long_words=False, break_on_hyphens=False)
    return f"\n{'':{MARGIN}}".join(lines)


def _print_table(
    out: Screen, names: dict[str, Statistics], rows: Counter[str], *, several: bool
) -> None:
    numbers = [_numbers(statistics) for statistics in names.values()]
    columns = [
        Column("KEY", [f"{clean(name)} {of.note}".rstrip() for name, of in names.items()]),
        Column("ROWS", [str(rows[name]) for name in names], right=True),
    ]
    for head in ("MEAN", "± STD", "MIN", "MAX") if several else ("LAST", "MIN", "MAX"):
        columns.append(
            Column(
                head,
                [texts.get(head, "") for texts in numbers],
                right=head != "± STD",
                numbers=True,
                optional=head in ("MIN", "MAX"),
            )
        )
    out.table(columns if out.width is None else _with_trend(columns, names, out.width))
    bad = {name: of.health() for name, of in names.items() if of.nonfinite}
    if bad:
        out.line()
    for name, text in bad.items():
        out.line((f"{clean(name)}: {text}", "red"))


def _with_trend(
    columns: list[Column], names: dict[str, Statistics], width: int
) -> list[Column]:
    """Return the columns and a curve, rather than those that it leaves no room for."""
    for shown in (columns, [column for column in columns if not column.optional]):
        size = min(CURVE[1], room(shown, width) - GAP)
        if size >= CURVE[0]:
            curves = [sparkline(of.trend.points(size)) for of in names.values()]
            return [*shown, Column("TREND", curves, style="cyan")]
    return columns


def _numbers(statistics: Statistics) -> dict[str, str]:
    texts = {head.upper(): text for head, text in statistics.texts().items()}
    if statistics.low > statistics.high:  # there is no number
        return texts | {"MIN": "", "MAX": ""}
    return texts


def _for_programs(
    runs: Sequence[SelectedRun], content: Content, names: Sequence[str]
) -> dict[str, Any]:
    statistics = content.summary.statistics
    return {
        "runs": [describe(*pair) for pair in zip(runs, stored(runs), strict=True)],
        "steps": content.steps,
        "keys": {name: _figures(statistics[name], content.rows[name]) for name in names},
    }


def _figures(statistics: Statistics, rows: int) -> dict[str, Any]:
    if not statistics:
        return {"rows": rows, "note": statistics.note}
    spread = statistics.spread()
    return {
        "rows": rows,
        "note": statistics.note,
        "last": statistics.last,
        "mean": spread.mean,
        "std": spread.std,
        "min": statistics.low,
        "max": statistics.high,
        "diverged": spread.diverged,
        "nonfinite": statistics.nonfinite,
        "first_nonfinite": _first(statistics),
    }


def _first(statistics: Statistics) -> dict[str, float] | None:
    """Return the step of the first value that is not finite."""
    return dict([statistics.first_nonfinite]) if statistics.nonfinite else None
