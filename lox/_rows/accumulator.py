r"""The rows of some keys that are reduced to one value: an accumulator instead of rows.

To know the mean of a loss you need not keep its rows. An accumulator takes their place, in
constant memory: what a `Reduction` makes of the rows so far, and all else that rows have.
It is made of one row and combined with those of earlier and later rows, in any grouping,
as `Reduction.combine` is associative:

    log a = 1.0       lift     (total 1.0, count 1)  \
    log a = 3.0       lift     (total 3.0, count 1)  /  combine  (total 4.0, count 2)
    after the program          finish                            mean 2.0

There is no time axis: its arrays are what `lift` makes of the arrays of a row, one for each
example of a batch, and the steps of one of the rows.

    value    a list with (*batch, ...) arrays for each array of a row
    steps    (*batch, ...)
    valid    (*batch)          masks    (*batch)

Whether an example has logged any row at all is known while the program runs (`valid`), but
often it is known before (`paths`): if both branches of a `cond` log a key, each example
takes one of them. Then the result needs no mask.

Invariant: where `valid` is False, the value is the neutral element of the reduction. So
accumulators are combined without looking at their masks.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._jax import sharding
from lox._jax.types import AnyArray, PyTree
from lox._rows.histogram import check_value
from lox._rows.reductions import Reduction
from lox._rows.rows import Branch, Rows, Where, static, static_names
from lox._rows.types import RowForm, Shape, Splits
from lox_host.frozen import frozen

BranchPath = tuple[Branch, ...]


@jax.tree_util.register_dataclass
@frozen
class Accumulator:
    """What the rows of one key, or of the keys of one record, were reduced to so far.

    Attributes:
        value: What the reduction made of each array of the rows.
        steps: The steps of the last row, or of the first: the reduction says which.
        valid: Whether there was any row. None: there was.
        masks: For steps that only some rows have, whether that row has them.
        row: The form of a row.
        reduction: What is done with the rows.
        batch: The sizes of the batch axes.
        outer: For each of these from outside the `shard_map` around, the mesh axes that
            its `vmap` splits it over (`spmd_axis_name`).
        tags: The tags of the key.
        paths: For each record that is exact, the branches of vmapped `cond`s around it.
        where: The line that logged the first row.
    """

    value: list[PyTree]
    steps: dict[str, AnyArray]
    valid: AnyArray | None
    masks: dict[str, AnyArray]
    row: RowForm = static()
    reduction: Reduction = static()
    batch: Shape = static(default=())
    outer: Splits = static(default=())
    tags: tuple[str, ...] = static(default=())
    paths: tuple[BranchPath, ...] = static(default=())
    where: Where = static(default=Where())

    # To be treated like a single row by `align` and `merge`.
    time = False
    length = 1

    def arrays(self) -> tuple:
        """Return all fields that hold arrays, except for the value."""
        return self.steps, self.valid, self.masks

    def static_fields(self) -> tuple:
        """Return the class and all fields without arrays, in their order."""
        return Accumulator, *(getattr(self, name) for name in _STATIC)

    def replace(self, **changes: Any) -> "Accumulator":
        """Return the same accumulator with other fields."""
        return dataclasses.replace(self, **changes)

    def without_batch_axis(self) -> "Accumulator":
        """Return the accumulator when its first batch axis has become a leading one."""
        return self.replace(batch=self.batch[1:], outer=self.outer[1:])

    def only(self, chosen: Sequence[int]) -> "Accumulator":
        """Return the accumulator of some of its keys, given by their positions."""
        treedef, leaves = self.row
        # The arrays of a row are flat, (a.x, a.y, b) for keys a and b: cut them by key.
        trees = treedef.children()

        def of_chosen(leaves: Sequence[PyTree]) -> list[PyTree]:
            values = treedef.unflatten(leaves)
            return [x for i in chosen for x in trees[i].flatten_up_to(values[i])]

        row = jax.tree_util.treedef_tuple([trees[i] for i in chosen])
        return self.replace(value=of_chosen(self.value), row=(row, (*of_chosen(leaves),)))

    def map(self, fun: Callable, **changes: Any) -> "Accumulator":
        """Apply `fun` to every array."""
        return jax.tree.map(fun, self).replace(**changes)


_STATIC = static_names(Accumulator)

Entry = Rows | Accumulator
"""What is collected of the keys of one record; reduced keys have an `Accumulator`."""


def check_reducible(key: str, value: PyTree, reduction: Reduction) -> None:
    """Raise if a reduction cannot combine such values. The error names the key."""
    try:
        check_value(value, reduction)
        for leaf in jax.tree.leaves(value):
            reduction.result(leaf.dtype)
    except TypeError as error:
        raise TypeError(
            f"The rows of {key} cannot be reduced by {reduction.name}: {error}."
        ) from None


def reduced(keys: Sequence[str], rows: Rows, reduction: Reduction) -> Accumulator:
    """Make an accumulator of a single row of some keys."""
    for key, value in zip(keys, rows.value, strict=True):
        check_reducible(f"{key!r}, logged at {rows.where},", value, reduction)
    lift = _over_batch(reduction.lift, len(rows.batch))
    one = Accumulator(
        value=[lift(jnp.asarray(leaf)) for leaf in jax.tree.leaves(rows.value)],
        steps=rows.steps,
        valid=rows.valid,
        masks={},
        row=rows.row,
        reduction=reduction,
        batch=rows.batch,
        outer=rows.outer,
        tags=rows.tags,
        paths=(rows.path,) if rows.exact else (),
        where=rows.where,
    )
    if rows.valid is None:
        return one
    # See the invariant: examples that did not log this row have none.
    return one.replace(value=where_valid(rows.valid, one.value, empty(one).value))


def empty(form: Accumulator) -> Accumulator:
    """Return the accumulator of no row at all, in this form."""
    # A reduction sees single rows, without batch axes: no rows look the same everywhere.
    rows = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in form.row[1]]
    value = jax.tree.map(
        lambda x: jnp.broadcast_to(x, form.batch + x.shape),
        [form.reduction.empty(row) for row in rows],
    )
    value = jax.tree.map(sharding.shard_like, value, form.value)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (form.steps, form.masks))
    steps, masks = zeros
    # No example has logged, so their steps mean nothing.
    valid = jnp.zeros(form.batch, bool)
    return form.replace(value=value, steps=steps, masks=masks, valid=valid)


def add(earlier: Accumulator, later: Accumulator) -> Accumulator:
    """Combine two accumulators of the same form."""
    join = _over_batch(earlier.reduction.combine, len(earlier.batch))
    value = [join(x, y) for x, y in zip(earlier.value, later.value, strict=True)]
    takes_last_steps = earlier.reduction.steps == "last"
    if earlier.valid is None or later.valid is None:  # by their form, both are or none is
        return (later if takes_last_steps else earlier).replace(value=value)
    # Each example has the steps of its own first or last row, if it has logged any.
    takes_later = (
        later.valid if takes_last_steps else later.valid & jnp.logical_not(earlier.valid)
    )
    steps, masks = where_valid(
        takes_later, (later.steps, later.masks), (earlier.steps, earlier.masks)
    )
    valid = earlier.valid | later.valid
    return earlier.replace(value=value, steps=steps, masks=masks, valid=valid)


def finished(total: Accumulator) -> Rows:
    """Return the value that rows were reduced to, as one row."""
    treedef, leaves = total.row
    finish = _over_batch(total.reduction.finish, len(total.batch))
    values = []
    for accumulated, leaf in zip(total.value, leaves, strict=True):
        value, dtype = finish(accumulated), total.reduction.result(leaf.dtype)
        # The mean of bfloat16 is accumulated in float32, and is a bfloat16 again.
        is_right = dtype is None or value.dtype == dtype
        values.append(value if is_right else value.astype(dtype))
    is_certain = total.valid is None or covers(total.paths)
    return Rows(
        value=jax.tree.unflatten(treedef, values),
        steps=total.steps,
        valid=None if is_certain else total.valid,
        masks=total.masks,
        ndim=jax.tree.leaves(values)[0].ndim,
        batch=total.batch,
        tags=total.tags,
        altered="reduced",
    )


def covers(paths: Sequence[BranchPath]) -> bool:
    """Tell whether every example takes one of the paths.

    It does if one of them is through no `cond` at all, or if there is a `cond` each of
    whose branches is covered. For example, branches 0 and 1 of a `cond` a, the second of
    which holds a `cond` b:

        (a0,)  (a1, b0)  (a1, b1)      in a0: ()         in a1: (b0,) (b1,), that is () ()
    """
    if () in paths:
        return True
    conds = {branch.cond: branch.count for path in paths for branch in path}
    return any(
        all(covers(_inside(paths, cond, index)) for index in range(count))
        for cond, count in conds.items()
    )


def _inside(paths: Sequence[BranchPath], cond: int, index: int) -> list[BranchPath]:
    """Return the paths that examples in a branch may take, without that branch."""
    return [
        tuple(branch for branch in path if branch.cond != cond)
        for path in paths
        if all(branch.cond != cond or branch.index == index for branch in path)
    ]


def _over_batch(fun: Callable, ndim: int) -> Callable:
    """Vectorize a function of a reduction, which knows nothing of batch axes."""
    # One `vmap` per batch axis: lift (...) -> acc  becomes  (*batch, ...) -> (*batch, acc)
    for _ in range(ndim):
        fun = jax.vmap(fun)
    return fun


def where_valid(valid: jax.Array, a: PyTree, b: PyTree) -> PyTree:
    """Choose between the arrays of two pytrees, with axes `*batch, ...`."""

    def choose(x: jax.Array, y: jax.Array) -> jax.Array:
        # (*batch) -> (*batch, 1, ...)
        shape = valid.shape + (1,) * (x.ndim - valid.ndim)
        return jnp.where(valid.reshape(shape), x, y)

    return jax.tree.map(choose, a, b)
