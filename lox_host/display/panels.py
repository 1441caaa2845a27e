"""Panels with curves, as matplotlib draws them. Neither JAX nor pyplot is imported."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

COLUMNS = 3  # panels beside each other
FEW = 40  # points of a curve that are marked
MANY = 2000  # points of the mean of curves that have no steps in common

Points = tuple[np.ndarray, np.ndarray]  # steps and values


class Panel(NamedTuple):
    """What is drawn of one name.

    Attributes:
        name: What is drawn, the label of the y axis.
        step: What it is drawn against.
        note: What the lines are, in a few words.
        lines: Thin lines, one for each run or example.
        middle: A line in front of them.
        band: Around it: steps, and from where to where the band reaches.
    """

    name: str
    step: str
    note: str = ""
    lines: Sequence[Points] = ()
    middle: Points | None = None
    band: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None


class Picture:
    """A figure with panels that is drawn again and again, and shows the same parts.

    Args:
        figure: A figure of matplotlib's without a layout engine.
    """

    def __init__(self, figure: Any):
        self.figure = figure
        self._axes: list[Any] = []

    def draw(self, panels: Sequence[Panel], title: str = "") -> None:
        """Draw the panels. While there are as many, what a user zoomed into stays."""
        if len(panels) != len(self._axes):
            self.figure.clear()
            self._axes = grid(self.figure, len(panels))
            _fix_margins(self.figure, self._axes[0], bool(title))
        if title:
            self.figure.suptitle(title, parse_math=False)
        for ax, panel in zip(self._axes, panels, strict=True):
            for artist in [*ax.lines, *ax.collections]:
                artist.remove()
            ax.set_prop_cycle(None)
            draw_panel(ax, panel)
            ax.set_xlabel(panel.step, parse_math=False)
            ax.set_ylabel(panel.name, parse_math=False)
            # What was removed still counts otherwise.
            ax.relim()
            ax.autoscale_view()


def grid(figure: Any, count: int) -> list:
    """Axes for so many panels. The figure gets the size that they need."""
    columns = 2 if count == 4 else max(1, min(count, COLUMNS))
    lines = max(1, math.ceil(count / columns))
    figure.set_size_inches(4 * columns, 2.8 * lines)
    axes = figure.subplots(lines, columns, squeeze=False)
    for ax in axes.flat:
        ax.grid(alpha=0.25)
        ax.locator_params(axis="x", nbins=6)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[count:]:
        figure.delaxes(ax)
    return list(axes.flat[:count])


def _fix_margins(figure: Any, ax: Any, has_title: bool) -> None:
    """Leave the same room for labels at any time.

    Panels that are drawn again and again shall not move about, and to find out how much
    room each label needs takes matplotlib four times as long as all else.
    """
    em = ax.xaxis.label.get_fontsize() / 72
    lines, columns = ax.get_subplotspec().get_gridspec().get_geometry()
    width, height = figure.get_size_inches() / em
    left, right, bottom, top, above = 6.5, 1.5, 3.6, 1.9, 2.0 * has_title
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        bottom=bottom / height,
        top=1 - (top + above) / height,
        wspace=(left + right) / (width / columns - left - right),
        hspace=(bottom + top) / ((height - above) / lines - bottom - top),
    )


def draw_panel(ax: Any, panel: Panel, label: str | None = None) -> None:
    """Draw the curves of a panel, all in one colour."""
    colour = None
    if panel.middle is not None:
        (line,) = ax.plot(*panel.middle, label=label, zorder=3, **_style(panel.middle[1]))
        colour = line.get_color()
    is_faint = len(panel.lines) > 1 or colour is not None
    look = {"alpha": 0.4, "linewidth": 0.8} if is_faint else {}
    for own in panel.lines:
        style = look if is_faint else _style(own[1])
        mine = label if colour is None else None
        (line,) = ax.plot(*own, color=colour, label=mine, **style)
        colour = line.get_color()
    if panel.band is not None:
        ax.fill_between(*panel.band, color=colour, alpha=0.2, linewidth=0)
    ax.set_title(panel.note, loc="right", fontsize="small", color="0.4")


def _style(values: np.ndarray) -> dict[str, Any]:
    marked = {"marker": "o", "markersize": 3} if len(values) <= FEW else {}
    return {"linewidth": 1.4, **marked}


def on_common_steps(points: Sequence[Points]) -> Points:
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


def mean(values: np.ndarray) -> np.ndarray:
    """Over examples, of the values that are finite; NaN where none is."""
    return _over_examples(np.mean, values)


def _deviation(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    middle, deviation = mean(values), _over_examples(np.std, values)
    return middle - deviation, middle + deviation


def _range(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _over_examples(np.min, values), _over_examples(np.max, values)


def _most(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _quantile(values, 0.1), _quantile(values, 0.9)


# From where to where a band reaches, by its name. Values are `examples, steps`.
BANDS: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "std": _deviation,
    "range": _range,
    "80%": _most,
}


def _over_examples(fun: Any, values: np.ndarray) -> np.ndarray:
    return fun(np.ma.masked_invalid(values), axis=0).filled(np.nan)


def _quantile(values: np.ndarray, share: float) -> np.ndarray:
    """As `np.nanquantile`, which takes a hundred times as long."""
    values = np.where(np.isfinite(values), values, np.nan)
    ordered = np.sort(values, axis=0)  # NaN at the end
    place = share * np.maximum((~np.isnan(values)).sum(0) - 1, 0)
    below = np.floor(place).astype(int)
    above = np.ceil(place).astype(int)
    low, high = (np.take_along_axis(ordered, i[None], 0)[0] for i in (below, above))
    return low + (high - low) * (place - below)
