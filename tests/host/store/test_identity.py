"""A store knows what belongs to it: runs, their order, and what is missing or twice."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import warnings
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import lox
from lox.loggers import Batch, Block, Form
from lox_host.store import folder as _folder, session as _session
from lox_host.writers.save import SaveWriter
from support.storing import block, run


def written(path, steps, number=0, **options):
    """A session with one flush for each step."""
    writer = SaveWriter(path, **options)
    writer.open(run(number))
    for step in steps:
        writer.write(Batch([block([step])]))
        writer.flush()
    writer.close(run(number))


def sessions(path):
    return sorted(path.glob("*-*"))


def lines_of(session):
    return (session / "journal").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("lost", ["journal", "folder", "replaced"])
def test_a_session_that_got_lost_is_missed(tmp_path, lost):
    written(tmp_path, range(3))
    written(tmp_path, range(5))
    newest = sessions(tmp_path)[-1]
    if lost == "folder":
        shutil.rmtree(newest)
    else:
        (newest / "journal").unlink()
    if lost == "replaced":
        (newest / "journal").mkdir()

    what = "folder" if lost == "folder" else "journal"
    for read in (lox.load, lox.runs):
        with pytest.warns(
            UserWarning, match=f"the session {newest.name} has lost its {what}"
        ):
            read(tmp_path)


def test_a_session_that_was_removed_is_not_missed(tmp_path):
    written(tmp_path, range(3))
    written(tmp_path, range(5), mode="w")

    assert [r.rows for r in lox.runs(tmp_path)] == [5]


@pytest.mark.parametrize("close", [False, True])
def test_lines_that_are_there_twice_count_once(tmp_path, close):
    writer = SaveWriter(tmp_path)
    writer.open(run(0))
    for i in range(4):
        writer.write(Batch([block([i], split=i == 3)]))
        writer.flush()
    if close:
        writer.close(run(0))
    (session,) = sessions(tmp_path)
    lines = lines_of(session)

    for i in range(len(lines)):
        twice = [*lines[: i + 1], *lines[i:]]
        (session / "journal").write_bytes(b"".join(twice))
        with pytest.warns(UserWarning, match="there twice, and count once: 1"):
            logs = lox.load(tmp_path)
        np.testing.assert_array_equal(logs.step["x"], range(4))


def test_lines_that_are_missing_are_noticed(tmp_path):
    written(tmp_path, range(4))
    (session,) = sessions(tmp_path)
    lines = lines_of(session)

    for i in range(len(lines) - 1):
        (session / "journal").write_bytes(b"".join([*lines[:i], *lines[i + 1 :]]))
        with pytest.warns(UserWarning, match="lines of its journal are missing: 1"):
            assert len(lox.runs(tmp_path)) <= 1


def test_a_copy_of_a_session_does_not_count(tmp_path):
    written(tmp_path, range(4))
    (session,) = sessions(tmp_path)
    shutil.copytree(session, tmp_path / "20300101-000000-000000000-0-00000000")

    with pytest.warns(UserWarning, match=f"is a copy of {session.name}"):
        assert [r.session for r in lox.runs(tmp_path)] == [session.name]


def test_the_newest_session_is_that_which_began_last_whatever_the_clock_says(
    tmp_path, monkeypatch
):
    for hours, rows in ((0, 3), (-1, 4), (-2, 5)):
        now = time.time_ns() + hours * 3600 * 10**9
        clock = {"time_ns": lambda now=now: now, "strftime": time.strftime}
        monkeypatch.setattr(_folder, "time", SimpleNamespace(gmtime=time.gmtime, **clock))
        written(tmp_path, range(rows))

        assert len(lox.load(tmp_path)["x"]) == rows
    assert [r.rows for r in lox.runs(tmp_path)] == [3, 4, 5]


def test_every_bit_of_a_number_counts(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    numbers = [5, 2**32 + 5, -5, 2**32 - 5, 2**64 - 5, 2**63, -(2**63), 5 << 32]
    states = [logger.init(number) for number in numbers]
    for number, state in zip(numbers, states, strict=True):
        assert logger.init(number).run == state.run
        logger.log(state, {"x": float(number)})
    # The same from a program, where numbers have 32 bits.
    assert jax.jit(logger.init)(np.int32(-5)).run == states[2].run
    assert jax.jit(logger.init)(np.uint32(2**32 - 5)).run == states[3].run
    for state in states:
        logger.finish(state)

    assert [r.name for r in lox.runs(tmp_path)] == [f"seed{number}" for number in numbers]
    for number, stored in zip(numbers, lox.runs(tmp_path), strict=True):
        assert lox.load(tmp_path, key=number)["x"] == np.float32(number)
        assert lox.load(tmp_path, key=stored.key)["x"] == np.float32(number)


def test_saving_adds_rows_to_the_run(tmp_path):
    for i in range(200):
        lox.save({"x": float(i)}, tmp_path, key=2**40)
    lox.save({"x": -1.0}, tmp_path, key=1)

    np.testing.assert_array_equal(lox.load(tmp_path, key=2**40)["x"], range(200))
    assert lox.load(tmp_path, key=1)["x"] == -1
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) <= 6
    # Another key, another step, and a run of a logger that has ended.
    lox.save(lox.logdict({"y": 1, "x": 2.0}, step={"x": 3}), tmp_path, key=1)
    logs = lox.load(tmp_path, key=1)
    np.testing.assert_array_equal(logs["x"], [-1, 2])
    np.testing.assert_array_equal(logs.step.valid["x"], [False, True])
    assert logs["y"] == 1
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(7)
    logger.log(state, {"x": 1.0})
    with pytest.raises(
        RuntimeError, match=r"A logger is writing the run 'seed7' to .*finish"
    ):
        lox.save({"x": 2.0}, tmp_path, key=7)
    logger.finish(state)
    lox.save({"x": 2.0}, tmp_path, key=7)
    np.testing.assert_array_equal(lox.load(tmp_path, key=7)["x"], [1, 2])


def test_saving_adds_rows_to_what_an_older_version_wrote(tmp_path):
    golden = pathlib.Path(__file__).parents[1] / "golden" / "store"
    shutil.copytree(golden, tmp_path / "store")
    before = {r.session: r.rows for r in lox.runs(tmp_path / "store")}
    # The first seed is there with two configurations, the second with one.
    stored = [r for r in lox.runs(tmp_path / "store") if "loss" in r.keys][1]
    logs = lox.load(tmp_path / "store", "loss", key=stored.key)

    lox.save(logs, tmp_path / "store", key=stored.key)

    loaded = lox.load(tmp_path / "store", "loss", key=stored.key)
    assert loaded["loss"].tobytes() == 2 * logs["loss"].tobytes()
    after = {r.session: r.rows for r in lox.runs(tmp_path / "store")}
    assert before.items() <= after.items()


def test_replacing_a_run_leaves_the_others(tmp_path):
    writer = SaveWriter(tmp_path)
    for i in range(2):
        writer.open(run(i, id=i))
        writer.write(Batch([block(np.arange(3 + i), id=i)]))
    for i in range(2):
        writer.close(run(i, id=i))
    logger = lox.loggers.SaveLogger(tmp_path)
    live = logger.init(5)
    logger.log(live, {"x": 1.0})

    for _ in range(2):
        lox.save({"x": 9.0}, tmp_path, mode="w", key=0)
        lox.save({"x": 9.0}, tmp_path, mode="w", key=5)

        assert {(r.key, r.rows) for r in lox.runs(tmp_path)} >= {((0,), 1), ((1,), 4)}
        assert [r.key for r in lox.runs(tmp_path)].count((0,)) == 1
        assert lox.load(tmp_path, key=0)["x"] == 9
        assert len(lox.load(tmp_path, key=1)["x"]) == 4
    logger.log(live, {"x": 2.0})
    logger.finish(live)
    assert sorted(r.rows for r in lox.runs(tmp_path) if r.key == (5,)) == [1, 2]


def test_a_logger_that_writes_anew_leaves_what_another_writes(tmp_path):
    first, second = SaveWriter(tmp_path), SaveWriter(tmp_path, mode="w")
    written(tmp_path, range(3), number=7)
    first.open(run(0))
    first.write(Batch([block([0])]))
    second.open(run(1, id=1))
    first.close(run(0))
    second.close(run(1, id=1))

    assert [r.key for r in lox.runs(tmp_path)] == [(0,), (1,)]


KILLED = """
import os, sys
import numpy as np
from lox.loggers import Batch, Block, Form, Run
from lox_host.store.format import segments
from lox_host.writers.save import SaveWriter

writer = SaveWriter(sys.argv[1])
writer.open(Run(0, "0", (0,), {}, 1e9, "group"))
written, dies_at = 0, int(sys.argv[2])
write = segments.Segments.write

def counted(self, *args):
    global written
    frame = write(self, *args)
    written += 1
    if written == dies_at:
        os.kill(os.getpid(), 9)
    return frame

segments.Segments.write = counted
for i in range(10):
    steps = {"step": np.arange(i * 10, i * 10 + 10)}
    ids = np.zeros(10, np.int32)
    blocks = [
        Block(ids, steps, {key: np.arange(10.0)}, {key: Form(time=True)}) for key in "abc"
    ]
    writer.write(Batch(blocks))
    writer.flush()
"""


def test_a_flush_is_all_or_nothing(tmp_path):
    for i, dies_at in enumerate((1, 2, 3, 5, 7, 14, 30)):
        path = tmp_path / str(i)
        root = pathlib.Path(lox.__file__).parents[1]
        code = [sys.executable, "-c", KILLED, str(path), str(dies_at)]
        child = subprocess.run(code, env={**os.environ, "PYTHONPATH": str(root)})
        assert child.returncode == -signal.SIGKILL

        with pytest.warns(UserWarning, match="rows that the journal does not know"):
            logs = lox.load(path)
        rows = (dies_at - 1) // 3 * 10
        assert {key: len(logs[key]) for key in logs} == dict.fromkeys(
            "abc" * bool(rows), rows
        )


def test_many_rows_of_one_group_bring_the_others_along(tmp_path, monkeypatch):
    monkeypatch.setattr(_session, "BYTES", 1000)
    writer = SaveWriter(tmp_path)
    writer.open(run(0))
    ids = np.zeros(10, np.int32)
    values = {"wide": np.ones((10, 100)), "narrow": np.ones(10)}
    writer.write(
        Batch([Block(ids, {}, {k: v}, {k: Form(time=True)}) for k, v in values.items()])
    )

    logs = lox.load(tmp_path)
    assert {key: len(logs[key]) for key in logs} == {"wide": 10, "narrow": 10}
    writer.close(run(0))


def test_a_folder_that_is_removed_is_noticed_at_the_next_flush(tmp_path):
    writer = SaveWriter(tmp_path / "store")
    writer.open(run(0))
    shutil.rmtree(tmp_path / "store")

    writer.write(Batch([block([0])]))
    with pytest.raises(FileNotFoundError, match="has been removed or replaced while"):
        writer.flush()
    open_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError, match="has been removed or replaced while"):
        writer.close(run(0))
    assert len(os.listdir("/proc/self/fd")) < open_files


def test_what_a_full_disk_had_no_room_for_is_known(tmp_path, monkeypatch):
    monkeypatch.setattr(_session, "KEPT", 100)
    writer = SaveWriter(tmp_path)
    writer.open(run(0))
    with monkeypatch.context() as full:

        def write(*_):
            raise OSError(28, "No space left on device")

        full.setattr(_session.journal, "append", write)
        for i in range(20):
            writer.write(Batch([block([i])]))
            with pytest.raises(OSError, match="No space left"):
                writer.flush()
    writer.write(Batch([block([20])]))
    writer.flush()
    writer.write(Batch([block([21])]))
    writer.close(run(0))

    with pytest.warns(
        UserWarning, match="could not be written when they were logged: (1[0-9])"
    ):
        steps = lox.load(tmp_path).step["x"]
    assert steps[0] == 0
    assert steps[-1] == 21
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        lost = 22 - len(lox.load(tmp_path)["x"])
    assert f"logged: {lost})" in str(said[0].message)
