"""`lox show`: summarize one run, or several runs together."""

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lox_host.cli.describe import describe, environment, full_date, settings, time_taken
from lox_host.cli.output import Screen, print_json, screen
from lox_host.display.columns import GAP, Column, room
from lox_host.display.statistics import Statistics, named_arrays
from lox_host.display.summary import Summary
from lox_host.display.text import clean, count, digits, sparkline, speed
from lox_host.reading.names import select_names
from lox_host.reading.runs import describe_runs, select_meant
from lox_host.reading.select import SelectedRun, by_session
from lox_host.store import retry_if_stale

CURVE = 8, 32  # least and most width of a curve
MARGIN = 9  # width of the names in front of what is known of all


class ShownLogs(NamedTuple):
    """The logs of some runs in a few numbers.

    Attributes:
        summary: Statistics of each name.
        rows: How many rows each name has.
        steps: How far each step has come.
        rate: How many rows a second were written to the longest key. None: unknown.
    """

    summary: Summary
    rows: Counter[str]
    steps: dict[str, float]
    rate: float | None


@retry_if_stale
def show(
    where: Sequence[str], keys: Sequence[str], *, condition: str | None, as_json: bool
) -> None:
    """Show the keys of runs: rows, last values, the smallest and the largest, a curve."""
    runs = select_meant(where, condition)
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


def _read(runs: Sequence[SelectedRun]) -> ShownLogs:
    summary, rows, steps = Summary(0.0), Counter[str](), dict[str, float]()
    first, last = math.inf, -math.inf
    # The same id may be in several sessions, for different runs.
    number = {run: i for i, run in enumerate(runs)}
    for reader, its_runs in by_session(runs).items():
        ids = {run.id: number[run] for run in its_runs}
        for block in reader.blocks(ids):
            summary.add(block.renamed(ids), 0.0)
            # Times are NaN if unknown, as in stores of earlier versions.
            first = min(first, np.fmin.reduce(block.time, initial=math.inf))
            last = max(last, np.fmax.reduce(block.time, initial=-math.inf))
            for name, step in block.steps.items():
                steps[name] = max(steps.get(name, -math.inf), float(step.max()))
            # Of a pytree, each array has a line of its own.
            for key in block.values:
                names = [name for name, *_ in named_arrays(block, key)]
                rows.update(dict.fromkeys(names, len(block)))
    # There is no rate if all rows came at once, as with `spool`, or if there are several
    # sessions, with pauses between them.
    is_one = len(by_session(runs)) == 1
    rate = max(rows.values()) / (last - first) if is_one and last > first else None
    return ShownLogs(summary, rows, steps, rate)


def _title(runs: Sequence[SelectedRun]) -> str:
    if len(runs) == 1:
        return runs[0].address
    stores = ", ".join(dict.fromkeys(clean(run.store) for run in runs))
    return f"{count(len(runs), 'run')} in {stores}"


def _print_head(out: Screen, runs: Sequence[SelectedRun], content: ShownLogs) -> None:
    """Print facts about the runs, if they are the same for all of them."""
    first, session = runs[0], ""
    if len(runs) == 1 and first.sessions > 1:
        session = f"  session {first.number} of {first.sessions}"
    out.line((_title(runs), "bold"), (session, "dim"))
    lines = {"started": full_date(min(run.run.start for run in runs))}
    lines["took"] = _common([time_taken(run) for run in runs])
    if content.rate is not None:
        lines["speed"] = f"{speed(content.rate)} rows/s"
    lines["group"] = _common([clean(run.run.group) for run in runs])
    lines["tags"] = _common(["  ".join(map(clean, run.run.tags)) for run in runs])
    configs = [settings(run.run.config) for run in runs]
    lines["config"] = _common(["  ".join(map("=".join, config)) for config in configs])
    steps = content.steps.items()
    lines["steps"] = "  ".join(f"{clean(name)} {digits(x, 'i')}" for name, x in steps)
    sessions = [environment(reader.environment) for reader in by_session(runs)]
    for name in dict.fromkeys(name for session in sessions for name in session):
        lines[name] = _common([session.get(name, "") for session in sessions])
    for name, text in lines.items():
        if text:
            out.line((f"{name:{MARGIN}}", "dim"), (_wrapped(text, out.width), ""))


def _common(texts: Sequence[str]) -> str:
    """Return a text that all runs share, or an empty one if they differ."""
    return texts[0] if len({*texts}) == 1 else ""


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
                rank=int(head in ("MIN", "MAX")),
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
    """Return the columns that fit beside a curve, and the curve."""
    # First with all columns, then without those that one can do without.
    for shown in (columns, [column for column in columns if not column.rank]):
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
    runs: Sequence[SelectedRun], content: ShownLogs, names: Sequence[str]
) -> dict[str, Any]:
    statistics = content.summary.statistics
    return {
        "runs": [describe(*pair) for pair in zip(runs, describe_runs(runs), strict=True)],
        "steps": content.steps,
        "rate": content.rate,
        "environment": {
            reader.folder.name: reader.environment for reader in by_session(runs)
        },
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
