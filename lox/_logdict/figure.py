"""Draw logs into a figure of matplotlib, for `logs.plot()`."""

import functools as ft
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lox._logdict.numpy import HasRows, flat_rows, to_numpy
from lox_host.display.bands import BANDS
from lox_host.display.curves import Curve, scalar_steps
from lox_host.display.heat_map import HeatMap, draw_heat_map, drawn_of
from lox_host.display.panels import add_legend, draw_panel, grid, label_axes
from lox_host.extras import import_extra
from lox_host.rows import FlatRows

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure


def draw(
    logs: HasRows,
    keys: str | Iterable[str] | None,
    x: str | None,
    axes: "matplotlib.axes.Axes | Iterable[matplotlib.axes.Axes] | None",
    band: str | None,
) -> "matplotlib.figure.Figure":
    """Return the figure. See `plot` for the arguments."""
    plt = import_extra("matplotlib.pyplot", "`logs.plot()`", "plot")
    if band not in (*BANDS, None):
        names = ", ".join(map(repr, (*BANDS, None)))
        raise ValueError(f"`band` cannot be {band!r}. Choose from {names}.")
    drawn = _drawn(flat_rows(to_numpy(logs.rows(), "plot")), keys, x)
    if axes is None:
        figure = plt.figure(FigureClass=_figure_class(), layout="constrained")
        panels = grid(figure, len(drawn))
    else:
        panels = _user_panels(axes, len(drawn))
    for one, ax in zip(drawn, panels, strict=True):
        if isinstance(one, HeatMap):
            draw_heat_map(ax, one)
            label_axes(ax, one.step, one.name)
            continue
        is_shared = len(drawn) > 1 and panels.count(ax) > 1
        draw_panel(ax, one.panel(band), one.name if is_shared else None)
        label_axes(ax, one.step, None if is_shared else one.name)
        if is_shared:
            add_legend(ax)
    return panels[0].figure  # pyright: ignore[reportReturnType]


@ft.cache
def _figure_class() -> "type[matplotlib.figure.Figure]":
    """Return figures that a notebook shows once.

    A notebook shows what the last line of a cell returns, and then all figures that are
    still open. So a figure that is shown is closed.
    """
    plt = import_extra("matplotlib.pyplot", "`logs.plot()`", "plot")
    figure = import_extra("matplotlib.figure", "`logs.plot()`", "plot")

    class Figure(figure.Figure):
        def _ipython_display_(self) -> None:
            if "inline" in plt.get_backend():
                plt.close(self)
            raise NotImplementedError  # let IPython show it as any figure

    return Figure


def _drawn(
    rows: Mapping[str, FlatRows], keys: str | Iterable[str] | None, x: str | None
) -> list[Curve | HeatMap]:
    """Return the curves and heat maps of the keys that are asked for, at least one."""
    if keys is None:
        names = [key for key in rows if rows[key].has_time]
    else:
        names = [keys] if isinstance(keys, str) else list(keys)
        for name in names:
            _check_key(rows, name, x)
    drawn: list[Curve | HeatMap] = []
    for name in names:
        heat_maps, curves = drawn_of(rows[name], x)
        drawn += [*heat_maps, *curves]
    if drawn:
        return drawn
    what = "these logs" if keys is None else f"the keys {sorted(names)}"
    with_step = "" if x is None else f" with the step {x!r}"
    raise ValueError(
        f"There are no curves in {what}: a curve is a real number logged several times"
        f"{with_step}. The keys are {sorted(rows)}."
    )


def _check_key(rows: Mapping[str, FlatRows], key: str, x: str | None) -> None:
    """Raise if there is no such key, or if it has no such step."""
    if key not in rows:
        raise ValueError(f"There is no key {key!r}. The keys are {sorted(rows)}.")
    steps = scalar_steps(rows[key])
    if x not in (None, "row", *steps):
        raise ValueError(
            f"{key!r} has no step {x!r}. Its steps are {steps}; "
            '`x="row"` is the number of the row.'
        )


def _user_panels(axes: Any, count: int) -> "list[matplotlib.axes.Axes]":
    """Return the axes of the user: one for each curve, or a single one for all."""
    if not isinstance(axes, Iterable):
        return [axes] * count
    # What `plt.subplots` returns is an array of axes, with one row for each row of them.
    panels = list(np.ravel(np.asarray(list(axes), dtype=object)))
    if len(panels) != count:
        raise ValueError(
            f"There are {count} curves, but {len(panels)} axes. Give one for each curve, "
            "or a single one for all of them."
        )
    return panels
