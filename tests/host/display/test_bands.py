"""Bands of plots, compared with NumPy loops and with quantiles from a table."""

import numpy as np
import pytest

from lox_host.display.bands import BANDS, iqm, t_quantile

# The 97.5 % quantile of Student's t distribution, from printed tables.
TABLE = {1: 12.706, 2: 4.303, 5: 2.571, 10: 2.228, 12: 2.179, 20: 2.086, 30: 2.042, 60: 2.0}


def sample():
    values = np.random.default_rng(0).normal(size=(9, 5))
    values[0, 1], values[3, 1:3], values[:8, 3], values[:, 4] = (
        np.nan,
        np.inf,
        np.nan,
        np.nan,
    )
    return values.T


def test_quantiles_of_student():
    for freedom, quantile in TABLE.items():
        np.testing.assert_allclose(t_quantile(np.array([freedom]))[0], quantile, rtol=3e-4)
    assert np.isnan(t_quantile(np.array([0]))).all()


def test_the_interquartile_mean_leaves_out_a_quarter_on_either_side():
    values = sample()
    for i, column in enumerate(values):
        own = np.sort(column[np.isfinite(column)])
        cut = len(own) // 4
        truth = own[cut : len(own) - cut].mean() if len(own) else np.nan
        np.testing.assert_allclose(iqm(values)[i], truth)


@pytest.mark.parametrize("name", ["ci", "iqm"])
def test_confidence_intervals(name):
    values = sample()
    low, high = BANDS[name].reach(values)
    for i, column in enumerate(values):
        own = np.sort(column[np.isfinite(column)])
        n, cut = len(own), len(own) // 4 if name == "iqm" else 0
        if n < 2:
            assert np.isnan([low[i], high[i]]).all()
            continue
        moved = own.clip(own[cut], own[n - cut - 1])
        error = moved.std(ddof=1) / ((1 - 2 * cut / n) * np.sqrt(n))
        half = t_quantile(np.array([n - 2 * cut - 1]))[0] * error
        middle = own[cut : n - cut].mean()
        np.testing.assert_allclose([low[i], high[i]], [middle - half, middle + half])


def test_19_of_20_intervals_hold_the_mean():
    rng = np.random.default_rng(1)
    for name in ("ci", "iqm"):
        low, high = BANDS[name].reach(rng.normal(3.0, size=(12, 4000)).T)
        share = ((low < 3) & (high > 3)).mean()
        assert 0.93 < share < 0.97, name
