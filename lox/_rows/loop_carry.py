"""What a loop carries along: accumulators of reduced keys, rings of rows, threaded state.

A loop that runs its body n times logs n times what the body logs. Where that cannot simply
be stacked, because keys are reduced or n is not known, it is gathered in the carry:

    state = threaded state, accumulators, rings

    before the loop    what the program has handed us, no rows at all, empty rings
    each iteration     the last state; combine(accumulator, rows); push(ring, rows)
    after the loop     the last state; accumulators; the rows of the rings, oldest first

A ring has room for `capacity` rows, and overwrites the oldest ones. For `capacity` 4, after
six rows:

    written at   5 % 4 = 1          0   1   2   3
                                  [ r4, r5, r2, r3 ]    ->    r2, r3, r4, r5

Invariant: the state has the same form before and after each iteration. So everything in it
is brought into a form that is known before the loop runs.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lox._jax import sharding
from lox._rows.accumulator import Accumulator, Entry, empty
from lox._rows.align import align, common_form, masked
from lox._rows.collected import Collected, Threaded
from lox._rows.merge import combine
from lox._rows.rows import Rows, counted
from lox._rows.types import Keys

# The columns of a ring, and how many rows were pushed and logged.
Ring = tuple[Any, jax.Array, jax.Array]
State = tuple[Threaded, dict[Keys, Accumulator], dict[Keys, Ring]]


@dataclasses.dataclass(frozen=True)
class Gathering:
    """How the logs of a loop are gathered.

    Args:
        logs: What one iteration logs, as abstract arrays.
        capacities: For keys whose rows go into a ring, how many of them are kept.
        every: Of how many rows one is kept.
        batch: The axes that all that is carried must have in front, because some examples
            finish before others.
    """

    logs: Collected
    capacities: Mapping[Keys, int]
    every: int = 1
    batch: tuple[int, ...] = ()

    def start(self, given: Threaded) -> State:
        """Return the state before the first iteration, given what the loop was handed."""
        threaded = self._widened(given.limited_to(self.logs.threaded))
        totals = {keys: empty(form) for keys, form in self._totals().items()}
        rings = {k: empty_ring(self._row(k), n) for k, n in self.capacities.items()}
        return _for_each_device((threaded, totals, rings))

    def threaded(self, state: State) -> Threaded:
        """Return what an iteration is handed."""
        threaded, *_ = state
        if not self.batch or threaded.token is None:
            return threaded
        return dataclasses.replace(threaded, token=threaded.token.max())

    def add(self, state: State, logs: Collected) -> tuple[State, Collected]:
        """Add what an iteration has logged. What is left of it leaves the loop as rows."""
        _, totals, rings = state
        rows, new, forms = logs.rows, logs.accumulators, self._totals()
        totals = {
            keys: align(combine(keys, [total, new[keys]]), forms[keys])
            for keys, total in totals.items()
        }
        rings = {
            keys: push(ring, align(rows.pop(keys), self._row(keys)), self.capacities[keys])
            for keys, ring in rings.items()
        }
        left = {key for keys in rows for key in keys}
        rest = Collected(rows, tuple(key for key in logs.order if key in left))
        return _for_each_device((self._widened(logs.threaded), totals, rings)), rest

    def finish(self, state: State, rows: Collected, length: int | None) -> Collected:
        """Return what the loop has logged in `length` iterations. None: nobody knows.

        `rows` are those that have left the loop already.
        """
        _, totals, rings = state
        gathered: dict[Keys, Entry] = dict(rows.groups)
        for keys, each in self.logs.accumulators.items():
            total = totals[keys]
            gathered[keys] = total.replace(
                valid=None if length and each.valid is None else total.valid,
                paths=each.paths if length else (),
            )
        for keys, ring in rings.items():
            row, capacity = self._row(keys), self.capacities[keys]
            kept = ordered(ring, row, capacity)
            if length is None:
                bound = capacity * self.every
                kept = kept.replace(count=ring[2], exact=False, bound=bound)
            else:
                count = None if row.count is None else ring[2]
                kept = kept.replace(count=count, bound=row.bound * length)
            gathered[keys] = kept
        return Collected(
            {keys: gathered[keys] for keys in self.logs.groups or gathered},
            self.logs.order or rows.order,
            self.threaded(state),
        )

    def _totals(self) -> dict[Keys, Accumulator]:
        """Return the forms of the accumulators."""
        each = self.logs.accumulators.items()
        return {keys: masked(common_form(keys, [total])) for keys, total in each}

    def _row(self, keys: Keys) -> Rows:
        """Return the form of the rows of one iteration, each with a mask."""
        return masked(common_form(keys, [self.logs.rows[keys]], time=True))

    def _widened(self, threaded: Threaded) -> Threaded:
        """Return the state with the axes that all that is carried must have.

        Those of counts are there; the token of host calls is one for all examples.
        """
        if not self.batch or threaded.token is None:
            return threaded
        token = jnp.broadcast_to(threaded.token, self.batch)
        return dataclasses.replace(threaded, token=token)


def _for_each_device(state: State) -> State:
    """What is carried, of one type in all iterations of a loop inside of a `shard_map`."""
    return jax.tree.map(sharding.make_varying, state)


def _columns(rows: Rows) -> Any:
    return rows.value, rows.steps, rows.masks


def empty_ring(row: Rows, capacity: int) -> Ring:
    """Return an empty ring: arrays with the axes `*batch, capacity, ...`, and two counts.

    They count the rows that were pushed, and those that were logged.
    """
    n = len(row.batch)

    def zeros(x):
        shape = (*x.shape[1 : 1 + n], capacity, *x.shape[1 + n :])
        axes = [*range(1, 1 + n), None, *range(1 + n, x.ndim)]
        like = sharding.abstract_array(shape, x.dtype, x, axes)
        return sharding.shard_like(jnp.zeros(shape, x.dtype), like)

    none = jnp.zeros(row.batch, jnp.int32)
    return jax.tree.map(zeros, _columns(row)), none, none


def push(ring: Ring, rows: Rows, capacity: int) -> Ring:
    """Append the rows that were really logged."""

    def write(column, count, x, valid):
        at = count % capacity
        # Nothing is copied, also where nothing is written.
        old = lax.dynamic_index_in_dim(column, at, 0, keepdims=False)
        return lax.dynamic_update_index_in_dim(column, jnp.where(valid, x, old), at, 0)

    for _ in rows.batch:
        write = jax.vmap(write)

    def append(pushed, row):
        (columns, count), (xs, valid) = pushed, row
        columns = jax.tree.map(lambda c, x: write(c, count, x, valid), columns, xs)
        return (columns, count + valid.astype(jnp.int32)), None

    columns, count, total = ring
    (columns, count), _ = lax.scan(append, (columns, count), (_columns(rows), rows.valid))
    return columns, count, total + counted(rows)


def ordered(ring: Ring, row: Rows, capacity: int) -> Rows:
    """Return the rows of a ring, oldest first, those that exist valid."""
    columns, count, total = ring

    def read(column, count):
        oldest = jnp.where(count > capacity, count % capacity, 0)
        return jnp.roll(column, -oldest, axis=0)

    for _ in row.batch:
        read = jax.vmap(read)
    columns = jax.tree.map(lambda column: read(column, count), columns)
    return in_ring((columns, count, total), row, capacity)


def in_ring(ring: Ring, row: Rows, capacity: int) -> Rows:
    """Return the rows of a ring as they are in there, those that exist valid."""
    columns, count, _ = ring

    def exists(count):
        return jnp.arange(capacity, dtype=jnp.int32) < count

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


def shortened(key: str, rows: Rows, capacity: int) -> Rows:
    """Move the valid rows to the front, in as many rows as there can be valid ones."""
    if not rows.time or rows.length <= capacity:
        return rows
    target = common_form((key,), [rows], time=True)
    short = ordered(push(empty_ring(target, capacity), rows, capacity), target, capacity)
    return short.replace(count=rows.count)
