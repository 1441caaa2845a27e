"""`lox_write`: the primitive that writes rows into a ring, in place.

XLA writes a row in place if the new array is the old one with that row replaced. Selecting
between two arrays, as JAX does for all that a vmapped `while_loop` carries, goes through
all rows in each iteration instead: a thousand times the work for a thousand rows.

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

The compiler knows three ways to write, and which is quickest depends on the device: one
slice if there is one row at one place, a loop of such slices on a CPU, a scatter elsewhere.
"""

import dataclasses
import functools as ft
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.interpreters import ad, batching, mlir
from jax.interpreters.mlir import LoweringRuleContext

from lox._jax import device_calls, sharding, tracing
from lox._jax.extend import Primitive
from lox._jax.types import AxisData
from lox_host.frozen import frozen

T = TypeVar("T")

write_p = Primitive("lox_write")
write_p.multiple_results = True
tracing.leave_keys_unused(write_p)


@frozen
class _Write(Generic[T]):
    """The operands of `lox_write`, by name. See above for their axes.

    They are arrays, or in place of each array its type or its axis of examples.
    """

    columns: Sequence[T]
    rows: Sequence[T]
    count: T
    valid: T | None

    @classmethod
    def of(cls, operands: Sequence[T], masked: int) -> "_Write[T]":
        # columns, as many rows, the count, and the mask if there is one
        number = (len(operands) - 1 - masked) // 2
        *rows, count = operands[number : 2 * number + 1]
        return cls(operands[:number], rows, count, operands[-1] if masked else None)

    def bind(self, batch: int, *, differentiable: bool) -> list:
        masks = [] if self.valid is None else [self.valid]
        operands = [*self.columns, *self.rows, self.count, *masks]
        return write_p.bind(
            *operands, batch=batch, masked=len(masks), differentiable=differentiable
        )


def narrowed_write(
    operands: Sequence[jax.Array],
    condition: jax.Array | None,
    *,
    batch: int,
    masked: int,
    differentiable: bool,
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
    narrowed = dataclasses.replace(write, valid=valid)
    return narrowed.bind(batch, differentiable=differentiable)


@write_p.def_abstract_eval
def _(
    *avals: ShapedArray, batch: int, masked: int, differentiable: bool
) -> list[ShapedArray]:
    write = _Write.of(avals, masked)
    return [*write.columns, write.count]


def _jvp(
    primals: Sequence[jax.Array],
    tangents: Sequence[jax.Array | ad.Zero],
    *,
    batch: int,
    masked: int,
    differentiable: bool,
) -> tuple[list[jax.Array], list[jax.Array | ad.Zero]]:
    """Write the tangents of rows where the rows go, if logs carry derivatives at all.

    A scatter writes them, which JAX can transpose.
    """
    params = {"batch": batch, "masked": masked, "differentiable": differentiable}
    outs = write_p.bind(*primals, **params)
    zeros: list[jax.Array | ad.Zero] = [
        ad.Zero(jax.typeof(x).to_tangent_aval()) for x in outs
    ]
    if not differentiable:
        return outs, zeros
    write, slopes = _Write.of(primals, masked), _Write.of(tangents, masked)
    wanted = [
        i
        for i, pair in enumerate(zip(slopes.columns, slopes.rows, strict=True))
        if not all(isinstance(x, ad.Zero) for x in pair)
    ]
    if not wanted:
        return outs, zeros
    positions, _ = _positions(write, write.columns[0].shape[batch])
    columns, rows = (
        [ad.instantiate_zeros(given[i]) for i in wanted]
        for given in (slopes.columns, slopes.rows)
    )
    written = _scattered(columns, rows, positions, batch)
    known = dict(zip(wanted, written, strict=True))
    return outs, [known.get(i, zero) for i, zero in enumerate(zeros)]


def _batch(
    axis: AxisData,
    operands: Sequence[jax.Array],
    axes: Sequence[int | None],
    *,
    batch: int,
    masked: int,
    differentiable: bool,
) -> tuple[list, list]:
    write, axes_of = _Write.of(operands, masked), _Write.of(axes, masked)
    in_front = ft.partial(_with_axis, size=axis.size, to=0)
    # One axis for rows is before those of the batch.
    second = ft.partial(_with_axis, size=axis.size, to=1)
    count, valid = write.count, write.valid
    # If all examples write the same rows, they still share one count, which is quicker: the
    # row is at the same place for all of them, and one slice writes it.
    is_shared = axes_of.count is None and axes_of.valid is None and count.ndim == 0
    if not is_shared:
        count = in_front(count, axes_of.count)
        valid = None if valid is None else second(valid, axes_of.valid)
    outs = _Write(
        [*map(in_front, write.columns, axes_of.columns)],
        [*map(second, write.rows, axes_of.rows)],
        count,
        valid,
    ).bind(batch + 1, differentiable=differentiable)
    return outs, [*[0] * len(write.columns), None if is_shared else 0]


def _with_axis(x: jax.Array, axis: int | None, *, size: int, to: int) -> jax.Array:
    """Return an array with its axis of examples at a place; it may have none."""
    if axis is not None:
        return jnp.moveaxis(x, axis, to)
    wide = lax.expand_dims(x, (to,))
    return jnp.broadcast_to(wide, (*x.shape[:to], size, *x.shape[to:]))


ad.primitive_jvps[write_p] = _jvp
batching.fancy_primitive_batchers[write_p] = _batch


# How it is done -----------------------------------------------------------------------


def _written(
    operands: Sequence[jax.Array], *, batch: int, masked: int, one_by_one: bool
) -> list[jax.Array]:
    """Write rows: a single one as it is, several in a loop or by a scatter."""
    write = _Write.of(operands, masked)
    capacity = write.columns[0].shape[batch]
    positions, count = _positions(write, capacity)
    index = write.count.ndim
    if positions.size == 0:
        columns = write.columns  # no rows, or a `vmap` over no examples
    elif positions.size == 1 and index == 0:
        put = ft.partial(_put_one, masked=masked, axis=batch)
        columns = [
            put(column, rows[0], positions[0])
            for column, rows in zip(write.columns, write.rows, strict=True)
        ]
    elif one_by_one:
        columns = _put_in_turn(write, positions, batch)
    else:
        columns = _scattered(write.columns, write.rows, positions, batch)
    return [*columns, count]


def _positions(write: _Write[jax.Array], capacity: int) -> tuple[jax.Array, jax.Array]:
    """Return where each row goes, `n, *index`, and the new count.

    A row that does not exist, or that later ones would overwrite at once, goes out of
    range, where each has a place of its own. For a capacity of 4 and a count of 3:

        valid        1  0  1  1
        before       0  1  1  2      valid rows before this one
        positions    3  5  0  1      (3 + before) % 4, or 4 + its number
        new count    6
    """
    n = write.rows[0].shape[0]
    # (n,) -> (n, 1, ...), to go along with `index`
    numbers = jnp.arange(n, dtype=jnp.int32).reshape(n, *[1] * write.count.ndim)
    if write.valid is None:
        before, number = numbers, n
        is_kept = None if n <= capacity else numbers >= n - capacity
    elif n == 1:
        # Nearly always, and then there is nothing to sum up.
        before, number, is_kept = numbers, write.valid[0].astype(jnp.int32), write.valid
    else:
        valid = write.valid.astype(jnp.int32)
        upto = jnp.cumsum(valid, 0, dtype=jnp.int32)
        before, number = upto - valid, upto[-1]
        is_kept = write.valid & (before >= upto[-1:] - capacity)
    positions = lax.rem(write.count[None] + before, jnp.int32(capacity))
    if is_kept is not None:
        positions = jnp.where(is_kept, positions, capacity + numbers)
    return positions, write.count + number


def _put_one(
    column: jax.Array, row: jax.Array, position: jax.Array, *, masked: int, axis: int
) -> jax.Array:
    """Write one row, or what is there already."""
    if masked:
        # A position out of range says that the row does not exist. The slice then writes
        # back what it has read, which is still in place.
        capacity = column.shape[axis]
        inside = jnp.minimum(position, capacity - 1)
        old = lax.dynamic_index_in_dim(column, inside, axis, keepdims=False)
        row, position = jnp.where(position < capacity, row, old), inside
    return lax.dynamic_update_index_in_dim(column, row, position, axis)


def _put_at(
    column: jax.Array,
    row: jax.Array,
    example: jax.Array,
    position: jax.Array,
    *,
    axis: int,
) -> jax.Array:
    """Write a row of one example, or what is there already, as `_put_one` does."""
    # (*shared, ...) -> (1, *shared, 1, ...)
    row = lax.expand_dims(row, (0, 1 + axis))
    inside = jnp.minimum(position, column.shape[1 + axis] - 1)
    start = [example, *[0] * axis, inside, *[0] * (column.ndim - axis - 2)]
    old = lax.dynamic_slice(column, start, row.shape)
    new = jnp.where(position == inside, row, old)
    return lax.dynamic_update_slice(column, new, start)


def _put_in_turn(
    write: _Write[jax.Array], positions: jax.Array, batch: int
) -> list[jax.Array]:
    """Write rows in a loop: on a CPU, a scatter is the same loop, but slower."""
    index = write.count.ndim
    n, number = positions.shape[0], math.prod(positions.shape[1:])
    # (*index, ...) -> (number, ...)
    columns = [x.reshape(number, *x.shape[index:]) for x in write.columns]
    # (n, *index, ...) -> (n * number, ...), in the order of logging
    flat_rows = [x.reshape(n * number, *x.shape[1 + index :]) for x in write.rows]
    flat = positions.reshape(n * number)

    def put(i: jax.Array, columns: list[jax.Array]) -> list[jax.Array]:
        row_of = ft.partial(lax.dynamic_index_in_dim, index=i, axis=0, keepdims=False)
        example, position = i % number, row_of(flat)
        return [
            _put_at(column, row_of(rows), example, position, axis=batch - index)
            for column, rows in zip(columns, flat_rows, strict=True)
        ]

    columns = lax.fori_loop(0, n * number, put, columns)
    return [x.reshape(y.shape) for x, y in zip(columns, write.columns, strict=True)]


def _scattered(
    columns: Sequence[jax.Array],
    rows: Sequence[jax.Array],
    positions: jax.Array,
    batch: int,
) -> list[jax.Array]:
    """Write rows of all examples at once."""
    index = positions.ndim - 1
    # Columns have the axes of `index` in front, rows and positions behind that of rows.
    put = ft.partial(_scatter, axis=batch - index)
    for _ in range(index):
        put = jax.vmap(put, in_axes=(0, 1, 1))
    return [put(*pair, positions) for pair in zip(columns, rows, strict=True)]


def _scatter(
    column: jax.Array, rows: jax.Array, positions: jax.Array, *, axis: int
) -> jax.Array:
    """Write rows at once; those out of range are left out."""
    where = (slice(None),) * axis + (positions,)
    rows = jnp.moveaxis(rows, 0, axis)
    # No two rows go to the same place: `_positions` sees to that.
    return column.at[where].set(rows, mode="drop", unique_indices=True)


def _lowered(*, one_by_one: bool) -> Callable:
    def fun(
        *operands: jax.Array, batch: int, masked: int, differentiable: bool
    ) -> list[jax.Array]:
        return _written(operands, batch=batch, masked=masked, one_by_one=one_by_one)

    return mlir.lower_fun(fun, multiple_results=True)


def _lower_on_cpu(context: LoweringRuleContext, *operands: Any, **params: int) -> Any:
    avals: Sequence[Any] = context.avals_in
    shapes = (aval.shape for aval in avals)
    is_known = all(isinstance(size, int) for shape in shapes for size in shape)
    # Of what is spread over devices, a loop would gather every row.
    in_turn = is_known and device_calls.runs_on_one_device(context)
    return _lowered(one_by_one=in_turn)(context, *operands, **params)


# Outside of `jit`, the primitive is compiled by itself.
@ft.partial(jax.jit, static_argnames=("batch", "masked", "differentiable"))
def _run(*operands: jax.Array, **params: int) -> list[jax.Array]:
    return write_p.bind(*operands, **params)


write_p.def_impl(_run)
mlir.register_lowering(write_p, _lowered(one_by_one=False))
mlir.register_lowering(write_p, _lower_on_cpu, platform="cpu")
