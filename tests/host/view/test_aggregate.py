"""Means, bands, densities and downsampling, against loops over runs and rows."""

import numpy as np
import pytest

from lox_host.display.bands import iqm, quantile
from lox_host.view.aggregate import aggregate, extreme_rows, smoothed
from lox_host.view.data.growing_arrays import SharedColumn
from lox_host.view.data.series import Part, follows, make_parts, tile_of
from lox_host.view.density import blocks, density, envelope, lines, marks, value_range
from lox_host.view.run_groups import group_runs
from lox_host.view.summary import summarize

rng = np.random.default_rng(0)


def part_of(values, x=None, first=0):
    rows, runs = values.shape
    x = np.arange(rows, dtype=float) if x is None else x
    return Part(np.arange(first, first + runs), x, values, np.full(runs, rows))


def aggregated(parts, centre="mean", band="std", **options):
    runs = np.concatenate([part.runs for part in parts])
    [found] = aggregate(parts, [runs], centre, band, **options)
    return found


def by_hand(columns, centre):
    """The centre of one row, run by run."""
    values = sorted(v for v in columns if np.isfinite(v))
    if centre == "mean":
        return sum(values) / len(values)
    if centre == "median":
        return np.median(values)
    cut = len(values) // 4
    return np.mean(values[cut : len(values) - cut])


@pytest.mark.parametrize("centre", ["mean", "median", "iqm"])
@pytest.mark.parametrize("runs", [2, 3, 7, 40])
def test_each_point_is_what_a_loop_over_all_runs_gives(centre, runs):
    values = rng.normal(size=(50, runs)).astype(np.float32)
    values[10, 0] = np.nan  # one row is missing, the run goes on
    found = aggregated([part_of(values)], centre)
    assert found.x.tolist() == list(range(50))
    expected = [by_hand(row.astype(float), centre) for row in values]
    np.testing.assert_allclose(found.centre, expected, rtol=1e-12)
    assert found.counts.tolist() == [runs - (row == 10) for row in range(50)]


def test_bands_are_those_of_numpy():
    values = rng.normal(size=(30, 12))
    part = part_of(values)
    std = aggregated([part], band="std")
    deviation = values.std(1)
    np.testing.assert_allclose(
        std.low, np.maximum(values.mean(1) - deviation, values.min(1))
    )
    np.testing.assert_allclose(
        std.high, np.minimum(values.mean(1) + deviation, values.max(1))
    )
    middle = aggregated([part], band="80")
    np.testing.assert_allclose(middle.low, np.quantile(values, 0.1, axis=1))
    np.testing.assert_allclose(middle.high, np.quantile(values, 0.9, axis=1))
    whole = aggregated([part], band="range")
    np.testing.assert_allclose(whole.high, values.max(1))


@pytest.mark.parametrize("centre", ["mean", "median", "iqm"])
def test_a_bootstrap_resamples_runs(centre):
    values = rng.normal(size=(5, 20))
    found = aggregated([part_of(values)], centre, "ci")
    chosen = np.random.default_rng(0).integers(20, size=(1000, 20))
    for row in range(5):
        centres = [by_hand(values[row, picks], centre) for picks in chosen]
        low, high = np.quantile(centres, [0.025, 0.975])
        np.testing.assert_allclose([found.low[row], found.high[row]], [low, high])


def test_runs_that_diverged_are_counted_and_left_out():
    values = rng.normal(size=(20, 4))
    values[12:, 1] = np.nan
    values[5, 2] = np.inf  # recovers
    found = aggregated([part_of(values)])
    assert (found.runs, found.diverged) == (4, 1)
    rest = values[:, [0, 2, 3]]
    expected = np.ma.masked_invalid(rest).mean(1)
    np.testing.assert_allclose(found.centre, expected)
    found = {mark.run: mark for mark in marks([part_of(values)])}
    assert (found[1].x, found[1].y, found[1].is_end) == (12, values[11, 1], True)
    assert (found[2].x, found[2].is_end) == (5, False)


def test_a_spike_of_one_row_survives_downsampling():
    values = np.zeros((100_000, 3), np.float32)
    values[54_321] = 7
    part = part_of(values)
    found = aggregated([part])
    assert len(found.x) <= 602
    assert found.centre[found.x.tolist().index(54_321)] == 7
    one = lines([part], (-np.inf, np.inf), 300)[0]
    assert len(one.x) <= 602
    assert one.y.max() == 7
    around = envelope([part], (-np.inf, np.inf))
    assert np.nanmax(around.high) == 7
    # Zoomed in, each row is there.
    near = aggregated([part], span=(54_300, 54_340))
    assert near.x.tolist() == list(range(54_299, 54_342))


def test_groups_are_aggregated_on_their_own():
    values = rng.normal(size=(2000, 6))
    groups = [np.array([0, 2, 4]), np.array([1, 5])]
    found = aggregate([part_of(values)], groups, "mean", "none")
    for group, result in zip(groups, found, strict=True):
        rows = result.x.astype(int)
        np.testing.assert_allclose(result.centre, values[rows][:, group].mean(1))


def test_shorter_runs_count_as_far_as_they_reach():
    long, short = rng.normal(size=(10, 2)), rng.normal(size=(4, 3))
    found = aggregated([part_of(long), part_of(short, first=2)])
    expected = [
        np.concatenate([long[i], short[i] if i < 4 else []]).mean() for i in range(10)
    ]
    np.testing.assert_allclose(found.centre, expected)
    assert found.counts.tolist() == [5] * 4 + [2] * 6


def test_runs_with_steps_of_their_own_are_interpolated():
    parts = make_parts(
        np.array([0, 0, 0, 1, 1]),
        np.array([0.0, 10, 20, 5, 15]),
        np.array([0.0, 1, 2, 9, 7]),
    )
    found = aggregated(parts)
    assert found.x.tolist() == [0, 5, 10, 15, 20]
    np.testing.assert_allclose(
        found.centre, [0, (0.5 + 9) / 2, (1 + 8) / 2, (1.5 + 7) / 2, 2]
    )


def test_smoothing_is_the_mean_of_rows_up_to_each():
    for runs in (3, 40):
        values = rng.normal(size=(30, runs))
        values[20, 1] = np.nan
        found = smoothed(part_of(values), 5).values
        for row in range(30):
            expected = values[max(0, row - 4) : row + 1].mean(0)
            np.testing.assert_allclose(found[row], expected, atol=1e-12)


def test_a_density_counts_the_runs_in_each_cell():
    values = rng.uniform(size=(7, 30))
    around = envelope([part_of(values)], (-np.inf, np.inf))
    counts = density(around, (0.0, 1.0), rows=10)
    assert counts.shape == (10, 6)
    for column in range(6):
        for row in range(10):
            expected = 0
            for run in range(30):
                ends = sorted(values[column : column + 2, run])
                expected += int(ends[0] * 10) <= row <= int(ends[1] * 10)
            assert counts[row, column] == expected


def test_one_run_without_bounds_does_not_hide_the_others():
    values = rng.uniform(size=(100, 400))
    values[50:, 0] = 1e9
    around = envelope([part_of(values)], (-np.inf, np.inf))
    near, full = value_range(around.low, around.high)
    assert near[1] < 3
    assert full[1] == pytest.approx(1e9)


def test_runs_at_the_upper_end_of_the_axis_are_in_the_image():
    part = part_of(np.concatenate([np.zeros((1, 3)), np.ones((9, 3))]))
    counts = density(envelope([part], (-np.inf, np.inf)), (0.0, 1.0), rows=4)
    assert counts[-1].tolist() == [3] * 9
    assert counts[0].tolist() == [3] + [0] * 8


def test_values_beyond_single_precision_are_drawn():
    part = part_of(np.full((20, 60), 1e300))
    around = envelope([part], (-np.inf, np.inf))
    assert value_range(around.low, around.high)[1] == (1e300, 1e300)
    assert density(around, (0.0, 2e300)).max() == 60
    assert lines([part], (-np.inf, np.inf), 300)[0].y[0] == 1e300


def test_quantiles_ignore_what_is_not_finite():
    values = rng.normal(size=(6, 9))
    values[1, :3] = np.nan, np.inf, -np.inf
    values[2] = np.nan
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        found = quantile(values, share)
        finite = values[1][np.isfinite(values[1])]
        assert found[1] == pytest.approx(np.quantile(finite, share))
        assert np.isnan(found[2])
    assert iqm(values[:1])[0] == pytest.approx(by_hand(values[0], "iqm"))


def test_parts_of_very_different_lengths_do_not_share_a_matrix():
    runs = np.repeat([0, 1, 2], [1000, 3, 2])
    parts = make_parts(runs, None, np.arange(1005.0))
    assert sum(part.values.size for part in parts) <= 1010
    lengths = {}
    for part in parts:
        lengths |= dict(zip(part.runs.tolist(), part.lengths.tolist(), strict=True))
    assert lengths == {0: 1000, 1: 3, 2: 2}


def test_rows_that_repeat_runs_are_recognized():
    assert tile_of(np.array([4, 2, 7, 4, 2, 7, 4])).tolist() == [4, 2, 7]
    assert tile_of(np.array([4, 2, 7, 4, 7])) is None
    assert tile_of(np.array([4, 2, 2])) is None
    assert follows(np.array([7, 4, 2]), np.array([4, 2, 7]), 5)
    assert not follows(np.array([4, 2]), np.array([4, 2, 7]), 5)


def test_extreme_rows_keep_both_ends():
    values = np.sin(np.arange(5000.0))
    rows = extreme_rows(values, 50)
    assert rows[0] == 0
    assert rows[-1] == 4999
    assert len(rows) <= 104
    assert extreme_rows(np.full(5000, np.nan), 50)[-1] == 4999


def test_a_summary_has_one_number_per_run():
    values = rng.normal(size=(10, 3))
    values[4:, 1] = np.nan
    found = summarize([part_of(values)], 4)
    np.testing.assert_allclose(found.mean[:3], [np.nanmean(v) for v in values.T])
    np.testing.assert_allclose(found.low[:3], np.nanmin(values, 0))
    assert np.isnan(found.last[1])
    assert found.first_nonfinite[1] == 4
    assert found.rows.tolist() == [10, 10, 10, 0]
    assert np.isnan(found.last[3])


def test_many_numbers_are_grouped_by_size_and_many_names_by_frequency():
    runs = np.arange(60)
    groups = group_runs([i / 10 for i in range(60)], runs, "lr")
    assert len(groups) == 6
    assert sorted(np.concatenate([group.runs for group in groups])) == list(range(60))
    names = group_runs([f"n{i % 20}" for i in range(60)], runs, "net")
    assert len(names) == 10
    assert names[-1].label == "net = others"


def test_blocks_hold_what_rows_do():
    values = rng.normal(size=(20_000, 4)).astype(np.float32)
    values[12_345, 2] = 50
    values[7:9, 1] = np.nan
    part = part_of(values)
    known = blocks([part])
    for span in ((-np.inf, np.inf), (3000, 15_000)):
        found = envelope([part], span, known=known)
        first, last = found.span
        columns = len(found.low)
        assert columns <= 300
        assert first <= max(span[0], 0)
        assert last >= min(span[1], 19_999)
        width = (last - first) / columns
        # The last column may end before its end.
        for column in range(columns - 1):
            start = round(first + column * width)
            rows = values[start : round(start + width) + 1]
            np.testing.assert_array_equal(found.low[column], np.nanmin(rows, 0))
            np.testing.assert_array_equal(found.high[column], np.nanmax(rows, 0))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_steps_that_all_runs_share_are_kept_once(size):
    steps = np.repeat(np.arange(8), 3)  # of three runs
    column = SharedColumn()
    frames = np.split(steps, range(size, len(steps), size))
    assert all(column.add(frame, 3) for frame in frames)
    assert column.positions.array.tolist() == list(range(8))
    for place in range(len(steps)):
        other = steps.copy()
        other[place] += 1
        column = SharedColumn()
        frames = np.split(other, range(size, len(steps), size))
        assert not all(column.add(frame, 3) for frame in frames)
