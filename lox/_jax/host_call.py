"""Call the host from a compiled program, with NumPy arrays.

There are two ways. `jax.experimental.io_callback` works on every platform, but copies each
array and takes locks that other devices wait for. On one CPU device there is a quicker way:
the host gets the buffers of the program themselves, through a foreign function call.

    calls that only send something    portable_call,   cpu_call
    calls that return a value         portable_result, cpu_result

A call takes a token and returns one, which is all that the program ever does with it:

    program                 thread of JAX                      Python
    token, arrays  ------>  copy the buffers to NumPy  ------> callback(arrays)
    token          <------  the same token             <------ returns, or raises

Whatever takes the returned token runs after the callback. If the callback raises, JAX stops
the program with an error.
"""

import ctypes
import inspect
import itertools as it
import sys
import threading
from collections.abc import Callable

import jax
import jax.experimental
import jax.ffi
import numpy as np
from jax._src.dispatch import RuntimeTokenSet as _RuntimeTokenSet
from jax._src.interpreters.pxla import ExecuteReplicated as _ExecuteReplicated
from jax.experimental.buffer_callback import buffer_callback
from jax.interpreters.mlir import LoweringRuleContext
from jax.typing import ArrayLike

from lox_host.interrupts import makes_host_calls

Receive = Callable[[list[np.ndarray]], None]


def portable_call(
    context: LoweringRuleContext, callback: Receive, token: jax.Array, *args: ArrayLike
) -> jax.Array:
    """Call `callback` on the host with a list of NumPy arrays, from any platform.

    Whatever needs the returned token waits until the call is over.
    """

    def deliver(token, *arrays):
        _keep_thread()
        callback([np.asarray(array) for array in arrays])
        return token

    makes_host_calls(deliver.__code__)
    # The token comes back from the host, so nothing can use it before.
    form = jax.ShapeDtypeStruct(token.shape, token.dtype)
    return jax.experimental.io_callback(deliver, form, token, *args)


def cpu_call(
    context: LoweringRuleContext, callback: Receive, token: jax.Array, *args: ArrayLike
) -> jax.Array:
    """Do the same on one CPU device.

    This is `jax.experimental.buffer_callback` without its pytrees.
    """

    def deliver(execution, token, *buffers):
        _keep_thread()
        # The last buffer is the output. All of them are gone after the call.
        callback([buffer.__array__().copy() for buffer in buffers[:-1]])
        return ()

    makes_host_calls(deliver.__code__)
    # The program knows the function by its number, and keeps it alive.
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


def portable_result(
    callback: Callable, form: jax.ShapeDtypeStruct, *args: ArrayLike
) -> jax.Array:
    """Return what `callback` returns on the host, from any platform."""
    return jax.experimental.io_callback(callback, form, *args)


def cpu_result(
    callback: Callable, form: jax.ShapeDtypeStruct, *args: ArrayLike
) -> jax.Array:
    """Do the same on one CPU device."""

    def fill(context, out, *buffers):
        np.asarray(out)[...] = callback(*(np.asarray(buffer) for buffer in buffers))

    return buffer_callback(fill, form, has_side_effect=True)(*args)


def is_in_program(thread: int) -> bool:
    """Return whether a thread waits for a program that may call the host.

    JAX runs such programs from Python each time, so that the thread is seen there.
    """
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code in _RUNS_PROGRAMS


# What is around the call of a program, and around waiting for host calls.
_RUNS_PROGRAMS = {
    inspect.unwrap(_ExecuteReplicated.__call__).__code__,
    _RuntimeTokenSet.block_until_ready.__code__,
}


class _Thread(threading.local):
    is_kept = False


_thread = _Thread()
# The state of a thread that ends is never freed. It takes some kilobytes: there is a limit.
_kept, _MOST_KEPT = it.count(), 1000


def _keep_thread() -> None:
    """Make Python remember this thread of JAX from now on.

    When a thread that Python did not start calls into it, Python makes a thread state, and
    frees it after the call. Freeing unmaps memory, which interrupts all other cores; while
    they are computing, that takes longer than the rest of a host call. JAX has few threads,
    and they live long, so each keeps its state.
    """
    if not _thread.is_kept and next(_kept) < _MOST_KEPT:
        _thread.is_kept = True
        ctypes.pythonapi.PyGILState_Ensure()  # without the release that would free it
