"""`lox_init`: the primitive by which a program starts a run on the host and gets its id."""

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from lox._jax import host_call, sharding
from lox._stream.emit import callers_among
from lox._stream.token import last_token
from lox_host.host_logger import HostLogger
from lox_host.process_exit import end_runs_first

init_p = Primitive("lox_init")


def open_run(logger: HostLogger, key: jax.Array) -> jax.Array:
    """Return the id of the run with this key, an array of words. Start it if it is new.

    This comes after the host calls that the program has made before.
    """
    return init_p.bind(last_token(), key, logger=logger)


@init_p.def_abstract_eval
def _abstract_eval(token, key, *, logger):
    return ShapedArray(key.shape[:-1], np.dtype(np.int32))


@init_p.def_impl
def _impl(token, key, *, logger):
    if not (sharding.is_addressable(key) or key.is_fully_replicated):
        return jax.jit(ft.partial(init_p.bind, logger=logger))(token, key)
    return jnp.asarray(_open_on_host(logger, key))


def _batch(args, axes, *, logger):
    # One host call starts the runs of all examples: key (size, words) -> ids (size,)
    (token, key), (_, axis) = args, axes
    return init_p.bind(token, jnp.moveaxis(key, axis, 0), logger=logger), 0


def _lowering(host_result: Any) -> Any:
    def lower(context, *args, logger):
        devices = sharding.partitioned_devices(context)
        callers = callers_among(devices, everywhere=True)

        def lowered(device, token, key):
            form = jax.ShapeDtypeStruct(key.shape[:-1], np.dtype(np.int32))

            def call():
                return host_result(
                    lambda _, key: _open_on_host(logger, key), form, token, key
                )

            if not callers:
                return [call()]
            is_caller = jnp.isin(device, np.array(callers))
            return [
                jax.lax.cond(is_caller, call, lambda: jnp.zeros(form.shape, form.dtype))
            ]

        # Each process starts the runs. One device sends their ids to all others.
        sender = callers[0] if callers else None
        return sharding.lower_per_device(lowered, context, *args, sender=sender)

    return lower


def _open_on_host(logger: HostLogger, key: Any) -> np.ndarray:
    key = np.asarray(key)
    rows = key.reshape(-1, key.shape[-1])
    ids = logger.open_runs(rows, jax.process_index(), sharding.agree_on)
    end_runs_first()
    return ids.reshape(key.shape[:-1])


batching.primitive_batchers[init_p] = _batch
sharding.require_devices(init_p)
mlir.register_lowering(init_p, _lowering(host_call.portable_result))
mlir.register_lowering(init_p, _lowering(host_call.cpu_result), platform="cpu")
