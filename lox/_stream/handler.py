"""`Tap`: the handler that sends what it collects to the host.

A `Collect` inside it selects records and turns them into rows. `Tap` decides when they are
sent, and keeps the order with a token that each host call returns for the next one:

    without `batch`            consecutive records share one call, right where they are
    batch=k, known length      the loop is cut into chunks, one call per chunk (`chunk`)
    batch=k, unknown length    rows wait in a buffer, which is sent when it is full and when
                               the outermost such loop ends (`buffering`, `flush`)

Token and buffer are threaded state: rules carry them through loops, branches and calls.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from lox._core.analysis import is_bounded, lets_buffer_everywhere
from lox._core.collect import Collect
from lox._core.handler import Handler
from lox._core.record import Delivery, Record
from lox._jax import equations, sharding
from lox._jax.extend import JaxprEqn
from lox._jax.types import AnyArray, Code, Program, PyTree
from lox._logdict.logdict import logdict
from lox._rows.align import per_example
from lox._rows.collected import Collected, Threaded, rows_by_key
from lox._rows.loop_carry import Buffer
from lox._rows.rows import Where, static, without_keys
from lox._stream.buffer import any_example
from lox._stream.emit import emit
from lox._stream.packet import Packet
from lox_host.frozen import frozen


@jax.tree_util.register_dataclass
@frozen
class Tap(Handler):
    """Call the host with the selected keys, and pass all records on outwards.

    Attributes:
        collect: Collects what is to be delivered.
        token: The token of the last host call. The next call takes it, to come after.
        run: The number of the run that the records belong to. None: there is none.
        buffer: Where rows wait to be sent together. None: they are sent at once.
        callback: What the host calls.
        batch: How many rows of a key to send in one call, not counting rows that an
            interval leaves out. None: send each record at once.
        batch_axes: The sizes of the axes of the `vmap`s around.
    """

    collect: Collect
    token: AnyArray
    run: AnyArray
    buffer: Buffer | None = dataclasses.field(default=None, kw_only=True)
    callback: Callable[[Packet], None] = static()
    batch: int | None = static(default=None)
    batch_axes: tuple[int, ...] = static(default=())

    captures = True

    def concerns(self, program: Code) -> bool:
        return self.collect.concerns(program)

    def handle(self, record: Record, where: Where) -> Collected:
        return self.collect.handle(record, where)

    def carries(self) -> bool:
        return True

    def every(self) -> int:
        return self.collect.every()

    def chunk(
        self, body: Sequence[Program], rows: Callable[[], int], length: int | None
    ) -> int | None:
        if self.batch is None or self.buffer or not all(map(is_bounded, body)):
            return None
        # Of `batch * interval` consecutive rows, `batch` are kept. If one iteration logs
        # `number` rows, that takes `batch * interval / number` iterations.
        number = max(1, rows())
        size = max(1, self.batch * self.every() // number)
        if length is None or number == 1:
            return size
        # Make as many calls, but of equal size if possible: otherwise the last iterations
        # need a program of their own. With size 4, a loop of length 9 needs 3 calls anyway,
        # so each gets 3 iterations. For length 10, it stays at 4, 4 and 2.
        calls = -(-length // size)
        return size if length % calls else length // calls

    def buffering(self, loop: JaxprEqn, logs: Callable[[], Collected]) -> Self | None:
        # Inside a `vmap` or `shard_map` that is around the tap too, each example or
        # device would need a buffer of its own. There, rows are sent at once.
        if self.batch is None or self.buffer or self.batch_axes or self.collect.coordinates:
            return None
        is_bounded_loop = all(map(is_bounded, equations.jaxprs_in(loop.params)))
        if is_bounded_loop or not lets_buffer_everywhere(loop):
            return None
        rows = _sendable(logs())
        return self._replace(buffer=Buffer.of(rows, self.batch)) if rows.groups else None

    def threaded(self) -> Threaded:
        return dataclasses.replace(
            self.collect.threaded(), buffer=self.buffer, token=self.token
        )

    def after(self, state: Threaded) -> Self:
        return self._replace(
            collect=self.collect.after(dataclasses.replace(state, buffer=None)),
            buffer=self.buffer if state.buffer is None else state.buffer,
            token=self.token if state.token is None else state.token,
        )

    def deliver(
        self, parts: Sequence[Collected], iterations: ArrayLike
    ) -> Sequence[Collected]:
        """Send the collected rows to the host, and return the state after the call."""
        # `parts` are consecutive records, or what a chunk of a loop has collected.
        state = ft.reduce(Threaded.then, (part.threaded for part in parts), Threaded())
        sent = [rows for rows in map(_sendable, parts) if rows.groups]
        # What was sent is no longer collected: only the state is left.
        if sent and self.buffer:
            state = state.then(self._buffered(self.buffer, sent))
        elif sent:
            calls = [delivery_of(rows, self.run, self.batch_axes) for rows in sent]
            state = state.then(Threaded(token=emit(calls, self.callback, self.token)))
        return [Collected(threaded=state)]

    def _buffered(self, buffer: Buffer, parts: Sequence[Collected]) -> Threaded:
        """Add rows to the buffer, and send all of it whenever some key has enough rows."""
        token = self.token
        # One part at a time: the invariant of `buffer.py` is room for one more row.
        for rows in parts:
            buffer = buffer.add(rows)
            is_full = any_example(buffer.is_full())
            send = ft.partial(self._send, buffer, token)
            token = jax.lax.cond(is_full, send, lambda token=token: token)
            buffer = buffer.emptied(is_full)
        return Threaded(buffer=buffer, token=token)

    def flush(self, logs: Collected) -> Collected:
        """Send the rows that are still waiting when a loop ends."""
        assert self.buffer is not None
        token = self._send(self.buffer, self.token)
        state = dataclasses.replace(logs.threaded, buffer=None, token=token)
        return logs.replace(threaded=state)

    def _send(self, buffer: Buffer, token: AnyArray) -> jax.Array:
        delivery = delivery_of(buffer.waiting(), self.run, self.batch_axes)
        # The counts say as much as the masks, which are as long as the buffer.
        return emit([delivery.replace(valid=buffer.has_rows())], self.callback, token)

    def _replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    def batched(self, size: int) -> Self:
        return self._replace(
            collect=self.collect.batched(size), batch_axes=(size, *self.batch_axes)
        )

    def unbatched(self, batched: PyTree) -> Self | None:
        # All tokens are zero, so the largest is as good as any, and depends on all of them.
        token = self.token.max(0) if batched.token else self.token
        collect = self.collect.unbatched(batched.collect)
        return collect and self._replace(collect=collect, token=token)

    def per_device(self, records: Sequence[Record]) -> Self:
        shared = jax.tree.map(lambda _: sharding.Division(), self)
        return shared._replace(collect=self.collect.per_device(records))

    def on_device(self) -> Self:
        coordinates = sharding.coordinates()
        return self._replace(
            collect=dataclasses.replace(self.collect, coordinates=coordinates)
        )

    def only(self, keys: frozenset[str]) -> Self:
        return self._replace(collect=self.collect.only(keys))

    def quiet(self) -> Self:
        return self._replace(collect=self.collect.quiet())

    def collecting(self, capacity: int | None = None) -> Collect:
        return dataclasses.replace(self.collect, capacity=capacity)


def _sendable(logs: Collected) -> Collected:
    """Return the rows of those keys that have any."""
    groups = {keys: rows for keys, rows in logs.rows.items() if rows.bound}
    held = {key for keys in groups for key in keys}
    return Collected(groups, tuple(key for key in logs.order if key in held))


def delivery_of(logs: Collected, run: AnyArray, batch_axes: tuple[int, ...]) -> Delivery:
    """Return what a host call brings: rows with their run, valid if any row is.

    Either everything in a delivery has the axes of the `vmap`s around, or nothing has: what
    is the same for all examples is then delivered once.
    """
    n = len(batch_axes)
    groups = {
        keys: without_keys(rows.without_origin().replace(count=None))
        for keys, rows in logs.rows.items()
    }
    # Under `vmap`, each example has its run. Without runs, it is batched if any row is.
    is_batched = np.ndim(run) > 0 or any(
        rows.batch[:n] == batch_axes for rows in groups.values()
    )
    batch = batch_axes if is_batched else ()
    # The axis of examples comes first: ([time,] size, ...) -> (size, [time,] ...)
    for _ in batch:
        groups = {k: per_example(rows, batch_axes[0]) for k, rows in groups.items()}
    # Without any mask, every example has logged.
    masks = [rows.valid for rows in groups.values()]
    valid = None
    if any(mask is not None for mask in masks):
        # (groups, *batch) -> (*batch)
        valid = jnp.stack([_any(mask, batch) for mask in masks]).any(0)
    rows = logdict.of(rows_by_key(groups, logs.order))
    run = None if run is None else jnp.broadcast_to(run, batch)
    return Delivery(logs=rows, run=run, valid=valid, batch=batch)


def _any(mask: AnyArray | None, batch: tuple[int, ...]) -> jax.Array:
    """Return which examples have any row."""
    if mask is None:
        return jnp.ones(batch, bool)
    return mask.any(range(len(batch), mask.ndim))
