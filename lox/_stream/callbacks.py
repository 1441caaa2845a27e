"""Callbacks of programs: made on a thread of their own, apart from those of JAX.

What reaches the host is put into a queue, and the program goes on. So a callback may use
JAX, sleep, or log.
"""

import atexit
import functools as ft
from collections.abc import Callable, Hashable

import jax

from lox._jax import tracing
from lox._stream.packet import Packet
from lox_host.failures import Failures
from lox_host.host_logger import settle
from lox_host.process_exit import wait_at_exit
from lox_host.worker import Worker

# A callback that uses JAX may itself wait for a thread of JAX that waits for room in the
# queue, hence the patience.
callback_thread = Worker("lox", max_calls=1000, pause=0.005, patience=1.0)
_failures = Failures()


def call_soon(
    listener: Hashable, callback: Callable[[Packet], None], packet: Packet
) -> None:
    """Have a callback called with a packet, for a listener that `str` names in messages.

    If an earlier callback of the listener failed, this raises, to stop the program.
    """
    if packet.layout.stoppable and (failure := _failures.unreported(listener)):
        # Up to here, what is in the queue for the listener is left out.
        callback_thread.submit(lambda: _failures.unmute(listener))
        raise failure.report()
    callback_thread.submit(
        lambda: _failures.attempt(listener, lambda: callback(packet)), packet.nbytes
    )


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
    if not callback_thread.is_current():
        if callback_thread.is_running():
            callback_thread.run(_wait_for_programs_of_callbacks)
        callback_thread.wait()
    for failure in _failures.collect(listener):
        if was_stopped or not failure.is_reported:
            raise failure.report()


def _wait_for_programs_of_callbacks() -> None:
    """On the callback thread, wait for the programs that callbacks have started."""
    # They send packets to the queue, which nobody empties in the meantime.
    with callback_thread.unbounded():
        try:
            jax.effects_barrier()
        except Exception as error:
            _failures.add("A host call", error)


def _stop() -> None:
    try:
        barrier()
    finally:
        callback_thread.stop()


wait_at_exit(barrier)
# JAX must not be in use when the process ends: a thread that is in it would abort it.
atexit.register(_stop)
