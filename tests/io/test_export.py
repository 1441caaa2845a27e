"""Runs of a store, sent to other loggers."""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox import loggers
from lox_host.store import Reader, begin_session
from lox_host.store.format.frame_reader import FrameReader, StaleSession
from lox_host.writers import replay as _resend
from support import tracked
from support.kept import Kept
from support.tracked import CONFIG, KEYS, NAMES, XS, counted, expected, odd, trained

pytestmark = pytest.mark.usefixtures("offline")


@pytest.fixture
def store(tmp_path):
    """A store with eight runs, recorded where no tracker was installed."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("wandb", "tensorboard", "mlflow", "trackio", "neptune_scale"):
            patch.setitem(sys.modules, name, None)
        trained(loggers.SaveLogger(tmp_path / "store", config=CONFIG))
    return tmp_path / "store"


def series(writer, name):
    """By key, the steps and values that a writer has got."""
    found = {}
    for steps, values in writer.rows(name):
        for key, value in values.items():
            found.setdefault(key, []).append((steps, value))
    return found


@pytest.mark.parametrize("rows", [7, 10_000])
def test_a_writer_gets_what_was_recorded(store, rows, monkeypatch):
    monkeypatch.setattr(_resend, "ROWS", rows)
    writer = Kept()
    lox.export(store, writer)

    assert sorted(run.name for run in writer.opened) == sorted(NAMES)
    assert writer.opened == writer.closed
    assert len({run.group for run in writer.opened}) == 1
    assert writer.opened[0].config == {"lr": 0.1, "net": {"width": 64, "sizes": [1, 2]}}
    for name, x in zip(NAMES, XS.tolist(), strict=True):
        found, wanted = series(writer, name), expected(x)
        for key in ("loss", "score", "back", "again", "bare"):
            assert found[key] == wanted[key]
        ((_, parts),) = found["parts"]
        assert parts == {"z": np.complex64(complex(x, 2 * x)), "big": x > 0.5}


def test_what_a_journal_does_not_tell_of_a_run_is_the_default(tmp_path):
    run = loggers.Run(3, "0-1", (0, 1), {"lr": 0.1}, 1e9, "g", 0, "12345678")
    older = {name: value for name, value in vars(run).items() if name != "job"}
    assert Reader(tmp_path, [{"run": vars(run)}]).runs == {3: run}
    without = dataclasses.replace(run, job="")
    assert Reader(tmp_path, [{"run": older}]).runs == {3: without}


def test_a_logger_gets_what_was_recorded(store, tmp_path):
    board = loggers.TensorBoardLogger(tmp_path / "board")
    files = loggers.JSONLogger(tmp_path / "json")
    lox.export(store, loggers.MultiLogger(board, files))

    for name, x in zip(NAMES, XS.tolist(), strict=True):
        run = tracked.tensorboard_run(tmp_path / "board" / name)
        assert {
            tag: [(event.step, event.value) for event in run.Scalars(tag)]
            for tag in run.Tags()["scalars"]
        } == counted(expected(x))
    assert len(list((tmp_path / "json").glob("*.jsonl"))) == 8


@pytest.mark.xdist_group("wandb")
def test_wandb_gets_what_was_recorded(store, tmp_path):
    lox.export(store, loggers.WandbLogger(dir=str(tmp_path)), key=KEYS[3])

    ((name, run),) = tracked.wandb_runs(tmp_path).items()
    assert name == NAMES[3]
    rows = [{k: x for k, x in row.items() if k[0] != "_"} for row in run["rows"]]
    assert tracked.rowwise(rows) == expected(XS[3].item())


def test_all_that_is_odd_arrives(tmp_path):
    first, second = Kept(), Kept()
    for logger in (loggers.Logger(first), loggers.SaveLogger(tmp_path)):
        for _ in range(2):
            state = logger.init(KEYS[0])
            logger.tap(odd, state)(jnp.float32(1))
            logger.finish(state)
    lox.export(tmp_path, second)

    assert len(second.opened) == 2
    before, after = (writer.rows(NAMES[0]) for writer in (first, second))
    assert repr(before) == repr(after)


def test_bad_input(store):
    with pytest.raises(TypeError, match=r"`to` is 'int'.*CSVLogger\(.*or a writer with"):
        lox.export(store, 3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        LookupError, match=r"has no run with the key \(9,\): see `lox.runs`"
    ):
        lox.export(store, Kept(), key=9)
    with pytest.raises(FileNotFoundError, match="No such folder"):
        lox.export(store / "other", Kept())
    begin_session(store / "new", "a")
    with pytest.raises(LookupError, match="has no runs yet"):
        lox.export(store / "new", Kept())


class Full(Kept):
    def write(self, batch):
        raise OSError("no space left")


def test_what_cannot_be_written_raises_and_runs_are_closed(store):
    writer = Full()
    with pytest.raises(OSError, match="no space left"):
        lox.export(store, writer)
    assert len(writer.opened) == len(writer.closed) == 8


def test_a_run_that_logged_nothing_is_sent(tmp_path):
    with loggers.SaveLogger(tmp_path) as logger:
        logger.init(KEYS[0], name="nothing")
    writer = Kept()
    lox.export(tmp_path, writer)
    assert [run.name for run in writer.closed] == ["nothing"]
    assert not writer.batches


def test_what_is_damaged_is_left_out(tmp_path):
    lox.save(lox.logdict({"x": 1.0}), tmp_path, key=0)
    lox.save(lox.logdict({"y": jnp.arange(99.0)}), tmp_path, key=0)
    damaged, _ = sorted(tmp_path.glob("*/*.arrows"))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    writer = Kept()
    with pytest.warns(UserWarning, match="A part of 'x', 1 rows, .* was left out"):
        lox.export(tmp_path, writer)
    assert [set(values) for _, values in writer.rows(writer.opened[0].name)] == [{"y"}]


def test_a_store_that_is_rewritten_meanwhile_is_read_again(store, monkeypatch):
    column, stale = FrameReader.column, iter([True])

    def once(self, *args):
        if next(stale, False):
            raise StaleSession
        return column(self, *args)

    monkeypatch.setattr(FrameReader, "column", once)
    writer = Kept()
    lox.export(store, writer)
    assert len(series(writer, NAMES[0])["loss"]) == tracked.STEPS


def test_what_was_logged_twice_is_sent_twice(tmp_path):
    logger = loggers.SaveLogger(tmp_path)
    for seed in (0, 0, 1):
        state = logger.init(jax.random.key(seed))
        logger.log(state, {"x": seed})
        logger.finish(state)
    writer = Kept()
    lox.export(tmp_path, writer, key=jax.random.key(0))
    assert [run.key for run in writer.opened] == [(0, 0), (0, 0)]


def test_a_format_may_be_given_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lox.save(lox.logdict({"loss": 0.5}), "results")
    lox.export("results", to="csv")
    assert (tmp_path / "csv" / "saved.csv").read_text() == "loss\n0.5\n"
    lox.export("results", to="json", out="other")
    assert (tmp_path / "other" / "saved.jsonl").read_text() == '{"loss": 0.5}\n'
    with pytest.raises(ValueError, match=r"`to` is 'xls'. The formats are 'csv', 'json'"):
        lox.export("results", to="xls")
    with pytest.raises(TypeError, match="`out` is for formats"):
        lox.export("results", lox.loggers.CSVLogger("a"), out="b")
