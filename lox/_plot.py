"""Curves of logs against a step, drawn with matplotlib."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ._export import by_example, leaves, sizes, to_numpy
from ._extras import imported
from ._rows import Rows

COLUMNS = 3  # panels beside each other
FEW = 40  # points of a curve that are marked
MANY = 2000  # points of the mean of curves that have no steps in common


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
    if band not in _bands:
        there = ", ".join(map(repr, _bands))
        raise ValueError(f"There is no band {band!r}. There are {there}.")
    curves = _curves(to_numpy(rows, "plot"), keys, x)
    given = panels(plt, len(curves)) if axes is None else _listed(axes, len(curves))
    for curve, ax in zip(curves, given, strict=True):
        shared = len(curves) > 1 and given.count(ax) > 1
        draw(ax, curve, band, curve.name if shared else None)
        ax.set_xlabel(curve.step)
        if shared:
            ax.legend(frameon=False, fontsize="small")
        else:
            ax.set_ylabel(curve.name)
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
    columns = min(count, COLUMNS)
    lines = math.ceil(count / columns)
    size = 4 * columns, 2.8 * lines
    figure, axes = plt.subplots(
        lines, columns, figsize=size, layout="constrained", squeeze=False
    )
    for ax in axes.flat:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[count:]:
        figure.delaxes(ax)
    return list(axes.flat[:count])


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
    points = [own for own in curve.points if own[0].size]
    if not curve.batched or not points:
        for steps, values in points:
            ax.plot(steps, values, label=label, **_style(values))
        return
    steps, values = _on_common_steps(points)
    if band is None:
        colour = ax.plot([], [], label=label)[0].get_color()
        for own in points:
            ax.plot(*own, color=colour, alpha=0.5, **_style(own[1]))
        title = f"{len(points)} examples"
    else:
        middle, low, high = _bands[band](values)
        (line,) = ax.plot(steps, middle, label=label, **_style(middle))
        ax.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, lw=0)
        title = f"mean and {band} of {len(points)} examples"
    ax.set_title(title, loc="right", fontsize="small", color="0.4")


def _style(values: np.ndarray) -> dict[str, Any]:
    return {"marker": "o", "markersize": 3} if len(values) <= FEW else {"linewidth": 1}


def _on_common_steps(points: list) -> tuple[np.ndarray, np.ndarray]:
    """The curves at the same steps, `examples, steps`; NaN where one does not reach."""
    first = points[0][0]
    if all(np.array_equal(first, steps) for steps, _ in points):
        return first, np.stack([values for _, values in points])
    every = np.unique(np.concatenate([steps for steps, _ in points]))
    if len(every) > MANY:
        every = every[np.linspace(0, len(every) - 1, MANY).astype(int)]
    order = [np.argsort(steps, kind="stable") for steps, _ in points]
    curves = [
        np.interp(every, steps[i], values[i], left=np.nan, right=np.nan)
        for i, (steps, values) in zip(order, points, strict=True)
    ]
    return every, np.stack(curves)


def _deviation(values: np.ndarray) -> tuple[np.ndarray, ...]:
    mean = _over_examples(np.mean, values)
    deviation = _over_examples(np.std, values)
    return mean, mean - deviation, mean + deviation


def _range(values: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(_over_examples(fun, values) for fun in (np.mean, np.min, np.max))


_bands = {"std": _deviation, "range": _range, None: None}


def _over_examples(fun: Any, values: np.ndarray) -> np.ndarray:
    """Of the values that are finite; NaN where none is."""
    return fun(np.ma.masked_invalid(values), axis=0).filled(np.nan)
