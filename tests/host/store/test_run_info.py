"""What a store keeps beside the rows: runs, times, and where the process ran."""

import os
import pathlib
import platform
import shlex
import subprocess
import sys
import time

import jax
import numpy as np
import polars as pl
import pytest

import lox
from lox.loggers import Batch, Block, Form, Run, SaveLogger
from lox_host.store import open_store, read_key_rows
from lox_host.writers.save import SaveWriter

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "store"
RUN = Run(
    3,
    "lr=0.1",
    (0, 7),
    {"lr": 0.1, "layers": [1, 2], "env": {"name": "CartPole", "seed": None}},
    1e9,
    "12345678",
    process=1,
    group="a sweep",
    tags=("ppo", "small"),
    index=5,
    resumed=True,
)


def times_of(path, key="x"):
    (reader,) = open_store(path)
    ((_, keys),) = read_key_rows(reader, reader.runs).items()
    return keys[key].time


def test_every_field_of_a_run_is_stored(tmp_path):
    writer = SaveWriter(tmp_path)
    writer.open(RUN)
    writer.close(RUN)
    (reader,) = open_store(tmp_path)
    assert reader.runs == {3: RUN}
    (stored,) = lox.runs(tmp_path)
    assert (stored.group, stored.tags, stored.launch) == ("a sweep", RUN.tags, "12345678")


def test_old_stores_have_launches_and_no_groups_times_or_environment():
    for reader in open_store(GOLDEN):
        assert reader.environment == {}
        for run in reader.runs.values():
            assert run.launch
            assert (run.group, run.tags, run.index, run.resumed) == ("", (), 0, False)
        for block in reader.blocks():
            assert block.time.dtype == np.float64
            assert np.isnan(block.time).all()


def test_rows_have_the_time_at_which_they_reached_the_host(tmp_path):
    def program(xs):
        def body(carry, x):
            lox.log({"x": x}, step=x)
            return carry, None

        return jax.lax.scan(body, 0, xs)[0]

    with SaveLogger(tmp_path) as logger:
        run = logger.init(0)
        start = time.time()
        logger.tap(program, run)(np.arange(3))
        jax.effects_barrier()
        middle = time.time()
        time.sleep(0.01)
        logger.log(run, {"x": 3}, step=3)
        end = time.time()
    times = times_of(tmp_path)
    assert (np.diff(times) >= 0).all()
    assert start <= times[0] <= times[2] <= middle < times[3] <= end
    # Another reader finds the same.
    (file,) = tmp_path.glob("*/*.arrows")
    assert pl.read_ipc_stream(file)["@time"].to_list() == times.tolist()


def test_a_step_may_be_called_time(tmp_path):
    with SaveLogger(tmp_path) as logger:
        run = logger.init(0)
        for i in range(2):
            logger.log(run, {"x": i}, time=10 * i)
    assert lox.load(tmp_path).steps["time"]["x"].tolist() == [0, 10]
    assert (times_of(tmp_path) > 1.7e9).all()


def test_rows_with_damaged_times_are_still_read(tmp_path):
    writer = SaveWriter(tmp_path)
    writer.open(RUN)
    forms, times = {"x": Form(time=True)}, np.arange(1e9, 1e9 + 500)
    rows = np.full(500, RUN.id, np.int32)
    writer.write(Batch([Block(rows, {}, {"x": np.arange(500)}, forms, time=times)]))
    writer.close(RUN)
    (file,) = tmp_path.glob("*/*.arrows")
    data = file.read_bytes()
    at = data.index(times[:2].tobytes())
    file.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    with pytest.warns(UserWarning, match="A part of '@time', 500 rows, .* left out"):
        logs = lox.load(tmp_path)
    assert logs["x"].tolist() == list(range(500))
    with pytest.warns(UserWarning, match="'@time'"):
        assert np.isnan(times_of(tmp_path)).all()


def test_a_session_keeps_its_environment(tmp_path):
    with SaveLogger(tmp_path / "with") as logger:
        logger.log(logger.init(0), {"x": 1.0})
    (reader,) = open_store(tmp_path / "with")
    found = reader.environment
    assert found["host"] == platform.node()
    assert found["python"] == platform.python_version()
    assert (found["jax"], found["lox"]) == (jax.__version__, lox.__version__)
    assert found["devices"] == {jax.devices()[0].device_kind: jax.device_count()}
    assert found["pid"] == os.getpid()
    assert shlex.split(found["command"]) == sys.orig_argv
    with SaveLogger(tmp_path / "without", environment=False) as logger:
        logger.log(logger.init(0), {"x": 1.0})
    (reader,) = open_store(tmp_path / "without")
    assert reader.environment == {}


PROGRAM = """
import sys
from lox_host.runs.environment import host_environment
print({name: host_environment().get(name) for name in ("commit", "dirty")})
"""


def test_the_commit_is_that_of_the_program(tmp_path):
    code, elsewhere = tmp_path / "code", tmp_path / "elsewhere"
    code.mkdir()
    elsewhere.mkdir()
    script = code / "train.py"
    script.write_text(PROGRAM)

    def git(*args):
        names = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(code), *names, *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def environment():
        path = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)}
        command = [sys.executable, str(script)]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=elsewhere, env=path
        )
        return eval(done.stdout)

    assert environment() == {"commit": None, "dirty": None}
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD").strip()
    (code / "results").write_text("not code")
    assert environment() == {"commit": commit, "dirty": False}
    script.write_text(PROGRAM + "# changed")
    assert environment() == {"commit": commit, "dirty": True}
