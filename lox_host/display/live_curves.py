"""The curves that `PlotLogger` keeps: a fixed number of points for any number of rows."""

from collections.abc import Iterable, Sequence

import numpy as np

from lox_host.display.bands import BANDS, mean
from lox_host.display.curves import nonfinite_marks, on_common_steps
from lox_host.display.downsampled_lines import FIELDS, Spans
from lox_host.display.panels import Panel, Points
from lox_host.display.statistics import (
    RowsByRun,
    has_logged,
    mean_and_range,
    named_arrays,
)
from lox_host.rows import Block, Form

FEW_RUNS = 8  # that have a line each
FEWEST_POINTS = 64  # of a line, of very many runs
BUDGET = 2**17  # points of a curve, of all runs together, unless there are very many runs


class LiveCurves:
    """The curves of all runs.

    Args:
        keys: What to draw. None: everything that is a number.
        x: The step to draw it against. None: `step`, or else the first, or else the number
            of the row.
        points: How many points a line has at most; a power of two.
    """

    def __init__(self, keys: Sequence[str] | None, x: str | None, points: int):
        self._keys, self._x, self._points = keys, x, points
        self._slots: dict[int, int] = {}
        self._curves: dict[str, LiveCurve] = {}
        self._logged_keys: dict[str, None] = {}

    def add(self, block: Block) -> None:
        """Take the rows of a block."""
        if not len(block):
            return
        self._logged_keys |= dict.fromkeys(block.values)
        for key in block.values:
            if self._keys is not None and key not in self._keys:
                continue
            # A real number in each row, or for each example of a `vmap`.
            ndim = 1 + block.forms.get(key, Form()).batch
            for name, array, prng_key in named_arrays(block, key):
                if not prng_key and array.ndim == ndim and array.dtype.kind != "c":
                    self._add_scalar(name, block, key, array)

    def panels(self) -> list[Panel]:
        """Return what to draw, in the order that was asked for, or else of logging."""
        names = list(self._curves)
        if self._keys is not None:
            position = {key: i for i, key in enumerate(self._keys)}
            names.sort(key=lambda name: position[self._curves[name].key])
        return [self._curves[name].panel(name) for name in names]

    def missing(self) -> str:
        """Say what was asked for and is not there. Empty if nothing is missing."""
        drawn = {curve.key for curve in self._curves.values()}
        lost = [key for key in self._keys or () if key not in drawn]
        if not lost:
            return ""
        behind = "" if self._x in (None, "row") else f" with the step {self._x!r}"
        return (
            f"There is no curve of {', '.join(map(repr, lost))}: a curve is a real number "
            f"that was logged{behind}. The keys that were logged are "
            f"{list(self._logged_keys)}."
        )

    def _add_scalar(self, name: str, block: Block, key: str, array: np.ndarray) -> None:
        # The first block decides what a curve is drawn against. Rows of a later block that
        # lack this step are left out.
        curve = self._curves.get(name) or LiveCurve(key, self._step(block), self._points)
        step = block.steps.get(curve.step)
        if step is None and curve.step != "row":
            return
        # Which examples have a value, and which of them a step.
        valid = has_step = block.valid.get(key)
        if step is not None and (mask := block.masks.get(curve.step)) is not None:
            has_step = mask if valid is None else valid & mask
        which = np.ones(len(block), bool) if has_step is None else has_logged(has_step)
        if not which.any():
            return
        self._curves[name] = curve
        rows = RowsByRun.of(block.runs[which], self._slots)
        with np.errstate(all="ignore"):
            values = mean_and_range(array[which], _rows_of(valid, which))
            steps = None
            if step is not None:
                steps, *_ = mean_and_range(step[which], _rows_of(has_step, which))
        curve.add(rows, values, steps)

    def _step(self, block: Block) -> str:
        names = sorted(block.steps, key=lambda name: (name != "step", name))
        return self._x or next(iter(names), "row")


class LiveCurve:
    """The lines of one name, one for each run: means over spans of its rows.

    Args:
        key: The key that the name belongs to.
        step: What it is drawn against.
        points: How many points a line has at most; a power of two.
    """

    def __init__(self, key: str, step: str, points: int):
        self.key, self.step, self._most_points = key, step, points
        self._counts = np.zeros(1, np.int64)  # of rows, for each run
        self._is_finite = np.ones(1, bool)  # the last value of each run
        self._spans = Spans(points, *FIELDS)

    def add(
        self, rows: RowsByRun, values: tuple[np.ndarray, ...], steps: np.ndarray | None
    ) -> None:
        """Take rows: their mean, smallest and largest elements, and their steps."""
        self._make_room(rows.slots.max() + 1)
        numbers = rows.numbers(self._counts)
        self._spans.hold(numbers.max() + 1)
        self._counts[rows.slots] += rows.counts
        runs = np.repeat(rows.slots, rows.counts)
        steps = numbers if steps is None else steps[rows.order]
        self._spans.add(runs, numbers, rows=1.0, steps=steps)
        means, lows, highs = (array[rows.order] for array in values)
        finite = np.isfinite(means)
        # Rows are sorted by run here: the last of a run is in front of the next run.
        self._is_finite[rows.slots] = finite[np.cumsum(rows.counts) - 1]
        self._spans.add(
            runs[finite],
            numbers[finite],
            finite=1.0,
            values=means[finite],
            low=lows[finite],
            high=highs[finite],
        )

    def panel(self, name: str) -> Panel:
        """Return what to draw: the line of each run, or their mean with a band."""
        runs = np.flatnonzero(self._counts).tolist()
        points = {run: self._line(run) for run in runs}
        finite = [points[run] for run in runs if self._is_finite[run]]
        marks = nonfinite_marks([self._marked_line(run) for run in runs])
        if len(points) == 1:
            note = "" if finite else "diverged"
            return self._panel_of_one(name, runs[0], points[runs[0]], note, marks)
        lines, panel = list(points.values()), Panel(name, self.step, marks=marks)
        diverged = len(lines) - len(finite)
        rest = f", {diverged} diverged" if diverged else ""
        if not finite:
            return panel._replace(note=f"{len(lines)} runs{rest}", lines=lines)
        steps, values = on_common_steps(finite)
        # Where few runs have come, their mean would look like a turn of all.
        reach = sum((x.min() <= steps) & (steps <= x.max()) for x, _ in finite)
        steps, values = steps[2 * reach >= len(finite)], values[:, 2 * reach >= len(finite)]
        middle = steps, mean(values.T)
        some = f"{len(finite)} of " if diverged else ""
        if len(lines) <= FEW_RUNS:
            note = f"{len(lines)} runs and their mean{rest}"
            if diverged:
                note = f"{len(lines)} runs, mean of {some}{len(lines)} runs{rest}"
            return panel._replace(note=note, lines=lines, middle=middle)
        note = f"mean and 80% of {some}{len(lines)} runs{rest}"
        band = steps, *BANDS["80%"].reach(values.T)
        gone = [points[run] for run in runs if not self._is_finite[run]]
        return panel._replace(note=note, lines=gone, middle=middle, band=band)

    def _panel_of_one(
        self, name: str, run: int, line: Points, health: str, marks: Points | None
    ) -> Panel:
        if self._spans.length == 1:
            return Panel(name, self.step, health, middle=line, marks=marks)
        arrays = self._spans.arrays
        has_rows = arrays["rows"][run] > 0
        low, high = (arrays[side][run, has_rows] for side in ("low", "high"))
        # A span without a number reaches from infinity to its opposite.
        low, high = (np.where(np.isfinite(edge), edge, np.nan) for edge in (low, high))
        spans = f"mean and range of {self._spans.length} rows each"
        note = ", ".join(part for part in (spans, health) if part)
        band = line[0], low, high
        return Panel(name, self.step, note, middle=line, band=band, marks=marks)

    def _line(self, run: int) -> Points:
        arrays = {name: array[run] for name, array in self._spans.arrays.items()}
        has_rows = arrays["rows"] > 0
        with np.errstate(all="ignore"):  # spans without a number
            steps, values = (
                arrays["steps"] / arrays["rows"],
                arrays["values"] / arrays["finite"],
            )
        return steps[has_rows], values[has_rows]

    def _marked_line(self, run: int) -> Points:
        """Return the line with NaN in each span that has a value that is not finite."""
        arrays = {name: self._spans.arrays[name][run] for name in ("rows", "finite")}
        has_rows = arrays["rows"] > 0
        is_whole = arrays["finite"][has_rows] == arrays["rows"][has_rows]
        steps, values = self._line(run)
        return steps, np.where(is_whole, values, np.nan)

    def _make_room(self, size: int) -> None:
        """Make room for at least this many runs. More runs may mean fewer points each."""
        runs = len(self._counts)
        if size <= runs:
            return
        while runs < size:
            runs *= 2
        points = min(self._most_points, max(FEWEST_POINTS, BUDGET // runs))
        self._spans.hold(int(self._counts.max()), points)
        self._spans.resize(runs, points)
        more = 0, runs - len(self._counts)
        self._counts = np.pad(self._counts, more)
        self._is_finite = np.pad(self._is_finite, more, constant_values=True)


def _rows_of(mask: np.ndarray | None, which: np.ndarray) -> np.ndarray | None:
    return None if mask is None else mask[which]


def key_list(keys: str | Iterable[str] | None) -> list[str] | None:
    """Return the keys as a list; a single one may be given alone."""
    if keys is None:
        return None
    names = [keys] if isinstance(keys, str) else list(keys)
    wrong = [key for key in names if not isinstance(key, str)]
    if wrong:
        raise TypeError(f"`keys` are strings, not {wrong[0]!r}.")
    return names
