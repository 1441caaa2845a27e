"""What callbacks raised, until it has stopped their program or was raised there.

A callback runs some time after the program logged, on another thread. If it raises, the
error reaches the program at one of two places, and only once:

- at its next host call, or where Python calls it again: what `unreported` returns is raised
  there, to stop it;
- where the program waits for its callbacks: `collect` returns it to `lox.barrier`.

In between, the callback is not called for records that the program has already logged.
"""

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any


@dataclasses.dataclass
class Failure:
    """What a listener raised, and whether a program has been stopped with it.

    Attributes:
        error: What was raised.
        listener: Who raised it.
        is_reported: Whether a program has been stopped with it.
        is_meant: Whether the listener wants just this error to be raised in the program.
    """

    error: BaseException
    listener: Hashable
    is_reported: bool = False
    is_meant: bool = False

    def report(self) -> BaseException:
        """Return what to raise in the program."""
        self.is_reported = True
        if self.is_meant:
            return self.error
        kind = type(self.error).__name__
        error = RuntimeError(f"{self.listener} raised {kind}: {self.error}")
        error.__cause__ = self.error
        return error


class Failures:
    """Keeps what listeners raised. `str(listener)` names one in messages.

    Attributes:
        attempted: The listeners that are being called.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self.attempted: list[Hashable] = []
        # Listeners that are not called until their program has got the error.
        self._muted: dict[Hashable, Failure] = {}
        # What no waiting thread has been given yet.
        self._uncollected: list[Failure] = []
        # How many threads wait for the callbacks of each listener.
        self._awaited: Counter[Hashable] = Counter()

    def attempt(self, listener: Hashable, call: Callable[..., object], *args: Any) -> None:
        """Make a call for a listener, unless it has failed, and keep what it raises."""
        if self._muted and listener in self._muted:
            return
        self.attempted.append(listener)
        try:
            call(*args)
        except BaseException as error:
            failure = Failure(error, listener)
            # Both at once: another thread that collects the failure unmutes the listener.
            with self._lock:
                self._uncollected.append(failure)
                self._muted[listener] = failure
        finally:
            self.attempted.pop()

    def add(self, listener: Hashable, error: BaseException) -> Failure:
        failure = Failure(error, listener)
        with self._lock:
            self._uncollected.append(failure)
        return failure

    def unreported(self, listener: Hashable) -> Failure | None:
        """Return the failure that must stop the program of a listener, if there is one."""
        failure = self._muted.get(listener) if self._muted else None
        return None if failure is None or failure.is_reported else failure

    def unmute(self, listener: Hashable) -> None:
        self._muted.pop(listener, None)

    def collect(self, listener: Hashable) -> list[Failure]:
        """Return and forget the failures, except those for which other threads wait."""
        with self._lock:
            mine, others = [], []
            # A tapped function takes its own, and `lox.barrier` what no thread waits for.
            for failure in self._uncollected:
                owner = failure.listener
                is_mine = owner == listener or not self._awaited[owner]
                (mine if is_mine else others).append(failure)
            self._uncollected = others
            for failure in mine:
                self.unmute(failure.listener)
        return mine

    def discard(self, failure: Failure) -> None:
        """Forget a failure that has been raised to the user."""
        with self._lock, contextlib.suppress(ValueError):
            self._uncollected.remove(failure)

    @contextlib.contextmanager
    def awaiting(self, listener: Hashable) -> Iterator[None]:
        """Keep the failures of this listener for the thread inside this context."""
        with self._lock:
            self._awaited[listener] += 1
        try:
            yield
        finally:
            with self._lock:
                self._awaited[listener] -= 1
                if not self._awaited[listener]:
                    del self._awaited[listener]
