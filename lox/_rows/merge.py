"""Join the rows of a key: those of one program in time, those of branches side by side."""

import collections
import itertools as it
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from lox._rows.accumulator import Accumulator, combine, either, fit
from lox._rows.rows import Branch, Rows, common, concatenate, conform, mask_over

# An `Accumulator` if the key is reduced.
Entry = Rows | Accumulator


def merge(key: str, parts: Sequence[Entry]) -> Entry:
    """Join what one program logs of a key, in program order.

    What the branches of a vmapped `cond` log is found one after the other here, but no
    example logs both: they share rows, as those of any other `cond` do.
    """
    if len(parts) == 1:
        return parts[0]
    kept, reduced = _by_kind(key, parts)
    if reduced:
        return combine(key, reduced)
    conds = collections.Counter(branch.cond for part in kept for branch in part.path)

    def outermost_first(branch: Branch) -> int:
        # All that is in an inner `cond` is in the outer one, too.
        return -conds[branch.cond]

    paths = [tuple(sorted(part.path, key=outermost_first)) for part in kept]
    ordered = [part.replace(path=path) for part, path in zip(kept, paths, strict=True)]
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


def _by_kind(
    key: str, parts: Sequence[Entry | None]
) -> tuple[list[Rows], list[Accumulator]]:
    """Return the parts that keep rows and those that are reduced; one list is empty."""
    reduced = [part for part in parts if isinstance(part, Accumulator)]
    kept = [part for part in parts if isinstance(part, Rows)]
    if reduced and kept:
        raise ValueError(
            f"{key!r} is reduced by {reduced[0].reduction.name} at {reduced[0].where}, but "
            f"keeps its rows at {kept[0].where}. Ask for the same in all calls of `log`, "
            "or let `lox.spool` decide with `reduce=`."
        )
    return kept, reduced


def alternatives(key: str, parts: Sequence[Entry | None]) -> Entry:
    """Return the form in which exactly one of `parts` (None: no rows) leaves a `cond`."""
    kept, reduced = _by_kind(key, parts)
    is_complete = len(kept) + len(reduced) == len(parts)
    if reduced:
        return either(key, [*reduced] if is_complete else [*reduced, None])
    return _common_rows(key, kept, is_complete)


def _common_rows(key: str, parts: Sequence[Rows], is_complete: bool) -> Rows:
    """Return the form of rows of which exactly one of `parts` exists, or none."""
    target = common(key, parts)
    bounds = {part.bound for part in parts} | (set() if is_complete else {0})
    if len(bounds) > 1:
        target = target.replace(valid=mask_over(target), exact=False)
    return target


def fitted(part: Entry | None, target: Entry) -> Entry:
    """Bring a part into the form that `alternatives` found."""
    if isinstance(target, Accumulator):
        return fit(part if isinstance(part, Accumulator) else None, target)
    return conform(part if isinstance(part, Rows) else None, target)


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
    target = _common_rows(key, list(by_index.values()), None not in branches)
    long = [b for b in branches if b is not None and b.bound == target.bound]
    exact = len(long) == count and all(
        branch.exact and len(branch.path) == depth + 1 for branch in long
    )
    target = target.replace(valid=mask_over(target), path=prefix, exact=exact)
    rows = conform(None, target)
    for branch in branches:
        if branch is not None:
            rows = _select(conform(branch, target), rows)
    complete = exact and not prefix and not rows.altered
    return rows.replace(valid=None) if complete else rows


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

    both = jax.tree.map(choose, rows.replace(count=None), otherwise.replace(count=None))
    count = None if rows.count is None else rows.count + otherwise.count
    return both.replace(valid=rows.valid | otherwise.valid, count=count)


def zero_masked_rows(rows: Rows) -> Rows:
    """Zeros where an example did not take the branch that these rows are from."""
    if not rows.path:
        return rows
    return _select(rows, conform(None, common("", [rows])))
