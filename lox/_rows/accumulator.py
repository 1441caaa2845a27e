"""The rows of one key that are reduced to one value: an accumulator instead of rows."""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._jax import sharding
from lox._rows.reductions import Reduction
from lox._rows.rows import (
    Branch,
    Rows,
    Where,
    check_batch,
    describe,
    static,
)
from lox_host.axes import embedding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Accumulator:
    """What the rows of one key have been reduced to so far.

    Attributes:
        value: The accumulator of each array of the value, its axes `*batch, ...`.
        steps: The steps of the last row.
        valid: Whether there was any row, `*batch`. None: surely.
        masks: For steps that only some rows have, whether the last row has them.
        row: A row, as a pytree of abstract arrays without batch axes.
        reduction: What is done with the rows.
        paths: For each record that is surely logged where it stands, the branches of
            vmapped `cond`s around it.
    """

    value: list
    steps: dict[str, Any]
    valid: Any
    masks: dict[str, Any]
    row: Any = static()
    reduction: Reduction = static()
    batch: tuple[int, ...] = static(default=())
    outer: int = static(default=0)
    tags: tuple[str, ...] = static(default=())
    paths: tuple[tuple[Branch, ...], ...] = static(default=())
    where: Where = static(default=Where())

    time = False

    def arrays(self) -> tuple:
        """All that is an array, but for the value."""
        return self.steps, self.valid, self.masks

    def form(self) -> tuple:
        """All that is known before the program runs, in the order of the attributes."""
        return Accumulator, *(getattr(self, field) for field in _STATIC)

    def replace(self, **changes: Any) -> "Accumulator":
        return dataclasses.replace(self, **changes)

    def without_batch_axis(self) -> "Accumulator":
        """The same when the first batch axis has become one in front."""
        return self.replace(batch=self.batch[1:], outer=max(self.outer - 1, 0))

    def only(self, chosen: Sequence[int]) -> "Accumulator":
        """Return some of the values of one whose value is a tuple."""
        treedef, forms = self.row
        trees = treedef.children()

        def of_chosen(leaves: Sequence[Any]) -> list:
            values = treedef.unflatten(leaves)
            return [x for i in chosen for x in trees[i].flatten_up_to(values[i])]

        row = jax.tree_util.treedef_tuple([trees[i] for i in chosen])
        return self.replace(value=of_chosen(self.value), row=(row, (*of_chosen(forms),)))

    def map(self, fun: Callable, **changes: Any) -> "Accumulator":
        return jax.tree.map(fun, self).replace(**changes)


_STATIC = [f.name for f in dataclasses.fields(Accumulator) if f.metadata.get("static")]


def reduced(keys: Sequence[str], rows: Rows, reduction: Reduction) -> Accumulator:
    """Return a single row of some keys, on its way to be reduced."""
    for key, value in zip(keys, rows.value, strict=True):
        for leaf in jax.tree.leaves(value):
            try:
                reduction.result(leaf.dtype)
            except TypeError as error:
                raise TypeError(
                    f"The rows of {key!r}, logged at {rows.where}, cannot be reduced by "
                    f"{reduction.name}: {error}."
                ) from None
    leaves, treedef = jax.tree.flatten(rows.value)
    n = len(rows.batch)
    forms = tuple((leaf.shape[n:], leaf.dtype) for leaf in leaves)
    one = Accumulator(
        value=[_over_batch(reduction.lift, n)(jnp.asarray(leaf)) for leaf in leaves],
        steps=rows.steps,
        valid=rows.valid,
        masks={},
        row=(treedef, forms),
        reduction=reduction,
        batch=rows.batch,
        outer=rows.outer,
        tags=rows.tags,
        paths=(rows.path,) if rows.sure else (),
        where=rows.where,
    )
    if rows.valid is None:
        return one
    nothing = empty(one)
    return one.replace(value=_where(rows.valid, one.value, nothing.value))


def empty(like: Accumulator) -> Accumulator:
    """No row at all, of the form of `like`."""
    rows = [jnp.zeros(shape, dtype) for shape, dtype in like.row[1]]
    value = jax.tree.map(
        lambda x: jnp.broadcast_to(x, like.batch + x.shape),
        [like.reduction.empty(row) for row in rows],
    )
    value = jax.tree.map(sharding.shard_like, value, like.value)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (like.steps, like.masks))
    steps, masks = zeros
    valid = jnp.zeros(like.batch, bool)
    return like.replace(value=value, steps=steps, masks=masks, valid=valid)


def combine(key: str, parts: Sequence[Accumulator]) -> Accumulator:
    """Reduce earlier and later rows together."""
    target = form(key, parts)
    paths = tuple(path for part in parts for path in part.paths)
    surely = any(part.valid is None for part in parts)
    total = ft.reduce(_combine, [fit(part, target) for part in parts])
    return total.replace(paths=paths, valid=None if surely else total.valid)


def either(key: str, parts: Sequence[Accumulator | None]) -> Accumulator:
    """The form in which exactly one of `parts` (None: no rows) leaves a `cond`."""
    target = form(key, [part for part in parts if part is not None])
    surely = all(part is not None and part.valid is None for part in parts)
    covered = all(part is not None and covers(part.paths) for part in parts)
    return target.replace(
        valid=None if surely else target.valid, paths=((),) if covered else ()
    )


def covers(paths: Sequence[tuple[Branch, ...]]) -> bool:
    """Whether every example takes one of the paths."""
    if () in paths:
        return True
    conds = {branch.cond: branch.count for path in paths for branch in path}
    return any(
        all(covers(_inside(paths, cond, index)) for index in range(count))
        for cond, count in conds.items()
    )


def _inside(paths: Sequence[tuple[Branch, ...]], cond: int, index: int) -> list:
    """The paths that a branch is on, without it."""
    return [
        tuple(branch for branch in path if branch.cond != cond)
        for path in paths
        if all(branch.cond != cond or branch.index == index for branch in path)
    ]


def form(key: str, parts: Sequence[Accumulator]) -> Accumulator:
    """The form that holds any of `parts`, with abstract arrays."""
    first, widest = parts[0], max(parts, key=lambda part: len(part.batch))
    for part in parts:
        check_same(key, first, part)
        check_batch(key, part, widest)
    steps = {}
    for part in parts:
        n = len(part.batch)
        for name, step in part.steps.items():
            steps[name] = jax.ShapeDtypeStruct(widest.batch + step.shape[n:], step.dtype)
    mask = jax.ShapeDtypeStruct(widest.batch, bool)
    partial = {name for part in parts for name in steps if name not in part.steps}
    partial.update(name for part in parts for name in part.masks)
    return first.replace(
        value=jax.tree.map(sharding.abstract_like, widest.value),
        steps=steps,
        batch=widest.batch,
        outer=widest.outer,
        tags=tuple(dict.fromkeys(tag for part in parts for tag in part.tags)),
        valid=mask,
        masks=dict.fromkeys(sorted(partial), mask),
    )


def fit(part: Accumulator | None, target: Accumulator) -> Accumulator:
    """Bring an accumulator into the form of `target`. None: no row at all."""
    nothing = empty(target)
    if part is None:
        return nothing  # `either` then asks for a mask
    at = embedding(part.batch, target.batch) or ()
    missing = [i for i in range(len(target.batch)) if i not in at]

    def align(x):
        rest = x.shape[len(part.batch) :]
        return jnp.broadcast_to(jnp.expand_dims(x, missing), target.batch + rest)

    everywhere = jnp.ones(target.batch, bool)
    given = {name: everywhere for name in target.masks if name in part.steps}
    valid = everywhere if part.valid is None else align(part.valid)
    return target.replace(
        value=jax.tree.map(align, part.value),
        steps={**nothing.steps, **jax.tree.map(align, part.steps)},
        valid=None if target.valid is None else valid,
        masks={**nothing.masks, **given, **jax.tree.map(align, part.masks)},
    )


def _combine(a: Accumulator, b: Accumulator) -> Accumulator:
    join = _over_batch(a.reduction.combine, len(a.batch))
    value = [join(x, y) for x, y in zip(a.value, b.value, strict=True)]
    steps, masks = _where(b.valid, (b.steps, b.masks), (a.steps, a.masks))
    return a.replace(value=value, steps=steps, masks=masks, valid=a.valid | b.valid)


def finished(rows: Accumulator) -> Rows:
    """The value that the rows were reduced to, as one row."""
    treedef, forms = rows.row
    finish = _over_batch(rows.reduction.finish, len(rows.batch))
    values = []
    for acc, (_, dtype) in zip(rows.value, forms, strict=True):
        value, result = finish(acc), rows.reduction.result(dtype)
        is_right = result is None or value.dtype == result
        values.append(value if is_right else value.astype(result))
    surely = rows.valid is None or covers(rows.paths)
    return Rows(
        value=jax.tree.unflatten(treedef, values),
        steps=rows.steps,
        valid=None if surely else rows.valid,
        masks=rows.masks,
        ndim=jax.tree.leaves(values)[0].ndim,
        batch=rows.batch,
        tags=rows.tags,
        altered="reduced",
    )


def check_same(key: str, first: Accumulator, other: Accumulator) -> None:
    if first.reduction != other.reduction:
        raise ValueError(
            f"{key!r} is reduced by {first.reduction.name} at {first.where} and by "
            f"{other.reduction.name} at {other.where}. Ask for the same reduction in all "
            "calls of `log`, or let `lox.spool` decide with `reduce=`."
        )
    if first.row != other.row:
        raise ValueError(
            f"{key!r} is logged as {_described(first)} at {first.where} and as "
            f"{_described(other)} at {other.where}. The rows of one key must have one "
            "shape and dtype: use another key, or `reshape` and `astype` the value."
        )


def _described(rows: Accumulator) -> str:
    treedef, forms = rows.row
    leaves = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in forms]
    return describe(jax.tree.unflatten(treedef, leaves))


def _over_batch(fun: Callable, n: int) -> Callable:
    for _ in range(n):
        fun = jax.vmap(fun)
    return fun


def _where(condition: jax.Array, a: Any, b: Any) -> Any:
    def choose(x, y):
        shape = condition.shape + (1,) * (x.ndim - condition.ndim)
        return jnp.where(condition.reshape(shape), x, y)

    return jax.tree.map(choose, a, b)
