"""Object storage that fails: the program goes on, is told once, and nothing is lost."""

import collections
import contextlib
import os
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

from lox_host.cli.main import main
from lox_host.remote import Bucket, BucketError, push_others, uploader
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.store import open_store, read_key_rows
from lox_host.writers.save_remote import RemoteSaveWriter
from support.object_server import REPO
from support.remote_kills import disturb
from support.remote_writer import block

RUN = Run(1, "run-0", (0,), {"lr": 0.1}, 1e9, "g", 0, "0" * 8)


@contextlib.contextmanager
def all_warnings():
    """The texts of all warnings, those of other threads among them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts = []
        yield texts
        texts += [str(warning.message) for warning in caught]


def steps_of(url):
    """The steps of all rows in a store, as lox reads them."""
    steps = []
    for reader in open_store(url):
        for rows in read_key_rows(reader, list(reader.runs)).values():
            steps += rows["loss"].steps["step"].tolist() if "loss" in rows else []
    return steps


def wait_until(is_true, seconds=20):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, "It has not happened."
        time.sleep(0.05)


@pytest.fixture
def quick(monkeypatch):
    """Pauses after failures are short."""
    monkeypatch.setattr(uploader, "LONGEST_PAUSE", 0.3)


def write(writer, first, rows=10):
    writer.write(Batch([block(RUN.id, first, rows)]))
    writer.flush()


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("stop", "cannot be reached"),
        ("refuse", "is refused. The credentials are missing, expired"),
        ("throttle", "throttles requests"),
        ("no bucket", "There is no bucket"),
        ("cut", ""),
    ],
)
def test_the_program_goes_on_and_uploads_resume(url, proxy, mode, text, quick):
    with all_warnings() as texts:
        writer = RemoteSaveWriter(url)
        writer.open(RUN)
        write(writer, 0)
        writer.push()
        assert steps_of(url) == [*range(10)]
        if mode == "stop":
            proxy.stop()
        else:
            proxy.mode = mode
        start = time.monotonic()
        for first in range(10, 50, 10):
            write(writer, first)
        assert time.monotonic() - start < 1  # logging does not wait for the network
        wait_until(lambda: writer._uploader._failure is not None)
        time.sleep(1)
        proxy.mode = ""
        proxy.start()
        wait_until(lambda: writer._uploader._failure is None)
        write(writer, 50)
        writer.close(RUN)
    assert steps_of(url) == [*range(60)]
    fails = [text for text in texts if "fail at the moment" in text]
    assert len(fails) == 1, texts
    assert "The program continues" in fails[0]
    assert text in fails[0]
    assert len([text for text in texts if "work again. No rows are missing" in text]) == 1
    # What was stored is not sent again, but for one segment that was under way.
    segments = [n for path, n in proxy.objects_put.items() if "/rows/" in path]
    assert sum(segments) - len(segments) <= (30 if mode == "cut" else 0)


def test_a_server_that_is_slow_holds_up_nothing(url, proxy):
    proxy.mode = "slow"
    writer = RemoteSaveWriter(url)
    start = time.monotonic()
    writer.open(RUN)
    for first in range(0, 100, 10):
        write(writer, first)
    assert time.monotonic() - start < 1
    writer.close(RUN)
    proxy.mode = ""
    assert steps_of(url) == [*range(100)]


def test_a_server_that_is_down_at_the_end_leaves_all_for_push(
    url, proxy, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("lox_host.writers.save_remote.PATIENCE", 3.0)
    proxy.stop()
    with all_warnings() as texts:
        writer = RemoteSaveWriter(url)
        writer.open(RUN)
        write(writer, 0)
        write(writer, 10)
        thread = writer._uploader._thread
        writer.close(RUN)
    assert any("20 rows" in text and "`lox push s3://" in text for text in texts), texts
    with pytest.raises(BucketError, match=r"The server of .* cannot be reached"):
        open_store(url)
    proxy.start()
    # This process still runs, so it uploads them itself.
    thread.join(40)
    assert steps_of(url) == [*range(20)]
    assert main(["push"]) == 0
    assert "Nothing is left to upload" in capsys.readouterr().out


def test_push_uploads_what_a_killed_process_has_left(url, proxy, tmp_path, capsys):
    tally = disturb(None, proxy, url, tmp_path, disturbances=4, at_once=2)
    assert (tally.lost, tally.twice, tally.closed) == (0, 0, 1)
    assert tally.flushed > 0
    counted = collections.Counter(steps_of(url))
    assert sum(counted.values()) == tally.rows
    assert list((tmp_path / "spool").rglob("*.arrows")) == []


def test_an_object_that_is_only_half_there_is_left_out_and_said(url):
    writer = RemoteSaveWriter(url)
    writer.open(RUN)
    for first in (0, 10, 20):
        write(writer, first)
        writer.push()
    bucket = Bucket(url)
    segments = [found.path for found in bucket.objects("rows")]
    assert len(segments) == 3
    whole, _ = bucket.get(segments[1])
    bucket.put(segments[1], whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match="lines of its journal are missing: 1"):
        assert steps_of(url) == [*range(10), *range(20, 30)]
    bucket.put(segments[1], whole)
    assert steps_of(url) == [*range(30)]
    writer.close(RUN)
    assert steps_of(url) == [*range(30)]


def test_the_end_waits_for_what_other_processes_have_left(url, tmp_path):
    """A thread that still uploads then would abort the process."""
    program = """if True:
        import pathlib, sys, time
        from lox_host.remote import uploader
        from support.remote_writer import main

        def slow_push(url, spool):
            time.sleep(1)
            pathlib.Path(sys.argv[2]).touch()

        uploader.push_others = slow_push
        main(sys.argv[1], 0, 10, sys.argv[3])
    """
    pushed, noted = tmp_path / "pushed", tmp_path / "noted"
    env = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO}/tests"}
    command = [sys.executable, "-c", program, url, pushed, noted]
    subprocess.run(command, env=env, check=True)
    assert noted.read_text().endswith("closed\n")
    assert pushed.exists()


def test_a_damaged_object_is_left_out_and_said(url, tmp_path):
    writer = RemoteSaveWriter(url)
    writer.open(RUN)
    for first in (0, 1000):
        write(writer, first, 1000)
        writer.push()
    writer.close(RUN)
    bucket = Bucket(url)
    path = bucket.objects("rows")[0].path
    data = bytearray(bucket.get(path)[0])
    data[len(data) // 3] ^= 0xFF
    bucket.put(path, bytes(data))
    with pytest.warns(UserWarning, match="A part of 'loss', 1000 rows, in the session"):
        assert steps_of(url) == [*range(1000, 2000)]


def test_a_disk_that_fills_is_said_before_it_is_full(url, proxy, quick, monkeypatch):
    # What is free now is little, if the rows come as fast as here.
    monkeypatch.setattr(uploader, "LITTLE", 1 << 60)
    proxy.stop()
    with all_warnings() as texts:
        writer = RemoteSaveWriter(url)
        writer.open(RUN)
        write(writer, 0, 100_000)
        wait_until(lambda: writer._uploader._disk._is_warned)
        proxy.start()
        wait_until(lambda: writer._uploader._failure is None)
        writer.close(RUN)
    fills = [text for text in texts if "is filling up" in text]
    assert len(fills) == 1
    assert "wait there to be uploaded to" in fills[0]
    assert "LOX_SPOOL" in fills[0]
    assert len(steps_of(url)) == 100_000


def test_credentials_that_are_refused_are_said_when_reading(url, proxy):
    proxy.mode = "refuse"
    with pytest.raises(BucketError, match=r"Access to .* is refused"):
        open_store(url)


def test_objects_that_are_gone_are_said(url):
    writer = RemoteSaveWriter(url)
    writer.open(RUN)
    write(writer, 0)
    writer.push()
    write(writer, 10)
    writer.close(RUN)
    (reader,) = open_store(url)
    bucket = Bucket(url)
    bucket.delete([found.path for found in bucket.objects("rows")])
    for file in reader.folder.glob("*.parquet"):
        file.unlink()
    with pytest.warns(UserWarning, match="A part of 'loss', 20 rows"):
        assert list(reader.blocks()) == []


def test_only_one_process_uploads_a_session(url):
    writer = RemoteSaveWriter(url)
    writer.open(RUN)
    write(writer, 0)
    assert push_others(url).busy == 1
    writer.close(RUN)
    assert push_others(url).busy == 0
    assert np.array_equal(steps_of(url), range(10))
