"""Threads that make calls one after the other, apart from the program and from JAX.

                  submit                     one after the other
    the program --------> queue, bounded ---------------------------> a callback, a back end
                  waits only                          ^
                  if it is full                       | call_later: what is to be flushed

lox has one worker for the callbacks of `lox.tap`, and one per logger, which calls its back
end. A worker that waits does not hold up the others. Submitted calls are never dropped: if
they are too slow and the queue is full, the program waits.
"""

import contextlib
import queue
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from lox_host.interrupts import Interrupt

T = TypeVar("T")
Call = Callable[[], object]

# The size below which what is submitted does not count for the bytes: a lock would cost
# more than the call, and the number of calls bounds their bytes, too.
SMALL = 2**10


class Worker:
    """Makes calls one after the other, on a thread of its own.

    All methods may be called on any thread, but for `call_later` and `flush`.

    Args:
        name: What the thread is called.
        max_calls: How many calls may wait in the queue before those who submit do.
        max_bytes: How many bytes may wait there.
        pause: How many seconds calls gather, unless somebody waits or the queue is half
            full: to change threads costs the program more than the calls do.
        patience: How many seconds somebody waits for room in the queue at most.
        waits_for_others: Given the id of the thread, whether it is waiting for somebody who
            may be about to submit something, and must not wait for room in turn.

    Attributes:
        progress: When a call was last done.
    """

    def __init__(
        self,
        name: str,
        *,
        max_calls: float = float("inf"),
        max_bytes: float = float("inf"),
        pause: float = 0.0,
        patience: float = float("inf"),
        waits_for_others: Callable[[int], bool] = lambda thread: False,
    ):
        self.name, self.pause, self.patience = name, pause, patience
        self.max_calls, self.max_bytes = max_calls, max_bytes
        self._waits_for_others = waits_for_others
        self.progress = 0.0
        self._begin_anew()
        _workers.add(self)

    def _begin_anew(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Call, int]] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_stopping = self._is_unbounded = False
        self._due: dict[Call, float] = {}
        self._requests: dict[Future, None] = {}

    def start(self) -> None:
        """Start the thread, if there is none. Python refuses while the process ends."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """End the thread, after all that was submitted and all that is to be flushed."""
        thread, self._thread = self._thread, None
        self._is_stopping = thread is not None
        while thread is not None and thread.is_alive():
            # Once more if another thread, in `run`, took what was to wake this one.
            self._queue.put((_nothing, 0))
            self._hurry.set()
            thread.join(0.1)
        self._is_stopping = False

    def retire(self) -> None:
        """Let the thread end when it has done all that was submitted, without waiting."""
        self._thread, self._is_stopping = None, True
        self._queue.put((_nothing, 0))
        self._hurry.set()

    def is_running(self) -> bool:
        return self._thread is not None

    def waiting_calls(self) -> int:
        """Return how many calls that were submitted are waiting in the queue."""
        return self._queue.qsize() - len(self._requests)

    def is_current(self) -> bool:
        """Return whether this is called on the worker's thread."""
        return current_worker() is self

    def submit(self, call: Call, nbytes: int = 0) -> None:
        """Have something called soon. This waits while the queue is full.

        What the call raises is printed. Without a thread, it waits for the next `run`.
        """
        if self._is_filled(0.5):
            self._hurry.set()
            self._wait_for_room()
        self._count(nbytes)
        self._queue.put((call, nbytes))

    def run(self, call: Callable[[], T]) -> T:
        """Make a call after all submitted ones, and return or raise what it does."""
        return self.request(call).result()

    def request(self, call: Callable[[], T]) -> Future[T]:
        """Make a call after all submitted ones, and return a future of its result.

        On the worker's own thread, or without a thread, the call is made at once.
        """
        future: Future[T] = Future()
        if self.is_current():
            _fulfil(future, call)
        elif self._thread is None:
            while not self._queue.empty():
                self._make(*self._queue.get())
            _fulfil(future, call)
        else:
            self._requests[future] = None
            future.add_done_callback(self._requests.pop)
            self._queue.put((lambda: _fulfil(future, call), 0))
            self._hurry.set()
        return future

    def wait(self) -> None:
        """Wait until everything that was submitted so far is done."""
        self.run(_nothing)

    def has_done_nothing(self, since: float, seconds: float) -> bool:
        """Return whether no call was done for so many seconds since then."""
        return time.monotonic() - max(since, self.progress) >= seconds

    @contextlib.contextmanager
    def unbounded(self) -> Iterator[None]:
        """Let nothing wait for room, while the worker's thread itself waits for it."""
        self._is_unbounded = True
        try:
            yield
        finally:
            self._is_unbounded = False

    def call_later(self, call: Call, delay: float) -> None:
        """Make a call within so many seconds, once, however often you ask for it."""
        self._due.setdefault(call, time.monotonic() + delay)

    def flush(self, until: float = float("inf")) -> None:
        """Make the calls that are due until then now."""
        for call in [call for call, due in self._due.items() if due <= until]:
            self._due.pop(call, None)
            call()

    def _is_filled(self, share: float) -> bool:
        """Return whether so much of the queue is taken."""
        is_filled = (
            self._queue.qsize() >= share * self.max_calls
            or self._waiting_bytes >= share * self.max_bytes
        )
        return is_filled and not self._is_unbounded

    def _wait_for_room(self) -> None:
        deadline = time.monotonic() + self.patience
        # This asks again and again: to be told after each call would cost more.
        while self._is_filled(1) and not self.is_current():
            thread = self._thread
            if thread is None or self._waits_for_others(thread.ident or 0):
                return
            if time.monotonic() >= deadline or Interrupt.is_pending:
                return
            time.sleep(0.001)

    def _count(self, nbytes: int) -> None:
        if abs(nbytes) >= SMALL:
            with self._lock:
                self._waiting_bytes += nbytes

    def _work(self) -> None:
        _thread_local.worker = self
        while not (self._is_stopping and self._queue.empty()):
            try:
                call, nbytes = self._queue.get(timeout=self._seconds_until_due())
            except queue.Empty:
                call, nbytes = _nothing, 0
            self._make(call, nbytes)
            if self._due:
                self._make(lambda: self.flush(time.monotonic()), 0)
            if self._queue.empty() and not self._is_stopping:
                self._hurry.wait(self.pause)
                self._hurry.clear()
        self._make(self.flush, 0)

    def _make(self, call: Call, nbytes: int) -> None:
        try:
            call()
        except BaseException:
            # Nobody waits for it, and the thread must go on.
            traceback.print_exc()
        self.progress = time.monotonic()
        self._count(-nbytes)

    def _seconds_until_due(self) -> float | None:
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None


def current_worker() -> Worker | None:
    """Return the worker on whose thread this is called."""
    return getattr(_thread_local, "worker", None)


def forget_threads() -> None:
    """Begin anew in a forked process, which has none of the threads of its parent."""
    _thread_local.worker = None
    for worker in list(_workers):
        worker._begin_anew()


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)


def _nothing() -> None:
    pass


_thread_local = threading.local()
_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
