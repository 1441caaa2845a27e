"""A ring: room for the last rows of some keys, which are written in place.

How many rows a `while_loop` logs is known only when it is over, so they go into arrays of a
fixed capacity, which the loop carries along. The oldest rows are overwritten. For a
capacity of 4, after six rows:

    written at   5 % 4 = 1          0   1   2   3
                                  [ r4, r5, r2, r3 ]    ->    r2, r3, r4, r5

Under `vmap`, examples may log different numbers of rows. Then each has its own count, and
its own place for the next row. If all of them log the same rows, there is one count:

    count    ()  or  *batch
    columns  *batch, capacity, ...      the batch axes are in front here, not those of time
    rows     time, *batch, ...          what is pushed, and what comes out in the end

A loop that carries a large array is quick only as long as nothing touches the array as a
whole, so rows are written by a primitive of their own, see `ring_write.py`.

Invariant: where no row is valid, a ring stays what it is, to the last bit.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from lox._jax import sharding
from lox._jax.types import AnyArray, PyTree
from lox._rows.ring_write import write_p
from lox._rows.rows import Rows, counted
from lox_host.frozen import frozen

# The value, the steps and the masks of `Rows`.
Columns = tuple[PyTree, dict[str, AnyArray], dict[str, AnyArray]]


@jax.tree_util.register_dataclass
@frozen
class Ring:
    """Room for some rows.

    Attributes:
        columns: The value, the steps and the masks of `Rows`, with the axes
            `*batch, capacity, ...`.
        count: How many rows were written: one number if all examples have logged the same
            rows, otherwise `*batch`.
        logged: How many rows were logged, if some of them were lost before. None: as many
            as were written.
    """

    columns: Columns
    count: jax.Array
    logged: jax.Array | None

    def replace(self, **changes: Any) -> "Ring":
        return dataclasses.replace(self, **changes)


def empty_ring(row: Rows, capacity: int) -> Ring:
    """Return room for so many rows of this form."""
    n = len(row.batch)

    def zeros(x: AnyArray) -> jax.Array:
        # (1, *batch, ...) -> (*batch, capacity, ...), with the shardings of a row
        shape = (*x.shape[1 : 1 + n], capacity, *x.shape[1 + n :])
        axes = [*range(1, 1 + n), None, *range(1 + n, x.ndim)]
        like = sharding.abstract_array(shape, x.dtype, x, axes)
        return sharding.shard_like(jnp.zeros(shape, x.dtype), like)

    # If all examples have the same rows, one count serves all of them.
    is_shared = row.valid is None or row.alike
    count = jnp.zeros(() if is_shared else row.batch, jnp.int32)
    logged = None if row.count is None else jnp.zeros(row.batch, jnp.int32)
    return Ring(jax.tree.map(zeros, _columns(row)), count, logged)


def push(ring: Ring, rows: Rows, *, differentiable: bool = False) -> Ring:
    """Append the rows that were really logged. They have the form of the ring.

    Args:
        ring: The ring.
        rows: The rows.
        differentiable: Whether the ring carries their derivatives.
    """
    columns, tree = jax.tree.flatten(ring.columns)
    masks = [] if rows.valid is None else [rows.valid]
    if rows.alike:
        # (n, *batch) -> (n,)
        for _ in rows.batch:
            masks = [lax.index_in_dim(mask, 0, 1, keepdims=False) for mask in masks]
    operands = [*columns, *jax.tree.leaves(_columns(rows)), ring.count, *masks]
    *columns, count = write_p.bind(
        *map(sharding.make_varying, operands),
        batch=len(rows.batch),
        masked=len(masks),
        differentiable=differentiable,
    )
    # Rows that a loop inside has already lost are counted, but they are not here to write.
    logged = None if ring.logged is None else ring.logged + counted(rows)
    return Ring(jax.tree.unflatten(tree, columns), count, logged)


def ordered(ring: Ring, row: Rows) -> Rows:
    """Return the rows of a ring, oldest first, those that exist valid."""
    n = len(row.batch)
    capacity = _capacity(ring, row)

    # In a full ring, the next row to be overwritten is the oldest. Before, it is row 0.
    oldest = jnp.where(ring.count > capacity, lax.rem(ring.count, jnp.int32(capacity)), 0)
    # (*index) -> (*index, capacity): oldest 2 of capacity 4 gives the order 2 3 0 1
    shift = lax.expand_dims(oldest, (oldest.ndim,))
    numbers = lax.broadcasted_iota(jnp.int32, (*oldest.shape, capacity), oldest.ndim)
    order = lax.rem(shift + numbers, jnp.int32(capacity))

    def read(column: jax.Array, order: jax.Array) -> jax.Array:
        return jnp.take(column, order, axis=n - ring.count.ndim, mode="clip")

    # The order has all batch axes or none. Those that it has are mapped over.
    for _ in range(ring.count.ndim):
        read = jax.vmap(read)
    columns = jax.tree.map(lambda column: read(column, order), ring.columns)
    return in_ring(ring.replace(columns=columns), row)


def in_ring(ring: Ring, row: Rows) -> Rows:
    """Return the rows of a ring as they are in there, those that exist valid."""
    n = len(row.batch)
    capacity = _capacity(ring, row)
    # (capacity, 1, ...) < (1, *batch) -> (capacity, *batch)
    count = jnp.broadcast_to(ring.count, (1, *row.batch))
    exists = jnp.arange(capacity, dtype=jnp.int32).reshape(-1, *[1] * n) < count

    def in_front(x: jax.Array) -> jax.Array:
        # (*batch, capacity, ...) -> (capacity, *batch, ...), which is the axis of time
        return jnp.moveaxis(x, n, 0)

    value, steps, masks = jax.tree.map(in_front, ring.columns)
    return row.replace(value=value, steps=steps, masks=masks, valid=exists, count=None)


def count_of(ring: Ring, row: Rows) -> jax.Array:
    """Return how many rows were logged, `*batch`."""
    if ring.logged is not None:
        return ring.logged
    return jnp.broadcast_to(ring.count, row.batch)


def _columns(rows: Rows) -> Columns:
    return rows.value, rows.steps, rows.masks


def _capacity(ring: Ring, row: Rows) -> int:
    return jax.tree.leaves(ring.columns)[0].shape[len(row.batch)]
