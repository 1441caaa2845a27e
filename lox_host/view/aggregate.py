"""Means and bands over runs, downsampled so that extremes survive. Pure NumPy.

A page has room for a few hundred points, and a session may have ten thousand rows of a
thousand runs. Averaging rows would hide spikes. So every number counts all runs, and only
the positions to draw are chosen:

    1. the mean over the runs of a group at every row        (rows,)
    2. in each of a few hundred bins of rows, the rows where it is lowest and highest
    3. at these rows, the centre and the band of all runs    exact, not of a bin

The invariant: each point on the screen is exactly what NumPy computes for that row, and a
spike of one row shows at every zoom.

Runs that diverged are left out of the whole mean, and counted beside it. Otherwise the mean
would improve at the row where the worst run becomes NaN.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from lox_host.display.bands import (
    CENTRES,
    Reach,
    bootstrap_band,
    middle_band,
    range_band,
    std_band,
)
from lox_host.view.data.series import Part

BINS = 300  # bins of rows, each with at most two points


def _no_band(values: np.ndarray, centre: str) -> Reach:
    return np.full(len(values), np.nan), np.full(len(values), np.nan)


# The bands that a user can choose, by the name in a request.
BANDS: dict[str, Callable[[np.ndarray, str], Reach]] = {
    "std": std_band,
    "80": lambda values, centre: middle_band(values),
    "ci": bootstrap_band,
    "range": lambda values, centre: range_band(values),
    "none": _no_band,
}


@dataclasses.dataclass(frozen=True)
class Aggregate:
    """The centre and the band of a group of runs. All arrays are `(positions,)`.

    Attributes:
        x: The positions.
        centre: The mean, median or interquartile mean.
        low: The lower end of the band.
        high: The upper end of the band.
        counts: How many runs have a finite value.
        runs: How many runs the group has.
        diverged: How many of them diverged, and are left out.
    """

    x: np.ndarray
    centre: np.ndarray
    low: np.ndarray
    high: np.ndarray
    counts: np.ndarray
    runs: int
    diverged: int


def aggregate(
    parts: Sequence[Part],
    groups: Sequence[np.ndarray],
    centre: str,
    band: str,
    span: tuple[float, float] = (-np.inf, np.inf),
    bins: int = BINS,
    *,
    gone: np.ndarray | None = None,
    means: np.ndarray | None = None,
) -> list[Aggregate]:
    """Return the centre and the band of each group of runs.

    Args:
        parts: The rows.
        groups: The numbers of the runs of each group.
        centre: One of `CENTRES`.
        band: One of `BANDS`.
        span: Which positions to look at.
        bins: How many bins of rows to make. Each gives at most two points.
        gone: The runs that diverged. None: find them.
        means: The `group_means` of the other runs. None: compute them.
    """
    gone = diverged_runs(parts) if gone is None else gone
    logged = np.concatenate([part.runs for part in parts]) if parts else np.zeros(0, int)
    # Runs that did not log this key have no part in it, neither alive nor diverged.
    members = [group[np.isin(group, logged)] for group in groups]
    alive = [group[~np.isin(group, gone)] for group in members]
    found = []
    for group, some, (x, values) in zip(
        members, alive, at_common_positions(parts, alive, span, bins, means), strict=True
    ):
        with np.errstate(all="ignore"):
            middle = CENTRES[centre](values)
            low, high = BANDS[band](values, centre)
        counts = np.isfinite(values).sum(1)
        lost = len(group) - len(some)
        found.append(Aggregate(x, middle, low, high, counts, len(group), lost))
    return found


def diverged_runs(parts: Sequence[Part]) -> np.ndarray:
    """Return the runs that end with a value that is not finite."""
    gone = [part.runs[diverged(part)] for part in parts]
    return np.concatenate(gone) if gone else np.zeros(0, int)


def diverged(part: Part) -> np.ndarray:
    """Return which runs end with a value that is not finite."""
    has_rows = part.lengths > 0
    last = part.values[np.maximum(part.lengths - 1, 0), np.arange(len(part.runs))]
    return has_rows & ~np.isfinite(last)


def at_common_positions(
    parts: Sequence[Part],
    groups: Sequence[np.ndarray],
    span: tuple[float, float],
    bins: int,
    means: np.ndarray | None = None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return positions to draw, and the values of all runs there, for each group.

    The values are `(positions, runs)`, with NaN where a run has none. If the runs share
    their positions, these are rows of the runs. If not, each run is interpolated between
    its rows, from its first to its last.
    """
    shared = common_positions(parts)
    if shared is None:
        inside = [[part.of_runs(group) for part in parts] for group in groups]
        return [_interpolated(some, span, 2 * bins) for some in inside]
    first, after = rows_in_span(shared, span)
    if means is None:
        inside = [part.rows(first, after) for part in parts]
        means = group_means(inside, groups, after - first)
    else:
        means = means[:, first:after]
    found = []
    for group, mean in zip(groups, means, strict=True):
        rows = first + extreme_rows(mean, bins)
        columns = []
        for part in parts:
            columns.append(_picked(part, rows, np.flatnonzero(np.isin(part.runs, group))))
        found.append((shared[rows], np.concatenate(columns, axis=1)))
    return found


def _picked(part: Part, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return some rows of some runs, with NaN after the end of the part."""
    here = rows[rows < len(part.values)]
    values = np.full((len(rows), len(columns)), np.nan)
    # Whole rows first: picking both at once with `np.ix_` takes three times as long.
    whole = part.values.take(here, axis=0)
    values[: len(here)] = whole.take(columns, axis=1)
    return values


def group_means(
    parts: Sequence[Part], groups: Sequence[np.ndarray], rows: int
) -> np.ndarray:
    """Return the mean over each group of runs at each row, `(groups, rows)`.

    It only decides which rows to draw, so single precision is enough. A matrix product is
    many times as fast as picking the columns of each group.
    """
    sums, counts = np.zeros((rows, len(groups))), np.zeros((rows, len(groups)))
    for part in parts:
        values = part.values
        member = np.stack([np.isin(part.runs, group) for group in groups], axis=1)
        member = member.astype(values.dtype)
        number = np.broadcast_to(member.sum(0), (len(values), len(groups))).copy()
        with np.errstate(all="ignore"):
            # (rows, runs) @ (runs, groups) -> (rows, groups)
            total = values @ member
            # Repeat the rows with NaN or infinities, counting only finite values.
            bad = np.flatnonzero(~np.isfinite(total).all(1))
            if len(bad):
                finite = np.isfinite(values[bad])
                total[bad] = np.where(finite, values[bad], 0) @ member
                number[bad] = finite.astype(values.dtype) @ member
        sums[: len(values)] += total
        counts[: len(values)] += number
    with np.errstate(all="ignore"):
        return (sums / counts).T


def common_positions(parts: Sequence[Part]) -> np.ndarray | None:
    """Return the positions of the longest part if all others begin the same, or None."""
    if not parts or not all(part.is_shared for part in parts):
        return None
    longest = max((part.x for part in parts), key=len)
    if all(np.array_equal(part.x, longest[: len(part.x)]) for part in parts):
        is_sorted = len(longest) < 2 or (longest[1:] >= longest[:-1]).all()
        return longest if is_sorted else None
    return None


def rows_in_span(x: np.ndarray, span: tuple[float, float]) -> tuple[int, int]:
    """Return the first row in a span and the row after the last.

    One more row at either end lets lines continue to the edges of the plot.
    """
    first = max(0, int(np.searchsorted(x, span[0])) - 1)
    return first, min(len(x), int(np.searchsorted(x, span[1], "right")) + 1)


def extreme_rows(values: np.ndarray, bins: int) -> np.ndarray:
    """Return the rows to draw a line with: the lowest and the highest of each bin.

    They always include the first and the last row. Few rows are all returned.
    """
    if len(values) <= 2 * bins:
        return np.arange(len(values))
    # The last bin may be smaller, so it is reduced by itself: (rows,) -> (bins, size).
    size = -(-len(values) // bins)
    whole = len(values) // size * size
    rows = [np.array([0, len(values) - 1])]
    for start, end, width in ((0, whole, size), (whole, len(values), len(values) - whole)):
        if start == end:
            continue
        matrix = values[start:end].reshape(-1, width)
        offset = start + np.arange(len(matrix)) * width
        # NaN is neither lowest nor highest. A bin of NaNs gives its first row.
        low = np.where(np.isnan(matrix), np.inf, matrix).argmin(1)
        high = np.where(np.isnan(matrix), -np.inf, matrix).argmax(1)
        rows += [offset + low, offset + high]
    return np.unique(np.concatenate(rows))


def _interpolated(
    parts: Sequence[Part], span: tuple[float, float], most: int
) -> tuple[np.ndarray, np.ndarray]:
    lines = []
    for part in parts:
        for column in range(len(part.runs)):
            x, y = part.line(column)
            known = np.isfinite(x) & np.isfinite(y)
            order = np.argsort(x[known], kind="stable")
            lines.append((x[known][order], y[known][order]))
    if not lines:
        return np.zeros(0), np.zeros((0, 0))
    # Every position that any run has, thinned evenly if there are too many to draw.
    common = np.unique(np.concatenate([x for x, _ in lines]))
    first, after = rows_in_span(common, span)
    common = common[first:after]
    if len(common) > most:
        common = common[np.linspace(0, len(common) - 1, most).astype(int)]
    values = np.full((len(common), len(lines)), np.nan)
    for column, (x, y) in enumerate(lines):
        if len(x):
            values[:, column] = np.interp(common, x, y, np.nan, np.nan)
    return common, values


def smoothed(part: Part, number: int) -> Part:
    """Replace each row of a run with the mean of the last `number` rows up to it.

    If one of these is not finite, the mean is NaN.
    """
    if number <= 1:
        return part
    bad = ~np.isfinite(part.values)
    known = np.where(bad, 0, part.values) if bad.any() else part.values
    sums = _running_sums(known, number)
    # The first rows have fewer before them: 1, 2, ..., number, number, ...
    rows = np.minimum(np.arange(1, len(known) + 1), number)
    values = (sums / rows[:, None]).astype(part.values.dtype)
    if bad.any():
        values[_running_sums(bad, number) > 0] = np.nan
    return dataclasses.replace(part, values=values)


def _running_sums(values: np.ndarray, number: int) -> np.ndarray:
    """Return the sum of the last `number` rows up to each row."""
    sums = np.empty(values.shape)
    if values.shape[1] < 32:
        np.cumsum(values, axis=0, out=sums)
        sums[number:] = sums[number:] - sums[:-number]
        return sums
    # With many runs, `np.cumsum` over the first axis takes ten times as long as this.
    total = np.zeros(values.shape[1])
    for row in range(len(values)):
        total += values[row]
        if row >= number:
            total -= values[row - number]
        sums[row] = total
    return sums
