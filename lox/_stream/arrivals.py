"""Packets that leave a program as outputs, on their way to the host.

A jitted step that is called from a Python loop returns before it has run. So another thread
waits for the packets, and delivers them in the order of the calls:

    program a    called ... runs ... its packet is there ---> arrival thread: deliver it
    program b                                                 called ... makes host calls

The host calls of `b` must not overtake the packet of `a`. So before JAX starts a program
that calls the host, the packets of all programs that were called earlier are delivered.

To deliver a packet is to put it into a queue, even if that is full: the thread that empties
the queue may be waiting for a packet. The loop that calls the step waits for room instead.
"""

import contextlib
import functools as ft
import threading
from collections.abc import Callable, Hashable, Sequence

import jax

from lox._stream.program_start import wait_before_host_calls
from lox_host.process_exit import in_forked_child
from lox_host.worker_thread import Worker, current_worker


class Arrival:
    """A packet that a program may still be computing.

    Args:
        listener: Who the packet is for.
        arrays: The arrays of the packet.
        deliver: Hands the packet on. It raises if the program has failed.

    Attributes:
        thread: The thread that has called the program.
    """

    def __init__(
        self, listener: Hashable, arrays: Sequence[jax.Array], deliver: Callable[[], None]
    ):
        self.listener, self.arrays, self.deliver = listener, arrays, deliver
        self.thread = threading.get_ident()


arrival_thread = Worker("lox-arrivals", max_calls=1000, max_bytes=64 * 2**20)
# What has not been delivered, in the order of the calls.
_expected: dict[Arrival, None] = {}
# By the thread that has called a program: its error, until that thread waits for packets.
_errors: dict[int, Exception] = {}
# Held while a packet is delivered, so that only one thread does it.
_delivering = threading.RLock()
# The thread that holds it to deliver a packet.
_deliverer: int | None = None


def expect(arrival: Arrival, nbytes: int) -> None:
    """Deliver a packet when it is there, after those of all earlier calls."""
    arrival_thread.start()
    _expected[arrival] = None
    arrival_thread.submit(ft.partial(_wait_up_to, arrival), nbytes)


def expected_packets() -> int:
    """Return how many packets have not been delivered."""
    return len(_expected)


def is_delivering() -> bool:
    """Return whether this thread delivers packets.

    Then it is in a finalizer: Python may call one at any moment. To wait in there for what
    another thread delivers would be for ever.
    """
    return _deliverer == threading.get_ident()


def wait_for_arrivals() -> None:
    """Wait until the packets of all programs called so far have been delivered.

    A back end, a callback or a host call that calls this only waits for those of programs
    that it has called itself. Other programs may be waiting for it.
    """
    # To ask the thread takes longer than to log a number.
    if not _expected or is_delivering():
        return
    if current_worker() is None and not _is_thread_of_jax():
        arrival_thread.run(ft.partial(_wait_for, list(_expected)))
    else:
        thread = threading.get_ident()
        _wait_for([arrival for arrival in list(_expected) if arrival.thread == thread])


def _is_thread_of_jax() -> bool:
    """Return whether Python has not started this thread."""
    return isinstance(threading.current_thread(), threading._DummyThread)


def check_programs(*, of_all_threads: bool = False) -> None:
    """Raise the error of a program that failed before it could return a packet, once.

    Usually, the program is one that this thread has called.
    """
    threads = list(_errors) if of_all_threads else [threading.get_ident()]
    errors = [_errors.pop(thread) for thread in threads if thread in _errors]
    if errors:
        raise errors[0]


def drop(listener: Hashable) -> None:
    """Forget the packets for a listener."""
    for arrival in list(_expected):
        if arrival.listener == listener:
            _expected.pop(arrival, None)


def _wait_up_to(arrival: Arrival) -> None:
    """Deliver a packet, and those before it: Ctrl-C may have kept one from the thread."""
    arrivals = list(_expected)
    if arrival in arrivals:
        _wait_for(arrivals[: arrivals.index(arrival) + 1])


def _wait_for(arrivals: Sequence[Arrival]) -> None:
    """Wait until packets are there, and deliver them unless another thread has."""
    for arrival in arrivals:
        if arrival in _expected:
            for array in arrival.arrays:
                with contextlib.suppress(Exception):  # `deliver` raises it again
                    array.block_until_ready()
            _deliver(arrival)


def _deliver(arrival: Arrival) -> None:
    global _deliverer
    with _delivering:
        if arrival not in _expected:
            return
        _deliverer = threading.get_ident()
        try:
            arrival.deliver()
        except Exception as error:
            _keep(error, arrival.thread)
        finally:
            _deliverer = None
            _expected.pop(arrival, None)


def _keep(error: Exception, thread: int) -> None:
    # In a loop, one program that fails makes all later ones fail. One error is enough.
    if thread not in _errors:
        error.add_note("The records of a program that failed are missing.")
        _errors[thread] = error


def _forget() -> None:
    """Leave what is on its way to the parent of a forked process."""
    global _delivering, _deliverer
    _expected.clear()
    _errors.clear()
    _delivering, _deliverer = threading.RLock(), None


in_forked_child(_forget)
wait_before_host_calls(wait_for_arrivals)
