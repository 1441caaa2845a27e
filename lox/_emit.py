"""Host calls: the primitive that hands records to a Python function as they come."""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from . import _compat
from ._chain import new_token
from ._record import Record, bind, record_primitive
from ._rows import key_data


@dataclasses.dataclass(frozen=True)
class Parcel:
    """Records that have arrived on the host, as NumPy arrays."""

    arrays: Sequence[np.ndarray]
    unpacked: Callable[[Sequence[np.ndarray]], tuple[Record, ...]]
    stoppable: bool = True
    """Whether the program stops if who gets this raises."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def records(self) -> tuple[Record, ...]:
        return self.unpacked(self.arrays)


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
    calls = (
        outs for primitive, outs in _compat.staged_with(emit_effect) if primitive is emit_p
    )
    return next(calls, [new_token()])[0]


def emit_again(change: Callable[[Record], Record], args: list, params: dict) -> list:
    """Run the same equation with each of its records changed."""
    token, *leaves = args
    params = dict(params)
    records = jax.tree.unflatten(params.pop("form"), leaves)
    return bind(emit_p, list(map(change, records)), [token], **params)


@emit_p.def_impl
def _impl(token, *leaves, form, callback, **params):
    arrays = [np.array(x) for x in leaves]
    unpacked = ft.partial(jax.tree.unflatten, form)
    if any(_is_wanted(record) for record in unpacked(arrays)):
        callback(Parcel(arrays, unpacked))
    return [token]


def _lowering(host_call: Callable, *, stoppable: bool = True) -> Callable:
    def lowered(token, *leaves, form, callback, **params):
        packed, unpack = _packed(list(map(_whole, leaves)))
        short = [(i, x.dtype) for i, x in enumerate(leaves) if _whole(x) is not x]

        def unpacked(arrays):
            parts = list(unpack(arrays))
            for i, dtype in short:
                parts[i] = parts[i].astype(dtype)
            return jax.tree.unflatten(form, parts)

        def deliver(*arrays):
            callback(Parcel(arrays, unpacked, stoppable))

        def call():
            return host_call(deliver, token, *packed)

        wanted = [_is_wanted(record) for record in jax.tree.unflatten(form, leaves)]
        if any(condition is True for condition in wanted):
            return [call()]
        return [jax.lax.cond(jnp.stack(wanted).any(), call, lambda: token)]

    return mlir.lower_fun(lowered, multiple_results=True)


def _is_wanted(record: Record) -> Any:
    """Whether any example logged the record."""
    return True if record.valid is None else record.valid.any()


def _packed(leaves: Sequence[Any]) -> tuple[list, Callable[[Sequence], Sequence]]:
    """All numbers of a width in one array: each array that is handed over costs.

    Returns:
        The arrays, and what takes them apart again.
    """
    groups: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        groups.setdefault(_bits(leaf.dtype), []).append(i)
    if len(groups) == len(leaves):
        return list(leaves), lambda arrays: arrays

    places: list[Any] = [None] * len(leaves)
    for number, group in enumerate(groups.values()):
        ends = np.cumsum([leaves[i].size for i in group])
        for i, end in zip(group, ends, strict=True):
            start = (end - leaves[i].size) * leaves[i].dtype.itemsize
            places[i] = number, leaves[i].shape, leaves[i].dtype, start

    def pack(bits: Any, group: list[int]) -> Any:
        if len(group) == 1:
            return leaves[group[0]]
        flat = [jax.lax.bitcast_convert_type(leaves[i].reshape(-1), bits) for i in group]
        return jax.lax.concatenate(flat, 0)

    def unpack(arrays: Sequence[np.ndarray]) -> list:
        return [np.ndarray(shape, dtype, arrays[n], at) for n, shape, dtype, at in places]

    return [pack(bits, group) for bits, group in groups.items()], unpack


def _whole(x: Any) -> Any:
    """Numbers of less than a byte as ones that take a byte each, as NumPy has them."""
    if jnp.issubdtype(x.dtype, np.integer) and jnp.iinfo(x.dtype).bits < 8:
        signed = jnp.issubdtype(x.dtype, np.signedinteger)
        return x.astype(np.int8 if signed else np.uint8)
    if jnp.issubdtype(x.dtype, np.floating) and jnp.finfo(x.dtype).bits < 8:
        return x.astype(np.float32)
    return x


def _bits(dtype: Any) -> Any:
    """The dtype that holds the bits of numbers of another one."""
    is_number = jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)
    # JAX has 64 bits only where they are enabled.
    short = is_number and dtype.itemsize <= 4
    return np.dtype(f"uint{8 * dtype.itemsize}") if short else dtype


_quickly = _lowering(_compat.cpu_host_call)
_portably = _lowering(_compat.portable_host_call)
# Of several devices only one would stop, and the others wait for it forever.
_from_many = _lowering(_compat.portable_host_call, stoppable=False)


def _choose(quickly: Callable) -> Callable:
    def lower(context, *args, **params):
        lowering = _from_many if _compat.is_partitioned(context) else quickly
        return lowering(context, *args, **params)

    return lower


mlir.register_lowering(emit_p, _choose(_portably))
mlir.register_lowering(emit_p, _choose(_quickly), platform="cpu")
