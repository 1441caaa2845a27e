"""Callbacks of programs: made on a thread of their own, apart from those of JAX.

What reaches the host is put into a queue, and the program goes on. So a callback may use
JAX, sleep, or log.
"""

import atexit
import functools as ft
import sys
import time
from collections.abc import Callable, Hashable
from concurrent.futures import TimeoutError

import jax

from lox._jax import host_call, tracing
from lox._stream.packet import Packet
from lox_host.failures import Failures
from lox_host.host_logger import settle
from lox_host.process_exit import wait_at_exit
from lox_host.worker import Worker

# A callback that runs a program may itself wait for a host call that waits for room in the
# queue. Where that cannot be seen, the patience ends it.
callback_thread = Worker(
    "lox",
    max_calls=1000,
    max_bytes=64 * 2**20,
    pause=0.005,
    patience=1.0,
    waits_for_others=host_call.is_in_program,
)
# How many seconds to wait for a callback when the process ends.
PATIENCE = 30.0
_failures = Failures()
# The listener whose callback is being called, if any.
_running: list[Hashable] = []


def call_soon(
    listener: Hashable, callback: Callable[[Packet], None], packet: Packet
) -> None:
    """Have a callback called with a packet, for a listener that `str` names in messages.

    If an earlier callback of the listener failed, this raises, to stop the program.
    """
    if packet.layout.stoppable and _end.check():
        raise RuntimeError(f"{listener} does not return, and the process ends.")
    if packet.layout.stoppable and (failure := _failures.unreported(listener)):
        # Up to here, what is in the queue for the listener is left out.
        callback_thread.submit(lambda: _failures.unmute(listener))
        raise failure.report()
    callback_thread.submit(lambda: _call(listener, callback, packet), packet.nbytes)


def _call(listener: Hashable, callback: Callable[[Packet], None], packet: Packet) -> None:
    _running.append(listener)
    try:
        _failures.attempt(listener, lambda: callback(packet))
    finally:
        _running.pop()


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
    _wait_for_programs(None)
    settle()


def awaited(fun: Callable, listener: Hashable = None) -> Callable:
    """Let a function return after its callbacks, unless it is being traced."""

    @ft.wraps(fun)
    def waiting(*args, **kwargs):
        if tracing.staged_program() is not None:
            return fun(*args, **kwargs)
        with _failures.awaiting(listener):
            try:
                out = fun(*args, **kwargs)
            except Exception:
                _wait_for_callbacks(listener, was_stopped=True)
                raise
            _wait_for_programs(listener)
        return out

    return waiting


def _wait_for_programs(listener: Hashable) -> None:
    """Wait for the programs that this thread has started, and for their callbacks."""
    try:
        jax.effects_barrier()
    except Exception:
        _wait_for_callbacks(listener, was_stopped=True)
        raise
    _wait_for_callbacks(listener, was_stopped=False)


def _wait_for_callbacks(listener: Hashable, *, was_stopped: bool) -> None:
    """Wait for the callbacks, and raise what they raised.

    What stopped the program is raised in place of what JAX says.
    """
    is_other = not callback_thread.is_current()
    if is_other and _wait_for_call(_wait_for_programs_of_callbacks):
        _wait_for_call(lambda: False)  # and for what these have sent
    for failure in _failures.collect(listener):
        if was_stopped or not failure.is_reported:
            raise failure.report()


def _wait_for_call(call: Callable[[], bool]) -> bool:
    """Make a call on the callback thread, after all that waits there."""
    future = callback_thread.request(call)
    while not _end.check():
        try:
            return future.result(0.1)
        except TimeoutError:
            if future.done():  # it is the call that raised this
                raise
    return False


def _wait_for_programs_of_callbacks() -> bool:
    """On the callback thread, wait for programs of callbacks, and say if there were any."""
    if not callback_thread.is_current() or not host_call.has_started_programs():
        return False
    # They send packets to the queue, which nobody empties in the meantime.
    with callback_thread.unbounded():
        try:
            jax.effects_barrier()
        except Exception as error:
            _failures.add("A host call", error)
    return True


class _End:
    """The end of the process: programs and callbacks are waited for, but not for ever.

    A program may wait for room in the queue, and the main thread for the program, inside of
    JAX. So each host call looks whether a callback is stuck, too, and stops its program.
    """

    def __init__(self):
        self._start: float | None = None
        self.is_given_up = False

    def wait(self) -> None:
        """Wait for all programs and callbacks, unless a callback does not return."""
        if self.is_given_up or not callback_thread.is_running():
            return
        self._start = time.monotonic()
        try:
            _wait_for_call(lambda: False)
            _wait_for_programs(None)
        except KeyboardInterrupt:
            self._give_up("was interrupted")
            raise
        except Exception:
            if not self.is_given_up:
                raise

    def stop(self) -> None:
        """Do the same, and end the thread of callbacks."""
        try:
            self.wait()
        except KeyboardInterrupt:
            pass
        finally:
            if not self.is_given_up:
                callback_thread.stop()

    def check(self) -> bool:
        """Return whether callbacks are not waited for any more. On any thread."""
        if self._start is None or self.is_given_up:
            return self.is_given_up
        if _running and callback_thread.has_done_nothing(self._start, PATIENCE):
            self._give_up(f"has not returned for {PATIENCE:g} seconds")
        return self.is_given_up

    def _give_up(self, what: str) -> None:
        self.is_given_up = True
        waiting = callback_thread.waiting_calls()
        for listener in _running:
            text = f"lox: {listener} {what}. {waiting} records were not delivered."
            print(text, file=sys.stderr, flush=True)


_end = _End()
wait_at_exit(_end.wait)
# JAX must not be in use when the process ends: a thread that is in it would abort it.
atexit.register(_end.stop)
