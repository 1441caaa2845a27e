"""Packets that leave a program as outputs, on their way to the host.

A jitted step that is called from a Python loop returns before it has run. So another thread
waits for the packets, and delivers them in the order of the calls:

    program a        a's packet is there   ------->  arrival thread: deliver a's packet
    program b        needs an output of a, makes a host call

The host call of `b` must not overtake the packet of `a`, but the arrival thread may not
have noticed yet that `a` has ended. So a host call delivers the packets that are there
before its own. Packets that are not there yet belong to programs that run later, or beside
the one that makes the call.
"""

import collections
import contextlib
import threading
from collections.abc import Callable, Sequence

import jax

from lox_host.frozen import frozen
from lox_host.interrupts import makes_host_calls
from lox_host.process_exit import in_forked_child
from lox_host.worker_thread import Worker


@frozen
class Arrival:
    """A packet that a program may still be computing.

    Attributes:
        arrays: The arrays of the packet.
        deliver: Hands the packet on.
    """

    arrays: Sequence[jax.Array]
    deliver: Callable[[], None]

    def is_there(self) -> bool:
        return all(x.is_ready() for x in self.arrays)  # pyright: ignore[reportAttributeAccessIssue]


arrival_thread = Worker("lox-arrivals", max_calls=1000, max_bytes=64 * 2**20, may_wait=True)
# What has not been delivered, in the order of the calls.
_expected: collections.deque[Arrival] = collections.deque()
# Held while a packet is delivered, so that no other overtakes it.
_delivering = threading.Lock()


def expect(arrays: Sequence[jax.Array], deliver: Callable[[], None], nbytes: int) -> None:
    """Call `deliver` when arrays are there, after all earlier calls of this kind."""
    arrival_thread.start()
    _expected.append(Arrival(arrays, deliver))
    arrival_thread.submit(_deliver_first, nbytes)


def deliver_what_is_there() -> None:
    """Deliver the packets of programs that have ended."""
    # Usually there are none, and a lock would cost as much as the rest of a host call.
    if not _expected:
        return
    # If a program has failed, the arrival thread says so. It did not fail in this one.
    with _delivering, contextlib.suppress(Exception):
        while _expected and _expected[0].is_there():
            _expected[0].deliver()
            _expected.popleft()


def wait_for_arrivals() -> None:
    """Wait until the packets of all programs called so far have been delivered."""
    # To ask the thread takes longer than to log a number.
    if _expected:
        arrival_thread.run(_deliver_all)


def _deliver_all() -> None:
    # Usually, all are delivered by now. Only if Ctrl-C came before `expect` had submitted
    # its call, one is left.
    while _expected:
        _deliver_first()


def _deliver_first() -> None:
    """Wait for the first packet, and deliver it unless a host call has done that."""
    first = next(iter(_expected), None)
    if first is None:
        return
    with contextlib.suppress(Exception):  # `deliver` raises it again
        jax.block_until_ready(first.arrays)
    with _delivering:
        if _expected and _expected[0] is first:
            try:
                first.deliver()
            finally:
                _expected.popleft()


def _forget() -> None:
    """Leave what is on its way to the parent of a forked process."""
    global _delivering
    _expected.clear()
    _delivering = threading.Lock()


in_forked_child(_forget)
# JAX makes some host calls on the main thread. If Ctrl-C interrupted one between two
# statements here, the packet would be delivered twice.
makes_host_calls(deliver_what_is_there.__code__)
