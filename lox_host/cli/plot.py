"""`lox plot`: draw curves of runs, and histograms over time as heat maps."""

import dataclasses
import itertools as it
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lox_host.cli.errors import CLIError
from lox_host.display.bands import BANDS
from lox_host.display.curves import Curve
from lox_host.display.heat_map import HeatMap, add_up, draw_heat_map, drawn_of
from lox_host.display.panels import add_legend, draw_panel, grid, label_axes, set_note
from lox_host.display.text import clean, count
from lox_host.extras import import_extra
from lox_host.reading.names import find_names, matches, missing_key, wanted_names
from lox_host.reading.run_fields import field, in_words, sort_key
from lox_host.reading.runs import describe_runs, select_meant
from lox_host.reading.select import SelectedRun, by_session
from lox_host.rows import FlatRows
from lox_host.store import read_key_rows, retry_if_stale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Group:
    """What is drawn of runs that are drawn together, by name."""

    curves: dict[str, Curve]
    heat_maps: dict[str, HeatMap]

    @property
    def names(self) -> list[str]:
        return [*self.curves, *self.heat_maps]


@dataclasses.dataclass(frozen=True)
class Style:
    """How to draw curves.

    Attributes:
        band: The band around the mean of several runs. None: draw each run.
        smooth: How many rows to average, up to and including each row.
        log: The logarithmic axes, of "x" and "y".
    """

    band: str | None
    smooth: int
    log: str


@retry_if_stale
def plot(
    where: Sequence[str],
    keys: Sequence[str],
    out: str,
    *,
    x: str | None,
    band: str,
    smooth: int,
    by: str | None,
    log: str,
    condition: str | None,
) -> None:
    """Draw a panel per key, with a curve per condition in `where` or value of `by`.

    If a curve has several runs, draw their mean with a band, or each of them.
    """
    matplotlib = import_extra("matplotlib", "`lox plot`", "plot")
    matplotlib.use("agg")
    runs = _groups(where, by, condition)
    together = [run for group in runs.values() for run in group]
    groups = {text: _group(selected, keys, x) for text, selected in runs.items()}
    every = it.chain.from_iterable(group.names for group in groups.values())
    names = wanted_names(dict.fromkeys(every), keys)
    _check(names, together, keys, x)
    look = Style(None if band == "none" else band, smooth, log)
    figure = _draw(names, groups, look)
    try:
        figure.savefig(out, dpi=150)
    except (OSError, ValueError) as error:
        raise CLIError(f"Cannot write the picture to {out!r}: {error}") from error
    print(clean(f"{', '.join(names)} of {count(len(together), 'run')}: {out}"))


def _groups(
    where: Sequence[str], by: str | None, condition: str | None
) -> Mapping[str, list[SelectedRun]]:
    """Return the runs of each curve, by its name in the legend."""
    if by is None:
        return {text: select_meant([text], condition) for text in where}
    runs = select_meant(where, condition)
    stored = describe_runs(runs)
    name, get = field(stored, by)
    values = [get(run) for run in stored]
    groups: dict[str, list[SelectedRun]] = {}
    for value, run in sorted(
        zip(values, runs, strict=True), key=lambda pair: sort_key(pair[0])
    ):
        text = "none" if value is None else in_words(value)
        groups.setdefault(f"{name}={text}", []).append(run)
    return groups


def _group(runs: Sequence[SelectedRun], keys: Sequence[str], x: str | None) -> Group:
    """Return what is drawn of some runs, each of whose curves has the lines of all runs."""
    curves: dict[str, list[Curve]] = {}
    heat_maps: dict[str, list[HeatMap]] = {}
    for rows in _rows(runs, keys):
        of_histograms, of_numbers = drawn_of(rows, x)
        for heat_map in of_histograms:
            heat_maps.setdefault(heat_map.name, []).append(heat_map)
        for curve in of_numbers:
            curves.setdefault(curve.name, []).append(curve)
    return Group(
        {name: _joined(of_runs) for name, of_runs in curves.items()},
        {name: add_up(of_runs) for name, of_runs in heat_maps.items()},
    )


def _rows(runs: Sequence[SelectedRun], keys: Sequence[str]) -> Iterator[FlatRows]:
    """Yield the rows of each run and key, with their times since the run started."""
    for reader, selected in by_session(runs).items():
        wanted = _concerned(reader.keys, keys)
        key_rows = read_key_rows(reader, [run.id for run in selected], wanted)
        for id, by_key in key_rows.items():
            start = reader.runs[id].start
            for key, rows in by_key.items():
                # Without `-k`, skip keys that were logged only once.
                if keys or rows.has_time:
                    yield dataclasses.replace(rows, time=rows.time - start).flat(key)


def _joined(curves: Sequence[Curve]) -> Curve:
    points = [line for curve in curves for line in curve.points]
    return dataclasses.replace(
        curves[0], points=points, is_batch=len(points) > 1, runs=len(curves)
    )


def _concerned(known: Sequence[str], asked: Sequence[str]) -> list[str]:
    """Return the keys that the user names, or whose trees may hold a named value."""
    wanted: set[str] = set()
    for name in asked:
        # `grad/w` may be an array of the key `grad`, which only reading it tells.
        above = [key for key in known if matches(name, key)]
        wanted.update(find_names(known, name) or above or known)
    return [key for key in known if key in wanted or not asked]


def _check(
    names: Sequence[str], runs: Sequence[SelectedRun], keys: Sequence[str], x: str | None
) -> None:
    known = list(dict.fromkeys(key for run in runs for key in run.reader.keys))
    for key in keys:
        is_known = find_names(known, key) or any(matches(key, name) for name in known)
        if not is_known and not find_names(names, key):
            raise missing_key(key, runs[0].address, known)
    if not names:
        behind = "" if x is None else f" with the step {x!r}"
        if x == "time":
            behind = " against time, which stores of earlier versions do not have"
        raise CLIError(
            f"There is nothing to plot{behind}: a curve is a real number that was logged "
            f"several times. The keys are {', '.join(known) or 'none yet'}."
        )


def _draw(names: Sequence[str], groups: Mapping[str, Group], look: Style) -> "Figure":
    """Draw a panel for the curves of each name, and one for each of its heat maps."""
    curves = {
        name: {text: g.curves[name] for text, g in groups.items() if name in g.curves}
        for name in names
    }
    heat_maps = [
        (text, group.heat_maps[name])
        for name in names
        for text, group in groups.items()
        if name in group.heat_maps
    ]
    curves = {name: by_group for name, by_group in curves.items() if by_group}
    plt = import_extra("matplotlib.pyplot", "`lox plot`", "plot")
    figure = plt.figure(layout="constrained")
    axes = iter(grid(figure, len(curves) + len(heat_maps)))
    has_legend = len(groups) > 1
    for name, by_group in curves.items():
        _draw_curves(next(axes), name, by_group, look, has_legend)
    for text, heat_map in heat_maps:
        ax = next(axes)
        draw_heat_map(ax, heat_map)
        label_axes(ax, heat_map.step, heat_map.name)
        if has_legend:
            set_note(ax, clean(text))
    return figure


def _draw_curves(
    ax: "Axes", name: str, curves: Mapping[str, Curve], look: Style, has_legend: bool
) -> None:
    """Draw the curves of one name, of which each group of runs has one."""
    band = ""
    smoothed = f"smoothed over {look.smooth} rows" if look.smooth > 1 else ""
    for text, curve in curves.items():
        # Of a key that `vmap` gave an axis, each example is a line.
        has_elements = len(curve.points) != curve.runs
        noun = "element" if has_elements else "run"
        of = f" of {count(curve.runs, 'run')}" if has_elements else ""
        panel = curve.panel(look.band, noun, of, look.smooth)
        label = None
        if has_legend:
            parts = clean(text), curve.summary(noun, of)
            label = ", ".join(part for part in parts if part)
            if panel.band is not None and look.band is not None:
                band = BANDS[look.band].text
            panel = panel._replace(note="\n".join(filter(None, [band, smoothed])))
        draw_panel(ax, panel, label)
        label_axes(ax, curve.step, name)
    _scale_axes(ax, [*curves.values()], look)
    if has_legend:
        add_legend(ax)


def _scale_axes(ax: "Axes", curves: Sequence[Curve], look: Style) -> None:
    """Make axes logarithmic, and warn of points that these cannot show."""
    for axis, scale in enumerate((ax.set_xscale, ax.set_yscale)):
        if "xy"[axis] not in look.log:
            continue
        scale("log")
        points = [line[axis] for curve in curves for line in curve.points]
        hidden = sum(int((values <= 0).sum()) for values in points)
        if hidden:
            title = ax.get_title(loc="right")
            what = f"{count(hidden, 'point')} with {'xy'[axis]} ≤ 0 not shown"
            set_note(ax, "\n".join(filter(None, [title, what])))
