"""What is kept of the values of one name: a few numbers, however many rows there are."""

import dataclasses
from typing import NamedTuple

import numpy as np

POINTS = 128  # of the curve


@dataclasses.dataclass(frozen=True)
class Places:
    """Which rows belong to which run.

    Attributes:
        order: The rows sorted by run, those of one run as they were logged.
        slots: The number of each run that has rows.
        counts: How many rows each of these has.
    """

    order: np.ndarray
    slots: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, runs: np.ndarray, slots: dict[int, int]) -> "Places":
        """Those of the ids of runs, one or more. Runs that are new get the next slots."""
        order = np.argsort(runs, kind="stable")
        ordered = runs[order]
        firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        own = [slots.setdefault(run, len(slots)) for run in ordered[firsts].tolist()]
        return cls(order, np.array(own), np.diff(firsts, append=len(runs)))

    @property
    def last(self) -> np.ndarray:
        """The last row of each run."""
        return self.order[np.cumsum(self.counts) - 1]

    def times(self, before: np.ndarray) -> np.ndarray:
        """Which row of its run each is, sorted by run, when there were some before."""
        firsts = np.cumsum(self.counts) - self.counts
        shift = before[self.slots] - firsts
        return np.arange(len(self.order)) + np.repeat(shift, self.counts)


class Spread(NamedTuple):
    """The last values of all runs: of those that are numbers, and how many are not."""

    mean: float
    std: float
    nans: int


class Series:
    """The last value of each run, the smallest and the largest, and a curve.

    Attributes:
        note: The shape of a row, or what else it is. Empty for a scalar.
        kind: What NumPy calls the kind of a scalar; "f" for all else.
        last: The last value that was logged.
        low: The smallest value of all rows.
        high: The largest.
        curve: The mean over runs, in time.
    """

    def __init__(self):
        self.note, self.kind = "", "f"
        self.last = np.nan
        self.low, self.high = np.inf, -np.inf
        self.curve = Curve()
        self._lasts = np.zeros(0)
        self._counts = np.zeros(0, np.int64)

    def __bool__(self) -> bool:
        return bool(self._counts.any())

    def add(self, places: Places, array: np.ndarray, valid: np.ndarray | None) -> None:
        """Take rows. `valid` says which of their examples were logged."""
        self._make_room(places.slots.max() + 1)
        with np.errstate(all="ignore"):
            means, lows, highs = reduced(array, valid)
            self.low = min(self.low, np.fmin.reduce(lows, initial=np.inf))
            self.high = max(self.high, np.fmax.reduce(highs, initial=-np.inf))
            self.curve.add(places.times(self._counts), means[places.order])
        self.last = means[-1]
        self._lasts[places.slots] = means[places.last]
        self._counts[places.slots] += places.counts

    def spread(self) -> Spread:
        """Mean and deviation over runs of their last values."""
        lasts = self._lasts[self._counts > 0]
        good = lasts[~np.isnan(lasts)]
        if not len(good):
            return Spread(np.nan, np.nan, len(lasts))
        with np.errstate(all="ignore"):
            return Spread(good.mean(), good.std(), len(lasts) - len(good))

    def _make_room(self, size: int) -> None:
        missing = max(0, size - len(self._lasts))
        self._lasts = np.pad(self._lasts, (0, missing))
        self._counts = np.pad(self._counts, (0, missing))


class Curve:
    """Means over spans of time. When there are too many, each two become one."""

    def __init__(self):
        self._sums, self._counts = np.zeros(POINTS), np.zeros(POINTS)
        self._span = 1

    def add(self, times: np.ndarray, values: np.ndarray) -> None:
        while times.max() >= self._span * POINTS:
            self._halve()
        good = np.isfinite(values)
        places = times[good] // self._span
        self._sums += np.bincount(places, values[good], POINTS)
        self._counts += np.bincount(places, minlength=POINTS)

    def points(self, most: int) -> np.ndarray:
        """The curve in at most so many points."""
        (filled,) = np.nonzero(self._counts)
        if not len(filled):
            return np.zeros(0)
        size = min(most, filled[-1] + 1)
        places = filled * size // (filled[-1] + 1)
        counts = np.bincount(places, self._counts[filled], size)
        sums = np.bincount(places, self._sums[filled], size)
        return sums[counts > 0] / counts[counts > 0]

    def _halve(self) -> None:
        self._span *= 2
        for array in (self._sums, self._counts):
            array[: POINTS // 2] = array[::2] + array[1::2]
            array[POINTS // 2 :] = 0


def reduced(array: np.ndarray, valid: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """The mean, the smallest and the largest element of each row, as float64."""
    flat = _real(array).reshape(len(array), -1)
    if flat.shape[1] == 1:
        column = flat[:, 0].astype(np.float64)
        return column, column, column
    if valid is None:
        mean = flat.mean(1, dtype=np.float64)
        return mean, _floats(np.fmin.reduce(flat, 1)), _floats(np.fmax.reduce(flat, 1))
    # (rows, examples) -> (rows, examples, 1, ...) -> (rows, elements)
    mask = valid.reshape(valid.shape + (1,) * (array.ndim - valid.ndim))
    mask = np.broadcast_to(mask, array.shape).reshape(flat.shape)
    flat = _floats(flat)
    return (
        flat.sum(1, where=mask) / mask.sum(1),
        np.fmin.reduce(flat, 1, where=mask, initial=np.inf),
        np.fmax.reduce(flat, 1, where=mask, initial=-np.inf),
    )


def _real(array: np.ndarray) -> np.ndarray:
    """Numbers that NumPy can order: magnitudes, and no types of other libraries."""
    if array.dtype.kind == "c":
        return np.abs(array)
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def _floats(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)
