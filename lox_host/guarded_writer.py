"""A wrapper around a writer that may fail or stall, with its error state.

A writer *fails* when a method raises: a disk is full, a server is gone. The user gets a
warning at once. If `write` raised, its rows are lost, and counted. If `flush` raised, its
rows wait in the writer. lox tries again, soon at first, then less often. When everything
works again, a warning says how many rows are missing.

A writer *stalls* when a method does not return for `patience` seconds. The user gets a
warning, and until the method returns, lox no longer waits for it.

    write  write  write  flush  write  flush  flush        flush  write  flush
      |      x      |      x      -      |      ...hangs...  |      |      |
             ^ failed: warn              ^ works again     ^ stalled: warn ^ works again
"""

import contextlib
import threading
import time
import warnings
from collections.abc import Callable
from typing import Literal

from lox_host.display.text import count
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.writer import Writer

OnError = Literal["warn", "raise"]
# After a failure, lox leaves the writer alone for `BACKOFF` times as long as the failed
# call took, but for at most `LONGEST_PAUSE` seconds.
BACKOFF, LONGEST_PAUSE = 10, 30.0


class GuardedWriter:
    """Calls a writer and remembers what it raises.

    Call `open`, `write`, `flush` and `close` on one thread, all other methods on any.

    Args:
        name: The name of the logger in messages.
        writer: The back end.
        on_error: Whether a failure only warns, or stops the program.
        patience: How many seconds a thread waits for a writer that makes no progress.

    Attributes:
        runs: The open runs by id.
        lost_rows: How many rows the writer did not accept.
        unflushed_rows: How many rows it has accepted, but not flushed.
        retry_at: When to call the writer again after a failure.
    """

    def __init__(self, name: str, writer: Writer, *, on_error: OnError, patience: float):
        self._name, self._writer = name, writer
        self._on_error, self._patience = on_error, patience
        self.runs: dict[int, Run] = {}
        self.lost_rows = self.unflushed_rows = 0
        self.retry_at = 0.0
        # Held while any thread counts lost rows, or decides who warns.
        self._lock = threading.Lock()
        # The latest error. `_failure` is None again once the writer has recovered.
        self._failure: BaseException | None = None
        self._last_failure: BaseException | None = None
        self._is_reported = False
        # The methods whose latest call raised.
        self._failing: set[str] = set()
        # The method that is running, and when it was called.
        self._call: tuple[str, float] | None = None
        self._progress = 0.0
        self._is_stalled = False
        # `lost_rows` at the last recovery: the user knows of these.
        self._lost_before = 0

    def open(self, run: Run) -> None:
        """Begin a run. Errors of the writer are raised here."""
        self._call = "open", time.monotonic()
        try:
            self._writer.open(run)
        finally:
            self._call = None
        self._progress = time.monotonic()
        self.runs[run.id] = run

    def write(self, batch: Batch, rows: int) -> None:
        """Pass rows to the writer. They are lost if it raises."""
        self.unflushed_rows += rows
        if not self._attempt("write", lambda: self._writer.write(batch)):
            self.unflushed_rows -= rows
            self.leave_out(rows)

    def leave_out(self, rows: int) -> None:
        """Count rows as lost."""
        with self._lock:
            self.lost_rows += rows

    def flush(self) -> None:
        """Flush the writer. It has recovered if this and all methods that failed work."""
        if self._attempt("flush", self._writer.flush):
            self.unflushed_rows = 0
            if self.is_down() and not self._failing:
                self._works_again()

    def close(self, run: Run) -> None:
        """End a run. Its rows have been flushed before, if that was possible."""
        self._attempt("close", lambda: self._writer.close(run))
        del self.runs[run.id]

    def is_down(self) -> bool:
        """Return whether the writer has failed or stalled. Do not wait for it then."""
        return self._failure is not None or self._is_stalled

    def has_done_nothing(self, since: float) -> bool:
        """Return whether a thread that has waited since `since` should lose patience.

        A writer that returns from some calls is only slow.
        """
        return time.monotonic() - max(since, self._progress) >= self._patience

    def has_stalled(self, since: float) -> bool:
        """Return whether this or another thread has lost patience. Warn the first time."""
        if self._is_stalled:
            return True
        if not self.has_done_nothing(since):
            return False
        with self._lock:
            is_known, self._is_stalled = self._is_stalled, True
        if not is_known:
            self._warn(
                f"{self._name} has not returned from `{self._method()}` for "
                f"{self._patience:g} seconds. lox no longer waits for it, and drops rows "
                f"of {self._those()} when its queue is full."
            )
        return True

    def watch(self) -> None:
        """Warn if the writer has been in a call for longer than `patience`."""
        call = self._call
        if call is not None and not self._is_stalled:
            self.has_stalled(call[1])

    def give_up(self, waiting_rows: int) -> str:
        """Return the text that says lox stops waiting, and how many rows are unwritten."""
        rows = waiting_rows + self.unflushed_rows + self.lost_rows
        return (
            f"{self._name} is still in `{self._method()}`, and lox no longer waits for it. "
            f"{count(rows, 'row')} of {self._those()} may not be written."
        )

    def check_opening(self, since: float) -> None:
        """Raise if a run that is to be opened since then waits for a writer that hangs."""
        method = self._call[0] if self._call else "open"
        if method != "open" and self.has_done_nothing(since):
            raise RuntimeError(
                f"{self._name} has not returned from `{method}` for {self._patience:g} "
                "seconds, so it cannot open another run."
            )

    def check(self, *, at_end: bool) -> None:
        """Raise the writer's error if it should stop the program.

        With `on_error="raise"`, each failure is raised once. At the end it is raised in any
        case, if the writer has not recovered or rows are lost.
        """
        error = self._last_failure
        if error is None:
            return
        if at_end and (self._failure is not None or self.lost_rows):
            lost = self.lost_rows + self.unflushed_rows
            # With no run left, the next one starts with a clean record.
            if not self.runs:
                self._last_failure = self._failure = None
                self._failing.clear()
                self.lost_rows = self.unflushed_rows = self._lost_before = 0
            raise self._error(error, lost)
        if (
            self._failure is not None
            and self._on_error == "raise"
            and not self._is_reported
        ):
            self._is_reported = True
            raise self._error(error, self.lost_rows)

    def _error(self, error: BaseException, lost: int) -> RuntimeError:
        what = count(lost, "logged row") if lost else "What was logged"
        raised = RuntimeError(
            f"{self._name} failed with {_described(error)}. {what} may not be written."
        )
        raised.__cause__ = error
        return raised

    def _attempt(self, method: str, call: Callable[[], None]) -> bool:
        """Call the writer, remember its error, and return whether it succeeded."""
        start = time.monotonic()
        self._call = method, start
        try:
            call()
        except BaseException as error:
            self._failing.add(method)
            self._fails(error, time.monotonic() - start)
            return False
        finally:
            self._call = None
        self._progress = time.monotonic()
        self._failing.discard(method)
        return True

    def _fails(self, error: BaseException, seconds: float) -> None:
        self.retry_at = time.monotonic() + min(LONGEST_PAUSE, BACKOFF * seconds)
        # Warn before `check` on another thread can see the error and end the program.
        if self._failure is None:
            self._is_reported = False
            self._warn(
                f"{self._name} failed with {_described(error)}. lox keeps trying, and "
                f"writes no rows of {self._those()} until it works. `logger.finish` raises "
                "if anything is missing."
            )
        self._failure = self._last_failure = error

    def _works_again(self) -> None:
        missing, self._lost_before = self.lost_rows - self._lost_before, self.lost_rows
        self._failure, self._is_stalled = None, False
        what = count(missing, "row") if missing else "No rows"
        verb = "is" if missing == 1 else "are"
        self._warn(f"{self._name} works again. {what} of {self._those()} {verb} missing.")

    def _method(self) -> str:
        call = self._call  # the worker's thread may return from it at any time
        return call[0] if call else "write"

    def _those(self) -> str:
        # A list: the worker's thread may open and close runs.
        names = [run.name for run in list(self.runs.values())]
        if not names:
            return "its runs"
        listed = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        return f"the run {listed}" if len(names) == 1 else f"the runs {listed}"

    def _warn(self, text: str) -> None:
        # If warnings are errors, swallow this one: `finish` raises.
        with contextlib.suppress(RuntimeWarning):
            warnings.warn(text, RuntimeWarning, stacklevel=2)


def _described(error: BaseException) -> str:
    # The message continues with a full stop.
    return f"{type(error).__name__}: {error}".removesuffix(".")
