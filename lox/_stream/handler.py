"""`Tap`: the handler that sends what it collects to the host."""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from lox._core.analysis import is_bounded, lets_buffer_everywhere
from lox._core.collect import Collect
from lox._core.handler import Handler
from lox._core.record import Delivery, Record
from lox._jax import equations, sharding
from lox._logdict.logdict import logdict
from lox._rows.align import per_example
from lox._rows.collected import Collected, Threaded, rows_by_key
from lox._rows.loop_carry import Buffer
from lox._rows.rows import Where, static, without_keys
from lox._stream.buffer import any_example
from lox._stream.emit import emit
from lox._stream.packet import Packet


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tap(Handler):
    """Call the host with the selected keys; all records go on outward.

    Attributes:
        collect: Collects what is to be delivered.
        token: Comes from the last host call: the next one comes after it.
        run: What each record goes with: the number of the run that it belongs to.
        callback: What the host calls.
        batch: Every how many rows of a key, of those that an interval keeps, a loop
            delivers them. None: each record.
        batch_axes: Sizes of the axes that come from `vmap`s around.
        buffer: Where rows wait for others. None: they are delivered at once.
    """

    collect: Collect
    token: Any
    run: Any
    buffer: Buffer | None = dataclasses.field(default=None, kw_only=True)
    callback: Callable[[Packet], None] = static()
    batch: int | None = static(default=None)
    batch_axes: tuple[int, ...] = static(default=())

    captures = True

    def concerns(self, program: Any) -> bool:
        return self.collect.concerns(program)

    def handle(self, record: Record, where: Where) -> Collected:
        return self.collect.handle(record, where)

    def carries(self) -> bool:
        return True

    def every(self) -> int:
        return self.collect.every()

    def chunk(
        self, body: Sequence[Any], rows: Callable[[], int], length: int | None
    ) -> int | None:
        if self.batch is None or self.buffer or not all(map(is_bounded, body)):
            return None
        # Of any `batch * interval` rows in a row, `batch` are kept.
        number = max(1, rows())
        size = max(1, self.batch * self.every() // number)
        if length is None or number == 1:
            return size
        # As many calls with as many rows each, if that is possible: the last few iterations
        # are then no program of their own.
        calls = -(-length // size)
        return size if length % calls else length // calls

    def buffering(self, loop: JaxprEqn, logs: Callable[[], Collected]) -> Self | None:
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

    def deliver(self, parts: Sequence[Collected], iterations: Any) -> Sequence[Collected]:
        """Send the collected rows to the host, and return the state after that."""
        state = ft.reduce(Threaded.then, (part.threaded for part in parts), Threaded())
        sent = [rows for rows in map(_sendable, parts) if rows.groups]
        if sent and self.buffer:
            state = state.then(self._buffered(self.buffer, sent))
        elif sent:
            calls = [_delivery(rows, self.run, self.batch_axes) for rows in sent]
            state = state.then(Threaded(token=emit(calls, self.callback, self.token)))
        return [Collected(threaded=state)]

    def _buffered(self, buffer: Buffer, parts: Sequence[Collected]) -> Threaded:
        """Let rows wait until there are enough of some key, and send all that wait."""
        token = self.token
        for rows in parts:
            buffer = buffer.add(rows)
            is_full = any_example(buffer.is_full())
            send = ft.partial(self._send, buffer, token)
            token = jax.lax.cond(is_full, send, lambda token=token: token)
            buffer = buffer.emptied(is_full)
        return Threaded(buffer=buffer, token=token)

    def flush(self, logs: Collected) -> Collected:
        """Send the rows that still wait after a loop."""
        assert self.buffer is not None
        token = self._send(self.buffer, self.token)
        state = dataclasses.replace(logs.threaded, buffer=None, token=token)
        return logs.replace(threaded=state)

    def _send(self, buffer: Buffer, token: Any) -> jax.Array:
        delivery = _delivery(buffer.waiting(), self.run, self.batch_axes)
        return emit([delivery], self.callback, token)

    def _replace(self, **changes: Any) -> Self:
        return dataclasses.replace(self, **changes)

    def batched(self, size: int) -> Self:
        return self._replace(
            collect=self.collect.batched(size), batch_axes=(size, *self.batch_axes)
        )

    def unbatched(self, batched: Any) -> Self | None:
        token = self.token.max(0) if batched.token else self.token
        collect = self.collect.unbatched(batched.collect)
        return collect and self._replace(collect=collect, token=token)

    def per_device(self, records: Sequence[Record]) -> Self:
        shared = jax.tree.map(lambda _: -1, self)
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
    """Return the rows of keys that have any."""
    groups = {keys: rows for keys, rows in logs.rows.items() if rows.bound}
    held = {key for keys in groups for key in keys}
    return Collected(groups, tuple(key for key in logs.order if key in held))


def _delivery(logs: Collected, run: Any, batch_axes: tuple[int, ...]) -> Delivery:
    """Return what a host call brings: rows with their run, valid if any row is."""
    n = len(batch_axes)
    groups = {
        keys: without_keys(
            rows.replace(path=(), outer=0, exact=True, bound=1, count=None, where=Where())
        )
        for keys, rows in logs.rows.items()
    }
    is_batched = np.ndim(run) > 0 or any(
        rows.batch[:n] == batch_axes for rows in groups.values()
    )
    batch = batch_axes if is_batched else ()
    for _ in batch:
        groups = {k: per_example(rows, batch_axes[0]) for k, rows in groups.items()}
    # Without any mask, all of it is delivered as it is.
    masks = [rows.valid for rows in groups.values()]
    valid = None
    if any(mask is not None for mask in masks):
        each = [_any(mask, batch) for mask in masks]
        valid = jnp.stack(each).any(0)
    rows = logdict.of(rows_by_key(groups, logs.order))
    run = None if run is None else jnp.broadcast_to(run, batch)
    return Delivery(logs=rows, run=run, valid=valid, batch=batch)


def _any(mask: Any, batch: tuple[int, ...]) -> jax.Array:
    """Which examples have any row."""
    if mask is None:
        return jnp.ones(batch, bool)
    return mask.any(range(len(batch), mask.ndim))
