"""Curves that are drawn while runs go on, read back from the figure that was drawn."""

import json
import shutil
import sys
import threading
import time
from base64 import b64decode
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

import lox
from lox.loggers import Batch, Block, Form, MultiLogger, PlotLogger, SaveLogger
from lox_host.display.plot_outputs import PNGFile
from lox_host.writers.plot import PlotWriter
from support.blocks import block, run, written
from support.pictures import assert_picture

pytest.importorskip("matplotlib")
NAN = float("nan")
rng = np.random.default_rng(0)


def writer(path, **options):
    return PlotWriter(path / "curves.png", show=False, **({"every": 1e9} | options))


def axes(made: PlotWriter) -> dict:
    """The panels by name."""
    return {ax.get_ylabel(): ax for ax in made._picture.figure.axes}


def lines(ax) -> list:
    return [np.stack(line.get_data()) for line in ax.lines]


def edges(ax) -> np.ndarray:
    return ax.collections[0].get_paths()[0].vertices


def interleaved(values: np.ndarray, steps=None) -> Block:
    """A block of `runs, rows`, in the order in which a `vmap` logs."""
    runs = np.tile(np.arange(len(values)), values.shape[1])
    steps = np.arange(values.shape[1]) if steps is None else steps
    steps = {"step": np.repeat(steps, len(values))}
    return block({"x": values.T.reshape(-1)}, runs=runs, steps=steps)


# Curves -------------------------------------------------------------------------------


def test_one_run_has_a_line_of_its_rows(tmp_path):
    steps, loss = np.arange(0, 50, 10), np.array([3.0, NAN, 1.5, np.inf, 1.0], np.float32)
    made = writer(tmp_path, title="a $title")
    rows = block(
        {
            "loss": loss,
            "tree": {"a": np.arange(5), "b": np.ones((5, 2)), "c": np.arange(5) > 2},
            "short": np.arange(5).astype(ml_dtypes.bfloat16),
            "z": np.ones(5, np.complex64),
            "$x": loss,
        },
        steps={"other": 7 * steps, "step": steps},
    )

    written(made, rows, block({"plain": loss}))

    drawn = axes(made)
    assert list(drawn) == ["loss", "tree/a", "tree/c", "short", "$x", "plain"]
    assert [ax.get_xlabel() for ax in drawn.values()] == ["step"] * 5 + ["row"]
    finite = np.where(np.isfinite(loss), loss, NAN)
    line, marks = lines(drawn["loss"])
    np.testing.assert_array_equal(line, [steps, finite])
    assert set(marks[0]) <= set(steps[~np.isfinite(loss)])
    np.testing.assert_array_equal(lines(drawn["tree/c"]), [[steps, [0, 0, 0, 1, 1]]])
    np.testing.assert_array_equal(lines(drawn["short"]), [[steps, range(5)]])
    np.testing.assert_array_equal(lines(drawn["plain"])[0], [range(5), finite])
    assert_picture(tmp_path / "curves.png")


def test_few_runs_have_a_line_each_and_their_mean(tmp_path):
    values = rng.normal(size=(3, 20))
    made = writer(tmp_path)

    written(made, interleaved(values), runs=[run(i) for i in range(3)])

    (ax,) = axes(made).values()
    middle, *each = lines(ax)
    np.testing.assert_allclose(middle, [np.arange(20), values.mean(0)])
    np.testing.assert_allclose([own[1] for own in each], values)
    assert ax.get_title("right") == "3 runs and their mean"


def test_many_runs_have_a_mean_and_a_band(tmp_path):
    values = rng.normal(size=(256, 30)).cumsum(1)
    values[7, 10:] = NAN
    made = writer(tmp_path)

    written(made, interleaved(values), runs=[run(i) for i in range(256)])

    (ax,) = axes(made).values()
    middle, diverged, marks = lines(ax)
    # The run that diverged has no part in the mean, and a line that ends with a mark.
    whole = np.delete(values, 7, 0)
    np.testing.assert_allclose(middle[1], whole.mean(0))
    low, high = np.quantile(whole, [0.1, 0.9], axis=0)
    np.testing.assert_allclose(edges(ax)[1:31, 1], low)
    np.testing.assert_allclose(edges(ax)[32:62, 1][::-1], high)
    np.testing.assert_array_equal(diverged[1], values[7])
    np.testing.assert_array_equal(marks, [[10], [values[7, 9]]])
    assert ax.get_title("right") == "mean and 80% of 255 of 256 runs, 1 diverged"


def test_the_mean_is_where_half_of_the_runs_are(tmp_path):
    made = writer(tmp_path)
    blocks = [
        block({"x": np.ones(n) * n}, runs=[i] * n, steps={"step": np.arange(n)})
        for i, n in enumerate([4, 6, 9])
    ]

    written(made, *blocks, runs=[run(i) for i in range(3)])

    middle, *each = lines(axes(made)["x"])
    np.testing.assert_allclose(middle, [range(6), [19 / 3] * 4 + [7.5] * 2])
    assert [own.shape[1] for own in each] == [4, 6, 9]


def test_a_million_rows_are_few_points_that_hold_all(tmp_path):
    values = rng.normal(size=10**6) + np.linspace(0, 5, 10**6)
    steps = np.arange(10**6) * 3
    values[999], values[500_000] = 100.0, NAN
    made = writer(tmp_path)
    parts = zip(np.split(values, 100), np.split(steps, 100), strict=True)

    written(made, *(block({"x": x}, steps={"step": i}) for x, i in parts))

    (ax,) = axes(made).values()
    line, marks = lines(ax)
    span = 1024
    assert marks.shape == (2, 1)
    assert abs(marks[0, 0] - 3 * 500_000) < 3 * span
    assert line.shape[1] <= 1024
    ends = np.arange(0, 10**6, span)
    spans = np.split(values, ends[1:])
    np.testing.assert_allclose(line[1], [np.nanmean(own) for own in spans])
    np.testing.assert_allclose(line[0], [np.mean(own) for own in np.split(steps, ends[1:])])
    assert edges(ax)[:, 1].max() == 100
    assert edges(ax)[:, 1].min() == np.nanmin(values)
    assert ax.get_title("right") == "mean and range of 1024 rows each"
    assert sum(x.nbytes for x in made._curves._curves["x"]._spans.arrays.values()) < 10**5


def test_sums_that_overflow_are_no_warnings(tmp_path):
    made = writer(tmp_path, points=2)
    made.write(Batch([block({"x": np.repeat([1.7e308, -1.7e308], 4)})]))
    (panel,) = made._curves.panels()
    assert panel.middle[1].tolist() == [np.inf, -np.inf]


def test_runs_that_come_late_share_the_room(tmp_path):
    made = writer(tmp_path, points=1500)
    first = rng.normal(size=1000)
    others = rng.normal(size=(1000, 50))
    for i in range(1001):
        made.open(run(i))

    made.write(Batch([block({"x": first}, runs=[1000] * 1000)]))
    for part in np.split(others, 10, axis=1):
        made.write(Batch([interleaved(part)]))

    curves = made._curves
    curve = curves._curves["x"]
    assert curve._spans.shape == (1024, 128)
    _, values = curve._line(curves._slots[1000])
    np.testing.assert_allclose(values, first.reshape(-1, 8).mean(1))


def test_examples_that_logged_are_averaged(tmp_path):
    values = np.array([[1.0, 2.0, 4.0], [8.0, NAN, 3.0], [5.0, 6.0, 7.0]])
    valid = np.array([[True, False, True], [True, False, False], [False, False, False]])
    made = writer(tmp_path)
    rows = Block(
        np.zeros(3, np.int32),
        {"step": np.tile(np.arange(3)[:, None], 3)},
        {"x": values, "vector": np.ones((3, 3, 2))},
        {"x": Form(batch=1), "vector": Form(batch=1)},
        {"x": valid, "vector": valid},
    )

    written(made, rows)

    (ax,) = axes(made).values()
    np.testing.assert_array_equal(lines(ax), [[[0, 1], [2.5, 8]]])


def test_keys_and_steps_are_chosen(tmp_path):
    made = writer(tmp_path, keys=["b", "a"], x="epoch", max_panels=2)
    step = {"step": np.arange(3), "epoch": np.arange(3) * 2}
    values = {"a": np.ones(3), "b": np.zeros(3), "c": np.zeros(3)}
    later = block({"a": np.ones(1)}, steps={"step": [9]})

    written(made, block(values, steps=step), later)

    drawn = axes(made)
    assert list(drawn) == ["b", "a"]
    np.testing.assert_array_equal(lines(drawn["a"]), [[[0, 2, 4], [1, 1, 1]]])
    made = writer(tmp_path, x="row", max_panels=2, title="all")
    written(made, block(values, steps=step))
    assert list(axes(made)) == ["a", "b"]
    assert made._picture.figure.get_suptitle() == "all (2 of 3 keys)"


# When it is drawn ---------------------------------------------------------------------


def test_it_is_drawn_while_a_program_runs(tmp_path):
    path = tmp_path / "new" / "curves.png"
    logger = PlotLogger(path, keys="x", show=False, every=0)
    seen, pictures = threading.Event(), set()

    def watch():
        while not seen.is_set():
            if path.exists():
                assert_picture(path)
                pictures.add(path.read_bytes())
                if len(pictures) > 2:
                    seen.set()

    def is_unseen(_):
        return np.bool_(not seen.wait(0.01))

    def f(x):
        def step(state):
            x, _ = state
            lox.log({"x": x}, step=x)
            return x + 1, jax.pure_callback(is_unseen, jax.ShapeDtypeStruct((), bool), x)

        return jax.lax.while_loop(lambda s: s[1] & (s[0] < 10_000), step, (x, True))[0]

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    with logger:
        state = logger.init(0)
        rows = int(jax.jit(lambda x: logger.tap(f, state)(x))(0))
    thread.join(30)

    assert seen.is_set()
    assert rows < 10_000
    (line,) = lines(axes(logger._host.writer)["x"])
    np.testing.assert_array_equal(line, [range(rows), range(rows)])
    assert [own.name for own in path.parent.iterdir()] == ["curves.png"]


def test_it_is_drawn_at_most_so_often_and_at_last(tmp_path, monkeypatch):
    drawn = []
    now = time.monotonic
    monkeypatch.setattr(PNGFile, "show", lambda *_: drawn.append(now()))
    plots = PlotLogger(tmp_path / "curves.png", show=False, every=1.2)
    logger = MultiLogger(plots, SaveLogger(tmp_path))
    state = logger.init(0)
    logger.log(state, {"x": 1.0})
    lox.barrier()
    assert len(drawn) == 1
    logger.log(state, {"x": 2.0})
    # Nothing comes meanwhile, but its time does.
    wait_for(lambda: len(drawn) == 2)
    assert drawn[1] - drawn[0] >= 1.2
    logger.log(state, {"x": 3.0})
    logger.finish(state)
    assert len(drawn) == 3


# Where it is shown --------------------------------------------------------------------


def test_a_notebook_shows_one_picture_that_changes(tmp_path, monkeypatch):
    pytest.importorskip("IPython")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell.instance(config=config)
    try:
        shell.display_pub = CapturingDisplayPublisher(parent=shell)
        shell.kernel = object()  # as that of a notebook has
        made = PlotWriter(every=0)
        written(made, block({"x": np.arange(3.0)}), block({"x": np.arange(3.0, 9)}))
        first, *others = shell.display_pub.outputs
    finally:
        InteractiveShell.clear_instance()

    assert not first["update"]
    assert others
    for each in others:
        assert each["update"]
        assert each["transient"] == first["transient"]
        (tmp_path / "shown.png").write_bytes(b64decode(each["data"]["image/png"]))
        assert_picture(tmp_path / "shown.png")
    np.testing.assert_array_equal(lines(axes(made)["x"]), [[range(9), range(9)]])


@pytest.fixture
def backend(monkeypatch, tmp_path):
    """A backend that has windows; what was in them is written to a file."""
    import matplotlib

    content = tmp_path / "content.json"
    monkeypatch.setenv("WINDOW_CONTENT", str(content))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(
        matplotlib, "get_backend", lambda auto_select: "module://support.window_backend"
    )
    return content


def test_a_window_is_drawn_by_a_process_of_its_own(backend, tmp_path):
    made = PlotWriter(tmp_path / "curves.png", title="Mine", every=0)

    written(made, block({"x": np.arange(3.0)}), block({"x": np.arange(3.0, 9)}))
    _, window = made._outputs
    assert window._process.poll() is None
    window._leave()  # as at the end of the program

    wait_for(backend.exists)
    wait_for(lambda: backend.read_text())
    content = json.loads(backend.read_text())
    assert content["title"] == "Mine (ended)"
    np.testing.assert_array_equal(content["lines"], [[range(9), range(9)]])
    assert_picture(tmp_path / "curves.png")
    # A window that was closed is no failure.
    written(made, block({"x": np.arange(9.0)}))


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.02)
    raise TimeoutError


def test_without_a_display_there_is_a_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)

    written(PlotWriter(), block({"x": np.arange(3.0)}))

    assert_picture(tmp_path / "lox.png")


def test_a_display_that_is_not_there_is_not_waited_for(monkeypatch, tmp_path):
    import matplotlib

    monkeypatch.setenv("DISPLAY", ":987")
    monkeypatch.setattr(matplotlib, "get_backend", lambda auto_select: None)
    monkeypatch.delenv("MPLBACKEND", raising=False)
    monkeypatch.chdir(tmp_path)

    written(PlotWriter(), block({"x": np.arange(3.0)}))

    assert_picture(tmp_path / "lox.png")


# Errors -------------------------------------------------------------------------------


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = r"PlotLogger needs `pip install 'jax-lox\[plot\]'`"
    with pytest.raises(ModuleNotFoundError, match=text):
        PlotLogger()


def test_bad_options():
    with pytest.raises(TypeError, match="`keys` are strings, not 3"):
        PlotLogger(keys=["a", 3])
    with pytest.raises(ValueError, match="`points` must be at least 2, not 1"):
        PlotLogger(points=1)
    with pytest.raises(ValueError, match="`max_panels` must be at least 1"):
        PlotLogger(max_panels=0)


def test_a_key_that_is_not_there_is_warned_of(tmp_path):
    made = writer(tmp_path, keys=["loss", "vector", "epoch"], x="step")
    values = {"loss": np.ones(2), "vector": np.ones((2, 2))}
    rows = block(values, steps={"step": [0, 1]})
    text = (
        "no curve of 'vector', 'epoch': a curve is a real number that was logged with the "
        r"step 'step'. The keys that were logged are \['loss', 'vector'\]"
    )
    with pytest.warns(UserWarning, match=text):
        written(made, rows)


def test_a_picture_that_cannot_be_written_fails_as_other_loggers_do(tmp_path):
    folder = tmp_path / "folder"
    logger = PlotLogger(folder / "curves.png", show=False, every=0)
    state = logger.init(0)
    folder.rmdir()
    logger.log(state, {"x": 1.0})
    with pytest.warns(RuntimeWarning, match="PlotLogger failed with FileNotFoundError"):
        lox.barrier()
    with pytest.raises(RuntimeError, match="PlotLogger failed with FileNotFoundError"):
        logger.finish(state)


def test_a_refresh_that_fails_when_nobody_waits_is_not_forgotten(tmp_path):
    folder = tmp_path / "folder"
    logger = PlotLogger(folder / "curves.png", show=False, every=0.5)
    state = logger.init(0)
    logger.log(state, {"x": 1.0})
    lox.barrier()
    shutil.rmtree(folder)
    logger.log(state, {"x": 2.0})
    lox.barrier()
    writer = logger._host.writer
    time.sleep(max(0.0, writer._due - time.monotonic()) + 0.3)
    with (
        pytest.warns(RuntimeWarning, match="PlotLogger failed with FileNotFoundError"),
        pytest.raises(RuntimeError, match="PlotLogger failed with FileNotFoundError"),
    ):
        logger.finish(state)
