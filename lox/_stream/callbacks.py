"""The thread on which callbacks run, apart from the program and from JAX's threads.

What reaches the host is put into a queue, and the program goes on; it waits only when the
queue is full. So a callback may use JAX, sleep, or log.
"""

import atexit
import contextlib
import dataclasses
import functools as ft
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable

import jax

from lox._jax import tracing
from lox._stream.packet import Parcel

# What may wait in the queue before the program has to.
CALLS = 1000
BYTES = 64 * 2**20
# The size below which a parcel does not count for the bytes.
SMALL = 2**10
# How long the program waits for room: a callback that uses JAX may itself wait for the
# thread of JAX that waits here.
PATIENCE = 1.0
# How long deliveries gather before they are made, if the queue is not half full before:
# to change threads costs more than many of them.
PAUSE = 0.005


@dataclasses.dataclass
class Failure:
    """What a callback raised, whose it is, and whether the program has been told."""

    error: BaseException
    owner: str
    told: bool = False

    def raised(self) -> RuntimeError:
        self.told = True
        error = RuntimeError(
            f"{self.owner} raised {type(self.error).__name__}: {self.error}"
        )
        error.__cause__ = self.error
        return error


class Courier:
    """Makes deliveries one by one, on a thread of its own."""

    def __init__(self):
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: dict[Hashable, Failure] = {}
        self._failures: list[tuple[Hashable, Failure]] = []
        self._awaited: Counter[Hashable] = Counter()
        self._waiting = 0
        self._is_draining = False

    def send(
        self, listener: Hashable, deliver: Callable[[Parcel], None], parcel: Parcel
    ) -> None:
        """Have `deliver(parcel)` called soon.

        If an earlier one of the listener failed, this raises, to stop the program.
        """
        if self._failed and parcel.contents.stoppable:
            self._tell(listener)
        if self._is_filled():
            self._hurry.set()
            self._wait_for_room()
        self._hold(parcel.nbytes)
        self._queue.put(lambda: self._deliver(listener, deliver, parcel))

    def wait(self, listener: Hashable = None) -> list[Failure]:
        """Wait until all that was sent has been delivered, and return what failed.

        What failed for somebody who is waiting for that listener is left for them.
        """
        if self._thread is None:
            self._empty_queue()
        elif threading.current_thread() is not self._thread:
            done = threading.Event()
            self._queue.put(lambda: self._drain(done))
            self._hurry.set()
            done.wait()
        with self._lock:
            mine, others = [], []
            for owner, failure in self._failures:
                is_mine = owner == listener or not self._awaited[owner]
                (mine if is_mine else others).append((owner, failure))
            self._failures = others
            for owner, _ in mine:
                self._failed.pop(owner, None)
        return [failure for _, failure in mine]

    @contextlib.contextmanager
    def awaiting(self, listener: Hashable):
        """What fails for the listener is for whoever is in here."""
        with self._lock:
            self._awaited[listener] += 1
        try:
            yield
        finally:
            with self._lock:
                self._awaited[listener] -= 1
                if not self._awaited[listener]:
                    del self._awaited[listener]

    def start(self) -> None:
        """Start the thread, if it is not there yet. Not while the process ends."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="lox", daemon=True)
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """End the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _tell(self, listener: Hashable) -> None:
        failure = self._failed.get(listener)
        if failure is not None and not failure.told:
            # Up to here, what is in the queue for the listener is left out.
            self._queue.put(lambda: self._failed.pop(listener, None))
            raise failure.raised()

    def _wait_for_room(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._is_filled(1) and time.monotonic() < deadline:
            time.sleep(0.001)

    def _drain(self, done: threading.Event) -> None:
        """Wait for the programs that callbacks have started, and deliver what they send."""
        self._is_draining = True
        try:
            jax.effects_barrier()
        except Exception as error:
            self._note("A host call", error)
        self._is_draining = False
        self._queue.put(done.set)

    def _is_filled(self, share: float = 0.5) -> bool:
        """Whether so much of the queue is taken."""
        filled = self._queue.qsize() >= CALLS * share or self._waiting >= BYTES * share
        return filled and not self._is_draining

    def _hold(self, nbytes: int) -> None:
        if abs(nbytes) >= SMALL:
            with self._lock:
                self._waiting += nbytes

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            call()
            if self._queue.empty():
                self._hurry.wait(PAUSE)
                self._hurry.clear()

    def _empty_queue(self) -> None:
        while not self._queue.empty():
            self._queue.get()()

    def _deliver(self, listener: Hashable, deliver: Callable, parcel: Parcel) -> None:
        if not self._failed or listener not in self._failed:
            try:
                deliver(parcel)
            except BaseException as error:
                self._failed[listener] = self._note(listener, error)
        self._hold(-parcel.nbytes)

    def _note(self, listener: Hashable, error: BaseException) -> Failure:
        failure = Failure(error, str(listener))
        with self._lock:
            self._failures.append((listener, failure))
        return failure


courier = Courier()


def barrier() -> None:
    """Wait until everything that has been logged so far is delivered.

    The callbacks of `lox.tap` run on a thread of their own, some time after the program
    has logged, and so do the back ends of loggers. If one of them raised, so does this. As
    `jax.effects_barrier`, it waits for what this thread has started; other threads have a
    barrier of their own.

    Example:
        >>> heard = []
        >>> f = jax.jit(lox.tap(lambda x: lox.log({"x": x}) and 2 * x, heard.append))
        >>> y = f(1.0)
        >>> lox.barrier()
        >>> heard
        [{'x': 1.0}]
    """
    _barrier(None)
    for settle in _settling:
        settle()


def when_settling(call: Callable[[], None]) -> None:
    """Have something called by each `barrier`, after the callbacks."""
    _settling.append(call)


_settling: list[Callable[[], None]] = []


def _barrier(listener: Hashable) -> None:
    try:
        jax.effects_barrier()
    except Exception:
        _raise_failures(listener, told=True)
        raise
    _raise_failures(listener, told=False)


def awaited(fun: Callable, listener: Hashable = None) -> Callable:
    """The function, which returns after its callbacks, unless it is being traced."""

    @ft.wraps(fun)
    def waiting(*args, **kwargs):
        if tracing.staged_program() is not None:
            return fun(*args, **kwargs)
        with courier.awaiting(listener):
            try:
                out = fun(*args, **kwargs)
            except Exception:
                _raise_failures(listener, told=True)
                raise
            _barrier(listener)
        return out

    return waiting


def _raise_failures(listener: Hashable, *, told: bool) -> None:
    """Wait for the callbacks, and raise what they raised.

    What the program has been told stopped it, and is raised in place of what JAX says.
    """
    for failure in courier.wait(listener):
        if told or not failure.told:
            raise failure.raised()


def _finish() -> None:
    try:
        barrier()
    finally:
        courier.stop()


# JAX must not be in use when the process ends: a thread that is in it would abort it.
atexit.register(_finish)
