"""Deliver the records of a jitted function through its outputs, without a host call.

JAX's quickest way to call a jitted function is closed to programs that call the host: each
call then costs ten times as much. For a step that is called from a Python loop, that is
most of what lox would cost. But such a step usually logs each key once, outside of loops
and branches, and then its logs can leave it as outputs, packed as for a host call:

    state, packet = jitted(state)        the quick way, nothing waits
    arrival thread: wait until the packet is there, give it to the listener

The listener notices no difference. It gets the same packets in the same order, each as soon
as the program has computed it. All other programs make host calls.
"""

import dataclasses
from collections.abc import Iterator

import jax
import numpy as np

from lox._core.collect import Collect
from lox._core.interpreter import Interpreter
from lox._core.record import holds_records, log_effect, log_p
from lox._core.staging import Traced
from lox._jax import equations
from lox._jax.extend import Jaxpr
from lox._jax.sharding import is_explicitly_sharded
from lox._jax.types import AnyArray, PyTree
from lox._rows.collected import Collected
from lox._rows.rows import key_data, static
from lox._stream.arrivals import Arrival
from lox._stream.callbacks import deliver_later
from lox._stream.handler import delivery_of
from lox._stream.packet import Layout, Listens, Packet, by_width, pack
from lox_host.frozen import frozen


@jax.tree_util.register_dataclass
@frozen
class Returned:
    """A packet on its way out of a program.

    Attributes:
        arrays: The arrays of the packet. The program may still be computing them.
        layout: The layout of the packet.
        listener: What takes the packet.
    """

    arrays: list[jax.Array]
    layout: Layout = static()
    listener: Listens = static()

    def deliver_when_ready(self) -> None:
        """Let another thread wait for the packet, and give it to the listener.

        If the listener has too many packets, wait for room.
        """
        arrival = Arrival(self.listener, self.arrays, self._deliver)
        deliver_later(arrival, self.layout.nbytes)
        self.listener.wait_for_room()

    def _deliver(self) -> None:
        arrays = [np.array(array) for array in self.arrays]  # callbacks may change them
        self.listener(Packet(arrays, self.layout))


def can_return_records(traced: Traced) -> bool:
    """Return whether the records of a program can be outputs without being changed.

    They have to be logged on every path and in a fixed order, and nothing else may happen
    on the host that could come before or after.
    """
    program = traced.jaxpr
    if set(program.effects) != {log_effect} or jax.process_count() > 1:
        return False
    keys = list(_keys_logged_once(program.jaxpr))
    return None not in keys and len(keys) == len(set(keys))


def _keys_logged_once(jaxpr: Jaxpr) -> Iterator[str | None]:
    """Yield the key of each record, and None for what may log any number of records."""
    for eqn in filter(holds_records, jaxpr.eqns):
        if eqn.primitive is log_p:
            # Arrays whose types say how they are sharded cannot be packed into one.
            is_sharded = any(map(is_explicitly_sharded, eqn.invars))
            yield from [None] if is_sharded else eqn.params["keys"]
        elif equations.primitive_name(eqn) in ("jit", "pjit"):
            yield from _keys_logged_once(eqn.params["jaxpr"].jaxpr)
        else:
            yield None


def return_records(
    collect: Collect,
    run: AnyArray,
    listener: Listens,
    traced: Traced,
) -> tuple[PyTree, list[Returned]]:
    """Evaluate a program, and return its output and what it has logged.

    Args:
        collect: Selects the records.
        run: The number of the run that they belong to, if any.
        listener: What takes the packet.
        traced: The program.
    """
    # Each key has one row, which every interval keeps. Nothing around could listen.
    collect = dataclasses.replace(collect.quiet(), keep=False, interval=None)
    outs, logs = Interpreter(collect).on_device()(traced.jaxpr, *traced.args)
    deliveries = [
        delivery_of(Collected.of({keys: rows}), run, ()) for keys, rows in logs.rows.items()
    ]
    if not deliveries:
        return traced.output(outs), []
    leaves, form = jax.tree.flatten(jax.tree.map(key_data, tuple(deliveries)))
    leaves = [jax.numpy.asarray(leaf) for leaf in leaves]
    groups = by_width(leaves)
    # The program has ended by the time the callback is called.
    layout = Layout.of(form, leaves, groups, stoppable=False)
    return traced.output(outs), [Returned(pack(leaves, groups), layout, listener)]
