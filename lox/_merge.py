"""Join the rows of a key: those of one program in time, those of branches side by side."""

import collections
import itertools as it
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from ._rows import Branch, Rows, common, concatenate, conform, mask_over


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


def alternatives(key: str, parts: Sequence[Rows | None]) -> Rows:
    """The form in which exactly one of `parts` (None: no rows) leaves a `cond`."""
    present = [part for part in parts if part is not None]
    target = common(key, present)
    lengths = {0 if part is None else part.length for part in parts}
    if len(lengths) > 1:
        target = target.replace(valid=mask_over(target), sure=False)
    return target


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
    complete = [b for b in branches if b is not None and b.length == target.length]
    sure = len(complete) == count and all(
        branch.sure and len(branch.path) == depth + 1 for branch in complete
    )
    target = target.replace(valid=mask_over(target), path=prefix, sure=sure)
    rows = conform(None, target)
    for branch in branches:
        if branch is not None:
            rows = _select(conform(branch, target), rows)
    return rows.replace(valid=None) if sure and not prefix else rows


def _by_cond(parts: Sequence[Rows], depth: int) -> list[list[Rows]]:
    """Group what comes from one run of one vmapped `cond`; its branches come in order."""
    groups: list[list[Rows]] = []
    last = None
    for part in parts:
        here = part.path[depth] if len(part.path) > depth else None
        if groups and _goes_on(last, here):
            groups[-1].append(part)
        else:
            groups.append([part])
        last = here
    return groups


def _goes_on(last: Branch | None, here: Branch | None) -> bool:
    if last is None or here is None:
        return last is here
    return here.cond == last.cond and here.index >= last.index


def _select(rows: Rows, otherwise: Rows) -> Rows:
    """The valid ones of `rows`, and the others from `otherwise`."""

    def choose(x, y):
        shape = rows.valid.shape + (1,) * (x.ndim - rows.valid.ndim)
        chosen = jnp.broadcast_to(rows.valid.reshape(shape), x.shape)
        return lax.select(chosen, x, y)

    both = jax.tree.map(choose, rows, otherwise)
    return both.replace(valid=rows.valid | otherwise.valid)


def without_ghosts(rows: Rows) -> Rows:
    """Zeros where an example did not take the branch that these rows are from."""
    if not rows.path:
        return rows
    nothing = conform(None, common("", [rows]))
    return _select(rows, nothing.replace(path=rows.path, sure=rows.sure))
