"""`lox plot`: curves of runs in a picture."""

import dataclasses
import itertools as it
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lox_host.cli.errors import CLIError, missing_key
from lox_host.cli.match import is_wanted, matches
from lox_host.cli.select_runs import SelectedRun, by_session, select_runs
from lox_host.display.curves import Curve, curves_of
from lox_host.display.panels import add_legend, draw_panel, grid, label_axes
from lox_host.display.text import clean, count
from lox_host.extras import import_extra
from lox_host.store import KeyRows, read_key_rows, retry_if_stale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By name, the curve of all runs that are drawn together.
Curves = dict[str, Curve]


@retry_if_stale
def plot(
    where: Sequence[str],
    keys: Sequence[str],
    out: str,
    *,
    x: str | None,
    band: str,
    smooth: int,
) -> None:
    """Draw a panel for each key, in it a curve for each of `where`.

    Several runs of one of them are drawn as their mean with a band, or all of them.
    """
    matplotlib = import_extra("matplotlib", "`lox plot`", "plot")
    matplotlib.use("agg")
    runs = {text: select_runs(text) for text in where}
    curves = {text: _curves(selected, keys, x) for text, selected in runs.items()}
    names = list(dict.fromkeys(it.chain(*curves.values())))
    _check(names, [*it.chain(*runs.values())], keys, x)
    figure = _draw(names, curves, None if band == "none" else band, smooth)
    try:
        figure.savefig(out, dpi=150)
    except (OSError, ValueError) as error:
        raise CLIError(f"Cannot write the picture to {out!r}: {error}") from error
    number = count(sum(map(len, runs.values())), "run")
    print(clean(f"{', '.join(names)} of {number}: {out}"))


def _curves(runs: Sequence[SelectedRun], keys: Sequence[str], x: str | None) -> Curves:
    """Return the curves of some runs by name, the lines of all runs together."""
    curves: Curves = {}
    for reader, selected in by_session(runs).items():
        wanted = [key for key in reader.keys if _concerns(key, keys)]
        key_rows = read_key_rows(reader, [run.id for run in selected], wanted)
        for rows in key_rows.values():
            for curve in _curves_of_run(rows, keys, x):
                before = curves.get(curve.name)
                points = [*(before.points if before else ()), *curve.points]
                curves[curve.name] = dataclasses.replace(
                    before or curve,
                    points=points,
                    is_batch=len(points) > 1,
                    runs=before.runs + 1 if before else 1,
                )
    return curves


def _curves_of_run(
    key_rows: dict[str, KeyRows], keys: Sequence[str], x: str | None
) -> list[Curve]:
    curves = []
    for key, rows in key_rows.items():
        # Without `-k`, what was logged once is no curve.
        if keys or rows.has_time:
            curves += curves_of(rows.flat(key), x)
    return [curve for curve in curves if is_wanted(curve.name, keys)]


def _concerns(key: str, asked: Sequence[str]) -> bool:
    """Return whether a key, or something in its tree, is asked for."""
    return is_wanted(key, asked) or any(matches(name, key) for name in asked)


def _check(
    names: Sequence[str], runs: Sequence[SelectedRun], keys: Sequence[str], x: str | None
) -> None:
    known = list(dict.fromkeys(key for run in runs for key in run.reader.keys))
    for key in keys:
        if not any(_concerns(name, [key]) for name in known):
            raise missing_key(key, runs[0].address, known)
    if not names:
        behind = "" if x is None else f" with the step {x!r}"
        raise CLIError(
            f"There is nothing to plot{behind}: a curve is a real number that was logged "
            f"several times. The keys are {', '.join(known) or 'none yet'}."
        )


def _draw(
    names: Sequence[str], curves: dict[str, Curves], band: str | None, smooth: int
) -> "Figure":
    plt = import_extra("matplotlib.pyplot", "`lox plot`", "plot")
    figure = plt.figure(layout="constrained")
    axes = grid(figure, len(names))
    has_legend = len(curves) > 1
    for name, ax in zip(names, axes, strict=True):
        for text, by_name in curves.items():
            if name not in by_name:
                continue
            curve = by_name[name]
            # Of a key that `vmap` gave an axis, each example is a line.
            has_elements = len(curve.points) != curve.runs
            noun = "element" if has_elements else "run"
            of = f" of {count(curve.runs, 'run')}" if has_elements else ""
            panel = curve.panel(band, noun, of, smooth)
            label = None
            if has_legend:
                parts = clean(text), curve.summary(noun, of)
                label = ", ".join(part for part in parts if part)
                smoothed = f"smoothed over {smooth} rows" if smooth > 1 else ""
                panel = panel._replace(note=smoothed)
            draw_panel(ax, panel, label)
            label_axes(ax, curve.step, name)
        if has_legend:
            add_legend(ax)
    return figure
