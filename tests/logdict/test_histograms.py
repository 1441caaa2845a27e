"""How histograms are drawn, written in a line, and shown by the console."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox_host.cli.main import main
from lox_host.display.heat_map import heat_maps_of
from lox_host.display.values import short
from lox_host.rows import FlatRows

VALUES = np.array([[0.1, 0.2, 0.9], [1.2, 1.3, 2.2], [2.1, np.nan, 2.9]], np.float32)


def counting(edges):
    def f(values):
        def step(i, x):
            lox.log({"h": lox.histogram(x, bins=4, edges=edges)}, epoch=2 * i)
            return i + 1, None

        return jax.lax.scan(step, 0, values)[0]

    return f


def quads(figure):
    (mesh,) = figure.axes[0].collections
    return np.asarray(mesh.get_array()), mesh.get_coordinates()


def test_a_histogram_over_time_is_a_heat_map():
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    _, logs = jax.jit(lox.spool(counting(edges)))(VALUES)
    figure = logs.plot()
    # The mesh, and a curve of the values that are not finite.
    assert [ax.get_ylabel() for ax in figure.axes] == ["h", "h/nonfinite"]
    shares, corners = quads(figure)
    expected = [np.histogram(row[np.isfinite(row)], edges)[0] for row in VALUES]
    expected = np.stack([row / row.sum() for row in expected])
    np.testing.assert_allclose(shares.reshape(3, 3), expected.T)
    np.testing.assert_allclose(corners[:, 0, 1], edges)
    np.testing.assert_allclose(corners[0, :, 0], [-1, 1, 3, 5])
    assert figure.axes[0].get_xlabel() == "epoch"
    assert len(logs.plot("h", x="row").axes) == 2


def test_histograms_of_several_examples_and_edges_are_joined():
    values = np.stack([VALUES[:2], VALUES[:2] + 4])
    _, logs = jax.jit(jax.vmap(lox.spool(counting("data"))))(values)
    figure = logs.plot()
    assert len(figure.axes) == 1
    shares, corners = quads(figure)
    np.testing.assert_allclose(shares.reshape(-1, 2).sum(0), 1)
    np.testing.assert_allclose(
        [corners[:, :, 1].min(), corners[:, :, 1].max()], [0.1, 6.2], rtol=1e-5
    )
    # Half of the values, those of the second example, are above the middle.
    middle = np.searchsorted(corners[:-1, 0, 1], 3.15)
    np.testing.assert_allclose(shares.reshape(-1, 2)[middle:].sum(0), 0.5, atol=0.01)


def test_bins_of_different_widths_are_drawn_equally_wide():
    _, logs = jax.jit(lox.spool(counting("symlog")))(VALUES)
    figure = logs.plot("h")
    _, corners = quads(figure)
    assert set(np.diff(corners[:, 0, 1])) == {1.0}


def test_rows_that_were_not_logged_are_not_drawn():
    counts, edges = np.ones((3, 2)), np.tile(np.arange(3.0), (3, 1))
    arrays = {"h/counts": counts, "h/edges": edges, "h/nonfinite": np.zeros(3)}
    steps, valid = {"i": np.array([5, 0, 3])}, np.array([True, False, True])
    (found,) = heat_maps_of(FlatRows(arrays, steps, {}, valid, (), True), None)
    assert found.positions.tolist() == [3, 5]
    assert found.counts.tolist() == [[1, 1], [1, 1]]


def test_histograms_without_rows_are_drawn_as_nothing():
    arrays = {"h/counts": np.zeros((0, 2)), "h/edges": np.zeros((0, 3))}
    arrays["h/nonfinite"] = np.zeros(0)
    (found,) = heat_maps_of(FlatRows(arrays, {}, {}, None, (), True), None)
    assert len(found.positions) == len(found.counts) == 0


def test_the_command_line_adds_up_the_histograms_of_runs(tmp_path, monkeypatch):
    """The second run has other edges, and one row more."""
    pytest.importorskip("matplotlib").use("agg")
    import matplotlib.pyplot as plt

    edges = np.array([0.0, 1.0, 2.0, 3.0])
    values = {0: VALUES[:2], 1: VALUES[[0, 1, 0]]}
    log = lox.loggers.SaveLogger(tmp_path / "store")
    for seed, rows in values.items():
        run = log.init(seed)
        log.tap(counting(edges * (1 + seed)), run)(rows)
        log.finish(run)
    monkeypatch.chdir(tmp_path)

    def plotted(*args):
        plt.close("all")
        assert main(["plot", *args]) == 0
        (figure,) = map(plt.figure, plt.get_fignums())
        return figure

    figure = plotted("store", "-k", "h")
    shares, corners = quads(figure)
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("epoch", "h")
    np.testing.assert_allclose(corners[0, :, 0], [-1, 1, 3, 5])
    np.testing.assert_allclose([corners[0, 0, 1], corners[-1, 0, 1]], [0, 4], atol=0.1)
    shares = shares.reshape(-1, 3)
    np.testing.assert_allclose(shares.sum(0), 1)
    # All values of the first row are below 1 in the first run. The second run only knows
    # that they are below 2, so half of them are taken to be.
    below = np.interp(1, corners[1:, 0, 1], np.cumsum(shares[:, 0]))
    np.testing.assert_allclose(below, 0.75, atol=0.02)

    figure = plotted("store/seed0", "store/seed1", "-k", "h", "-x", "row")
    assert [ax.get_title(loc="right") for ax in figure.axes] == [
        "store/seed0",
        "store/seed1",
    ]
    for ax, rows, width in zip(figure.axes, values.values(), (1, 2), strict=True):
        counts = np.stack([np.histogram(row, edges * width)[0] for row in rows])
        counts = counts[:, : np.flatnonzero(counts.any(0))[-1] + 1]
        (mesh,) = ax.collections
        found = np.asarray(mesh.get_array()).reshape(counts.T.shape)
        np.testing.assert_allclose(found, (counts / counts.sum(1, keepdims=True)).T)


def test_a_histogram_is_short():
    edges = [0.0, 1.0, 2.0, 4.0]
    one = lox.histogram(jnp.array([0.5, 1.5, 1.6, jnp.nan]), edges=edges)
    assert short(one) == "histogram of 3 values from 0 to 2, 1 not finite"
    parts = {"counts": one.counts, "edges": one.edges, "nonfinite": one.nonfinite}
    assert short(parts) == short(one)
    assert short({"a": parts, "b": 1}) == f"{{'a': {short(one)}, 'b': 1}}"
    assert short(lox.histogram(jnp.zeros(0), edges=edges)) == "histogram of 0 values"
    _, logs = lox.spool(counting(edges))(VALUES)
    assert repr(logs) == "{'h': histogram[3] of 3 bins}"
    seen = []
    jax.jit(lambda x: seen.append(short(lox.histogram(x, bins=2))) or x)(1.0)
    assert seen == ["histogram of 2 bins"]
    # Something else with one of the names stays what it is.
    assert short({"counts": 1, "edges": 2}) == "{'counts': 1, 'edges': 2}"


@pytest.mark.parametrize("logger", ["console", "csv"])
def test_loggers_show_the_mean(logger, tmp_path):
    out = io.StringIO()
    if logger == "csv":
        log = lox.loggers.CSVLogger(tmp_path)
    else:
        log = lox.loggers.ConsoleLogger(file=out)
    run = log.init(0)
    log.tap(counting([0.0, 1.0, 2.0, 3.0]), run)(VALUES)
    log.finish(run)
    if logger == "console":
        # The last row has two values, both in the bin from 2 to 3.
        assert "h/mean 2.5" in out.getvalue()
        assert "counts" not in out.getvalue()
    else:
        (file,) = tmp_path.rglob("*.csv")
        assert "h/counts/0" in file.read_text() or "h/counts" in file.read_text()
