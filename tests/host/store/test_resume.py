"""Runs that continue in another session: one curve, and nothing twice."""

import json
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import lox
from lox.loggers import CSVLogger, MultiLogger, SaveLogger
from lox_host.cli.main import main
from lox_host.store import open_store, read_key_rows
from lox_host.store.run_statistics import last_values, nonfinite, row_counts


def session(path, steps, *, seed=0, scale=1.0, resume=True, also=(), **config):
    """Log `scale * step` for some steps in a session of its own."""
    with SaveLogger(path, environment=False) as logger:
        run = logger.init(seed, config=config, resume=resume)
        for step in steps:
            logger.log(run, {"x": scale * step}, step=step)
            for key in also:
                logger.log(run, {key: scale * step})
            if step % 10 == 0:
                logger.log(run, {"eval": scale * step}, step=step, epoch=step // 10)


def curve(path, key="x", **options):
    logs = lox.load(path, key, **options)
    return logs.step[key].tolist(), logs[key].tolist()


def test_a_resumed_run_is_one_curve(tmp_path):
    session(tmp_path, range(15))
    session(tmp_path, range(12, 20), scale=-1)
    session(tmp_path, range(18, 25), scale=2)
    steps = [*range(25)]
    values = [*range(12), *(-x for x in range(12, 18)), *(2 * x for x in range(18, 25))]
    assert curve(tmp_path) == (steps, values)
    assert curve(tmp_path, "eval") == ([0, 10, 20], [0, 10, 40])
    (run,) = lox.runs(tmp_path)
    assert (run.rows, run.keys) == (25, ("x", "eval"))


def test_superseded_rows_are_not_deleted(tmp_path):
    session(tmp_path, range(15))
    session(tmp_path, range(12, 20), scale=-1)
    first, second = (reader.folder.name for reader in open_store(tmp_path))
    assert curve(tmp_path, session=first)[0] == [*range(15)]
    assert curve(tmp_path, session=second)[0] == [*range(20)]


def test_an_evaluation_after_the_first_resumed_step_does_not_count(tmp_path):
    # The resumed session has not got to an evaluation of its own yet.
    session(tmp_path, range(25))
    session(tmp_path, range(15, 18), scale=-1)
    assert curve(tmp_path, "eval") == ([0, 10], [0, 10])
    assert curve(tmp_path)[0] == [*range(18)]


def test_rows_without_steps_end_where_the_others_do(tmp_path):
    session(tmp_path, range(6), also=["bare"])
    session(tmp_path, range(4, 8), scale=-1, also=["bare"])
    assert lox.load(tmp_path, "bare")["bare"].tolist() == [0, 1, 2, 3, -4, -5, -6, -7]


def test_without_steps_everything_counts(tmp_path):
    for value in (1, 2):
        with SaveLogger(tmp_path) as logger:
            run = logger.init(0, resume=True)
            logger.log(run, {"x": value})
    assert lox.load(tmp_path, "x")["x"].tolist() == [1, 2]


def test_a_session_without_rows_supersedes_nothing(tmp_path):
    session(tmp_path, range(5))
    session(tmp_path, [])
    assert curve(tmp_path)[0] == [*range(5)]
    session(tmp_path, range(3, 7))
    assert curve(tmp_path)[0] == [*range(7)]


def test_without_resume_a_session_starts_afresh(tmp_path):
    session(tmp_path, range(9), resume=False)
    session(tmp_path, range(5, 7), resume=False)
    assert curve(tmp_path)[0] == [5, 6]
    session(tmp_path, range(6, 8))
    assert curve(tmp_path)[0] == [5, 6, 7]
    # The first is a session of its own, and the other two are one.
    assert [run.rows for run in lox.runs(tmp_path)] == [9, 3]


def test_load_says_that_there_are_older_sessions(tmp_path, recwarn):
    for steps in (9, 5, 3):
        session(tmp_path, range(steps), resume=False)
    session(tmp_path, range(2), seed=1)
    names = [reader.folder.name for reader in open_store(tmp_path)]
    for run in (None, "seed0", 0):
        with pytest.warns(UserWarning, match="are 2 older ones") as found:
            lox.load(tmp_path, run=run)
        assert f"session={names[1]!r}" in str(found[0].message)
        assert found[0].filename == __file__
    # Nothing is hidden from who says what to load, or continues the run.
    lox.load(tmp_path, run="seed0@3"), lox.load(tmp_path, run="seed1")
    lox.load(tmp_path, session=names[2]), lox.load(tmp_path, run=lox.runs(tmp_path)[2])
    session(tmp_path, range(2, 4), seed=1)
    lox.load(tmp_path, run="seed1")
    assert not recwarn.list


def test_other_keys_and_configs_are_other_runs(tmp_path):
    session(tmp_path, range(4), seed=0, lr=0.1, total=9)
    expected = r"Cannot resume the run 'seed0': .* differs in 'lr', 'total', 'a'. lox"
    with pytest.warns(UserWarning, match=expected):
        session(tmp_path, range(2, 6), seed=0, lr=0.2, a=1)
    session(tmp_path, range(2, 6), seed=1, lr=0.1)
    assert [run.rows for run in lox.runs(tmp_path)] == [4, 4, 4]
    session(tmp_path, range(2, 6), seed=0, lr=0.1, total=9)
    assert sorted(run.rows for run in lox.runs(tmp_path)) == [4, 4, 6]


def test_some_runs_of_a_batch_are_resumed(tmp_path):
    def train(logger, seeds, start, *, resume):
        def one(seed, lr):
            run = logger.init(seed, config={"lr": lr}, resume=resume)

            def body(carry, i):
                lox.log({"x": lr * i.astype(float)}, step=i)
                return carry, None

            logger.tap(lambda: jax.lax.scan(body, 0, start + jnp.arange(4))[0], run)()

        jax.jit(jax.vmap(one))(seeds, seeds.astype(float) + 0.5)
        lox.barrier()

    with SaveLogger(tmp_path) as logger:
        train(logger, jnp.arange(4), 0, resume=False)
    with SaveLogger(tmp_path) as logger:
        train(logger, jnp.arange(2, 6), 2, resume=True)
    (first, second) = open_store(tmp_path)
    assert len(first.continued) == 2
    assert not second.continued
    found = {}
    for reader in (first, second):
        ids = [id for id in reader.runs if id not in reader.continued]
        for id, rows in read_key_rows(reader, ids).items():
            found[reader.runs[id].seed] = rows["x"].steps["step"].tolist()
            lr = np.float32(0.5 + reader.runs[id].seed)
            np.testing.assert_allclose(rows["x"].value, lr * rows["x"].steps["step"])
    old, new, both = [0, 1, 2, 3], [2, 3, 4, 5], [0, 1, 2, 3, 4, 5]
    assert found == {0: old, 1: old, 2: both, 3: both, 4: new, 5: new}
    assert row_counts(second)["x"] == {
        id: 6 if run.seed < 4 else 4 for id, run in second.runs.items()
    }


def test_a_run_is_resumed_in_the_same_session(tmp_path):
    with SaveLogger(tmp_path) as logger:
        logger.init(99)  # keeps the session open
        for start in (0, 2):
            run = logger.init(0, resume=True)
            for i in range(start, start + 4):
                logger.log(run, {"x": 10 * start + i}, step=i)
            logger.finish(run)
    assert lox.load(tmp_path, "x", key=0)["x"].tolist() == [0, 1, 22, 23, 24, 25]


def test_last_values_and_what_is_not_finite_come_from_all_sessions(tmp_path):
    for start, values in ((0, [1.0, np.nan, 3.0]), (2, [4.0, 5.0])):
        with SaveLogger(tmp_path) as logger:
            run = logger.init(0, resume=True)
            for i, value in enumerate(values, start):
                logger.log(run, {"x": value}, step=i)
            if not start:
                logger.log(run, {"once": 7.0}, step=0)
    *_, reader = open_store(tmp_path)
    ((_, last),) = last_values(reader).items()
    assert last == {"x": 5.0, "once": 7.0}
    ((_, bad),) = nonfinite(reader).items()
    assert bad["x"] == (1, "step", 1.0)


def test_commands_and_exports_show_one_curve(tmp_path, capsys):
    session(tmp_path / "s", range(15))
    session(tmp_path / "s", range(12, 20))
    assert main(["show", str(tmp_path / "s"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["keys"]["x"]["rows"] == 20
    assert main(["ls", str(tmp_path / "s"), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["rows"], listed["values"]["x"]) == (20, 19)
    lox.export(tmp_path / "s", CSVLogger(tmp_path / "csv"))
    (file,) = (tmp_path / "csv").glob("*.csv")
    lines = [line.split(",") for line in file.read_text().splitlines()]
    assert [int(step) for step, _, x, _ in lines[1:] if x] == [*range(20)]
    assert main(["view", str(tmp_path / "s"), "--export", str(tmp_path / "v.html")]) == 0
    assert capsys.readouterr().out.startswith("1 run, ")
    args = ["export", str(tmp_path / "s"), "--to", "parquet", "-o", str(tmp_path / "t")]
    assert main(args) == 0
    table = pl.read_parquet(next((tmp_path / "t").glob("*")))
    assert table.drop_nulls("x")["step"].to_list() == [*range(20)]


def test_scan_has_each_row_of_a_resumed_run_once(tmp_path):
    session(tmp_path, range(15))
    session(tmp_path, range(12, 20), scale=-1)
    session(tmp_path, range(3), seed=1)
    rows = lox.scan(tmp_path, "x").collect().sort("run", "step")
    assert rows["step"].to_list() == [*range(20), *range(3)]
    values = [*range(12), *(-x for x in range(12, 20)), *range(3)]
    assert rows["x"].to_list() == values


def test_tail_begins_with_earlier_sessions(tmp_path, capsys):
    session(tmp_path, range(5))
    session(tmp_path, range(3, 7), scale=-1)
    assert main(["tail", str(tmp_path), "-n", "6", "-k", "x", "--no-follow"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["1", "2", "3", "4", "5", "6"]
    assert lines[2] == "step 3  x -3"
    # This key is in the first session only.
    assert main(["tail", str(tmp_path), "-k", "eval", "--no-follow"]) == 0
    assert capsys.readouterr().out == "epoch 0  step 0  eval 0.000\n"


def test_an_earlier_session_is_found_behind_another_store(tmp_path):
    session(tmp_path / "a", range(2))
    session(tmp_path / "b", range(5))
    session(tmp_path / "b", range(3, 7))
    first = open_store(tmp_path / "b")[0].folder.name
    logs = lox.load([tmp_path / "a", tmp_path / "b"], "x", session=first)
    assert logs["x"].tolist() == [0, 1, 2, 3, 4]


def test_several_loggers_resume_together(tmp_path):
    for start in (0, 3):
        with MultiLogger(SaveLogger(tmp_path / "s"), SaveLogger(tmp_path / "t")) as logger:
            run = logger.init(0, config={"lr": 0.1}, resume=True)
            for i in range(start, start + 5):
                logger.log(run, {"x": i}, step=i)
    for name in "st":
        assert curve(tmp_path / name)[0] == [*range(8)]


PROGRAM = """
import os, signal, sys
import jax, jax.numpy as jnp
import lox

path, start, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
logger = lox.loggers.SaveLogger(path)
run = logger.init(0, config={"lr": jnp.float32(0.1)}, resume=True)
for i in range(start, end):
    logger.log(run, {"x": i}, step=i)
lox.barrier()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_both_halves_load_after_kill_9_in_both(tmp_path):
    for start, end in ((0, 30), (20, 40), (35, 50)):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(start), str(end)]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL
    assert curve(tmp_path) == ([*range(50)], [*range(50)])
    (run,) = lox.runs(tmp_path)
    assert run.rows == 50
