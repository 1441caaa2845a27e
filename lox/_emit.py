"""Host calls: the primitive that hands records to a Python function as they come."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from . import _compat
from ._chain import new_token, same
from ._parcel import Contents, Parcel, by_width, pack
from ._record import Record, bind, record_primitive
from ._rows import key_data

emit_p, emit_effect = record_primitive("lox_emit", chained=True)


def emit(
    records: Sequence[Record], callback: Callable[[Parcel], None], token: Any
) -> jax.Array:
    """Call `callback` on the host, once for all of the records.

    It comes after the call that returned `token`, and nothing is sent where none of the
    records is valid.
    """
    records = jax.tree.map(key_data, list(records))
    return bind(emit_p, records, [token], callback=callback)[0]


def last_token() -> Any:
    """The token for a call that comes after those that the program has made so far."""
    for primitive, outs in _compat.staged_with(emit_effect):
        if primitive is emit_p:
            return outs[0]
        # A loop or a branch is over when what comes out of it is there.
        zeros = [
            _zero(x)
            for x in outs
            if x.size and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        ]
        if zeros:
            return sum(zeros[1:], zeros[0])
    return new_token()


def _zero(x: jax.Array) -> jax.Array:
    """A zero that the compiler cannot make without `x`."""
    first = jnp.real(jax.lax.stop_gradient(x).reshape(-1)[0]).astype(np.float32)
    ones = jax.lax.population_count(jax.lax.bitcast_convert_type(first, np.int32))
    return ones >> 7  # of 32 bits at most


def emit_again(change: Callable[[Record], Record], args: list, params: dict) -> list:
    """Run the same equation with each of its records changed."""
    token, *leaves = args
    params = dict(params)
    records = jax.tree.unflatten(params.pop("form"), leaves)
    return bind(emit_p, list(map(change, records)), [token], **params)


@emit_p.def_impl
def _impl(token, *leaves, form, callback, **params):
    arrays = [np.array(x) for x in leaves]
    if any(_is_wanted(record) for record in jax.tree.unflatten(form, arrays)):
        each = [[i] for i in range(len(arrays))]
        callback(Parcel(arrays, Contents.of(form, arrays, each)))
    return [token]


def _lowering(host_call: Callable, *, stoppable: bool = True) -> Callable:
    def lower(context, *args, form, callback, **params):
        def lowered(token, *leaves):
            groups = by_width(leaves)
            contents = Contents.of(form, leaves, groups, stoppable=stoppable)

            def deliver(arrays):
                callback(Parcel(arrays, contents))

            def call():
                return same(host_call(context, deliver, token, *pack(leaves, groups)))

            wanted = [_is_wanted(record) for record in jax.tree.unflatten(form, leaves)]
            if any(condition is True for condition in wanted):
                return [call()]
            return [jax.lax.cond(jnp.stack(wanted).any(), call, lambda: token)]

        def once(token, *leaves):
            return _compat.once_a_device(lowered)(same(token), *leaves)

        return mlir.lower_fun(once, multiple_results=True)(context, *args)

    return lower


def _is_wanted(record: Record) -> Any:
    """Whether any example logged the record."""
    return True if record.valid is None else record.valid.any()


def _choose(host_call: Callable) -> Callable:
    alone = _lowering(host_call)
    # Of several devices only one would stop, and the others wait for it forever.
    each_device = _lowering(host_call, stoppable=False)
    for_all_devices = _lowering(_compat.portable_host_call, stoppable=False)
    lowerings = {"one": alone, "each": each_device, "all": for_all_devices}

    def lower(context, *args, **params):
        return lowerings[_compat.devices_of(context)](context, *args, **params)

    return lower


mlir.register_lowering(emit_p, _choose(_compat.portable_host_call))
mlir.register_lowering(emit_p, _choose(_compat.cpu_host_call), platform="cpu")
