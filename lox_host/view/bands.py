"""Compute centres of many runs and the bands around them.

All functions take values `(positions, runs)` and return arrays `(positions,)`. NaN means
that a run has no value there: it has not started yet, or has ended.
"""

from collections.abc import Callable

import numpy as np

RESAMPLES = 1000  # for a bootstrap, unless it would take too long
LEVEL = 0.95  # of a bootstrapped interval


def _mean(values: np.ndarray) -> np.ndarray:
    finite = np.isfinite(values)
    if finite.all():
        return values.mean(1) if values.shape[1] else np.full(len(values), np.nan)
    return values.sum(1, where=finite) / finite.sum(1)


def quantile(values: np.ndarray, share: float) -> np.ndarray:
    """Return a quantile of the finite values of each row, faster than `np.nanquantile`."""
    if not values.shape[1]:
        return np.full(len(values), np.nan)
    ordered = np.sort(np.where(np.isfinite(values), values, np.nan), axis=1)
    position = share * np.maximum(np.isfinite(ordered).sum(1) - 1, 0)
    below, above = np.floor(position).astype(int), np.ceil(position).astype(int)
    rows = np.arange(len(values))
    low, high = ordered[rows, below], ordered[rows, above]
    return low + (high - low) * (position - below)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of the finite values of each row.

    A value on the edge of a quartile counts with the share of it that lies inside. So the
    result is right for any number of runs.
    """
    ordered = np.sort(np.where(np.isfinite(values), values, np.nan), axis=-1)
    count = np.isfinite(ordered).sum(-1, keepdims=True)
    rank = np.arange(values.shape[-1])
    inside = np.minimum(rank + 1, 0.75 * count) - np.maximum(rank, 0.25 * count)
    weight = np.clip(inside, 0, 1)
    return (np.where(weight > 0, ordered, 0) * weight).sum(-1) / weight.sum(-1)


def _median(values: np.ndarray) -> np.ndarray:
    return quantile(values, 0.5)


CENTRES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": _mean,
    "median": _median,
    "iqm": interquartile_mean,
}

Band = tuple[np.ndarray, np.ndarray]


def _std_band(values: np.ndarray, centre: str) -> Band:
    """Return one standard deviation around the centre, clipped to the data.

    For example, the band of a success rate never exceeds 1.
    """
    middle = CENTRES[centre](values)
    deviation = np.sqrt(_mean((values - _mean(values)[:, None]) ** 2))
    finite = np.isfinite(values)
    lowest = np.min(values, axis=1, where=finite, initial=np.inf)
    highest = np.max(values, axis=1, where=finite, initial=-np.inf)
    return np.maximum(middle - deviation, lowest), np.minimum(middle + deviation, highest)


def _range_band(values: np.ndarray, centre: str) -> Band:
    return quantile(values, 0.0), quantile(values, 1.0)


def _middle_band(values: np.ndarray, centre: str) -> Band:
    return quantile(values, 0.1), quantile(values, 0.9)


def _bootstrap_band(values: np.ndarray, centre: str) -> Band:
    """Return the interval that contains 95 % of the centres of resampled runs.

    The same resamples are used at each position, so that the band does not flicker.
    """
    runs = values.shape[1]
    if runs < 2:
        return _mean(values), _mean(values)
    number = resamples(values.shape, centre)
    chosen = np.random.default_rng(0).integers(runs, size=(number, runs))
    if centre == "mean":
        # The mean of resampled runs is a weighted mean, by how often each was chosen:
        # (positions, runs) @ (runs, resamples) -> (positions, resamples)
        weight = np.stack([np.bincount(row, minlength=runs) for row in chosen]).astype(
            float
        )
        finite = np.isfinite(values)
        known = np.where(finite, values, 0)
        centres = (known @ weight.T) / (finite.astype(float) @ weight.T)
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


def _no_band(values: np.ndarray, centre: str) -> Band:
    nothing = np.full(len(values), np.nan)
    return nothing, nothing


BANDS: dict[str, Callable[[np.ndarray, str], Band]] = {
    "std": _std_band,
    "80": _middle_band,
    "ci": _bootstrap_band,
    "range": _range_band,
    "none": _no_band,
}
