"""Worker threads that run queued calls one by one, away from the program and from JAX.

                  submit                     one after the other
    the program --------> queue, bounded ---------------------------> a callback, a back end
                  waits only                          ^
                  if it is full                       | call_later: flushes, when due

lox has one worker for the callbacks of `lox.tap`, and one worker per logger that calls its
back end. A worker that blocks does not hold up the others.

The invariant: a submitted call is never dropped and never overtakes an earlier one. If
calls take too long and the queue fills up, the program waits in `submit`.
"""

import contextlib
import functools as ft
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

# Calls with fewer bytes than this are not added to the byte count. Taking the lock would
# cost more than the call itself, and `max_calls` limits their total size anyway.
SMALL = 2**10
# With this many bytes in the queue, wake the thread, so that it finds them in the cache of
# the processor: this makes records of 16 kB a third cheaper.
MANY = 2 * 2**20


class Worker:
    """Runs calls one by one on its own thread.

    Call `call_later` and `flush` on the worker's thread, all other methods on any thread.

    Args:
        name: The name of the thread.
        max_calls: How many calls fit into the queue. `submit` waits if it is full.
        max_bytes: How many bytes fit into the queue.
        pause: How many seconds to let calls gather before running them, because switching
            threads costs the program more than the calls do. There is no pause if a thread
            waits for a result, the queue is half full, or it holds many bytes.
        patience: The most seconds that `submit` waits for room in the queue.
        waits_for_others: Tells for a thread id whether that thread is itself waiting for a
            thread that may be about to submit. Then `submit` must not wait for room, or
            both would wait for ever.

    Attributes:
        progress: When the last call returned, on the clock of `time.monotonic`.
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
        self._is_unbounded = False
        # The thread that is to end now.
        self._ending: threading.Thread | None = None
        # When each call of `call_later` is due.
        self._due: dict[Call, float] = {}
        # Calls in the queue that were requested, not submitted, by their futures.
        self._requests: set[Future] = set()

    def start(self) -> None:
        """Start the thread unless it runs. Python refuses this while the process exits."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """End the thread after it has run all submitted calls and all due flushes."""
        thread = self._thread
        self.retire()
        while thread is not None and thread.is_alive():
            thread.join(0.1)
            # A call wakes the thread. Another thread in `request` may have taken the last
            # one out of the queue.
            self._queue.put((_nothing, 0))

    def retire(self) -> None:
        """Let the thread end after it has run all submitted calls, without waiting."""
        with self._lock:
            thread, self._thread = self._thread, None
            # Others may go on submitting calls, and start another thread for these.
            self._queue.put((ft.partial(setattr, self, "_ending", thread), 0))
        self._hurry.set()

    def is_running(self) -> bool:
        return self._thread is not None

    def waiting_calls(self) -> int:
        """Return how many submitted calls are waiting in the queue."""
        return self._queue.qsize() - len(self._requests)

    def is_current(self) -> bool:
        """Return whether the calling thread is the worker's thread."""
        return current_worker() is self

    def submit(self, call: Call, nbytes: int = 0) -> None:
        """Queue a call. This waits while the queue is full.

        If the call raises, the error is printed. If the thread does not run, the call
        stays in the queue until the next `run`.
        """
        # Half full: wake the thread now, so that there is room before it is needed.
        if 2 * self._queue.qsize() >= self.max_calls or self._waiting_bytes >= MANY:
            if not self._hurry.is_set():
                self._hurry.set()
            self.wait_for_room()
        if nbytes >= SMALL:
            self._count(nbytes)
        self._queue.put((call, nbytes))

    def wait_for_room(self) -> None:
        """Wait while the queue is full."""
        deadline = time.monotonic() + self.patience
        # Poll. A notification after each call would cost more than this.
        # A worker does not wait: the thread that empties the queue may wait for it.
        while self._is_full() and current_worker() is None:
            thread = self._thread
            if thread is None or self._waits_for_others(thread.ident or 0):
                return
            if time.monotonic() >= deadline or Interrupt.is_pending:
                return
            time.sleep(0.001)

    def run(self, call: Callable[[], T]) -> T:
        """Run a call after all submitted ones, and return its result or raise its error."""
        return self.request(call).result()

    def request(self, call: Callable[[], T]) -> Future[T]:
        """Run a call after all submitted ones, and return a future of its result.

        On the worker's own thread, or if the thread does not run, the call runs at once.
        """
        future: Future[T] = Future()
        if self.is_current():
            _fulfil(future, call)
        elif not self._ask(future, call):
            # Run what was submitted before, to keep the order. Another thread may do the
            # same and take the last call, so do not wait for one.
            with contextlib.suppress(queue.Empty):
                for _ in range(self._queue.qsize()):
                    self._make(*self._queue.get_nowait())
            _fulfil(future, call)
        return future

    def _ask(self, future: Future[T], call: Callable[[], T]) -> bool:
        """Let the thread fulfil a future, and return whether it runs."""
        fulfil = ft.partial(self._fulfil_request, future, call)
        with self._lock:
            if self._thread is None:
                return False
            self._requests.add(future)
            self._queue.put((fulfil, 0))
        self._hurry.set()
        return True

    def _fulfil_request(self, future: Future[T], call: Callable[[], T]) -> None:
        self._requests.discard(future)
        _fulfil(future, call)

    def wait(self) -> None:
        """Wait until all calls submitted so far have run."""
        self.run(_nothing)

    def has_done_nothing(self, since: float, seconds: float) -> bool:
        """Return whether no call has returned for this many seconds since `since`."""
        return time.monotonic() - max(since, self.progress) >= seconds

    @contextlib.contextmanager
    def unbounded(self) -> Iterator[None]:
        """Lift the limits of the queue while the worker's thread waits for a submitter."""
        self._is_unbounded = True
        try:
            yield
        finally:
            self._is_unbounded = False

    def call_later(self, call: Call, delay: float) -> None:
        """Run a call within `delay` seconds, once, however often you ask for it."""
        self._due.setdefault(call, time.monotonic() + delay)

    def flush(self, until: float = float("inf")) -> None:
        """Run now the calls of `call_later` that are due up to the time `until`."""
        for call in [call for call, due in self._due.items() if due <= until]:
            self._due.pop(call, None)
            call()

    def _is_full(self) -> bool:
        is_full = (
            self._queue.qsize() >= self.max_calls or self._waiting_bytes >= self.max_bytes
        )
        return is_full and not self._is_unbounded

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._waiting_bytes += nbytes

    def _work(self) -> None:
        _thread_local.worker, thread = self, threading.current_thread()
        while self._ending is not thread:
            # Wait for the next call, but no longer than until a flush is due. No variable
            # keeps the call: it may hold arrays of JAX, and to free these while the
            # interpreter shuts down would abort the process.
            with contextlib.suppress(queue.Empty):
                self._make(*self._queue.get(timeout=self._seconds_until_due()))
                while not self._due and self._ending is not thread:
                    self._make(*self._queue.get_nowait())
            if self._due:
                self._make(lambda: self.flush(time.monotonic()), 0)
            # Let calls gather before this thread takes the interpreter lock again.
            if self._queue.empty() and self._ending is not thread:
                self._hurry.wait(self.pause)
                self._hurry.clear()
        self._make(self.flush, 0)

    def _make(self, call: Call, nbytes: int) -> None:
        try:
            call()
        except BaseException:
            # No thread waits for the result, and the worker must survive.
            traceback.print_exc()
        self.progress = time.monotonic()
        if nbytes >= SMALL:
            self._count(-nbytes)

    def _seconds_until_due(self) -> float | None:
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None


def current_worker() -> Worker | None:
    """Return the worker whose thread is the calling one, or None."""
    return getattr(_thread_local, "worker", None)


def forget_threads() -> None:
    """Reset all workers in a forked process, which has none of its parent's threads."""
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
