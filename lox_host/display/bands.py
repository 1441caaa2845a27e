"""Means and bands of many curves: what is drawn of several runs. NumPy only.

Values are `(examples, steps)`, with NaN where an example has none. Everything goes over the
examples that are finite at a step, which may be fewer at one step than at another.

`iqm` is the interquartile mean: a quarter of the values is left out on either side. One run
in twenty that fails moves a mean, but not this one. Its confidence interval is that of a
trimmed mean (Tukey and McLaughlin, 1963): the variance is the one of the values with those
that were left out moved to the nearest that were not.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Reach = tuple[np.ndarray, np.ndarray]

# Up to here, where its series is not good: the 97.5 % quantile of Student's t distribution
# by its degrees of freedom, from 1.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


class Band(NamedTuple):
    """A line and what is drawn around it.

    Attributes:
        text: What it is, such as `mean and std`.
        middle: Returns the line.
        reach: Returns from where to where the band reaches.
    """

    text: str
    middle: Callable[[np.ndarray], np.ndarray]
    reach: Callable[[np.ndarray], Reach]


def mean(values: np.ndarray) -> np.ndarray:
    """Average the finite values over examples, with NaN where none is finite."""
    return _over_examples(np.mean, values)


def iqm(values: np.ndarray) -> np.ndarray:
    """Average the middle half of the values over examples."""
    ordered, _, is_middle = _middle_half(values)
    with np.errstate(all="ignore"):
        return np.where(is_middle, ordered, 0.0).sum(0) / is_middle.sum(0)


def _std_band(values: np.ndarray) -> Reach:
    """Return one deviation around the mean, but nothing beyond the data.

    A success rate above 1 is in no run, though mean and deviation may add up to it.
    """
    middle, deviation = mean(values), _over_examples(np.std, values)
    low, high = _over_examples(np.min, values), _over_examples(np.max, values)
    return np.maximum(middle - deviation, low), np.minimum(middle + deviation, high)


def _ci_band(values: np.ndarray) -> Reach:
    """Return the 95 % confidence interval of the mean. NaN for a single example."""
    number = np.isfinite(values).sum(0)
    with np.errstate(all="ignore"):
        deviation = _over_examples(np.std, values) * np.sqrt(number / (number - 1))
        half = t_quantile(number - 1) * deviation / np.sqrt(number)
    middle = mean(values)
    return middle - half, middle + half


def _iqm_band(values: np.ndarray) -> Reach:
    """Return the 95 % confidence interval of the interquartile mean."""
    ordered, number, _ = _middle_half(values)
    cut = number // 4
    low = np.take_along_axis(ordered, np.minimum(cut, len(values) - 1)[None], 0)
    high = np.take_along_axis(ordered, np.maximum(number - cut - 1, 0)[None], 0)
    with np.errstate(all="ignore"):
        moved = np.where(np.isfinite(ordered), ordered.clip(low, high), np.nan)
        deviation = _over_examples(np.std, moved) * np.sqrt(number / (number - 1))
        error = deviation / ((1 - 2 * cut / number) * np.sqrt(number))
        half = t_quantile(number - 2 * cut - 1) * error
    middle = iqm(values)
    return middle - half, middle + half


def t_quantile(freedom: np.ndarray) -> np.ndarray:
    """Return how many standard errors are in half of a 95 % interval; NaN without any."""
    f = np.maximum(freedom, 1)
    # Cornish and Fisher's series at the quantile 1.95996 of the normal distribution.
    series = 1.95996 + 2.37226 / f + 2.82250 / f**2 + 2.55585 / f**3
    table = np.array(_T)[np.minimum(f, len(_T)) - 1]
    return np.where(freedom < 1, np.nan, np.where(f <= len(_T), table, series))


def _middle_half(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sorted values, how many are finite, and which are in the middle half."""
    ordered = np.sort(np.where(np.isfinite(values), values, np.nan), axis=0)  # NaN last
    number = np.isfinite(ordered).sum(0)
    place = np.arange(len(values))[:, None]
    cut = number // 4
    return ordered, number, (place >= cut) & (place < number - cut)


def _over_examples(
    reduce: Callable[..., np.ma.MaskedArray], values: np.ndarray
) -> np.ndarray:
    return reduce(np.ma.masked_invalid(values), axis=0).filled(np.nan)


def _quantile(values: np.ndarray, share: float) -> np.ndarray:
    """Return what `np.nanquantile` does, which takes a hundred times as long."""
    values = np.where(np.isfinite(values), values, np.nan)
    ordered = np.sort(values, axis=0)  # NaN at the end
    position = share * np.maximum((~np.isnan(values)).sum(0) - 1, 0)
    below, above = np.floor(position).astype(int), np.ceil(position).astype(int)
    low, high = (np.take_along_axis(ordered, i[None], 0)[0] for i in (below, above))
    return low + (high - low) * (position - below)


BANDS = {
    "std": Band("mean and std", mean, _std_band),
    "range": Band(
        "mean and range",
        mean,
        lambda x: (_over_examples(np.min, x), _over_examples(np.max, x)),
    ),
    "80%": Band("mean and 80%", mean, lambda x: (_quantile(x, 0.1), _quantile(x, 0.9))),
    "ci": Band("mean and 95% ci", mean, _ci_band),
    "iqm": Band("iqm and 95% ci", iqm, _iqm_band),
}
