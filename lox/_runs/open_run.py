"""`lox_init`: the primitive by which a program starts a run on the host and gets its id."""

import functools as ft
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import batching, mlir
from jax.typing import ArrayLike

from lox._jax import device_calls, host_call, sharding
from lox._jax.extend import Primitive
from lox._runs.run_options import RunOptions
from lox._stream.emit import callers_among
from lox._stream.host_call_order import last_token
from lox_host.host_logger import HostLogger
from lox_host.process_exit import end_runs_first

init_p = Primitive("lox_init")


def open_run(
    logger: HostLogger, key: jax.Array, options: RunOptions, operands: Sequence[jax.Array]
) -> jax.Array:
    """Return the id of a run. Start it if it is new.

    This comes after the host calls that the program has made before.

    Args:
        logger: The logger.
        key: The key of the run, an array of words.
        options: What else is asked for.
        operands: The values of the configuration that are not known yet.
    """
    return init_p.bind(last_token(), key, *operands, logger=logger, options=options)


@init_p.def_abstract_eval
def _abstract_eval(token, key, *operands, **params):
    return ShapedArray(key.shape[:-1], np.dtype(np.int32))


@init_p.def_impl
def _impl(token, key, *operands, logger, options):
    for x in (key, *operands):
        if not (sharding.is_addressable(x) or x.is_fully_replicated):
            again = ft.partial(init_p.bind, logger=logger, options=options)
            return jax.jit(again)(token, key, *operands)
    return jnp.asarray(_open_on_host(logger, options, key, *operands))


def _batch(args, axes, **params):
    # One host call starts the runs of all examples: key (size, words) -> ids (size,). Runs
    # differ in their keys, or in values of their configurations, or in both.
    token, *given = args
    pairs = list(zip(given, axes[1:], strict=True))
    size = next(x.shape[axis] for x, axis in pairs if axis is not None)
    batched = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in pairs
    ]
    return init_p.bind(token, *batched, **params), 0


def _lowering(host_result: Callable[..., jax.Array]) -> Callable:
    def lower(context, *args, logger, options):
        devices = device_calls.partitioned_devices(context)
        callers = callers_among(devices, everywhere=True)

        def lowered(device, token, key, *operands):
            form = jax.ShapeDtypeStruct(key.shape[:-1], np.dtype(np.int32))

            def open_on_host(_, *args):
                return _open_on_host(logger, options, *args)

            def call():
                return host_result(open_on_host, form, token, key, *operands)

            if not callers:
                return [call()]
            is_caller = jnp.isin(device, np.array(callers))
            return [
                jax.lax.cond(is_caller, call, lambda: jnp.zeros(form.shape, form.dtype))
            ]

        # Each process starts the runs. One device sends their ids to all others.
        sender = callers[0] if callers else None
        return device_calls.lower_per_device(lowered, context, *args, sender=sender)

    return lower


def _open_on_host(
    logger: HostLogger, options: RunOptions, key: ArrayLike, *operands: ArrayLike
) -> np.ndarray:
    key, leaves = np.asarray(key), [np.asarray(x) for x in operands]
    batch = key.shape[:-1]
    # (*batch, ...) -> (runs, ...)
    leaves = [x.reshape(-1, *x.shape[len(batch) :]) for x in leaves]
    wanted = options.wanted(key.reshape(-1, key.shape[-1]), leaves, is_batch=bool(batch))
    ids = logger.open_runs(wanted, jax.process_index(), sharding.agree_on)
    end_runs_first()
    return ids.reshape(batch)


batching.primitive_batchers[init_p] = _batch
device_calls.require_devices(init_p)
mlir.register_lowering(init_p, _lowering(host_call.portable_result))
mlir.register_lowering(init_p, _lowering(host_call.cpu_result), platform="cpu")
