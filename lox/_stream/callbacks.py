"""The callback thread: it runs the callbacks of programs, so that JAX's threads do not.

    thread of JAX                      callback thread
    host call: call_soon(packet)
      put it into the queue   ------>  take it out, call the callback
    the program continues

So a callback may use JAX, sleep or log. The queue is bounded: if callbacks are too slow,
the program waits. If a callback raises, the next host call of its listener stops the
program. If there is none, the next call of its jitted function raises, or the next wait
(`barrier`, or the end of a tapped function).
"""

import contextlib
import functools as ft
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import TimeoutError

import jax

from lox._jax import host_call, tracing
from lox._stream.arrivals import (
    Arrival,
    arrival_thread,
    check_programs,
    drop,
    expect,
    expected_packets,
    is_delivering,
    wait_for_arrivals,
)
from lox._stream.packet import Packet
from lox_host.failures import Failures
from lox_host.process_exit import settle, stop_at_exit, wait_at_exit
from lox_host.worker_thread import Worker

# A callback may run a program with host calls. If these wait for room in the queue, and the
# callback for them, nothing moves. lox sees this in most cases; in the others, waiting for
# room ends after `patience` seconds.
callback_thread = Worker(
    "lox",
    max_calls=1000,
    max_bytes=64 * 2**20,
    pause=0.005,
    patience=1.0,
    # At the end of the process, nobody waits for a callback that does not return.
    waits_for_others=lambda id: _end.is_given_up or host_call.is_in_program(id),
)
# How many seconds to wait for a callback at the end of the process.
PATIENCE = 30.0
_failures = Failures()
_attempt = _failures.attempt


def start_callbacks() -> None:
    """Start the threads that callbacks need, if they are not running."""
    callback_thread.start()
    _end.start_watching()


def call_soon(
    listener: Hashable, callback: Callable[[Packet], None], packet: Packet
) -> None:
    """Queue a call of a callback with a packet. Messages name the listener by its `str`.

    If an earlier callback of the listener failed, raise its error, to stop the program.
    """
    layout = packet.layout
    if layout.stoppable and _end.is_given_up:
        raise RuntimeError(f"{listener} has not returned, and the process is ending.")
    if layout.stoppable and (failure := _failures.unreported(listener)):
        # Skip what is already queued for the listener, but nothing that comes after.
        _unmute_later(listener)
        raise failure.report()
    callback_thread.submit(ft.partial(_attempt, listener, callback, packet), layout.nbytes)


def _unmute_later(listener: Hashable) -> None:
    callback_thread.submit(lambda: _failures.unmute(listener))


def stop_program(listener: Hashable, packet: Packet, error: Exception) -> None:
    """Raise an error of a listener in the program that has sent a packet.

    If that cannot be stopped, because other devices would wait for it forever, the error is
    raised where the program is waited for.
    """
    failure = _failures.add(listener, error)
    failure.is_meant = True
    if packet.layout.stoppable:
        raise failure.report()


def barrier() -> None:
    """Wait until everything that has been logged so far is delivered.

    The callbacks of `lox.tap` and the back ends of loggers run on separate threads, some
    time after the program has logged. If one of them raised an error, `barrier` raises it.
    Like `jax.effects_barrier`, it waits for what the current thread has started; other
    threads need to call it themselves.

    Example:
        >>> heard = []
        >>> f = jax.jit(lox.tap(lambda x: lox.log({"x": x}) and 2 * x, heard.append))
        >>> y = f(1.0)
        >>> lox.barrier()
        >>> heard
        [{'x': 1.0}]
    """
    try:
        _wait_for_programs(None)
    except Exception:
        settle()
        raise
    settle()


def awaited(fun: Callable, listener: Hashable = None) -> Callable:
    """Make a function wait for its callbacks before it returns, unless it is traced."""

    @ft.wraps(fun)
    def waiting(*args, **kwargs):
        if tracing.staged_program() is not None:
            return fun(*args, **kwargs)
        with _room_for_packets():
            wait_for_arrivals()  # this has been logged before
        with _failures.awaiting(listener):
            try:
                out = fun(*args, **kwargs)
            except Exception:
                _wait_for_callbacks(listener, was_stopped=True)
                raise
            _wait_for_programs(listener)
        return out

    return waiting


def stopped(fun: Callable, listener: Hashable) -> Callable:
    """Make a function raise before it runs if an earlier callback has failed."""

    @ft.wraps(fun)
    def stopping(*args, **kwargs):
        failure = _failures.unreported(listener)
        if failure and tracing.staged_program() is None:
            # Skip what earlier calls have logged, but nothing that comes after.
            drop(listener)
            _unmute_later(listener)
            _failures.discard(failure)
            raise failure.report()
        return fun(*args, **kwargs)

    return stopping


def deliver_later(arrival: Arrival, nbytes: int) -> None:
    """Deliver a packet on another thread when the program has computed it.

    A callback waits for it: what else it may wait for, and who waits for it, is not known.
    """
    expect(arrival, nbytes)
    if callback_thread.is_current():
        with _room_for_packets():
            wait_for_arrivals()


def wait_for_packets() -> None:
    """Wait until the host has what the programs of this thread have logged so far."""
    with _room_for_packets():
        try:
            jax.effects_barrier()
        except Exception:
            _wait_for_returned_packets()
            raise
        _wait_for_returned_packets()


def _wait_for_returned_packets() -> None:
    wait_for_arrivals()
    check_programs()


def _room_for_packets() -> contextlib.AbstractContextManager[None]:
    """While a callback waits for packets, take them into the queue even if it is full.

    The callback thread, which empties the queue, is the one that waits.
    """
    is_callback = callback_thread.is_current()
    return callback_thread.unbounded() if is_callback else contextlib.nullcontext()


def _wait_for_programs(listener: Hashable) -> None:
    """Wait for the programs that this thread has started, and for their callbacks."""
    if is_delivering():
        return
    try:
        wait_for_packets()
    except Exception:
        _wait_for_callbacks(listener, was_stopped=True)
        raise
    _wait_for_callbacks(listener, was_stopped=False)


def _wait_for_callbacks(listener: Hashable, *, was_stopped: bool) -> None:
    """Wait for the callbacks, and raise the first error of one.

    If a callback has stopped the program, its error replaces the one that JAX raises.
    """
    is_other = not callback_thread.is_current()
    if is_other and _wait_for_call(_wait_for_programs_of_callbacks):
        _wait_for_call(lambda: False)  # and for what these have sent
    for failure in _failures.collect(listener):
        if was_stopped or not failure.is_reported:
            raise failure.report()


def _wait_for_call(call: Callable[[], bool]) -> bool:
    """Make a call on the callback thread, after everything that is queued there."""
    future = callback_thread.request(call)
    while not _end.is_given_up:
        try:
            return future.result(0.1)
        except TimeoutError:
            # Done by now, or the call itself raised a `TimeoutError`.
            if future.done():
                return future.result()
    return False


def _wait_for_programs_of_callbacks() -> bool:
    """Wait for programs that callbacks have started, and return whether more is queued."""
    if not callback_thread.is_current():
        return False
    try:
        wait_for_packets()
    except Exception as error:
        _failures.add("A host call", error)
        return True
    return callback_thread.waiting_calls() > 0


class _End:
    """The end of the process: programs and callbacks are waited for, but not forever.

    A program may wait for room in the queue, and the end of the process for the program,
    inside JAX. So another thread watches, and the program is stopped when that gives up.
    It is started early: Python 3.12 starts no thread while the process ends.
    """

    def __init__(self):
        self.is_given_up = False
        self._is_waiting, self._begun = threading.Event(), 0.0
        self._watched_process: int | None = None

    def start_watching(self) -> None:
        """Start the thread that watches, unless this process has it."""
        if self._watched_process != os.getpid():
            self._watched_process = os.getpid()
            threading.Thread(target=self._watch, name="lox-end", daemon=True).start()

    def wait(self) -> None:
        """Wait for all programs and callbacks, unless a callback does not return."""
        # Loggers have threads of their own. Their packets may be on the way without a
        # callback thread.
        has_begun = callback_thread.is_running() or arrival_thread.is_running()
        if self.is_given_up or not has_begun:
            return
        self._begun = time.monotonic()
        self._is_waiting.set()
        try:
            _wait_for_programs(None)
            check_programs(of_all_threads=True)
        except KeyboardInterrupt:
            self._give_up("was interrupted")
            raise
        except Exception:
            if not self.is_given_up:
                raise
        finally:
            self._is_waiting.clear()

    def stop(self) -> None:
        """Wait for all programs and callbacks, and end the callback thread."""
        try:
            self.wait()
        except KeyboardInterrupt:
            pass
        finally:
            if not self.is_given_up:
                arrival_thread.stop()
                callback_thread.stop()

    def _watch(self) -> None:
        while not self.is_given_up:
            self._is_waiting.wait()
            time.sleep(0.05)
            is_stuck = _failures.attempted and callback_thread.has_done_nothing(
                self._begun, PATIENCE
            )
            if self._is_waiting.is_set() and is_stuck:
                self._give_up(f"has not returned for {PATIENCE:g} seconds")

    def _give_up(self, what: str) -> None:
        self.is_given_up = True
        waiting = callback_thread.waiting_calls() + expected_packets()
        for listener in _failures.attempted:
            text = f"lox: {listener} {what}. {waiting} records were not delivered."
            print(text, file=sys.stderr, flush=True)


_end = _End()
wait_at_exit(_end.wait)
# A thread that is inside JAX when the interpreter shuts down would abort the process.
stop_at_exit(_end.stop)
