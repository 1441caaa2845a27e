"""The one thread that writes, apart from the program and from JAX.

What reaches the host is put into a queue, and the program goes on. When the back ends are
too slow, and the queue is full, the program waits: nothing is dropped.
"""

import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

# What may wait in the queue before the program has to.
CALLS = 10_000
BYTES = 64 * 2**20
# How long what was logged may wait before it is written.
DELAY = 0.5
# How long calls gather before they are made, unless somebody waits or there are many: to
# change threads costs the program more than the calls do.
PAUSE = 0.1


class Flushes(Protocol):
    """What has something to be written from time to time."""

    def flush(self) -> None: ...


class Scribe:
    """Makes calls one by one, on a thread of its own, and flushes from time to time."""

    def __init__(self):
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._room = threading.Condition()
        self._waiting = 0
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._due: dict[Flushes, float] = {}

    def send(self, call: Callable[[], object], nbytes: int = 0) -> None:
        """Have something called soon. Waits while the queue is full."""
        if self._is_here():
            call()
            return
        with self._room:
            self._room.wait_for(lambda: not self._is_full())
            self._waiting += nbytes
        self._queue.put((call, nbytes))
        if self._is_full(share=0.5):
            self._hurry.set()

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
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def flush_soon(self, what: Flushes, delay: float = DELAY) -> None:
        """Flush this within so many seconds. For calls on the thread itself."""
        self._due.setdefault(what, time.monotonic() + delay)

    def flush(self, until: float = float("inf")) -> None:
        """Flush what is due until then. For calls on the thread itself."""
        for what in [what for what, due in self._due.items() if due <= until]:
            self._due.pop(what, None)
            what.flush()

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

    def _is_full(self, share: float = 1) -> bool:
        return self._queue.qsize() >= share * CALLS or self._waiting >= share * BYTES

    def _run(self) -> None:
        while True:
            try:
                call, nbytes = self._queue.get(timeout=self._wait())
            except queue.Empty:
                call, nbytes = _nothing, 0
            if call is None:
                self.flush()
                return
            try:
                call()
                self.flush(time.monotonic())
            except BaseException:
                # Nobody waits for it here, and the thread must go on.
                traceback.print_exc()
            with self._room:
                self._waiting -= nbytes
                self._room.notify_all()
            if self._queue.empty():
                self._hurry.wait(PAUSE)
                self._hurry.clear()

    def _wait(self) -> float | None:
        """How many seconds there are until something is to be flushed."""
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None


def _nothing() -> None:
    pass


scribe = Scribe()
