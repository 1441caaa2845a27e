"""`tap`: call a function with logs while the program runs."""

import functools as ft
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from lox._core.collect import Collect
from lox._core.interpreter import Interpreter
from lox._core.log import check_function
from lox._core.options import check_positive, check_prefix, listening, selection
from lox._core.record import Delivery, listed
from lox._core.staging import Traced
from lox._core.transform import transformed
from lox._core.when import Condition, check_when
from lox._jax import equations, tracing
from lox._jax.types import AnyArray, Program, PyTree
from lox._logdict.logdict import logdict
from lox._rows.types import P, R
from lox._stream.callbacks import (
    awaited,
    call_soon,
    callback_thread,
    start_callbacks,
    stopped,
)
from lox._stream.decode import decoders
from lox._stream.default_print import print_logs
from lox._stream.handler import Tap
from lox._stream.host_call_order import last_token
from lox._stream.packet import Listens, Packet
from lox._stream.returned_packets import Returned, can_return_records, return_records
from lox_host.frozen import frozen
from lox_host.interrupts import watch_signals


def tap(
    fun: Callable[P, R],
    callback: Callable[[logdict], Any] | None = None,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    prefix: str = "",
    *,
    interval: int | None = None,
    batch: int | None = None,
    process: bool = False,
    when: Callable[[logdict], Any] | None = None,
) -> Callable[P, R]:
    """Call a function with what `fun` logs, while `fun` runs.

    For each record, in the order of execution, the callback gets a `logdict` with NumPy
    arrays. It runs on a separate thread, so it may use JAX, sleep or log. If it is too
    slow, the program waits. A tapped function returns once all of its callbacks have
    returned. A jitted function returns at once, as always in JAX, whether you write
    `jax.jit(lox.tap(f))` or `lox.tap(jax.jit(f))`: use `lox.barrier` to wait for its
    callbacks.

    All logs are also passed on to the next transformation outwards, but lox no longer
    prints them.

    Under `vmap`, the callback is called once for each example that logs, with the index of
    the example as the step `example`. Your own steps then need other names.

    Args:
        fun: Any JAX function, with loops of any kind.
        callback: The function to call. By default, logs are printed.
        argnames: The key or keys to listen to.
        tags: The tag or tags to listen to. With both `argnames` and `tags`, both must
            match.
        prefix: Put before each key.
        interval: Call only for rows 0, k, 2k, ... of each key.
        batch: How many rows of a key to collect on the device for each call. Rows are
            stacked as by `lox.spool`, over the outermost loop around them. When that loop
            ends, the callback gets the remaining rows.
        process: Whether to add a step `process`, the `jax.process_index()` of the process
            that calls the callback. If several processes (`jax.distributed`) run a program
            together, only the first one does; in a `shard_map`, each of them calls it for
            its own devices.
        when: Call for a record only if this function returns true for it, such as
            `lambda logs: logs["loss"] > 5` or `lox.nonfinite`. It runs on the device, for
            each record and each example. Where it is false, the host is not called. An
            `interval` counts only the rows for which it is true.

    Returns:
        A function that does and returns what `fun` does.

    Example:
        >>> def f(xs):
        ...     def step(total, x):
        ...         lox.log({"total": total + x}, step=x)
        ...         return total + x, None
        ...     return jax.lax.scan(step, 0, xs)[0]
        >>> lox.tap(f)(jnp.arange(3)).item()
        {'total': 0} step=0
        {'total': 1} step=1
        {'total': 3} step=2
        3
        >>> lox.tap(f, lambda logs: print(logs), batch=2)(jnp.arange(3)).item()
        {'total': [0, 1]}
        {'total': [3]}
        3
    """
    check_function("lox.tap", fun)
    callback = print_logs if callback is None else callback
    if not callable(callback):
        raise TypeError(f"The callback of `lox.tap` must be a function, not {callback!r}.")
    check_prefix(prefix)
    start_callbacks()
    watch_signals()
    listener = Listener(_identified(callback), prefix, process)
    check_when("lox.tap", when)
    tapping = tapped(fun, listener, argnames, tags, interval, batch, when=when)
    around = stopped if isinstance(fun, equations.Jitted) else awaited
    return around(tapping, listener)


def tapped(
    fun: Callable,
    listener: Listens,
    argnames: str | Iterable[str] | None,
    tags: str | Iterable[str] | None,
    interval: int | None,
    batch: int | None,
    run: AnyArray = None,
    when: Condition | None = None,
) -> Callable:
    """Return `fun` with its logs sent to the listener, together with their run.

    Args:
        fun: The function.
        listener: Takes the packets.
        argnames: The keys to send. None: all of them.
        tags: The tags to send.
        interval: Send one of this many rows of each key.
        batch: How many rows of a key to send together.
        run: The number of the run, if there is one.
        when: The condition for a record to be sent.
    """
    check_positive(interval=interval, batch=batch)
    # Rows are always sent as they are, whatever reduction the calls of `log` ask for.
    collect = Collect(
        keys=selection(argnames, "argnames"),
        tags=selection(tags, "tags"),
        keep=True,
        reduce=((None, "append"),),
        interval=interval,
        when=when,
    )
    options = collect, listener, batch
    by_host_calls = ft.partial(transformed, fun, ft.partial(_tap, *options), options, run)
    if not isinstance(fun, equations.Jitted):
        return by_host_calls()
    returning = transformed(
        fun, ft.partial(_tap_returning, *options), (Returned, *options), run
    )

    @ft.wraps(fun)
    def tapped_call(*args: PyTree, **kwargs: PyTree) -> PyTree:
        # An output must not be NaN for `jax_debug_nans`, but what is logged may well be.
        is_debugging = jax.config.jax_debug_nans or jax.config.jax_debug_infs
        if is_debugging or not tracing.is_eager():
            return by_host_calls()(*args, **kwargs)
        out, packets = returning(*args, **kwargs)
        for packet in packets:
            packet.deliver_when_ready()
        return out

    return tapped_call


def _tap(
    collect: Collect,
    listener: Listens,
    batch: int | None,
    run: AnyArray,
    fun: Callable,
    *args: PyTree,
    **kwargs: PyTree,
) -> PyTree:
    """Call a function, and send what it logs by host calls."""
    traced, collect = listening("lox.tap", collect, fun, *args, **kwargs)
    return _with_host_calls(collect, listener, batch, run, traced)


def _tap_returning(
    collect: Collect,
    listener: Listens,
    batch: int | None,
    run: AnyArray,
    fun: Callable,
    *args: PyTree,
    **kwargs: PyTree,
) -> tuple[PyTree, list[Returned]]:
    """Call a function, and return what it logs where that is possible."""
    traced, collect = listening("lox.tap", collect, fun, *args, **kwargs)
    if not can_return_records(traced):
        return _with_host_calls(collect, listener, batch, run, traced), []
    listener = listener.configured(traced.jaxpr, collect.interval)
    return return_records(collect, run, listener, traced)


def _with_host_calls(
    collect: Collect, listener: Listens, batch: int | None, run: AnyArray, traced: Traced
) -> PyTree:
    callback = listener.configured(traced.jaxpr, collect.interval)
    # The first host call comes after those that the program has made so far.
    interpreter = Interpreter(Tap(collect, last_token(), run, callback, batch)).on_device()
    outs, _ = interpreter(traced.jaxpr, *traced.args)
    return traced.output(outs)


@frozen
class Listener:
    """Calls a callback with the logs in packets, on the callback thread."""

    callback: Callable[[logdict], object]
    prefix: str
    process: bool

    def __str__(self) -> str:
        return "The callback of `lox.tap`"

    def configured(self, jaxpr: Program, interval: int | None) -> "Listener":
        return self

    def check_steps(self, deliveries: Sequence[Delivery]) -> None:
        """Raise if a user's step has the name of a step that the callback gets from lox."""
        for delivery in deliveries:
            steps = delivery.logs.steps
            if delivery.batch and "example" in steps:
                raise ValueError(
                    f"{listed(steps['example'])} is logged with a step called 'example', "
                    "which is where `lox.tap` puts the index of the example under `vmap`. "
                    "Give your step another name, or tap outside: `lox.tap(jax.vmap(f))`."
                )
            if self.process and "process" in steps:
                raise ValueError(
                    f"{listed(steps['process'])} is logged with a step called 'process', "
                    "which is where `lox.tap(process=True)` puts the index of the process. "
                    "Give your step another name."
                )

    def __call__(self, packet: Packet) -> None:
        call_soon(self, self._deliver, packet)

    def wait_for_room(self) -> None:
        callback_thread.wait_for_room()

    def _deliver(self, packet: Packet) -> None:
        callback = self._call_with_process if self.process else self.callback
        for decoder in decoders(packet.layout, self.prefix):
            if decoder.is_single:
                callback(decoder.decode(packet.arrays))
            else:
                for logs in decoder.decode_examples(packet.arrays):
                    callback(logs)

    def _call_with_process(self, logs: logdict) -> None:
        number = np.array(jax.process_index())
        rows = logs.rows().items()
        self.callback(
            logdict.of({key: r.with_steps({"process": number}) for key, r in rows})
        )


def _identified(callback: Callable) -> Callable:
    """Return the callback in a form that is hashed by identity, to cache programs by."""
    # An object may be equal to another one, or not hashable. Its bound method is compared
    # by the identity of the object.
    kinds = types.FunctionType | types.BuiltinFunctionType | types.MethodType
    return callback if isinstance(callback, kinds) else callback.__call__
