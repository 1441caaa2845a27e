"""The rows of one key: its values in time, with their steps and which of them exist."""

import collections
import dataclasses
import itertools as it
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import _compat


class Branch(NamedTuple):
    """One branch of a vmapped `cond`, whose branches all run, each for its examples."""

    cond: int
    index: int
    count: int


class Where:
    """The source line of an equation. Never tells two structures apart."""

    def __init__(self, eqn: Any = None):
        self._eqn = eqn

    def __str__(self) -> str:
        return "a line that is not known" if self._eqn is None else _compat.where(self._eqn)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Where)

    def __hash__(self) -> int:
        return 0


def _static(**options):
    return dataclasses.field(metadata={"static": True}, **options)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """All rows of one key.

    Arrays have the axes `[time,] *batch, ...`, each the same number of axes in front
    when `vmap` or `scan` went over the whole.

    Attributes:
        value: The logged value, a pytree of arrays.
        steps: The steps by name.
        valid: Which rows were really logged, `[time,] *batch`. None: all of them.
        masks: The same for each step that only some rows have.
        time: Whether there is a time axis. Without it this is a single row.
        ndim: The rank that a row has in the first array of the value.
        batch: Sizes of the axes that `vmap` gave to a row.
        tags: The tags of the key.
        path: The branches of vmapped `cond`s around these rows.
        sure: Whether each example that takes the path logs all of these rows.
        where: The lines that logged them.
    """

    value: Any
    steps: dict[str, Any]
    valid: Any = None
    masks: dict[str, Any] = dataclasses.field(default_factory=dict)
    time: bool = _static(default=False)
    ndim: int = _static(default=0)
    batch: tuple[int, ...] = _static(default=())
    tags: tuple[str, ...] = _static(default=())
    path: tuple[Branch, ...] = _static(default=())
    sure: bool = _static(default=True)
    where: Where = _static(default=Where())

    @property
    def lead(self) -> int:
        """The number of axes in front, which came after the rows were collected."""
        return jnp.ndim(jax.tree.leaves(self.value)[0]) - self.ndim - self.time

    def __len__(self) -> int:
        if not self.time:
            return 1
        return jnp.shape(jax.tree.leaves(self.value)[0])[self.lead]

    def replace(self, **changes: Any) -> "Rows":
        return dataclasses.replace(self, **changes)

    def map(self, fun: Callable, **changes: Any) -> "Rows":
        return jax.tree.map(fun, self).replace(**changes)


def merge(key: str, parts: Sequence[Rows]) -> Rows:
    """Join the rows that one program logs, in program order.

    What the branches of a vmapped `cond` log is found one after the other here, but no
    example logs both: they share rows, as those of any other `cond` do.
    """
    if len(parts) == 1:
        return parts[0]
    conds = collections.Counter(branch.cond for part in parts for branch in part.path)

    def outermost_first(branch: Branch) -> int:
        # All that is in an inner `cond` is in the outer one, too.
        return -conds[branch.cond]

    paths = [tuple(sorted(part.path, key=outermost_first)) for part in parts]
    ordered = [part.replace(path=path) for part, path in zip(parts, paths, strict=True)]
    return _merge(key, ordered, 0)


def _merge(key: str, parts: Sequence[Rows], depth: int) -> Rows:
    """Join parts that agree in the first `depth` branches of their paths."""
    groups = _by_cond(parts, depth)
    if len(groups) > 1:
        return concatenate(key, [_fold(key, group, depth) for group in groups])
    if len(parts) == 1:
        return parts[0]
    if len(parts[0].path) == depth:
        return concatenate(key, parts)
    if len({part.path[depth] for part in parts}) == 1:
        return _merge(key, parts, depth + 1)
    return _fold(key, parts, depth)


def concatenate(key: str, parts: Sequence[Rows]) -> Rows:
    """Join rows in time."""
    if len({_form(part) for part in parts}) > 1:
        target = common(key, parts, time=True)
        parts = [conform(part, target, len(part)) for part in parts]
    join = lax.concatenate if parts[0].time else _stack
    return jax.tree.map(lambda *xs: join(xs, 0), *parts).replace(time=True)


def alternatives(key: str, parts: Sequence[Rows | None]) -> Rows:
    """The form in which exactly one of `parts` (None: no rows) leaves a `cond`."""
    present = [part for part in parts if part is not None]
    target = common(key, present)
    lengths = {0 if part is None else len(part) for part in parts}
    if len(lengths) > 1:
        target = target.replace(valid=_mask(target), sure=False)
    return target


def common(key: str, parts: Sequence[Rows], time: bool = False) -> Rows:
    """The form that holds any of `parts`: abstract arrays, as long as the longest."""
    first, widest = parts[0], max(parts, key=lambda part: len(part.batch))
    for part in parts:
        _check_batch(key, part, widest)
        _check_same(key, first, part)
    batch = widest.batch
    time = time or any(part.time for part in parts)
    length = max(map(len, parts))
    front = ((length,) if time else ()) + batch

    def form(part: Rows) -> Callable:
        n = part.time + len(part.batch)
        return lambda x: jax.ShapeDtypeStruct(front + jnp.shape(x)[n:], x.dtype)

    names = dict.fromkeys(name for part in parts for name in part.steps)
    steps = {
        name: next(form(p)(p.steps[name]) for p in parts if name in p.steps)
        for name in names
    }
    partial = {name for p in parts for name in names if name not in p.steps}
    partial.update(name for p in parts for name in p.masks)
    mask = jax.ShapeDtypeStruct(front, bool)
    path = tuple(b for b in first.path if all(b in part.path for part in parts))
    return Rows(
        value=jax.tree.map(form(first), first.value),
        steps=steps,
        valid=mask if any(p.valid is not None for p in parts) else None,
        masks=dict.fromkeys(sorted(partial), mask),
        time=time,
        ndim=first.ndim - len(first.batch) + len(batch),
        batch=batch,
        tags=tuple(dict.fromkeys(tag for part in parts for tag in part.tags)),
        path=path,
        sure=all(part.sure and len(part.path) == len(path) for part in parts),
        where=first.where,
    )


def conform(rows: Rows | None, target: Rows, length: int | None = None) -> Rows:
    """Bring `rows` into the form of `target`; rows that it lacks are not valid."""
    length = len(target) if length is None else length
    if rows is None:
        empty = target.map(lambda x: jnp.zeros(_resized(x, target, length), x.dtype))
        return empty.replace(masks=jax.tree.map(jnp.ones_like, empty.masks))
    rows = rows.map(lambda x: _align(x, rows, target))
    if target.time and not rows.time:
        rows = rows.map(lambda x: lax.expand_dims(x, (0,)))

    def fill(x, value):
        return jnp.full(_resized(x, target, len(rows)), value, x.dtype)

    valid = rows.valid
    if target.valid is not None and valid is None:
        valid = fill(target.valid, True)
    same = target.replace(
        value=rows.value,
        steps={
            name: rows.steps[name] if name in rows.steps else fill(step, 0)
            for name, step in target.steps.items()
        },
        valid=valid,
        masks={
            name: rows.masks[name] if name in rows.masks else fill(mask, name in rows.steps)
            for name, mask in target.masks.items()
        },
    )
    if len(same) == length:
        return same
    missing = conform(None, target, length - len(same))
    return jax.tree.map(lambda *xs: lax.concatenate(xs, 0), same, missing)


def select(rows: Rows, otherwise: Rows) -> Rows:
    """The valid ones of `rows`, and the others from `otherwise`."""

    def choose(x, y):
        shape = rows.valid.shape + (1,) * (x.ndim - rows.valid.ndim)
        chosen = jnp.broadcast_to(rows.valid.reshape(shape), x.shape)
        return lax.select(chosen, x, y)

    both = jax.tree.map(choose, rows, otherwise)
    return both.replace(valid=rows.valid | otherwise.valid)


def _fold(key: str, parts: Sequence[Rows], depth: int) -> Rows:
    """Let the branches of one vmapped `cond` share rows."""
    if len(parts[0].path) == depth:
        return concatenate(key, parts) if len(parts) > 1 else parts[0]
    count = parts[0].path[depth].count
    by_index = {
        index: _merge(key, list(group), depth + 1)
        for index, group in it.groupby(parts, lambda part: part.path[depth].index)
    }
    branches = [by_index.get(index) for index in range(count)]
    prefix = parts[0].path[:depth]
    target = alternatives(key, branches)
    complete = [b for b in branches if b is not None and len(b) == len(target)]
    sure = len(complete) == count and all(
        branch.sure and len(branch.path) == depth + 1 for branch in complete
    )
    target = target.replace(valid=_mask(target), path=prefix, sure=sure)
    rows = conform(None, target)
    for branch in branches:
        if branch is not None:
            rows = select(conform(branch, target), rows)
    return rows.replace(valid=None) if sure and not prefix else rows


def _by_cond(parts: Sequence[Rows], depth: int) -> list[list[Rows]]:
    """Group what comes from one run of one vmapped `cond`; its branches come in order."""
    groups: list[list[Rows]] = []
    last = None
    for part in parts:
        here = part.path[depth] if len(part.path) > depth else None
        goes_on = groups and (
            here is last is None
            or (
                here is not None
                and last is not None
                and here.cond == last.cond
                and here.index >= last.index
            )
        )
        if goes_on:
            groups[-1].append(part)
        else:
            groups.append([part])
        last = here
    return groups


def _form(rows: Rows) -> Any:
    """What rows must agree in to be joined as they are."""
    leaves, treedef = jax.tree.flatten(rows)
    return treedef, *((np.shape(x)[rows.time :], x.dtype) for x in leaves)


def _stack(xs: Sequence[Any], axis: int) -> Any:
    # Constants, such as steps written as numbers, stay constant.
    if all(isinstance(x, np.ndarray) for x in xs):
        return np.stack(xs, axis)
    return jnp.stack(xs, axis)


def _mask(target: Rows) -> jax.ShapeDtypeStruct:
    """A mask over the rows of `target`."""
    leaf = jax.tree.leaves(target.value)[0]
    return jax.ShapeDtypeStruct(leaf.shape[: target.time + len(target.batch)], bool)


def _resized(x: Any, target: Rows, length: int) -> tuple[int, ...]:
    return (length, *x.shape[1:]) if target.time else x.shape


def _align(x: Any, rows: Rows, target: Rows) -> Any:
    """Repeat what does not depend on a batch axis along it."""
    if rows.batch == target.batch:
        return x
    at = _embedding(rows.batch, target.batch)
    front, rest = x.shape[: rows.time], x.shape[rows.time + len(rows.batch) :]
    missing = [i + rows.time for i in range(len(target.batch)) if i not in at]
    return jnp.broadcast_to(lax.expand_dims(x, missing), front + target.batch + rest)


def _embedding(small: tuple[int, ...], large: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which axes of `large` those of `small` are, if there is only one way."""
    ways = [
        at
        for at in it.combinations(range(len(large)), len(small))
        if tuple(large[i] for i in at) == small
    ]
    return ways[0] if len(ways) == 1 else None


def _check_batch(key: str, part: Rows, widest: Rows) -> None:
    if _embedding(part.batch, widest.batch) is None:
        raise ValueError(
            f"{key!r} depends on `vmap`s of size {part.batch} at {part.where} and of size "
            f"{widest.batch} at {widest.where}; which of the axes are the same cannot be "
            "told. Use another key, or log a value that depends on all of the axes."
        )


def _check_same(key: str, a: Rows, b: Rows) -> None:
    if _describe(a, a.value) != _describe(b, b.value):
        raise ValueError(
            f"{key!r} is logged as {_describe(a, a.value)} at {a.where} and as "
            f"{_describe(b, b.value)} at {b.where}. The rows of one key must have one "
            "shape and dtype: use another key, or `reshape` and `astype` the value."
        )
    for name in a.steps.keys() & b.steps.keys():
        first, second = _describe(a, a.steps[name]), _describe(b, b.steps[name])
        if first != second:
            raise ValueError(
                f"The step {name!r} of {key!r} is {first} at {a.where} and {second} at "
                f"{b.where}. The steps of one key must have one shape and dtype."
            )


def _describe(rows: Rows, tree: Any) -> str:
    """The form of one row, such as `float32[3]`."""
    n = rows.time + len(rows.batch)

    def leaf(x):
        return f"{x.dtype}[{','.join(map(str, x.shape[n:]))}]"

    leaves, treedef = jax.tree.flatten(jax.tree.map(leaf, tree))
    if treedef == jax.tree.structure(0):
        return leaves[0]
    return str(jax.tree.unflatten(treedef, leaves)).replace("'", "")
