"""Draw many runs at once: a few as lines, hundreds as an image of their density.

Hundreds of lines hide each other. So each cell of the image counts the runs that pass
through it. In one column of the image, a run covers all cells from its lowest to its
highest value, so that even a spike of one row in ten thousand shows:

    rows of one run     | 2 3 2 9 2 | 2 1 2 2 3 |        bins of rows
    in its column       |   2 to 9  |   1 to 3  |        with the first row of the next bin

    values              image of 3 runs, (rows, columns)
    9                   1 0
    3                   2 1
    2                   3 3

A bin includes the first row of the next one, since the line between them crosses the edge.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from lox_host.view.aggregate import common_positions, extreme_rows, rows_in_span
from lox_host.view.data.series import Part

COLUMNS, ROWS = 300, 160  # the cells of an image
SAMPLED = 20_000  # the number of values from which the axis of values is chosen
LINES = 48  # the most runs to draw as lines; more become an image


@dataclasses.dataclass(frozen=True)
class Envelope:
    """The lowest and the highest value of each run in each column, `(columns, runs)`."""

    span: tuple[float, float]
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class Line:
    """A run as a line through the lowest and the highest row of each bin."""

    run: int
    x: np.ndarray
    y: np.ndarray


@dataclasses.dataclass(frozen=True)
class Mark:
    """Where a run first has a value that is not finite.

    Attributes:
        run: The number of the run.
        x: The position.
        y: The value before it, which is finite. NaN: there is none.
        is_end: Whether the last value of the run is not finite: it has diverged.
    """

    run: int
    x: float
    y: float
    is_end: bool


def lines(parts: Sequence[Part], span: tuple[float, float], bins: int) -> list[Line]:
    """Return each run as a line."""
    found = []
    for part in parts:
        for column, run in enumerate(part.runs.tolist()):
            x, y = part.line(column)
            if len(x) and (x[1:] < x[:-1]).any():
                order = np.argsort(x, kind="stable")
                x, y = x[order], y[order]
            first, after = rows_in_span(x, span)
            rows = first + extreme_rows(y[first:after], bins)
            found.append(Line(run, x[rows], y[rows]))
    return found


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The lowest and the highest value of each run in blocks of `BLOCK` rows.

    Zooming within ten thousand rows of a thousand runs reads only these.
    """

    low: np.ndarray
    high: np.ndarray


BLOCK = 16


def blocks(parts: Sequence[Part]) -> Blocks | None:
    """Return the blocks of runs that share many evenly spaced positions, or None."""
    shared = common_positions(parts)
    if shared is None or len(shared) < BLOCK * COLUMNS or not _are_even(shared):
        return None
    columns = -(-(len(shared) - 1) // BLOCK)
    return Blocks(*_reduce_parts([part.values for part in parts], BLOCK, columns))


def envelope(
    parts: Sequence[Part],
    span: tuple[float, float],
    columns: int = COLUMNS,
    known: Blocks | None = None,
) -> Envelope:
    """Return the lowest and the highest value of each run in each column.

    Args:
        parts: The rows.
        span: Which positions to look at.
        columns: The most columns to return.
        known: The blocks of these rows. None: they have not been computed.
    """
    shared = common_positions(parts)
    if shared is not None and _are_even(shared):
        first, after = rows_in_span(shared, span)
        if known is not None and after - first > 2 * BLOCK * COLUMNS:
            return _by_blocks(known, shared, first, after)
        return _by_rows([part.values[first:after] for part in parts], shared[first:after])
    ends = [_ends(part) for part in parts if part.x.size]
    low = max(span[0], min((low for low, _ in ends), default=0.0))
    high = min(span[1], max((high for _, high in ends), default=1.0))
    return _by_positions(parts, (low, high), columns)


def density(envelope: Envelope, y: tuple[float, float], rows: int = ROWS) -> np.ndarray:
    """Return how many runs pass through each cell, `(rows, columns)`, lowest row first."""
    low, high = y
    # A value at the upper end, such as an accuracy of 1, belongs to the highest cell.
    scale = rows * (1 - 1e-5) / (high - low) if high > low else 1.0
    columns = len(envelope.low)
    # Going up a column, add one at the cell where a run begins, and subtract one above the
    # cell where it ends. A running sum then counts the runs in each cell. A run that lies
    # above or below the image begins and ends at the same place, and so adds nothing.
    with np.errstate(all="ignore"):
        begin = np.clip((envelope.low - low) * scale, 0, rows)
        end = np.clip((envelope.high - low) * scale + 1, 0, rows)
    known = np.isfinite(envelope.low) & np.isfinite(envelope.high)
    if not known.all():
        begin, end = np.where(known, begin, rows), np.where(known, end, rows)
    # All columns in one array, one behind the other, for a single `bincount`.
    column = np.arange(columns)[:, None] * (rows + 1)
    size = columns * (rows + 1)
    enters = np.bincount((column + begin.astype(np.int32)).ravel(), minlength=size)
    leaves = np.bincount((column + end.astype(np.int32)).ravel(), minlength=size)
    return np.cumsum((enters - leaves).reshape(columns, rows + 1), axis=1)[:, :rows].T


def marks(parts: Sequence[Part]) -> list[Mark]:
    """Return where runs first have a value that is not finite."""
    found = []
    for part in parts:
        # If a value is not finite, neither is the sum, which takes a quarter of the time.
        # Short runs end in NaN, so they are suspects, too, and checked one by one.
        with np.errstate(all="ignore"):
            suspects = np.flatnonzero(~np.isfinite(part.values.sum(0)))
        for column in suspects.tolist():
            x, y = part.line(column)
            bad = np.flatnonzero(~np.isfinite(y))
            if len(bad):
                before = float(y[bad[0] - 1]) if bad[0] else float("nan")
                is_end = not np.isfinite(y[-1])
                mark = Mark(int(part.runs[column]), float(x[bad[0]]), before, is_end)
                found.append(mark)
    return found


def value_range(
    low: np.ndarray, high: np.ndarray
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the range of values to show, and the range of all values.

    One run that explodes would squeeze all others into a flat line. So values far outside
    of the middle 98 % are not shown until the user zooms out.
    """
    lows, highs = _known(low), _known(high)
    if not lows.size or not highs.size:
        return (0.0, 1.0), (0.0, 1.0)
    full = float(lows.min()), float(highs.max())
    # For the quantiles, all runs in some of the columns are enough. This saves most of the
    # time of a zoom.
    every = -(-low.size // SAMPLED)
    some = _known(low[::every]), _known(high[::every])
    lows, highs = some if some[0].size and some[1].size else (lows, highs)
    near = float(np.quantile(lows, 0.01)), float(np.quantile(highs, 0.99))
    width = near[1] - near[0]
    if width <= 0 or full[1] - full[0] <= 4 * width:
        return full, full
    return (max(full[0], near[0] - width / 2), min(full[1], near[1] + width / 2)), full


def _known(values: np.ndarray) -> np.ndarray:
    """Return the finite values."""
    finite = np.isfinite(values)
    return values if finite.all() else values[finite]


def _are_even(x: np.ndarray) -> bool:
    """Return whether positions are evenly spaced, so that bins of rows are columns."""
    if len(x) < 3:
        return True
    steps = np.diff(x)
    return bool(np.ptp(steps) <= 1e-6 * abs(steps[0]) and steps[0] > 0)


def _by_rows(values: Sequence[np.ndarray], x: np.ndarray) -> Envelope:
    """Return the envelope of runs that share positions, from bins of equal size."""
    rows = len(x)
    if rows < 2:
        span = (float(x[0]), float(x[0])) if rows else (0.0, 1.0)
        matrix = np.concatenate([v[:1] for v in values], axis=1)
        return Envelope(span, matrix, matrix)
    # Between `rows` positions there are `rows - 1` steps, and a column has `size` of them.
    # The last one may reach beyond the last position.
    size = -(-(rows - 1) // COLUMNS)
    columns = -(-(rows - 1) // size)
    low, high = _reduce_parts(values, size, columns)
    end = x[0] + (x[-1] - x[0]) * (columns * size) / (rows - 1)
    return Envelope((float(x[0]), float(end)), low, high)


def _by_blocks(known: Blocks, x: np.ndarray, first: int, after: int) -> Envelope:
    """Return the envelope of some rows, rounded outwards to whole blocks."""
    begin, end = first // BLOCK, min(len(known.low), -(-(after - 1) // BLOCK))
    size = -(-(end - begin) // COLUMNS)
    starts = np.arange(begin, end, size)
    low = _joined(np.fmin, np.minimum, known.low[begin:end], size)
    high = _joined(np.fmax, np.maximum, known.high[begin:end], size)
    step = (x[-1] - x[0]) / (len(x) - 1)
    edges = x[0] + step * BLOCK * np.array([begin, begin + size * len(starts)])
    return Envelope((float(edges[0]), float(edges[1])), low, high)


def _reduce_parts(
    values: Sequence[np.ndarray], size: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest values in bins of `size` rows."""
    lows = [_reduced(np.fmin, np.minimum, part, size, columns) for part in values]
    highs = [_reduced(np.fmax, np.maximum, part, size, columns) for part in values]
    return np.concatenate(lows, axis=1), np.concatenate(highs, axis=1)


def _reduced(
    ignoring: np.ufunc, plain: np.ufunc, part: np.ndarray, size: int, columns: int
) -> np.ndarray:
    """Reduce bins of rows, each with the first row of the next bin.

    Args:
        ignoring: The reduction that ignores NaN, `np.fmin` or `np.fmax`.
        plain: The same without that, which is faster.
        part: The values, `(rows, runs)`.
        size: How many rows a bin has.
        columns: How many bins there are. Bins after the last row are NaN.
    """
    result = np.full((columns, part.shape[1]), np.nan, part.dtype)
    whole = max(0, (len(part) - 1) // size)
    if whole:
        # (rows, runs) -> (bins, size, runs). The first row of the next bin is where a line
        # leaves this one, so without it there would be gaps between columns.
        matrix = part[: whole * size].reshape(whole, size, -1)
        inner = plain.reduce(matrix, axis=1)
        if not np.isfinite(inner).all():
            finite = np.where(np.isfinite(matrix), matrix, np.nan)
            inner = ignoring.reduce(finite, axis=1)
        result[:whole] = ignoring(inner, _finite(part[size : whole * size + 1 : size]))
    rest = part[whole * size :]
    if whole < columns and len(rest):
        result[whole] = ignoring.reduce(_finite(rest), axis=0)
    return result


def _joined(ignoring: np.ufunc, plain: np.ufunc, rows: np.ndarray, size: int) -> np.ndarray:
    """Reduce each `size` rows to one. The last ones may be fewer."""
    whole = len(rows) // size * size
    matrix = rows[:whole].reshape(-1, size, rows.shape[1])
    result = plain.reduce(matrix, axis=1)
    if np.isnan(result).any():
        result = ignoring.reduce(matrix, axis=1)
    if whole == len(rows):
        return result
    return np.concatenate([result, ignoring.reduce(rows[whole:], axis=0)[None]])


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _ends(part: Part) -> tuple[float, float]:
    return float(np.nanmin(part.x)), float(np.nanmax(part.x))


def _by_positions(
    parts: Sequence[Part], span: tuple[float, float], columns: int
) -> Envelope:
    """Return the envelope of runs that do not share positions, run by run."""
    edges = np.linspace(*span, columns + 1)
    runs = sum(len(part.runs) for part in parts)
    low, high = (np.full((columns, runs), np.nan) for _ in range(2))
    place = 0
    for part in parts:
        for column in range(len(part.runs)):
            x, y = part.line(column)
            known = np.isfinite(x) & np.isfinite(y)
            order = np.argsort(x[known], kind="stable")
            line = x[known][order], y[known][order]
            _fill(low[:, place], high[:, place], edges, *line)
            place += 1
    return Envelope(span, low, high)


def _fill(
    low: np.ndarray, high: np.ndarray, edges: np.ndarray, x: np.ndarray, y: np.ndarray
) -> None:
    """Write the lowest and highest value of a line in each column into `low` and `high`.

    These come from its rows in the column, and from where it crosses the edges.
    """
    if not len(x):
        return
    crossing = np.interp(edges, x, y, np.nan, np.nan)
    low[:] = np.fmin(crossing[:-1], crossing[1:])
    high[:] = np.fmax(crossing[:-1], crossing[1:])
    starts = np.searchsorted(x, edges)
    filled = np.flatnonzero(starts[1:] > starts[:-1])
    if len(filled):
        # Cut at the last edge. `reduceat` would take all later rows for the last column.
        inner = y[: starts[-1]]
        low[filled] = np.fmin(low[filled], np.minimum.reduceat(inner, starts[filled]))
        high[filled] = np.fmax(high[filled], np.maximum.reduceat(inner, starts[filled]))
