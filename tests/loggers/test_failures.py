"""Back ends that hang or fail: what becomes of the others, of the rows, and of the end."""

import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from typing import ClassVar

import pytest

import lox
from lox.loggers import Logger, MultiLogger
from lox_host import host_logger, write_buffer
from support.kept import Kept


class Hanging(Kept):
    """Does not return from `write` until somebody opens the gate."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()

    def write(self, batch):
        self.gate.wait(60)
        super().write(batch)


@pytest.fixture
def hanging():
    writer = Hanging()
    yield writer
    writer.gate.set()


def values(writer, key="i"):
    rows = [row for batch in writer.batches for row in batch.rows()]
    return [row.values[key].item() for row in rows if key in row.values]


@pytest.mark.parametrize("together", [False, True])
def test_a_back_end_that_hangs_holds_up_no_other(hanging, monkeypatch, together):
    monkeypatch.setattr(write_buffer, "MAX_ROWS", 5)
    good = Kept()
    bad_logger, good_logger = Logger(hanging, patience=0.3), Logger(good)
    if together:
        loggers = [MultiLogger(bad_logger, good_logger)]
    else:
        loggers = [bad_logger, good_logger]
    states = [logger.init(0) for logger in loggers]
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"has not returned from `write` for 0\.3 sec"):
        log_numbers(loggers, states)
    assert time.monotonic() - start < 5
    assert values(good) == [*range(100)]
    assert good.flushed == len(good.batches)
    # `finish` says so, and does not wait forever.
    with pytest.raises(RuntimeError, match=r"Logger is still in `write`.* 100 rows of"):
        loggers[0].finish(states[0])
    assert time.monotonic() - start < 5
    if together:
        assert len(good.closed) == 1
    # It comes back: the gap is known, and nothing that it had taken is missing.
    with pytest.warns(RuntimeWarning, match=r"Logger works again\. \d+ rows of the run"):
        open_gate(hanging)
    written = values(hanging)
    assert written == [*range(len(written))]
    assert 5 <= len(written) < 100


def log_numbers(loggers, states):
    for i in range(100):
        for logger, state in zip(loggers, states, strict=True):
            logger.log(state, {"i": i})
    lox.barrier()


def open_gate(writer):
    writer.gate.set()
    while not writer.closed:
        time.sleep(0.01)


def test_a_slow_back_end_is_waited_for_and_named(monkeypatch, capsys):
    class Slow(Kept):
        def write(self, batch):
            time.sleep(0.15)
            super().write(batch)

    monkeypatch.setattr(write_buffer, "MAX_ROWS", 2)
    monkeypatch.setattr(host_logger, "_QUIET", 0.1)
    writer = Slow()
    logger = Logger(writer, patience=0.4)
    state = logger.init(0)
    for i in range(30):
        logger.log(state, {"i": i})
    logger.finish(state)  # takes longer than the patience, but something happens
    assert values(writer) == [*range(30)]
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"lox: Waiting for Logger to write \d+ rows. Press Ctrl-C to stop waiting.", line
    )


def test_finish_names_every_back_end_that_failed(hanging):
    class Full(Kept):
        def write(self, batch):
            raise OSError("no room")

    class Gone(Kept):
        def write(self, batch):
            raise ValueError("not there")

    class HangingLogger(Logger):
        pass

    good = Kept()
    failing = MultiLogger(Logger(Gone()), Logger(good))
    logger = MultiLogger(HangingLogger(hanging, patience=0.3), Logger(Full()), failing)
    state = logger.init(0)
    logger.log(state, {"i": 0})
    with (
        pytest.warns(RuntimeWarning, match="no room|not there|has not returned"),
        pytest.raises(RuntimeError) as raised,
    ):
        logger.finish(state)
    lines = str(raised.value).splitlines()
    expected = ["HangingLogger is still in", "no room", "not there"]
    assert all(text in line for text, line in zip(expected, lines, strict=True))
    assert values(good) == [0]
    assert len(good.closed) == 1


@pytest.mark.parametrize("together", [False, True])
def test_a_back_end_that_hangs_does_not_hold_up_init(hanging, together):
    good = Kept()
    logger = Logger(hanging, patience=0.3)
    logger = MultiLogger(logger, Logger(good)) if together else logger
    state = logger.init(0)
    logger.log(state, {"i": 0})
    time.sleep(0.7)  # it hangs with the first row
    for _ in range(2):
        with pytest.raises(RuntimeError, match="has not returned from `write` for 0"):
            logger.init(1)
    if together:
        logger.log(state, {"i": 1})
        lox.barrier()
        assert values(good) == [0, 1]
    hanging.gate.set()
    logger.finish(state)
    assert values(hanging) == ([0, 1] if together else [0])


def test_a_back_end_that_is_slow_to_open_is_waited_for_and_named(monkeypatch, capsys):
    class Slow(Kept):
        def open(self, run):
            time.sleep(0.5)
            super().open(run)

    monkeypatch.setattr(host_logger, "_QUIET", 0.1)
    logger = MultiLogger(Logger(Slow(), patience=0.2), Logger(Kept()))
    logger.finish(logger.init(0))
    line = "lox: Waiting for Logger to open a run. Press Ctrl-C to stop waiting.\n"
    assert capsys.readouterr().err == line


def test_patience_is_a_number_of_seconds():
    with pytest.raises(ValueError, match="`patience` must be a number of seconds, not -1"):
        Logger(Kept(), patience=-1)


# The end of the process ---------------------------------------------------------------

BESIDE = """
import sys, time, warnings, jax, lox
from lox.loggers import Logger, MultiLogger, SaveLogger
class Hanging:
    def open(self, run): pass
    def write(self, batch): time.sleep(1000)
    def flush(self): pass
    def close(self, run): pass
hanging = Logger(Hanging(), patience=2)
loggers = [hanging, SaveLogger(sys.argv[1])]
if sys.argv[2] == "together": loggers = [MultiLogger(*loggers)]
states = [logger.init(jax.random.key(0)) for logger in loggers]
for i in range(300):
    for logger, state in zip(loggers, states): logger.log(state, {"i": i})
jax.effects_barrier()
time.sleep(1.5)
print("ready", flush=True)
"""


def beside_a_hanging_one(path, together, end):
    command = [sys.executable, "-c", BESIDE + end, path, together]
    return subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=dict(os.environ))


def await_ready(process):
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("together", ["together", "apart"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_healthy_logger_has_outlives_signals(tmp_path, together, number):
    process = beside_a_hanging_one(tmp_path, together, "time.sleep(1000)")
    await_ready(process)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == -number
    assert lox.load(tmp_path)["i"].tolist() == [*range(300)]


@pytest.mark.parametrize("together", ["together", "apart"])
def test_the_end_names_who_is_not_done(tmp_path, together):
    process = beside_a_hanging_one(tmp_path, together, "")
    await_ready(process)
    start = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - start < 12
    assert process.returncode == 0
    assert "lox: Logger is still in `write`, and lox no longer waits for it" in err
    assert "300 rows of the run 'seed0' may not be written" in err
    assert lox.load(tmp_path)["i"].tolist() == [*range(300)]


def test_an_interrupt_ends_the_waiting(tmp_path):
    program = BESIDE.replace("patience=2", "patience=1000")
    command = [sys.executable, "-c", program, tmp_path, "apart"]
    process = subprocess.Popen(command, stdout=-1, stderr=-1, text=True)
    await_ready(process)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert "Logger is still in `write`" in err
    assert lox.load(tmp_path)["i"].tolist() == [*range(300)]


# What comes back, and what is gone ----------------------------------------------------


class Full(Kept):
    """Raises while there is no room; a flush may be tried again."""

    def __init__(self, method):
        super().__init__()
        self.method, self.is_full = method, False

    def write(self, batch):
        if self.is_full and self.method == "write":
            raise OSError(28, "No space left on device")
        super().write(batch)

    def flush(self):
        if self.is_full and self.method == "flush":
            raise OSError(28, "No space left on device")
        super().flush()


@pytest.mark.parametrize("method", ["write", "flush"])
def test_after_a_failure_writing_goes_on_and_the_gap_is_known(method):
    writer = Full(method)
    logger = Logger(writer, every=0.01)
    state = logger.init(0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for i in range(30):
            writer.is_full = 10 <= i < 20
            logger.log(state, {"i": i})
            lox.barrier()
    failed, works = [str(w.message) for w in seen]
    assert failed.startswith("Logger failed with OSError: [Errno 28] No space left")
    assert "run 'seed0'" in failed
    if method == "flush":  # what was taken waits in the writer
        assert works == "Logger works again. No rows of the run 'seed0' are missing."
        assert values(writer) == [*range(30)]
        logger.finish(state)
    else:
        assert works == "Logger works again. 10 rows of the run 'seed0' are missing."
        assert values(writer) == [*range(10), *range(20, 30)]
        with pytest.raises(RuntimeError, match=r"device\. 10 logged rows may"):
            logger.finish(state)


def test_a_failure_is_tried_again_without_being_asked():
    writer = Full("flush")
    logger = Logger(writer, every=0.01)
    state = logger.init(0)
    writer.is_full = True
    with pytest.warns(RuntimeWarning, match="No space left"):
        log_and_settle(logger, state)
    writer.is_full = False
    with pytest.warns(RuntimeWarning, match="works again"):
        time.sleep(0.5)
    assert writer.flushed == 1
    logger.finish(state)


def log_and_settle(logger, state):
    logger.log(state, {"i": 0})
    lox.barrier()


def test_a_failure_that_is_to_raise_is_raised_once():
    writer = Full("write")
    logger = Logger(writer, on_error="raise")
    state = logger.init(0)
    writer.is_full = True
    logger.log(state, {"i": 0})
    with (
        pytest.warns(RuntimeWarning, match="No space left"),
        pytest.raises(RuntimeError, match=r"No space left on device\. 1 logged row may"),
    ):
        lox.barrier()
    for _ in range(2):
        lox.barrier()
    with pytest.raises(RuntimeError, match="No space left"):
        logger.finish(state)


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("kind", ["SaveLogger", "TensorBoardLogger", "JSONLogger"])
def test_a_folder_that_is_removed_is_noticed(kind, tmp_path):
    logger = getattr(lox.loggers, kind)(tmp_path / "runs")
    state = logger.init(0)
    logger.log(state, {"i": 0})
    lox.barrier()
    shutil.rmtree(tmp_path / "runs")
    with pytest.warns(RuntimeWarning, match=f"{kind} failed with FileNotFoundError.*runs"):
        log_and_settle(logger, state)
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        logger.finish(state)


def test_a_folder_of_wandb_that_is_removed_is_noticed(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    logger = lox.loggers.WandbLogger(dir=str(tmp_path))
    state = logger.init(0)
    log_and_settle(logger, state)
    shutil.rmtree(tmp_path / "wandb")
    with pytest.warns(RuntimeWarning, match="WandbLogger failed with FileNotFoundError"):
        log_and_settle(logger, state)
    with pytest.raises(RuntimeError, match="was removed while lox was writing"):
        logger.finish(state)


class MLflowServer(http.server.BaseHTTPRequestHandler):
    """As much of MLflow's REST API as a logger uses."""

    metrics: ClassVar[list[dict]] = []

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "log-batch" in self.path:
            MLflowServer.metrics += json.loads(body).get("metrics", [])
        info = {"run_id": "r", "run_uuid": "r", "experiment_id": "0", "status": "RUNNING"}
        text = json.dumps(
            {
                "experiment": {"experiment_id": "0", "name": "Default"},
                "run": {"info": info, "data": {}},
                "run_info": info,
            }
        )
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PATCH = answer

    def log_request(self, code="-", size="-"):
        pass


def serve(port=0):
    server = http.server.HTTPServer(("127.0.0.1", port), MLflowServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_a_server_of_mlflow_that_dies_is_warned_of_at_once():
    pytest.importorskip("mlflow")
    MLflowServer.metrics = []
    server = serve()
    port = server.server_address[1]
    logger = lox.loggers.MLflowLogger(tracking_uri=f"http://127.0.0.1:{port}")
    state = logger.init(0)
    log_and_settle(logger, state)
    server.shutdown()
    server.server_close()
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match="MLflowLogger failed with ConnectionError"):
        log_and_settle(logger, state)
    assert time.monotonic() - start < 5
    # What it did not get is sent when it is there again.
    server = serve(port)
    with pytest.warns(RuntimeWarning, match=r"works again\. No rows of the run 'seed0'"):
        log_and_settle(logger, state)
    logger.finish(state)
    assert [metric["key"] for metric in MLflowServer.metrics] == ["i"] * 3
    server.shutdown()
    server.server_close()
