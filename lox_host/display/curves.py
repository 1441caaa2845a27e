"""Turn the rows of a key into curves, and curves into a mean with a band. NumPy only.

`logs.plot()` and `lox plot` both start from the rows of one key, which have the axes
`rows, *examples`, and draw a panel for each scalar in its value:

    arrays (rows, *examples)  -- curves_of -->  a Curve  -- .panel -->  a Panel
                                           lines of examples         mean and band

For example, two examples that logged `loss` at steps 0, 1 and 1, 2 are a curve with the
points `([0, 1], [4, 2])` and `([1, 2], [6, 2])`. Its mean is that of the interpolated lines
at the steps 0, 1, 2, where each reaches: 4, 4, 2.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lox_host.display.bands import BANDS
from lox_host.display.panels import Panel, Points
from lox_host.display.text import count, not_finite
from lox_host.rows import FlatRows

MANY = 2000  # points of the mean of curves that have no steps in common


@dataclasses.dataclass(frozen=True)
class Curve:
    """A scalar against a step.

    Attributes:
        name: The key, with the path into its value behind it.
        step: The name of the step, or `"row"`.
        points: For each example, the steps and the values of its rows.
        is_batch: Whether there may be several examples.
        runs: How many runs they are from.
    """

    name: str
    step: str
    points: Sequence[Points]
    is_batch: bool
    runs: int = 1

    def panel(
        self, band: str | None, noun: str = "example", of: str = "", smooth: int = 1
    ) -> Panel:
        """Return what to draw: the mean of a batch and a band, or all of its lines.

        A line diverges if its last value is not finite. It has no part in the mean, which
        would improve when the worst line is gone; it is drawn on its own, up to a mark.

        Args:
            band: One of `BANDS`. None: each line.
            noun: What the lines are, for the note above the panel.
            of: What they are lines of, such as " of 4 runs".
            smooth: How many rows up to each have their mean drawn in its place.
        """
        raw = [line for line in self.points if line[0].size]
        points = [(steps, running_mean(values, smooth)) for steps, values in raw]
        panel = Panel(self.name, self.step, marks=nonfinite_marks(raw))
        lines_note = self.summary(noun, of)
        smoothed = f"\nsmoothed over {smooth} rows" if smooth > 1 else ""
        if not self.is_batch or not points:
            return panel._replace(lines=points, note=f"{lines_note}{smoothed}".strip())
        is_finite = [bool(np.isfinite(values[-1])) for _, values in raw]
        finite = [line for line, ok in zip(points, is_finite, strict=True) if ok]
        if band is None or not finite:
            return panel._replace(lines=points, note=f"{lines_note}{smoothed}")
        steps, values = on_common_steps(finite)
        return panel._replace(
            note=f"{BANDS[band].text} of {lines_note}{smoothed}",
            lines=[line for line, ok in zip(points, is_finite, strict=True) if not ok],
            middle=(steps, BANDS[band].middle(values.T)),
            band=(steps, *BANDS[band].reach(values.T)),
        )

    def summary(self, noun: str, of: str = "") -> str:
        """Say how many lines there are, and whether they are finite.

        Such as `4 runs`, `1 of 4 runs, 3 diverged`, or of a single run `diverged at step
        20`. Empty for a single line that is finite.
        """
        lines = [line for line in self.points if line[0].size]
        bad = [steps[~np.isfinite(values)] for steps, values in lines]
        diverged = sum(not np.isfinite(values[-1]) for _, values in lines)
        first = min((float(steps[0]) for steps in bad if len(steps)), default=0.0)
        total = sum(map(len, bad))
        if not self.is_batch:
            if diverged:
                return f"diverged, {not_finite(total, self.step, first)}"
            return not_finite(total, self.step, first) if total else ""
        if diverged:
            some = f"{len(lines) - diverged} of {count(len(lines), noun)}{of}"
            return f"{some}, {diverged} diverged"
        rest = f", {total} values not finite" if total else ""
        return f"{count(len(lines), noun)}{of}{rest}"


def running_mean(values: np.ndarray, number: int) -> np.ndarray:
    """Replace each row with the mean of the last rows up to it."""
    if number == 1:
        return values
    # A mean is a difference of sums. A NaN would spoil all sums after it, so values that
    # are not finite are counted separately.
    finite = np.isfinite(values)
    sums = np.cumsum(np.append(0.0, np.where(finite, values, 0)))
    not_finite = np.cumsum(np.append(0, ~finite))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - number)
    means = (sums[ends] - sums[starts]) / (ends - starts)
    return np.where(not_finite[ends] > not_finite[starts], np.nan, means)


def nonfinite_marks(lines: Sequence[Points]) -> Points | None:
    """Return where lines cease to be finite, at the height of the last value before."""
    steps, heights = [], []
    for its_steps, values in lines:
        finite = np.isfinite(values)
        # Where a value is not finite, and the one before it was, or there is none.
        for i in np.flatnonzero(~finite & np.append(True, finite[:-1]))[:MANY]:
            known = values[: i + 1][finite[: i + 1]]
            later = values[i:][finite[i:]]
            steps.append(its_steps[i])
            heights.append(known[-1] if len(known) else later[0] if len(later) else 0.0)
    return (np.array(steps), np.array(heights)) if steps else None


def curves_of(rows: FlatRows, x: str | None) -> list[Curve]:
    """Return a curve for each real scalar among the arrays of one key.

    Args:
        rows: The rows of the key.
        x: The step to draw against, `"row"` for the number of the row, `"time"` for the
            time at which it reached the host, or None for `step`, or else the first by
            name, or else the row. There is no curve if the key has no such step.
    """
    found = positions_of(rows, x)
    if found is None:
        return []
    shape = len(rows), *rows.examples

    def by_example(array: np.ndarray) -> np.ndarray:
        # (rows, *examples) -> (examples, rows); -1 would not do, as there may be no rows.
        return array.reshape(shape[0], math.prod(shape[1:])).T

    def points(values: np.ndarray) -> list[Points]:
        lines = []
        arrays = found.values, values, found.is_logged
        for x, y, ok in zip(*map(by_example, arrays), strict=True):
            lines.append((x[ok].astype(np.float64), y[ok].astype(np.float64)))
        return lines

    return [
        Curve(name, found.step, points(values), is_batch=len(rows.examples) > 0)
        for name, values in rows.arrays.items()
        if values.ndim == len(shape) and _is_real(values.dtype)
    ]


class Positions(NamedTuple):
    """Where the rows of a key are on the x axis.

    Attributes:
        step: The name of the step, `"row"` or `"seconds"`.
        values: The position of each row and example, `(rows, *examples)`.
        is_logged: Which of them were logged with this step.
    """

    step: str
    values: np.ndarray
    is_logged: np.ndarray


def positions_of(rows: FlatRows, x: str | None) -> Positions | None:
    """Return where the rows are. `x` is as for `curves_of`. None: there is no such step."""
    names = scalar_steps(rows)
    shape = len(rows), *rows.examples
    is_logged = np.ones(shape, bool) if rows.valid is None else rows.valid
    if x == "time" and x not in names and rows.time is not None:
        times = rows.time.reshape(-1, *[1] * len(rows.examples))
        times = np.broadcast_to(times, shape)
        return Positions("seconds", times, is_logged & np.isfinite(times))
    if x not in (None, "row", *names):
        return None
    step = x or next(iter(names), "row")
    if step in rows.steps:
        has_step = rows.masks.get(step, np.True_)
        return Positions(step, rows.steps[step], is_logged & has_step)
    # Rows are numbered without those that were not logged.
    return Positions(step, np.cumsum(is_logged, axis=0) - 1, is_logged)


def scalar_steps(rows: FlatRows) -> list[str]:
    """Return the names of the steps that are numbers, `step` before others."""
    axes = 1 + len(rows.examples)
    names = [name for name, array in rows.steps.items() if array.ndim == axes]
    return sorted(names, key=lambda name: (name != "step", name))


def _is_real(dtype: np.dtype) -> bool:
    # The types that `ml_dtypes` adds to NumPy (2), such as bfloat16 and int4, are all real.
    return dtype.kind in "biuf" or dtype.isbuiltin == 2


def on_common_steps(points: Sequence[Points]) -> Points:
    """Interpolate lines at the same steps, `(examples, steps)`; NaN where one ends."""
    first = points[0][0]
    if all(np.array_equal(first, steps) for steps, _ in points):
        return first, np.stack([values for _, values in points])
    common = np.unique(np.concatenate([steps for steps, _ in points]))
    if len(common) > MANY:
        common = common[np.linspace(0, len(common) - 1, MANY).astype(int)]
    lines = []
    for steps, values in points:
        order = np.argsort(steps, kind="stable")
        lines.append(np.interp(common, steps[order], values[order], np.nan, np.nan))
    return common, np.stack(lines)
