"""Summarize a key with one number per run: its last, lowest, highest or mean value."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from lox_host.view.data.series import Part
from lox_host.view.density import marks


@dataclasses.dataclass(frozen=True)
class Summary:
    """The summary of a key in each run. All arrays are `(runs,)`.

    Attributes:
        last: The last value, finite or not.
        low: The lowest finite value.
        high: The highest finite value.
        mean: The mean of all finite values.
        rows: How many rows there are.
        first_nonfinite: The position of the first value that is not finite. NaN: none.
    """

    last: np.ndarray
    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    rows: np.ndarray
    first_nonfinite: np.ndarray


def summarize(parts: Sequence[Part], runs: int) -> Summary:
    """Summarize a key in each of `runs` runs. Runs that did not log it get NaN."""
    last, low, high, mean, first = (np.full(runs, np.nan) for _ in range(5))
    rows = np.zeros(runs, np.int64)
    for part in map(_mean_of_examples, parts):
        columns = np.arange(len(part.runs))
        last[part.runs] = part.values[np.maximum(part.lengths - 1, 0), columns]
        rows[part.runs] = part.lengths
        low[part.runs], high[part.runs], mean[part.runs] = _of_finite(part.values)
    for mark in marks(parts):
        first[mark.run] = mark.x
    return Summary(last, low, high, mean, rows, first)


def _mean_of_examples(part: Part) -> Part:
    """Replace the elements of each run in a part with their mean."""
    if part.examples is None or not part.values.size:
        return part
    runs, first = np.unique(part.runs, return_index=True)
    means = [part.values[:, part.runs == run].mean(1) for run in runs.tolist()]
    x = part.x if part.is_shared else part.x[:, first]
    lengths = part.lengths[first]
    return Part(runs, x, np.stack(means, axis=1), lengths)


def _of_finite(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lowest, the highest and the mean finite value of each column."""
    with np.errstate(all="ignore"):
        mean = values.mean(0, dtype=np.float64)
        low, high = values.min(0).astype(float), values.max(0).astype(float)
        bad = np.flatnonzero(~np.isfinite(mean))
        for column in bad.tolist():
            finite = values[:, column][np.isfinite(values[:, column])].astype(float)
            some = finite if len(finite) else np.array([np.nan])
            low[column], high[column], mean[column] = some.min(), some.max(), some.mean()
    return low, high, mean


def is_better_low(key: str) -> bool:
    """Guess from its name whether low values of a key are good."""
    words = ("loss", "error", "nll", "cost", "regret", "perplexity", "mse", "rmse", "mae")
    return any(word in key.lower() for word in words)
