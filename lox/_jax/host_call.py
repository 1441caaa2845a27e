"""Call the host from a compiled program."""

import ctypes
import itertools as it
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental
import jax.ffi
import numpy as np
from jax.experimental.buffer_callback import buffer_callback


def portable_host_call(
    context: Any, callback: Callable, token: Any, *args: Any
) -> jax.Array:
    """Call `callback` on the host with a list of NumPy arrays, from any platform.

    The token that is returned is there when the call is over.
    """

    def deliver(token, *arrays):
        _keep_thread()
        callback([np.asarray(array) for array in arrays])
        return token

    form = jax.ShapeDtypeStruct(token.shape, token.dtype)
    return jax.experimental.io_callback(deliver, form, token, *args)


def host_result(callback: Callable, form: jax.ShapeDtypeStruct, *args: Any) -> jax.Array:
    """What `callback` returns on the host, from any platform."""
    return jax.experimental.io_callback(callback, form, *args)


def cpu_host_result(
    callback: Callable, form: jax.ShapeDtypeStruct, *args: Any
) -> jax.Array:
    """The same on one CPU device, without the copies and locks of the portable way."""

    def fill(context, out, *buffers):
        np.asarray(out)[...] = callback(*(np.asarray(buffer) for buffer in buffers))

    return buffer_callback(fill, form, has_side_effect=True)(*args)


def cpu_host_call(context: Any, callback: Callable, token: Any, *args: Any) -> jax.Array:
    """The same on one CPU device, without the copies and locks of the portable way.

    This is `jax.experimental.buffer_callback` without its pytrees.
    """

    def deliver(execution, token, *buffers):
        _keep_thread()
        # The last one is the output. All of them die after the call.
        callback([buffer.__array__().copy() for buffer in buffers[:-1]])
        return ()

    module = context.module_context
    module.add_host_callback(deliver)
    form = jax.ShapeDtypeStruct(token.shape, token.dtype)
    call = jax.ffi.ffi_call(
        "xla_buffer_python_cpu_callback",
        form,
        has_side_effect=True,
        input_output_aliases={0: 0},
    )
    return call(token, *args, index=np.uint64(len(module.host_callbacks) - 1))


class _Thread(threading.local):
    is_kept = False


_thread = _Thread()


# What is kept of a thread that ends is lost: some kilobytes.
_kept, _MOST_KEPT = it.count(), 1000


def _keep_thread() -> None:
    """Have Python know this thread of JAX from now on.

    For a thread that is not its own Python makes a state at each call, and unmaps it after
    the call, for which the other cores are interrupted: where they are at work this takes
    longer than all else in a host call. JAX has few threads, which live long.
    """
    if not _thread.is_kept and next(_kept) < _MOST_KEPT:
        _thread.is_kept = True
        ctypes.pythonapi.PyGILState_Ensure()  # JAX will release it once less
