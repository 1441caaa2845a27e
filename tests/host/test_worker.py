"""The thread that makes calls: order, room in the queue, time, and the end."""

import threading
import time

import pytest

from lox_host import worker_thread
from lox_host.worker_thread import Worker, current_worker


@pytest.fixture
def worker():
    worker = Worker("test", max_calls=4, max_bytes=2**20, pause=0.001)
    worker.start()
    yield worker
    worker.stop()


def test_calls_are_made_in_order_on_one_thread(worker):
    made = []
    for i in range(50):
        worker.submit(lambda i=i: made.append((i, threading.current_thread().name)))
    assert worker.run(lambda: len(made)) == 50
    assert made == [(i, "test") for i in range(50)]


def test_what_runs_on_the_thread_knows_its_worker(worker):
    assert current_worker() is None
    assert worker.run(current_worker) is worker
    # Nobody waits for itself.
    assert worker.run(lambda: worker.run(lambda: 7)) == 7
    assert worker.run(worker.is_current)
    assert not worker.is_current()


def test_run_raises_what_the_call_raises(worker, capsys):
    for error in (ValueError("no"), SystemExit(3)):
        with pytest.raises(type(error)) as raised:
            worker.run(lambda error=error: throw(error))
        assert raised.value is error
    worker.submit(lambda: throw(ValueError("printed")))
    assert worker.run(lambda: "alive") == "alive"
    assert "ValueError: printed" in capsys.readouterr().err


def throw(error):
    raise error


@pytest.mark.parametrize("nbytes", [0, 2**19])
def test_who_submits_waits_while_the_queue_is_full(worker, nbytes):
    most = 4 if nbytes == 0 else 2
    done, ahead = [], []
    for i in range(30):
        worker.submit(lambda: (time.sleep(0.002), done.append(i)), nbytes)
        ahead.append(i + 1 - len(done))
    worker.wait()
    assert len(done) == 30
    assert max(ahead) <= most + 1


def test_patience_ends():
    worker = Worker("test", max_calls=1, pause=0.001, patience=0.02)
    worker.start()
    gate = threading.Event()
    for _ in range(4):
        worker.submit(gate.wait)
    gate.set()
    worker.stop()


@pytest.mark.parametrize(("calls", "nbytes"), [(60, 0), (2, worker_thread.MANY)])
def test_many_calls_or_bytes_wake_a_worker_that_lets_calls_gather(calls, nbytes):
    worker = Worker("test", max_calls=100, pause=3600)
    worker.start()
    worker.wait()
    time.sleep(0.05)  # it pauses by now
    is_made = threading.Event()
    for _ in range(calls):
        worker.submit(is_made.set, nbytes)
    assert is_made.wait(10)
    worker.stop()


def test_nobody_waits_while_the_worker_waits_for_them(worker):
    made = []

    def wait_for_others():
        def send():
            for i in range(20):
                worker.submit(lambda i=i: made.append(i))

        with worker.unbounded():
            thread = threading.Thread(target=send)
            thread.start()
            thread.join()

    worker.run(wait_for_others)
    worker.wait()
    assert made == [*range(20)]


def test_what_is_called_later_is_called_once(worker):
    made = []

    def note():
        made.append(time.monotonic())

    start = time.monotonic()
    worker.run(lambda: [worker.call_later(note, 0.05) for _ in range(3)])
    while not made:
        assert time.monotonic() < start + 5
        time.sleep(0.01)
    assert made[0] >= start + 0.05
    worker.run(lambda: worker.call_later(note, 60))
    worker.run(lambda: worker.flush(time.monotonic()))
    assert len(made) == 1
    worker.run(worker.flush)
    assert len(made) == 2


def test_stop_makes_all_calls(worker):
    made = []
    worker.run(lambda: worker.call_later(lambda: made.append("later"), 60))
    worker.submit(lambda: made.append("soon"))
    worker.stop()
    assert made == ["soon", "later"]
    assert not worker.is_running()


def test_without_a_thread_calls_wait_for_the_next_run():
    worker = Worker("test", max_calls=4, pause=0.001)
    made = []
    for i in range(10):  # nobody could make room
        worker.submit(lambda i=i: made.append(i))
    assert made == []
    assert worker.run(lambda: len(made)) == 10
    worker.stop()
