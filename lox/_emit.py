"""Host calls: the primitive that hands a record to a Python function as it runs."""

import sys
from collections.abc import Callable

import jax
import numpy as np
from jax.interpreters import mlir

from . import _compat
from ._format import short
from ._record import Record, bind, record_primitive

emit_p, emit_effect = record_primitive("lox_emit")


def emit(record: Record, callback: Callable[[Record], None]) -> None:
    """Call `callback` on the host, with the record as NumPy arrays."""
    bind(emit_p, jax.tree.map(_plain, record), callback=callback)


def print_record(record: Record) -> None:
    """Print a record in one line, its steps behind it."""
    steps = dict(record.steps)
    if record.valid is not None:
        if not record.valid.any():
            return
        # What is left are the examples that logged.
        examples = np.argwhere(record.valid)
        steps["example"] = examples[:, 0] if examples.shape[1] == 1 else examples
        record = jax.tree.map(lambda x: x[record.valid], record)
        steps |= record.steps
    values = zip(record.keys, record.values, strict=True)
    parts = ["{" + ", ".join(f"{key!r}: {short(value)}" for key, value in values) + "}"]
    parts += [f"{name}={short(step)}" for name, step in steps.items()]
    # In one piece: other threads print, too.
    sys.stdout.write(" ".join(parts) + "\n")
    sys.stdout.flush()


def _plain(x: jax.Array) -> jax.Array:
    return (
        jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    )


@emit_p.def_impl
def _impl(*args, form, callback, **params):
    callback(jax.tree.unflatten(form, [np.asarray(x) for x in args]))
    return []


def _lowering(host_call: Callable) -> Callable:
    def lowered(*args, form, callback, **params):
        def deliver(*arrays):
            callback(jax.tree.unflatten(form, arrays))

        host_call(deliver, *args)
        return []

    return mlir.lower_fun(lowered, multiple_results=True)


_portably, _quickly = map(_lowering, (_compat.portable_host_call, _compat.cpu_host_call))


def _on_cpu(context, *args, **params):
    lower = _portably if _compat.is_partitioned(context) else _quickly
    return lower(context, *args, **params)


mlir.register_lowering(emit_p, _portably)
mlir.register_lowering(emit_p, _on_cpu, platform="cpu")
