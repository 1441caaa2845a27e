"""`lox plot`: curves of runs in a picture."""

import dataclasses
import itertools as it
from collections.abc import Sequence
from typing import Any

import numpy as np

from lox._io.load import of_run
from lox._logdict.numpy import to_numpy
from lox._logdict.plot import key_curves
from lox_host.cli.describe import stored_runs
from lox_host.cli.errors import Trouble, missing_key
from lox_host.cli.match import within
from lox_host.cli.select_runs import Choice, chosen
from lox_host.display.curves import Curve
from lox_host.display.panels import draw_panel, grid
from lox_host.display.text import count
from lox_host.extras import imported
from lox_host.store.runs import StoredRun

Curves = dict[str, Curve]


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
    matplotlib = imported("matplotlib", "`lox plot`", "plot")
    matplotlib.use("agg")
    runs = {text: chosen(text) for text in where}
    every = {text: _curves(own, keys, x) for text, own in runs.items()}
    names = list(dict.fromkeys(it.chain(*every.values())))
    _check(names, [*it.chain(*runs.values())], keys, x)
    figure = _figure(names, every, None if band == "none" else band, smooth)
    try:
        figure.savefig(out, dpi=150)
    except (OSError, ValueError) as error:
        raise Trouble(f"Cannot write the picture to {out!r}: {error}") from error
    number = count(sum(map(len, runs.values())), "run")
    print(f"{', '.join(names)} of {number}: {out}")


def _curves(runs: Sequence[Choice], keys: Sequence[str], x: str | None) -> Curves:
    """The curves of some runs by name, those of all runs together."""
    found: Curves = {}
    for choice, stored in zip(runs, stored_runs(runs), strict=True):
        for curve in _of_run(choice, stored, keys, x):
            before = found.get(curve.name, dataclasses.replace(curve, points=[]))
            points = [*before.points, *curve.points]
            found[curve.name] = dataclasses.replace(
                before, points=points, is_batch=len(points) > 1
            )
    return found


def _of_run(
    choice: Choice, stored: StoredRun, keys: Sequence[str], x: str | None
) -> list[Curve]:
    own = [key for key in stored.keys if not keys or any(_about(k, key) for k in keys)]
    rows = to_numpy(of_run(choice.store, choice.now, choice.id, own).rows())
    drawn = {key: of for key, of in rows.items() if keys or of.time}
    curves = [curve for key, of in drawn.items() for curve in key_curves(key, of, x)]
    return [c for c in curves if not keys or any(within(c.name, key) for key in keys)]


def _about(asked: str, key: str) -> bool:
    """Whether a key, or something in its tree, is asked for."""
    return within(asked, key) or within(key, asked)


def _check(
    names: Sequence[str], runs: Sequence[Choice], keys: Sequence[str], x: str | None
) -> None:
    there = list(dict.fromkeys(key for choice in runs for key in choice.now.keys))
    for key in keys:
        if not any(_about(key, own) for own in there):
            raise missing_key(key, runs[0].address, there)
    if not names:
        behind = "" if x is None else f" with the step {x!r}"
        raise Trouble(
            f"There is nothing to plot{behind}: a curve is a real number that was logged "
            f"several times. The keys are {', '.join(there) or 'none yet'}."
        )


def _figure(
    names: Sequence[str], every: dict[str, Curves], band: str | None, smooth: int
) -> Any:
    plt = imported("matplotlib.pyplot", "`lox plot`", "plot")
    axes = grid(plt.figure(layout="constrained"), len(names))
    for name, ax in zip(names, axes, strict=True):
        for text, curves in every.items():
            if name in curves:
                curve = _smoothed(curves[name], smooth)
                label = _label(text, curve) if len(every) > 1 else None
                draw_panel(ax, curve.panel(band, "run"), label)
                ax.set_xlabel(curve.step)
                title = _title(curve, band) if len(every) == 1 else ""
                ax.set_title(title, loc="right", fontsize="small", color="0.4")
        ax.set_ylabel(name)
        if len(every) > 1:
            ax.legend(frameon=False, fontsize="small")
    return axes[0].figure


def _label(text: str, curve: Curve) -> str:
    return f"{text}, {count(len(curve.points), 'run')}" if curve.is_batch else text


def _title(curve: Curve, band: str | None) -> str:
    """What is drawn of several runs."""
    runs = count(len(curve.points), "run")
    if not curve.is_batch:
        return ""
    return runs if band is None else f"mean and {band} of {runs}"


def _smoothed(curve: Curve, number: int) -> Curve:
    """The curve with the mean of so many rows up to each in its place."""
    points = [(steps, _running_mean(values, number)) for steps, values in curve.points]
    return dataclasses.replace(curve, points=points)


def _running_mean(values: np.ndarray, number: int) -> np.ndarray:
    if number == 1:
        return values
    finite = np.isfinite(values)
    sums = np.cumsum(np.append(0.0, np.where(finite, values, 0)))
    others = np.cumsum(np.append(0, ~finite))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - number)
    means = (sums[ends] - sums[starts]) / (ends - starts)
    return np.where(others[ends] > others[starts], np.nan, means)
