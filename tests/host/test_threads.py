"""What several threads do at once, one step of the one between two steps of the other."""

import threading
from concurrent.futures import Future, TimeoutError

import numpy as np
import pytest

from lox._stream import callbacks
from lox.loggers import Logger
from lox_host.failures import Failures
from lox_host.guarded_writer import GuardedWriter
from lox_host.rows import Batch
from lox_host.runs.run_registry import RunRegistry
from lox_host.worker_thread import Worker
from lox_host.write_buffer import WriteBuffer
from support.kept import Kept


class Meanwhile:
    """A lock that lets another thread in as soon as it is free."""

    def __init__(self, others):
        self._lock, self._others = threading.Lock(), others

    def __enter__(self):
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()
        others, self._others = self._others, lambda: None
        others()


def test_a_failure_that_is_collected_at_once_leaves_nobody_muted():
    failures, collected, heard = Failures(), [], []
    failures._lock = Meanwhile(lambda: collected.extend(failures.collect(None)))
    failures.attempt("Listener", lambda: 1 / 0)
    assert [failure.listener for failure in collected] == ["Listener"]
    failures.attempt("Listener", lambda: heard.append(1))
    assert heard == [1]


def test_who_asks_a_worker_that_does_not_run_waits_for_no_call_that_another_has_taken():
    worker = Worker("test")

    class Taken(type(worker._queue)):
        """Another thread takes the last call after this one has seen it."""

        def empty(self):
            return False

    worker._queue, made = Taken(), []
    worker.submit(lambda: made.append("submitted"))
    asks = threading.Thread(target=worker.run, args=[lambda: made.append(1)], daemon=True)
    asks.start()
    asks.join(10)
    assert made == ["submitted", 1]


class Late(Future):
    """Is done just after the thread that waits for it has lost patience."""

    def result(self, timeout=None):
        if self.done():
            return super().result(timeout)
        self.set_result("late")
        raise TimeoutError


def test_a_result_that_comes_as_the_wait_ends_is_returned(monkeypatch):
    monkeypatch.setattr(callbacks.callback_thread, "request", lambda call: Late())
    assert callbacks._wait_for_call(lambda: True) == "late"
    assert Logger(Kept())._host._wait(Late()) == "late"


def buffer_of(writer):
    guarded = GuardedWriter("Logger", writer, on_error="warn", patience=30)
    return guarded, WriteBuffer(guarded, RunRegistry("Logger"), Worker("test"), every=1.0)


def test_an_error_of_the_program_is_raised_on_one_of_two_threads():
    _, buffer = buffer_of(Kept())
    raised = []

    class Twice(WriteBuffer):
        """The other thread asks after this one has seen the error."""

        is_asking = False

        @property
        def _program_error(self):
            error = self.__dict__["_program_error"]
            if error is not None and not self.is_asking:
                self.is_asking = True
                ask()
            return error

        @_program_error.setter
        def _program_error(self, error):
            self.__dict__["_program_error"] = error

    def ask():
        try:
            buffer.check()
        except Exception as error:
            raised.append(error)

    buffer.refuse(ValueError("no such run"))
    buffer.__class__ = Twice
    ask()
    assert [str(error) for error in raised] == ["no such run"]


def test_rows_lost_on_two_threads_are_all_counted():
    class Full(Kept):
        def write(self, batch):
            raise OSError("no space left")

    guarded, buffer = buffer_of(Full())

    class Blocks(list):
        """While the rows of a packet are counted, the worker fails to write others."""

        def __iter__(self):
            guarded.write(Batch([]), rows=3)
            yield np.zeros(4)

    class Source:
        def blocks(self, packets, numbers, times):
            return Blocks()

    with pytest.warns(RuntimeWarning, match="no space left"):
        buffer.leave_out(Source(), None)
    assert guarded.lost_rows == 7


def test_of_two_threads_that_lose_patience_one_warns():
    class Twice(GuardedWriter):
        """The other thread asks after this one has lost patience."""

        is_asking = False

        def has_done_nothing(self, since):
            if not self.is_asking:
                self.is_asking = True
                assert self.has_stalled(since)
            return True

    guarded = Twice("Logger", Kept(), on_error="warn", patience=30)
    with pytest.warns(RuntimeWarning) as warned:
        assert guarded.has_stalled(0.0)
    assert len(warned) == 1
