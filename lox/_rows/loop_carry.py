"""What a loop gathers in its carry: accumulators of reduced keys, buffers of rows."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lox._jax import sharding
from lox._logdict.logdict import logdict
from lox._rows.accumulator import Accumulator, form
from lox._rows.merge import fitted, is_handed_on, merge
from lox._rows.rows import Rows, common, conform, counted, mask_over

State = tuple[dict[str, Any], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Gathering:
    """How the logs of a loop are gathered.

    Args:
        logs: What one iteration logs, as abstract arrays.
        rooms: For keys whose rows go into a buffer, how many of them are kept.
        every: Of how many rows one is kept.
        batch: The axes that all that is carried must have in front, because some examples
            finish before others.
    """

    logs: logdict
    rooms: Mapping[str, int]
    every: int = 1
    batch: tuple[int, ...] = ()

    def start(self, handed_on: Mapping[str, Any] = {}) -> State:
        """The state before the first iteration, given what the loop has been handed."""
        totals = {key: fitted(None, self._total(key)) for key in self._reduced()}
        totals |= {key: own for key, own in handed_on.items() if key in self.logs}
        buffers = {
            key: empty_buffer(self._row(key), room) for key, room in self.rooms.items()
        }
        return _for_each_device((totals, buffers))

    def add(self, state: State, logs: logdict) -> tuple[State, logdict]:
        """Add what an iteration has logged. What is left of it leaves the loop as rows."""
        totals, buffers = map(dict, state)
        rows: dict[str, Any] = logs.rows()  # pyright: ignore[reportAssignmentType]
        for key, total in totals.items():
            both = merge(key, [total, rows.pop(key)])
            totals[key] = fitted(both, self._total(key))
        for key, buffer in buffers.items():
            row = self._row(key)
            buffers[key] = push(buffer, conform(rows.pop(key), row), self.rooms[key])
        return _for_each_device((totals, buffers)), logdict.of(rows)

    def finish(self, state: State, length: int | None) -> dict[str, Rows | Accumulator]:
        """What has been gathered after `length` iterations. None: nobody knows."""
        totals, buffers = state
        gathered = dict(totals)
        for key, each in self._reduced().items():
            total = totals[key]
            if len(each.batch) < len(total.batch):
                total = total.map(lambda x: x.max(range(len(self.batch))), batch=())
            gathered[key] = total.replace(
                valid=None if length and each.valid is None else total.valid,
                paths=each.paths if length else (),
            )
        for key, buffer in buffers.items():
            row, room = self._row(key), self.rooms[key]
            rows = ordered(buffer, row, room)
            if length is None:
                rows = rows.replace(count=buffer[2], sure=False, bound=room * self.every)
            else:
                count = None if row.count is None else buffer[2]
                rows = rows.replace(count=count, bound=row.bound * length)
            gathered[key] = rows
        return gathered

    def _reduced(self) -> dict[str, Accumulator]:
        rows = self.logs.rows()
        return {key: own for key, own in rows.items() if isinstance(own, Accumulator)}

    def _total(self, key: str) -> Any:
        own: Any = self.logs.rows()[key]
        if is_handed_on(own):
            return own
        total = form(key, [own])
        if total.batch or not self.batch:
            return total
        # Something of the host calls, which all examples share.
        widen = lambda x: jax.ShapeDtypeStruct(self.batch + x.shape, x.dtype)  # noqa: E731
        return total.map(widen, batch=self.batch)

    def _row(self, key: str) -> Rows:
        """The rows of one iteration, each with a mask."""
        rows = common(key, [self.logs.rows()[key]], time=True)
        return rows.replace(valid=mask_over(rows))


def _for_each_device(state: State) -> State:
    """What is carried, of one type in all iterations of a loop inside of a `shard_map`."""
    return jax.tree.map(sharding.make_varying, state)


def _columns(rows: Rows) -> Any:
    return rows.value, rows.steps, rows.masks


def empty_buffer(row: Rows, room: int) -> Any:
    """An empty ring of rows: arrays with the axes `*batch, room, ...`, and two counts.

    They are those of the rows that were pushed, and of those that were logged.
    """
    n = len(row.batch)

    def zeros(x):
        shape = (*x.shape[1 : 1 + n], room, *x.shape[1 + n :])
        axes = [*range(1, 1 + n), None, *range(1 + n, x.ndim)]
        like = sharding.abstract_array(shape, x.dtype, x, axes)
        return sharding.shard_like(jnp.zeros(shape, x.dtype), like)

    none = jnp.zeros(row.batch, jnp.int32)
    return jax.tree.map(zeros, _columns(row)), none, none


def push(buffer: Any, rows: Rows, room: int) -> Any:
    """Append the rows that were really logged."""

    def write(column, count, x, valid):
        at = count % room
        # Nothing is copied, also where nothing is written.
        old = lax.dynamic_index_in_dim(column, at, 0, keepdims=False)
        return lax.dynamic_update_index_in_dim(column, jnp.where(valid, x, old), at, 0)

    for _ in rows.batch:
        write = jax.vmap(write)

    def append(pushed, row):
        (columns, count), (xs, valid) = pushed, row
        columns = jax.tree.map(lambda c, x: write(c, count, x, valid), columns, xs)
        return (columns, count + valid.astype(jnp.int32)), None

    *pushed, total = buffer
    pushed, _ = lax.scan(append, tuple(pushed), (_columns(rows), rows.valid))
    return *pushed, total + counted(rows)


def ordered(buffer: Any, row: Rows, room: int) -> Rows:
    """The rows of a ring, oldest first, those that exist valid."""
    columns, count, total = buffer

    def read(column, count):
        oldest = jnp.where(count > room, count % room, 0)
        return jnp.roll(column, -oldest, axis=0)

    for _ in row.batch:
        read = jax.vmap(read)
    columns = jax.tree.map(lambda column: read(column, count), columns)
    return in_ring((columns, count, total), row, room)


def in_ring(buffer: Any, row: Rows, room: int) -> Rows:
    """The rows of a ring as they are in there, those that exist valid."""
    columns, count, _ = buffer

    def exists(count):
        return jnp.arange(room, dtype=jnp.int32) < count

    for _ in row.batch:
        exists = jax.vmap(exists)
    n = len(row.batch)

    def in_front(x):
        return jnp.moveaxis(x, n, 0)

    value, steps, masks = jax.tree.map(in_front, columns)
    return row.replace(
        value=value,
        steps=steps,
        masks=masks,
        valid=in_front(exists(count)),
        count=None,
    )


def shortened(key: str, rows: Rows, room: int) -> Rows:
    """The valid rows at the front, in as many rows as there can be valid ones."""
    if not rows.time or rows.length <= room:
        return rows
    target = common(key, [rows], time=True)
    short = ordered(push(empty_buffer(target, room), rows, room), target, room)
    return short.replace(count=rows.count)
