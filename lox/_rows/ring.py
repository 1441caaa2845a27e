"""A ring: room for the last rows of some keys, which are written in place.

How many rows a `while_loop` logs is known only when it is over, so they go into arrays of a
fixed capacity, which the loop carries along. The oldest rows are overwritten. For a
capacity of 4, after six rows:

    written at   5 % 4 = 1          0   1   2   3
                                  [ r4, r5, r2, r3 ]    ->    r2, r3, r4, r5

A loop that carries a large array is quick only as long as nothing touches the array as a
whole. XLA writes a row in place if the new array is the old one with that row replaced.
Selecting between two arrays, as JAX does for all that a vmapped `while_loop` carries, goes
through all rows in each iteration instead: a thousand times the work for a thousand rows.

So a row is written by a primitive of its own, `lox_write`, and whether it exists decides
where it is written, not which array is taken:

    columns' = columns with row at (count % capacity if valid else nowhere)
    count'   = count + valid

    valid, count   *index               one for each example that counts by itself
    columns        *index, *shared, capacity, ...
    rows           n, *index, *shared, ...

As long as `lox_write` is a primitive, the rule that batches a loop around it can find it,
narrow `valid` (see `lox._core.rules.exact_vmap`), and leave the ring out of the select:

    three examples, the second of which has finished

    valid  [1 0 1]    count  [2 1 2]    columns  [a0 a1 __]    ->    [a0 a1 a2]
                                                 [b0 __ __]          [b0 __ __]
                                                 [c0 c1 __]          [c0 c1 c2]

Invariant: where no row is valid, a ring stays what it is, to the last bit.
"""

import dataclasses
import functools as ft
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir

from lox._jax import sharding, tracing
from lox._jax.extend import Primitive
from lox._rows.rows import Rows, counted


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
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

    columns: Any
    count: jax.Array
    logged: jax.Array | None

    def replace(self, **changes: Any) -> "Ring":
        return dataclasses.replace(self, **changes)


def empty_ring(row: Rows, capacity: int) -> Ring:
    """Return room for so many rows of this form."""
    n = len(row.batch)

    def zeros(x):
        shape = (*x.shape[1 : 1 + n], capacity, *x.shape[1 + n :])
        axes = [*range(1, 1 + n), None, *range(1 + n, x.ndim)]
        like = sharding.abstract_array(shape, x.dtype, x, axes)
        return sharding.shard_like(jnp.zeros(shape, x.dtype), like)

    is_shared = row.valid is None
    count = jnp.zeros(() if is_shared else row.batch, jnp.int32)
    logged = None if row.count is None else jnp.zeros(row.batch, jnp.int32)
    return Ring(jax.tree.map(zeros, _columns(row)), count, logged)


def push(ring: Ring, rows: Rows) -> Ring:
    """Append the rows that were really logged. They have the form of the ring."""
    columns, tree = jax.tree.flatten(ring.columns)
    masks = [] if rows.valid is None else [rows.valid]
    operands = [*columns, *jax.tree.leaves(_columns(rows)), ring.count, *masks]
    *columns, count = write_p.bind(
        *map(sharding.make_varying, operands), batch=len(rows.batch), masked=len(masks)
    )
    logged = None if ring.logged is None else ring.logged + counted(rows)
    return Ring(jax.tree.unflatten(tree, columns), count, logged)


def ordered(ring: Ring, row: Rows) -> Rows:
    """Return the rows of a ring, oldest first, those that exist valid."""
    n = len(row.batch)
    capacity = _capacity(ring, row)

    oldest = jnp.where(ring.count > capacity, lax.rem(ring.count, jnp.int32(capacity)), 0)
    shift = lax.expand_dims(oldest, (oldest.ndim,))
    each = lax.broadcasted_iota(jnp.int32, (*oldest.shape, capacity), oldest.ndim)
    at = lax.rem(shift + each, jnp.int32(capacity))

    def read(column, at):
        return jnp.take(column, at, axis=n - ring.count.ndim, mode="clip")

    for _ in range(ring.count.ndim):
        read = jax.vmap(read)
    columns = jax.tree.map(lambda column: read(column, at), ring.columns)
    return in_ring(ring.replace(columns=columns), row)


def in_ring(ring: Ring, row: Rows) -> Rows:
    """Return the rows of a ring as they are in there, those that exist valid."""
    n = len(row.batch)
    capacity = _capacity(ring, row)
    count = jnp.broadcast_to(ring.count, (1, *row.batch))
    exists = jnp.arange(capacity, dtype=jnp.int32).reshape(-1, *[1] * n) < count

    def in_front(x):
        return jnp.moveaxis(x, n, 0)

    value, steps, masks = jax.tree.map(in_front, ring.columns)
    return row.replace(value=value, steps=steps, masks=masks, valid=exists, count=None)


def count_of(ring: Ring, row: Rows) -> jax.Array:
    """Return how many rows were logged, `*batch`."""
    if ring.logged is not None:
        return ring.logged
    return jnp.broadcast_to(ring.count, row.batch)


def _columns(rows: Rows) -> Any:
    return rows.value, rows.steps, rows.masks


def _capacity(ring: Ring, row: Rows) -> int:
    return jax.tree.leaves(ring.columns)[0].shape[len(row.batch)]


# The primitive ------------------------------------------------------------------------

write_p = Primitive("lox_write")
write_p.multiple_results = True
tracing.leave_keys_unused(write_p)


@dataclasses.dataclass(frozen=True)
class _Write:
    """The operands of `lox_write`, by name. See above for their axes."""

    columns: Sequence[Any]
    rows: Sequence[Any]
    count: Any
    valid: Any | None

    @classmethod
    def of(cls, operands: Sequence[Any], masked: int) -> "_Write":
        number = (len(operands) - 1 - masked) // 2
        *rows, count = operands[number : 2 * number + 1]
        return cls(operands[:number], rows, count, operands[-1] if masked else None)

    def bind(self, batch: int) -> list:
        masks = [] if self.valid is None else [self.valid]
        operands = [*self.columns, *self.rows, self.count, *masks]
        return write_p.bind(*operands, batch=batch, masked=len(masks))


def narrowed_write(
    operands: Sequence[Any], condition: jax.Array | None, *, batch: int, masked: int
) -> list:
    """Write rows that exist only where a condition holds, too. None: nowhere."""
    write = _Write.of(operands, masked)
    if condition is None:
        return [*write.columns, write.count]
    shape = write.rows[0].shape[:1] + write.count.shape
    # A condition may have the first of the axes, or none.
    wide = lax.expand_dims(condition, range(condition.ndim, write.count.ndim))
    valid = sharding.make_varying(jnp.broadcast_to(wide, shape))
    if write.valid is not None:
        valid &= write.valid
    return dataclasses.replace(write, valid=valid).bind(batch)


@write_p.def_abstract_eval
def _(*avals: Any, batch: int, masked: int) -> list[ShapedArray]:
    write = _Write.of(avals, masked)
    return [*write.columns, write.count]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: int) -> tuple:
    """Return the outputs with zero tangents, since logs carry no derivatives."""
    outs = write_p.bind(*primals, **params)
    return outs, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs]


def _batch(
    axis: Any,
    operands: Sequence[Any],
    axes: Sequence[int | None],
    *,
    batch: int,
    masked: int,
) -> tuple[list, list]:
    write, at = _Write.of(operands, masked), _Write.of(axes, masked)
    in_front = ft.partial(_with_axis, size=axis.size, to=0)
    # One axis for rows is before those of the batch.
    second = ft.partial(_with_axis, size=axis.size, to=1)
    count, valid = write.count, write.valid
    is_shared = at.count is None and at.valid is None and count.ndim == 0
    if not is_shared:
        count = in_front(count, at.count)
        valid = None if valid is None else second(valid, at.valid)
    outs = _Write(
        [*map(in_front, write.columns, at.columns)],
        [*map(second, write.rows, at.rows)],
        count,
        valid,
    ).bind(batch + 1)
    return outs, [*[0] * len(write.columns), None if is_shared else 0]


def _with_axis(x: Any, axis: int | None, *, size: int, to: int) -> Any:
    """Return an array with its axis of examples at a place; it may have none."""
    if axis is not None:
        return jnp.moveaxis(x, axis, to)
    wide = lax.expand_dims(x, (to,))
    return jnp.broadcast_to(wide, (*x.shape[:to], size, *x.shape[to:]))


ad.primitive_jvps[write_p] = _jvp
batching.fancy_primitive_batchers[write_p] = _batch


# How it is done -----------------------------------------------------------------------


def _written(operands: Sequence[Any], *, batch: int, masked: int, one_by_one: bool) -> list:
    """Write rows: a single one as it is, several in a loop or by a scatter."""
    write = _Write.of(operands, masked)
    capacity = write.columns[0].shape[batch]
    positions, count = _positions(write, capacity)
    index = write.count.ndim
    if positions.size == 1 and index == 0:
        put = ft.partial(_put_one, masked=masked, axis=batch)
        columns = [
            put(column, rows[0], positions[0])
            for column, rows in zip(write.columns, write.rows, strict=True)
        ]
    elif one_by_one:
        columns = _put_in_turn(write, positions, batch)
    else:
        put = ft.partial(_scatter, axis=batch - index)
        for _ in range(index):
            put = jax.vmap(put, in_axes=(0, 1, 1))
        columns = [
            put(column, rows, positions)
            for column, rows in zip(write.columns, write.rows, strict=True)
        ]
    return [*columns, count]


def _positions(write: _Write, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Return where each row goes, `n, *index`, and the new count.

    A row that does not exist, or that later ones would overwrite at once, goes out of
    range, where each has a place of its own.
    """
    n = write.rows[0].shape[0]
    each = jnp.arange(n, dtype=jnp.int32).reshape(n, *[1] * write.count.ndim)
    if write.valid is None:
        before, number = each, n
        is_kept = None if n <= capacity else each >= n - capacity
    elif n == 1:
        before, number, is_kept = each, write.valid[0].astype(jnp.int32), write.valid
    else:
        valid = write.valid.astype(jnp.int32)
        upto = jnp.cumsum(valid, 0, dtype=jnp.int32)
        before, number = upto - valid, upto[-1]
        is_kept = write.valid & (before >= upto[-1:] - capacity)
    positions = lax.rem(write.count[None] + before, jnp.int32(capacity))
    if is_kept is not None:
        positions = jnp.where(is_kept, positions, capacity + each)
    return positions, write.count + number


def _put_one(column: Any, row: Any, position: Any, *, masked: int, axis: int) -> Any:
    """Write one row, or what is there already."""
    if masked:
        capacity = column.shape[axis]
        at = jnp.minimum(position, capacity - 1)
        old = lax.dynamic_index_in_dim(column, at, axis, keepdims=False)
        row, position = jnp.where(position < capacity, row, old), at
    return lax.dynamic_update_index_in_dim(column, row, position, axis)


def _put_at(column: Any, row: Any, example: Any, position: Any, *, axis: int) -> Any:
    """Write a row of one example, or what is there already."""
    # (*shared, ...) -> (1, *shared, 1, ...)
    row = lax.expand_dims(row, (0, 1 + axis))
    at = jnp.minimum(position, column.shape[1 + axis] - 1)
    start = [example, *[0] * axis, at, *[0] * (column.ndim - axis - 2)]
    old = lax.dynamic_slice(column, start, row.shape)
    new = jnp.where(position == at, row, old)
    return lax.dynamic_update_slice(column, new, start)


def _put_in_turn(write: _Write, positions: jax.Array, batch: int) -> list:
    """Write rows in a loop: on a CPU, a scatter is the same loop, but slower."""
    index = write.count.ndim
    n, number = positions.shape[0], math.prod(positions.shape[1:])
    # (*index, ...) -> (number, ...)
    columns = [x.reshape(number, *x.shape[index:]) for x in write.columns]
    each_rows = [x.reshape(n * number, *x.shape[1 + index :]) for x in write.rows]
    flat = positions.reshape(n * number)

    def put(i, columns):
        row_of = ft.partial(lax.dynamic_index_in_dim, index=i, axis=0, keepdims=False)
        example, position = i % number, row_of(flat)
        return [
            _put_at(column, row_of(rows), example, position, axis=batch - index)
            for column, rows in zip(columns, each_rows, strict=True)
        ]

    columns = lax.fori_loop(0, n * number, put, columns)
    return [x.reshape(y.shape) for x, y in zip(columns, write.columns, strict=True)]


def _scatter(column: Any, rows: Any, positions: Any, *, axis: int) -> Any:
    """Write rows at once; those out of range are left out."""
    at = (slice(None),) * axis + (positions,)
    rows = jnp.moveaxis(rows, 0, axis)
    return column.at[at].set(rows, mode="drop", unique_indices=True)


def _lowered(*, one_by_one: bool) -> Callable:
    def fun(*operands, batch, masked):
        return _written(operands, batch=batch, masked=masked, one_by_one=one_by_one)

    return mlir.lower_fun(fun, multiple_results=True)


def _lower_on_cpu(context: Any, *operands: Any, **params: int) -> Any:
    shapes = (aval.shape for aval in context.avals_in)
    is_known = all(isinstance(size, int) for shape in shapes for size in shape)
    # Of what is spread over devices, a loop would gather every row.
    in_turn = is_known and sharding.runs_on_one_device(context)
    return _lowered(one_by_one=in_turn)(context, *operands, **params)


@ft.partial(jax.jit, static_argnames=("batch", "masked"))
def _run(*operands: Any, batch: int, masked: int) -> list:
    return write_p.bind(*operands, batch=batch, masked=masked)


write_p.def_impl(_run)
mlir.register_lowering(write_p, _lowered(one_by_one=False))
mlir.register_lowering(write_p, _lower_on_cpu, platform="cpu")
