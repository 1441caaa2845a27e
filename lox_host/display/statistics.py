"""Statistics of one scalar or array that runs log, in constant memory.

Rows arrive in blocks, those of several runs as they were logged. `RowsByRun` sorts them.
Here run 7 logged three rows and run 9 two, and each run has the slot in which it was seen:

    runs   7 9 7 7 9    ->    order   0 2 3 | 1 4
                              slots   0     | 1
                              counts  3     | 2
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from lox_host.display.downsampled_lines import Spans
from lox_host.display.text import deviation, digits, diverged, not_finite
from lox_host.histogram import means, named_histograms
from lox_host.rows import Block, Form
from lox_host.tree import leaves

POINTS = 128  # of a trend


@dataclasses.dataclass(frozen=True)
class RowsByRun:
    """Which rows belong to which run.

    Attributes:
        order: The rows sorted by run, those of one run as they were logged.
        slots: The slot of each run that has rows.
        counts: How many rows each of these has.
    """

    order: np.ndarray
    slots: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, runs: np.ndarray, slots: dict[int, int]) -> "RowsByRun":
        """Sort rows by the ids of their runs, and give new runs the next slots."""
        #     runs   7 9 7 9 9      order  0 2 1 3 4      slots [0 1]      counts [2 3]
        order = np.argsort(runs, kind="stable")
        ordered = runs[order]
        is_first = np.ones(len(runs), bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        firsts = np.flatnonzero(is_first)
        found = [slots.setdefault(run, len(slots)) for run in ordered[firsts].tolist()]
        counts = np.append(firsts[1:], len(runs)) - firsts
        return cls(order, np.array(found, int), counts)

    @property
    def last(self) -> np.ndarray:
        """The last row of each run."""
        return self.order[np.cumsum(self.counts) - 1]

    def numbers(self, before: np.ndarray) -> np.ndarray:
        """Number the sorted rows in their runs, after the rows that these had before."""
        # Sorted, run by run: 0 1 | 2 3 4. Each run counts from what it had before.
        firsts = np.cumsum(self.counts) - self.counts
        shift = before[self.slots] - firsts
        return np.arange(len(self.order)) + np.repeat(shift, self.counts)


class Spread(NamedTuple):
    """Statistics of the last finite values of all runs, and how many are not finite."""

    mean: float
    std: float
    diverged: int


class Statistics:
    """The last value of each run, the smallest and the largest, and a trend.

    Attributes:
        note: The shape of a row, or what else it is. Empty for a scalar.
        kind: What NumPy calls the kind of a scalar; "f" for all else.
        last: The last value that was logged.
        low: The smallest value of all rows.
        high: The largest.
        trend: The mean over runs, in time.
        nonfinite: How many rows have an element that is NaN or infinite.
        first_nonfinite: The name and the value of the step of the first of them.
    """

    def __init__(self):
        self.note, self.kind = "", "f"
        self.nonfinite, self.first_nonfinite = 0, ("row", 0.0)
        self.last = np.nan
        self.low, self.high = np.inf, -np.inf
        self.trend = Trend()
        # For each slot:
        self._last_values = np.zeros(0)
        self._counts = np.zeros(0, np.int64)

    def __bool__(self) -> bool:
        return bool(self._counts.any())

    def add(
        self,
        rows: RowsByRun,
        array: np.ndarray,
        valid: np.ndarray | None,
        step: tuple[str, np.ndarray] | None = None,
    ) -> None:
        """Take rows.

        Args:
            rows: Which of them belong to which run.
            array: Their values.
            valid: Which of their examples were logged.
            step: The name of a step, and that of each row.
        """
        if not array.size:
            return
        missing = max(0, rows.slots.max() + 1 - len(self._counts))
        self._last_values = np.pad(self._last_values, (0, missing))
        self._counts = np.pad(self._counts, (0, missing))
        with np.errstate(all="ignore"):
            means, lows, highs = mean_and_range(array, valid)
            self.low = min(self.low, np.fmin.reduce(lows, initial=np.inf))
            self.high = max(self.high, np.fmax.reduce(highs, initial=-np.inf))
        # `numbers` is sorted by run. Undo that, for the order of logging.
        numbers = rows.numbers(self._counts)
        self._count_nonfinite(numbers[np.argsort(rows.order)], means, step)
        self.trend.add(numbers, means[rows.order])
        self.last = means[-1]
        self._last_values[rows.slots] = means[rows.last]
        self._counts[rows.slots] += rows.counts

    def spread(self) -> Spread:
        """Return mean and deviation over runs of their last values."""
        values = self._last_values[self._counts > 0]
        known = values[np.isfinite(values)]
        if not len(known):
            return Spread(values.mean() if len(values) else np.nan, np.nan, len(values))
        with np.errstate(all="ignore"):
            return Spread(known.mean(), known.std(), len(values) - len(known))

    def health(self) -> str:
        """Say how many rows are not finite, and since when. Empty if all are."""
        return not_finite(self.nonfinite, *self.first_nonfinite) if self.nonfinite else ""

    def _count_nonfinite(
        self, numbers: np.ndarray, means: np.ndarray, step: tuple[str, np.ndarray] | None
    ) -> None:
        """Count the rows that are not finite; the mean of a row is not if an element is."""
        bad = np.flatnonzero(~np.isfinite(means))
        if bad.size and not self.nonfinite:
            name, steps = step or ("row", numbers)
            self.first_nonfinite = name, float(np.max(steps[bad[0]]))
        self.nonfinite += bad.size

    def texts(self) -> dict[str, str]:
        """Write all numbers for a table, by the heads of its columns; none without rows."""
        if not self:
            return {}
        mean, std, gone = self.spread()
        runs = int((self._counts > 0).sum())
        return {
            "last": digits(self.last, self.kind),
            "mean": digits(mean),
            "± std": f"± {deviation(std)}{diverged(gone, runs)}",
            "min": digits(self.low, self.kind),
            "max": digits(self.high, self.kind),
        }


class Trend:
    """The mean over runs in time, of all values that are finite."""

    def __init__(self):
        self._spans = Spans(POINTS, "finite", "values")

    def add(self, numbers: np.ndarray, values: np.ndarray) -> None:
        """Take rows: their numbers in their runs, and their values."""
        self._spans.hold(numbers.max() + 1)
        is_finite = np.isfinite(values)
        if not is_finite.all():
            numbers, values = numbers[is_finite], values[is_finite]
        self._spans.add(0, numbers, finite=1.0, values=values)

    def points(self, most: int) -> np.ndarray:
        """Return the trend with at most this many points."""
        counts, sums = (self._spans.arrays[name][0] for name in ("finite", "values"))
        (filled,) = np.nonzero(counts)
        if not len(filled):
            return np.zeros(0)
        # Join neighbouring spans until they fit, weighted by how many values each has.
        size = min(most, filled[-1] + 1)
        point = filled * size // (filled[-1] + 1)
        counts, sums = (np.bincount(point, x[filled], size) for x in (counts, sums))
        return sums[counts > 0] / counts[counts > 0]


def named_arrays(block: Block, key: str) -> Iterator[tuple[str, np.ndarray, str]]:
    """Yield the arrays of a key: their names, and what a typed PRNG key is, or "".

    Of a histogram, the mean of its values and the number of those that are not finite.
    """
    implementations = dict(block.forms.get(key, Form()).keys)
    histograms = dict(named_histograms(block.values[key], key))
    for name, tree in histograms.items():
        yield f"{name}/mean", means(tree), ""
    for i, (name, array) in enumerate(leaves(block.values[key], key)):
        parent, _, field = name.rpartition("/")
        if parent not in histograms or (field == "nonfinite" and array.any()):
            yield name, array, implementations.get(i, "")


def has_logged(valid: np.ndarray) -> np.ndarray:
    """Return which rows have an example that logged, from `(rows, *examples)`."""
    return valid.reshape(len(valid), -1).any(1)


def mean_and_range(array: np.ndarray, valid: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """Return the mean, the smallest and the largest element of each row, as float64.

    Args:
        array: `(rows, *examples, ...)`.
        valid: Which examples count, `(rows, *examples)`. None: all of them.
    """
    flat = _ordered(array).reshape(len(array), -1)
    if flat.shape[1] == 1:
        column = flat[:, 0].astype(np.float64)
        return column, column, column
    if valid is None:
        lows, highs = np.fmin.reduce(flat, 1), np.fmax.reduce(flat, 1)
        means = flat.mean(1, dtype=np.float64)
        return means, lows.astype(np.float64), highs.astype(np.float64)
    # (rows, *examples) -> (rows, *examples, 1, ...) -> (rows, elements)
    mask = valid.reshape(valid.shape + (1,) * (array.ndim - valid.ndim))
    mask = np.broadcast_to(mask, array.shape).reshape(flat.shape)
    flat = flat.astype(np.float64)
    return (
        flat.sum(1, where=mask) / mask.sum(1),
        np.fmin.reduce(flat, 1, where=mask, initial=np.inf),
        np.fmax.reduce(flat, 1, where=mask, initial=-np.inf),
    )


def _ordered(array: np.ndarray) -> np.ndarray:
    """Return numbers that NumPy can order: magnitudes, and no types of other libraries."""
    if array.dtype.kind == "c":
        return np.abs(array)
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)
