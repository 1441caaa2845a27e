"""The one thread that writes, apart from the program and from JAX.

What reaches the host is put into a queue, and the program goes on. When the back ends are
too slow, and the queue is full, the program waits: nothing is dropped.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

# What may wait in the queue before the program has to.
CALLS = 10_000
BYTES = 64 * 2**20
# How long what was logged may wait before it is written.
DELAY = 0.5
# How long calls gather before they are made: to change threads for each costs more.
PAUSE = 0.005


class Flushes(Protocol):
    """What has something to be written from time to time."""

    def flush(self) -> None: ...


class Scribe:
    """Makes calls one by one, on a thread of its own, and flushes twice a second."""

    def __init__(self):
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._room = threading.Condition()
        self._waiting = 0
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._unflushed: dict[Flushes, None] = {}

    def send(self, call: Callable[[], object], nbytes: int = 0) -> None:
        """Have something called soon. Waits while the queue is full."""
        if self._is_here():
            call()
            return
        with self._room:
            self._room.wait_for(lambda: not self._is_full())
            self._waiting += nbytes
        self._queue.put((call, nbytes))

    def run(self, call: Callable[[], Any]) -> Any:
        """Call something after all that was sent, and return or raise what it does."""
        if self._is_here():
            return call()
        done, outcome = threading.Event(), []

        def attempt():
            try:
                outcome.append((call(), None))
            except BaseException as error:
                outcome.append((None, error))
            done.set()

        self._queue.put((attempt, 0))
        self._hurry.set()
        done.wait()
        self._hurry.clear()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def flush_soon(self, what: Flushes) -> None:
        """Flush this within half a second. For calls on the thread itself."""
        self._unflushed[what] = None

    def flush(self) -> None:
        """Write what was collected. For calls on the thread itself."""
        unflushed, self._unflushed = self._unflushed, {}
        for each in unflushed:
            each.flush()

    def start(self) -> None:
        with self._room:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="lox-writer", daemon=True)
                self._thread = thread
                thread.start()

    def stop(self) -> None:
        """End the thread, after all that was sent. What comes later is called at once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put((None, 0))
            self._hurry.set()
            thread.join()

    def forget(self) -> None:
        """Begin anew in a process that has no such thread."""
        self.__init__()

    def _is_here(self) -> bool:
        return self._thread in (None, threading.current_thread())

    def _is_full(self) -> bool:
        return self._queue.qsize() >= CALLS or self._waiting >= BYTES

    def _run(self) -> None:
        due = float("inf")
        while True:
            try:
                wait = None if due == float("inf") else max(0.0, due - time.monotonic())
                call, nbytes = self._queue.get(timeout=wait)
            except queue.Empty:
                call, nbytes = self.flush, 0
            if call is None:
                self.flush()
                return
            call()
            with self._room:
                self._waiting -= nbytes
                self._room.notify_all()
            now = time.monotonic()
            if now >= due:
                self.flush()
            due = min(due, now + DELAY) if self._unflushed else float("inf")
            if self._queue.empty():
                self._hurry.wait(PAUSE)


scribe = Scribe()
