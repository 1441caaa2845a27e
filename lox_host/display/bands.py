"""Centres of many runs, and the bands around them, for plots and the viewer. NumPy only.

Values are `(positions, runs)`, and results are `(positions,)`. NaN and infinities mean that
a run has no value at a position: it has not started yet, has ended, or is not finite there.
Everything is computed from the finite values, of which there may be fewer at one position
than at another.

`iqm` is the interquartile mean: a quarter of the values, rounded down, is left out on
either side, as in SciPy's `trim_mean`. One run in twenty that fails moves a mean, but not
this one. Its confidence interval is that of a trimmed mean (Tukey and McLaughlin, 1963):
the variance is that of the values, with those that were left out moved to the nearest that
were not.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

RESAMPLES = 1000  # for a bootstrap, unless it would take too long
LEVEL = 0.95  # of a bootstrapped interval

Reach = tuple[np.ndarray, np.ndarray]

# The 97.5 % quantile of Student's t distribution, by its degrees of freedom from 1. So few
# are too few for the series in `t_quantile`.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Band(NamedTuple):
    """A line and what a plot draws around it.

    Attributes:
        text: What it is, such as `mean and std`.
        middle: Returns the line.
        reach: Returns from where to where the band reaches.
    """

    text: str
    middle: Callable[[np.ndarray], np.ndarray]
    reach: Callable[[np.ndarray], Reach]


# -- Centres


def mean(values: np.ndarray) -> np.ndarray:
    """Average the finite values of each position, with NaN where there are none."""
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    with np.errstate(all="ignore"):
        total = values.mean(1, dtype=np.float64)
        # A mean is finite if all values are. Only other positions need a closer look.
        rest = np.flatnonzero(~np.isfinite(total))
        if len(rest):
            finite = np.isfinite(values[rest])
            total[rest] = values[rest].sum(1, where=finite, dtype=float) / finite.sum(1)
    return total


def median(values: np.ndarray) -> np.ndarray:
    """Return the median of the finite values of each position."""
    return quantile(values, 0.5)


def iqm(values: np.ndarray) -> np.ndarray:
    """Average the middle half of the finite values of each position."""
    ordered, _, is_middle = _middle_half(values)
    with np.errstate(all="ignore"):
        return np.where(is_middle, ordered, 0.0).sum(1) / is_middle.sum(1)


def quantile(values: np.ndarray, share: float) -> np.ndarray:
    """Return a quantile as `np.nanquantile` does, which takes a hundred times as long."""
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    ordered, number = _ordered(values)
    position = share * np.maximum(number - 1, 0)
    below, above = np.floor(position).astype(int), np.ceil(position).astype(int)
    rows = np.arange(len(values))
    low, high = ordered[rows, below], ordered[rows, above]
    return low + (high - low) * (position - below)


CENTRES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": mean,
    "median": median,
    "iqm": iqm,
}


# -- Bands


def std_band(values: np.ndarray, centre: str = "mean") -> Reach:
    """Return one standard deviation around the centre, clipped to the data.

    For example, the band of a success rate never exceeds 1.
    """
    average = mean(values)
    middle = average if centre == "mean" else CENTRES[centre](values)
    with np.errstate(all="ignore"):
        deviation = np.sqrt(mean((values - average[:, None]) ** 2))
    low, high = range_band(values)
    return np.maximum(middle - deviation, low), np.minimum(middle + deviation, high)


def range_band(values: np.ndarray) -> Reach:
    """Return the lowest and the highest finite value of each position."""
    if not values.shape[1]:
        return np.full(len(values), np.nan), np.full(len(values), np.nan)
    low, high = values.min(1).astype(float), values.max(1).astype(float)
    rest = np.flatnonzero(~np.isfinite(low) | ~np.isfinite(high))
    if len(rest):
        some = np.where(np.isfinite(values[rest]), values[rest], np.nan)
        low[rest], high[rest] = np.fmin.reduce(some, 1), np.fmax.reduce(some, 1)
    return low, high


def middle_band(values: np.ndarray) -> Reach:
    """Return the band that holds the middle 80 % of the values."""
    return quantile(values, 0.1), quantile(values, 0.9)


def bootstrap_band(values: np.ndarray, centre: str = "mean") -> Reach:
    """Return the interval that contains 95 % of the centres of resampled runs.

    The same resamples are used at each position, so that the band does not flicker.
    """
    runs = values.shape[1]
    if runs < 2:
        return mean(values), mean(values)
    number = resamples(values.shape, centre)
    chosen = np.random.default_rng(0).integers(runs, size=(number, runs))
    if centre == "mean":
        # The mean of resampled runs is a weighted mean, by how often each was chosen:
        # (positions, runs) @ (runs, resamples) -> (positions, resamples)
        weight = np.stack([np.bincount(row, minlength=runs) for row in chosen], 1)
        finite = np.isfinite(values)
        known = np.where(finite, values, 0)
        centres = (known @ weight.astype(float)) / (finite.astype(float) @ weight)
    else:
        rows = [CENTRES[centre](row[chosen]) for row in values]
        centres = np.stack(rows) if rows else np.zeros((0, number))
    tail = (1 - LEVEL) / 2
    return quantile(centres, tail), quantile(centres, 1 - tail)


def resamples(shape: tuple[int, ...], centre: str) -> int:
    """Return how many resamples a bootstrap of `(positions, runs)` takes.

    The median and the interquartile mean have to sort each resample, so many runs get fewer
    resamples.
    """
    if centre == "mean":
        return RESAMPLES
    work = 20_000_000 // max(1, shape[0] * shape[1])
    return int(np.clip(work, 100, RESAMPLES))


def _ci_band(values: np.ndarray) -> Reach:
    """Return the 95 % confidence interval of the mean. NaN for a single run."""
    middle, number = mean(values), np.isfinite(values).sum(1)
    with np.errstate(all="ignore"):
        variance = mean((values - middle[:, None]) ** 2) * number / (number - 1)
        half = t_quantile(number - 1) * np.sqrt(variance / number)
    return middle - half, middle + half


def _iqm_band(values: np.ndarray) -> Reach:
    """Return the 95 % confidence interval of the interquartile mean."""
    ordered, number, _ = _middle_half(values)
    cut = (number // 4)[:, None]
    low = np.take_along_axis(ordered, np.minimum(cut, values.shape[1] - 1), 1)
    high = np.take_along_axis(ordered, np.maximum(number[:, None] - cut - 1, 0), 1)
    cut = number // 4
    with np.errstate(all="ignore"):
        moved = np.where(np.isfinite(ordered), ordered.clip(low, high), np.nan)
        variance = mean((moved - mean(moved)[:, None]) ** 2) * number / (number - 1)
        error = np.sqrt(variance) / ((1 - 2 * cut / number) * np.sqrt(number))
        half = t_quantile(number - 2 * cut - 1) * error
    middle = iqm(values)
    return middle - half, middle + half


# The bands of `lox plot` and `logs.plot()`, by name.
BANDS = {
    "std": Band("mean and std", mean, std_band),
    "range": Band("mean and range", mean, range_band),
    "80%": Band("mean and 80%", mean, middle_band),
    "ci": Band("mean and 95% ci", mean, _ci_band),
    "iqm": Band("iqm and 95% ci", iqm, _iqm_band),
}


# -- Helpers


def t_quantile(freedom: np.ndarray) -> np.ndarray:
    """Return how many standard errors are in half of a 95 % interval; NaN without any."""
    f = np.maximum(freedom, 1)
    # Cornish and Fisher's series at the quantile 1.95996 of the normal distribution.
    series = 1.95996 + 2.37226 / f + 2.82250 / f**2 + 2.55585 / f**3
    table = np.array(_T)[np.minimum(f, len(_T)) - 1]
    return np.where(freedom < 1, np.nan, np.where(f <= len(_T), table, series))


def _ordered(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return sorted values with NaN at the end, and how many are finite."""
    ordered = np.sort(np.where(np.isfinite(values), values, np.nan), axis=1)
    return ordered, np.isfinite(ordered).sum(1)


def _middle_half(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sorted values, how many are finite, and which are in the middle half."""
    ordered, number = _ordered(values)
    rank, cut = np.arange(values.shape[1]), (number // 4)[:, None]
    return ordered, number, (rank >= cut) & (rank < number[:, None] - cut)
