"""Panels with curves, as matplotlib draws them. Neither JAX nor pyplot is imported."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lox_host.display.text import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 3  # panels beside each other
MOST_ENTRIES = 12  # curves that a legend names
MARKED = 40  # points that a line has at most if each is marked

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
        marks: Where lines cease to be finite.
    """

    name: str
    step: str
    note: str = ""
    lines: Sequence[Points] = ()
    middle: Points | None = None
    band: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    marks: Points | None = None


class Picture:
    """A figure with panels that is drawn again and again, and shows the same parts.

    Args:
        figure: A figure of matplotlib's without a layout engine.
    """

    def __init__(self, figure: "Figure"):
        self.figure = figure
        self._axes: list[Axes] = []

    def draw(self, panels: Sequence[Panel], title: str = "") -> None:
        """Draw the panels. While there are as many, what a user zoomed into stays."""
        if len(panels) != len(self._axes):
            self.figure.clear()
            self._axes = grid(self.figure, len(panels))
            _fix_margins(self.figure, self._axes[0], bool(title))
        if title:
            self.figure.suptitle(clean(title), parse_math=False)
        for ax, panel in zip(self._axes, panels, strict=True):
            for artist in [*ax.lines, *ax.collections]:
                artist.remove()
            ax.set_prop_cycle(None)
            draw_panel(ax, panel)
            label_axes(ax, panel.step, panel.name)
            # What was removed still counts otherwise.
            ax.relim()
            ax.autoscale_view()


def grid(figure: "Figure", count: int) -> "list[Axes]":
    """Make axes for a number of panels, and resize the figure to fit them."""
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


def _fix_margins(figure: "Figure", ax: "Axes", has_title: bool) -> None:
    """Leave the same room for labels at any time.

    Panels that are drawn again and again shall not move about, and to find out how much
    room each label needs takes matplotlib four times as long as all else.
    """
    # All in the height of a letter, `em`.
    em = float(ax.xaxis.label.get_fontsize()) / 72
    lines, columns = ax.get_gridspec().get_geometry()  # pyright: ignore[reportOptionalMemberAccess]
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


def label_axes(ax: "Axes", step: str, name: str | None) -> None:
    """Write names at the axes as they are: a dollar in a key begins no formula."""
    ax.set_xlabel(clean(step), parse_math=False)
    if name is not None:
        ax.set_ylabel(clean(name), parse_math=False)


def add_legend(ax: "Axes") -> None:
    """Add a legend in which a dollar begins no formula. Of many curves, it names a few."""
    handles, labels = ax.get_legend_handles_labels()
    title = None
    if len(labels) > MOST_ENTRIES:
        title = f"{MOST_ENTRIES} of {len(labels)} curves"
        # From the first to the last, as the curves are in the order of a config value.
        few = np.linspace(0, len(labels) - 1, MOST_ENTRIES).round().astype(int).tolist()
        handles, labels = [handles[i] for i in few], [labels[i] for i in few]
    options = {"title": title, "frameon": False, "fontsize": "small"}
    legend = ax.legend(handles, labels, **options, title_fontsize="small")
    for text in legend.get_texts():
        text.set_parse_math(False)


def draw_panel(ax: "Axes", panel: Panel, label: str | None = None) -> None:
    """Draw the curves of a panel, all in one colour."""
    colour = None
    if panel.middle is not None:
        (line,) = ax.plot(*panel.middle, label=label, zorder=3, **_style(panel.middle[1]))
        colour = line.get_color()
    is_faint = len(panel.lines) > 1 or colour is not None
    faint: dict[str, Any] = {"alpha": 0.4, "linewidth": 0.8}
    for steps, values in panel.lines:
        style = faint if is_faint else _style(values)
        # The legend has one entry: the first that is drawn.
        own_label = label if colour is None else None
        (line,) = ax.plot(steps, values, color=colour, label=own_label, **style)
        colour = line.get_color()
    if panel.band is not None:
        ax.fill_between(*panel.band, color=colour, alpha=0.2, linewidth=0)
    if panel.marks is not None:
        x = {"linestyle": "none", "marker": "x", "color": "tab:red", "zorder": 4}
        ax.plot(*panel.marks, **x, label="_not finite")
    set_note(ax, panel.note)


def set_note(ax: "Axes", text: str) -> None:
    """Write what a panel shows above it, on the right."""
    ax.set_title(text, loc="right", fontsize="small", color="0.4", parse_math=False)


def _style(values: np.ndarray) -> dict[str, Any]:
    marked = {"marker": "o", "markersize": 3} if len(values) <= MARKED else {}
    return {"linewidth": 1.4, **marked}
