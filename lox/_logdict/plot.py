"""Curves of logs against a step, drawn with matplotlib."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lox._logdict.numpy import by_example, leaves, sizes, to_numpy
from lox._rows.rows import Rows
from lox_host.display.panels import BANDS, Panel, draw_panel, grid, mean, on_common_steps
from lox_host.extras import imported


@dataclasses.dataclass(frozen=True)
class Curve:
    """A scalar of one key.

    Attributes:
        name: The key, with the path into its value behind it.
        step: What the curve is drawn against.
        points: For each example, the steps and the values of its rows.
        batched: Whether there is a batch axis.
    """

    name: str
    step: str
    points: list[tuple[np.ndarray, np.ndarray]]
    batched: bool


def plot(
    rows: Mapping[str, Rows],
    keys: str | Iterable[str] | None,
    x: str | None,
    axes: Any,
    band: str | None,
) -> Any:
    plt = imported("matplotlib.pyplot", "`logs.plot()`", "plot")
    if band not in (*BANDS, None):
        there = ", ".join(map(repr, (*BANDS, None)))
        raise ValueError(f"There is no band {band!r}. There are {there}.")
    curves = _curves(to_numpy(rows, "plot"), keys, x)
    count = len(curves)
    given = panels(plt, count) if axes is None else _listed(axes, count)
    for curve, ax in zip(curves, given, strict=True):
        shared = len(curves) > 1 and given.count(ax) > 1
        draw(ax, curve, band, curve.name if shared else None)
        ax.set_xlabel(curve.step, parse_math=False)
        if shared:
            ax.legend(frameon=False, fontsize="small")
        else:
            ax.set_ylabel(curve.name, parse_math=False)
    return given[0].figure


def _curves(
    rows: Mapping[str, Rows], keys: str | Iterable[str] | None, x: str | None
) -> list[Curve]:
    if keys is None:
        found = {key: own for key, own in rows.items() if own.time and has_step(own, x)}
    else:
        found = {key: rows[key] for key in _wanted(rows, keys, x)}
    curves = [curve for key, own in found.items() for curve in curves_of(key, own, x)]
    if curves:
        return curves
    what = "these logs" if keys is None else f"the keys {sorted(found)}"
    behind = "" if x is None else f" with the step {x!r}"
    raise ValueError(
        f"There are no curves in {what}: a curve is a real number logged several times"
        f"{behind}. The keys are {sorted(rows)}."
    )


def _wanted(
    rows: Mapping[str, Rows], keys: str | Iterable[str], x: str | None
) -> Sequence[str]:
    names = [keys] if isinstance(keys, str) else list(keys)
    for name in names:
        if name not in rows:
            raise ValueError(f"There is no key {name!r}. The keys are {sorted(rows)}.")
        if not has_step(rows[name], x):
            raise ValueError(
                f"{name!r} has no step {x!r}. Its steps are {_scalar_steps(rows[name])}; "
                '`x="row"` is the number of the row.'
            )
    return names


def has_step(rows: Rows, x: str | None) -> bool:
    return x in (None, "row", *_scalar_steps(rows))


def _scalar_steps(rows: Rows) -> list[str]:
    """The names of the steps that are numbers, `step` before others."""
    n = rows.lead + rows.time + len(rows.batch)
    names = [name for name, step in rows.steps.items() if step.ndim == n]
    return sorted(names, key=lambda name: (name != "step", name))


def curves_of(key: str, rows: Rows, x: str | None) -> list[Curve]:
    n = rows.lead + rows.time + len(rows.batch)
    step = x or next(iter(_scalar_steps(rows)), "row")
    there = np.ones((*sizes(rows), rows.length), bool)
    if rows.valid is not None:
        there = by_example(rows, rows.valid)
    if step in rows.steps:
        steps = by_example(rows, rows.steps[step])
        if step in rows.masks:
            there = there & by_example(rows, rows.masks[step])
    else:
        # Of the rows that there are.
        steps = np.cumsum(there, axis=-1) - 1
    # One for all of the batch axes; -1 would not do, as there may be no rows.
    shape = math.prod(sizes(rows)), rows.length
    steps, there = steps.reshape(shape), there.reshape(shape)

    def points(values: np.ndarray) -> list:
        each = by_example(rows, values).astype(np.float64).reshape(shape)
        return [
            (i[ok].astype(np.float64), y[ok])
            for i, y, ok in zip(steps, each, there, strict=True)
        ]

    return [
        Curve(name, step, points(values), batched=n > rows.time)
        for name, values in leaves(key, rows)
        if values.ndim == n and values.dtype.kind in "biuf"
    ]


def panels(plt: Any, count: int) -> list:
    return grid(plt.figure(layout="constrained"), count)


def _listed(axes: Any, count: int) -> list:
    if not isinstance(axes, Iterable):
        return [axes] * count
    given = list(np.ravel(np.asarray(list(axes), dtype=object)))
    if len(given) != count:
        raise ValueError(
            f"There are {count} curves, but {len(given)} axes. Give one for each curve, "
            "or a single one for all of them."
        )
    return given


def draw(ax: Any, curve: Curve, band: str | None, label: str | None) -> None:
    draw_panel(ax, _panel(curve, band), label)


def _panel(curve: Curve, band: str | None) -> Panel:
    points = [own for own in curve.points if own[0].size]
    if not curve.batched or not points:
        return Panel(curve.name, curve.step, lines=points)
    if band is None:
        return Panel(curve.name, curve.step, f"{len(points)} examples", points)
    steps, values = on_common_steps(points)
    note = f"mean and {band} of {len(points)} examples"
    return Panel(
        curve.name,
        curve.step,
        note,
        middle=(steps, mean(values)),
        band=(steps, *BANDS[band](values)),
    )
