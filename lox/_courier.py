"""The thread on which callbacks run, apart from the program and from JAX's threads.

What reaches the host is put into a queue, and the program goes on; it waits only when the
queue is full. So a callback may use JAX, sleep, or log.
"""

import atexit
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax

# What may wait in the queue before the program has to.
CALLS = 1000
BYTES = 64 * 2**20
# How long the program waits for room: a callback that uses JAX may itself wait for the
# thread of JAX that waits here.
PATIENCE = 1.0
# How long deliveries gather before they are made: to change threads for each one costs
# more than the delivery.
PAUSE = 0.001


@dataclasses.dataclass
class Failure:
    """What a callback raised, and whether the program has been told."""

    error: BaseException
    told: bool = False

    def raised(self) -> RuntimeError:
        self.told = True
        error = RuntimeError(
            f"The callback of `lox.tap` raised {type(self.error).__name__}: {self.error}"
        )
        error.__cause__ = self.error
        return error


class Courier:
    """Makes deliveries one by one, on a thread of its own."""

    def __init__(self):
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failed: dict[Hashable, Failure] = {}
        self._failures: list[Failure] = []
        self._waiting = 0

    def send(
        self,
        listener: Hashable,
        deliver: Callable[[], None],
        size: int,
        *,
        stoppable: bool = True,
    ) -> None:
        """Have `deliver` called soon.

        If an earlier one of the listener failed, this raises, to stop the program.
        """
        if self._failed and stoppable:
            self._tell(listener)
        if self._is_full():
            self._wait_for_room()
        with self._lock:
            self._waiting += size
        self._queue.put(lambda: self._deliver(listener, deliver, size))

    def wait(self) -> list[Failure]:
        """Wait until all that was sent has been delivered, and return what failed."""
        if self._thread is None:
            self._empty_queue()
        elif threading.current_thread() is not self._thread:
            done = threading.Event()
            self._queue.put(done.set)
            done.wait()
        self._failed.clear()
        failures, self._failures = self._failures, []
        return failures

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
        while self._is_full() and time.monotonic() < deadline:
            time.sleep(PAUSE)

    def _is_full(self) -> bool:
        return self._queue.qsize() >= CALLS or self._waiting >= BYTES

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            call()
            if self._queue.empty():
                time.sleep(PAUSE)

    def _empty_queue(self) -> None:
        while not self._queue.empty():
            self._queue.get()()

    def _deliver(self, listener: Hashable, deliver: Callable, size: int) -> None:
        if not self._failed or listener not in self._failed:
            try:
                deliver()
            except BaseException as error:
                failure = Failure(error)
                self._failed[listener] = failure
                self._failures.append(failure)
        with self._lock:
            self._waiting -= size


courier = Courier()


def barrier() -> None:
    """Wait until everything that has been logged so far is delivered.

    The callbacks of `lox.tap` run on a thread of their own, some time after the program
    has logged. If one of them raised, so does this.

    Example:
        >>> heard = []
        >>> f = jax.jit(lox.tap(lambda x: lox.log({"x": x}) and 2 * x, heard.append))
        >>> y = f(1.0)
        >>> lox.barrier()
        >>> heard
        [{'x': 1.0}]
    """
    try:
        jax.effects_barrier()
    except Exception:
        _raise_failures(told=True)
        raise
    _raise_failures(told=False)


def deliver_all(call: Callable, *args: Any, **kwargs: Any) -> Any:
    """Call a function that is not being traced, and wait for its callbacks."""
    try:
        out = call(*args, **kwargs)
    except Exception:
        _raise_failures(told=True)
        raise
    barrier()
    return out


def _raise_failures(*, told: bool) -> None:
    """Wait for the callbacks, and raise what they raised.

    What the program has been told stopped it, and is raised in place of what JAX says.
    """
    for failure in courier.wait():
        if told or not failure.told:
            raise failure.raised()


def _finish() -> None:
    try:
        barrier()
    finally:
        courier.stop()


# JAX must not be in use when the process ends: a thread that is in it would abort it.
atexit.register(_finish)
