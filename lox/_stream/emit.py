"""Host calls: how the primitive `lox_emit` hands records to a Python function.

`lox._core.record` defines the primitive and its rules for JAX's transformations. This file
runs it. Without `jit`, the callback is simply called. In a compiled program, the lowering
builds this, for each device:

    if device is a caller and any record is valid:      either condition only where needed
        arrays = pack(records)                          few arrays, see `packet.py`
        token = host call(arrays)                       -> callback(Packet(arrays, layout))
    return token

A program on one device has one caller. If the compiler partitions a program over devices,
all of them have the same values, and one of them calls. In a `shard_map`, devices have
values of their own, and each of them calls.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from lox._core.record import Carried, Delivery, Record, bind, emit_p
from lox._jax import device_calls, host_call, sharding
from lox._jax.types import AnyArray
from lox._rows.rows import key_data
from lox._stream.packet import Layout, Packet, by_width, pack
from lox_host.interrupts import check_interrupt


def emit(
    records: Sequence[Record | Delivery],
    callback: Callable[[Packet], None],
    token: AnyArray,
) -> jax.Array:
    """Call `callback` on the host, once for all of the records, and return the next token.

    The call comes after the one that returned `token`. If none of the records is valid, the
    host is not called. If several processes (`jax.distributed`) run a program together, the
    first one is called, or all of them if `callback.everywhere` is true.
    """
    records = jax.tree.map(key_data, list(records))
    return bind(emit_p, records, [token], callback=callback)[0]


@emit_p.def_impl
def _impl(token, *leaves, form, callback, **params):
    # Arrays with shards in other processes. If they are whole here, they can be read;
    # otherwise only a compiled program can bring the parts together.
    shared = [x for x in leaves if not sharding.is_addressable(x)]
    if not all(x.is_fully_replicated for x in shared):
        again = ft.partial(emit_p.bind, form=form, callback=callback, **params)
        return jax.jit(again)(token, *leaves)
    if shared and not (_is_everywhere(callback) or sharding.is_first_process(shared)):
        return [token]
    # The calls before may be in a compiled program that is still running.
    jax.block_until_ready(token)
    arrays = [np.array(x) for x in leaves]
    if any(_is_wanted(record) for record in jax.tree.unflatten(form, arrays)):
        # Nothing is packed: the arrays are on the host already.
        one_by_one = [[i] for i in range(len(arrays))]
        callback(Packet(arrays, Layout.of(form, arrays, one_by_one)))
    return [token]


def _lowering(call_host: Callable) -> Callable:
    def lower(context, *args, form, callback, keys):
        alone = device_calls.runs_on_one_device(context)
        devices = device_calls.partitioned_devices(context)
        callers = callers_among(devices, everywhere=_is_everywhere(callback))
        if not alone:
            every = devices or device_calls.devices_of_shard_map(context)
            _check_processes(callback, keys, every, callers)

        def lowered(device, token, *leaves):
            groups = by_width(leaves)
            # With several devices, an error would stop only one of them, and the others
            # would wait for it forever.
            layout = Layout.of(form, leaves, groups, stoppable=alone)

            def deliver(arrays: list[np.ndarray]) -> None:
                # Ctrl-C in a long program is noticed here, at the next host call.
                if alone:
                    check_interrupt()
                callback(Packet(arrays, layout))

            def call():
                return sharding.make_unvarying(
                    call_host(context, deliver, token, *pack(leaves, groups))
                )

            # What is known while lowering needs no condition: with one caller and records
            # that surely exist, there is none.
            conditions = [jnp.isin(device, np.array(callers))] if callers else []
            wanted = [_is_wanted(record) for record in jax.tree.unflatten(form, leaves)]
            if not any(condition is True for condition in wanted):
                conditions.append(jnp.stack(wanted).any())
            if not conditions:
                return [call()]
            return [jax.lax.cond(jnp.stack(conditions).all(), call, lambda: token)]

        def on_device(device, token, *leaves):
            run = ft.partial(lowered, device)
            run = run if callers else device_calls.once_per_device(run)
            return run(sharding.make_unvarying(token), *leaves)

        return device_calls.lower_per_device(on_device, context, *args)

    return lower


def callers_among(devices: Sequence[device_calls.Device], *, everywhere: bool) -> list[int]:
    """Return the positions of the devices of a partitioned program that call the host.

    A log has one value for all of them, so one device of the first process calls, or one of
    each process. All processes must come to the same answer.
    """
    first_of: dict[int, int] = {}
    for position, device in enumerate(devices):
        first_of.setdefault(device.process_index, position)
    processes = sorted(first_of)
    return [first_of[process] for process in (processes if everywhere else processes[:1])]


def _check_processes(
    callback: Any,
    keys: Sequence[str],
    devices: Sequence[device_calls.Device],
    callers: Sequence[int],
) -> None:
    """Let a callback refuse records of a program that several processes run together."""
    processes = [device.process_index for device in devices]
    if len(set(processes)) > 1 and hasattr(callback, "check_processes"):
        # If all callers get the same values, it is enough that the first one writes them.
        called = [processes[i] for i in callers[:1]] or processes
        callback.check_processes(set(called), keys)


def _is_everywhere(callback: object) -> bool:
    return getattr(callback, "everywhere", False)


def _is_wanted(record: Carried) -> AnyArray:
    """Return whether any example logged the record."""
    return True if record.valid is None else record.valid.any()


_quickly = _lowering(host_call.cpu_call)
_portably = _lowering(host_call.portable_call)

device_calls.require_devices(emit_p)
mlir.register_lowering(emit_p, _portably)
mlir.register_lowering(emit_p, _quickly, platform="cpu")
