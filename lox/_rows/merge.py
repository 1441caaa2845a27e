"""Join what was logged of some keys: in time, or as alternatives of which one exists.

Rows of one program are joined in time, and accumulators are combined. With branches there
is more to it, and there are two kinds of them. Of a `cond` that runs only one branch, each
branch returns rows of the same form, with masked rows where it logs fewer (`alternatives`,
and `align` for each branch).

Under `vmap`, a `cond` has become a program that runs all of its branches, one after the
other, and masks what each logs by the examples that took it. What they log is found in a
row, but no example logs in two of them. Joined in time, the rows of a branch would come
after those of another, and an example that took either would have a gap. So the branches
of one `cond` share rows, as if one had run (`merge`):

    log a                        all examples       a    a    a
    cond: branch 0 logs b, c     example 0, 2       b    .    b
          branch 1 logs d        example 1          .    d    .
    log e                        all examples       e    e    e

    joined in time, with gaps                       shared
    a a a | b . b | c . c | . d . | e e e           a a a | b d b | c . c | e e e

Which `cond`s are around some rows is in their `path`, outermost first. Rows are put into
groups by the outermost `cond`, and each group is folded into rows that its branches share;
inside a branch the same is done for the `cond`s in there.

Invariant: the order of rows that one example logs never changes.
"""

import collections
import functools as ft
import itertools as it
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._jax import sharding
from lox._jax.types import AnyArray
from lox._rows.accumulator import Accumulator, Entry, add, covers
from lox._rows.align import align, common_form, masked, nothing
from lox._rows.rows import Branch, Rows
from lox._rows.types import Keys


def merge(keys: Keys, entries: Sequence[Entry]) -> Entry:
    """Join what one program logs of some keys, in program order."""
    if len(entries) == 1:
        return entries[0]
    kept, reduced = _by_kind(keys, entries)
    if reduced:
        return combine(keys, reduced)
    # What has been masked last is at the end of a path, and that may be the outer `cond`.
    conds = collections.Counter(branch.cond for rows in kept for branch in rows.path)

    def outermost_first(branch: Branch) -> int:
        # All that is in an inner `cond` is in the outer one, too.
        return -conds[branch.cond]

    paths = [tuple(sorted(rows.path, key=outermost_first)) for rows in kept]
    ordered = [rows.replace(path=path) for rows, path in zip(kept, paths, strict=True)]
    return _merge(keys, ordered, 0)


def alternatives(keys: Keys, entries: Sequence[Entry | None]) -> Entry:
    """Return the form in which exactly one of the entries leaves a `cond`.

    None is the entry of a branch that logs nothing.
    """
    kept, reduced = _by_kind(keys, entries)
    is_complete = len(kept) + len(reduced) == len(entries)
    if not reduced:
        return _common_rows(keys, kept, is_complete)
    form = common_form(keys, reduced)
    is_covered = is_complete and all(covers(part.paths) for part in reduced)
    form = form.replace(paths=((),) if is_covered else ())
    return form if is_complete else masked(form)


def concatenate(keys: Keys, parts: Sequence[Rows]) -> Rows:
    """Join rows in time."""
    bound = sum(part.bound for part in parts)
    # Most rows have the same form, and are joined as they are: aligning them would only add
    # equations to the program that do nothing.
    if len({_signature(part) for part in parts}) > 1:
        form = common_form(keys, parts, time=True)
        parts = [align(part, form, part.length) for part in parts]
    # (n, *batch, ...), (m, *batch, ...) -> (n + m, *batch, ...); single rows are stacked
    join = lax.concatenate if parts[0].time else _stack
    counts = [part.count for part in parts if part.count is not None]

    def joined(*xs: AnyArray) -> AnyArray:
        # Where shardings are explicit, all get that of the first.
        return join([xs[0], *(sharding.shard_like(x, xs[0]) for x in xs[1:])], 0)

    rows = jax.tree.map(joined, *(part.replace(count=None) for part in parts))
    # After aligning, either all parts have a count or none has.
    count = sum(counts[1:], counts[0]) if counts else None
    return rows.replace(time=True, count=count, bound=bound)


def combine(keys: Keys, parts: Sequence[Accumulator]) -> Accumulator:
    """Reduce earlier and later rows together."""
    # A row that surely exists makes the whole exist, whatever the masks of others say.
    form = common_form(keys, parts)
    total = ft.reduce(add, [align(part, form) for part in parts])
    return total.replace(
        valid=None if any(part.valid is None for part in parts) else total.valid,
        paths=tuple(path for part in parts for path in part.paths),
    )


def zero_masked_rows(rows: Rows) -> Rows:
    """Put zeros where an example did not take the branch that these rows are from."""
    if not rows.path:
        return rows
    form = common_form(("",), [rows])
    return _select(rows, nothing(form, form.length))


def _by_kind(
    keys: Keys, entries: Sequence[Entry | None]
) -> tuple[list[Rows], list[Accumulator]]:
    """Return the entries that keep rows and those that are reduced; one list is empty."""
    reduced = [entry for entry in entries if isinstance(entry, Accumulator)]
    kept = [entry for entry in entries if isinstance(entry, Rows)]
    if reduced and kept:
        raise ValueError(
            f"{keys[0]!r} is reduced by {reduced[0].reduction.name} at {reduced[0].where}, "
            f"but keeps its rows at {kept[0].where}. Use the same reduction in all calls "
            "of `log`, or override it in `lox.spool` with `reduce=`."
        )
    return kept, reduced


def _signature(rows: Rows) -> tuple:
    """Return what rows must agree in to be joined as they are."""
    # All but the number of rows: the structure has the static fields, such as `batch`.
    leaves, treedef = jax.tree.flatten(rows)
    return treedef, *((np.shape(x)[rows.time :], x.dtype) for x in leaves)


def _stack(xs: Sequence[AnyArray], axis: int) -> AnyArray:
    # Constants, such as steps written as numbers, stay constant.
    if all(isinstance(x, np.ndarray) for x in xs):
        return np.stack(xs, axis)
    return jnp.stack(xs, axis)


# Branches of vmapped conds --------------------------------------------------------------


def _merge(keys: Keys, parts: Sequence[Rows], depth: int) -> Rows:
    """Join parts that agree in the first `depth` branches of their paths."""
    groups = _by_cond(parts, depth)
    # Several things one after the other: a `cond`, rows of no `cond`, another `cond`.
    if len(groups) > 1:
        return concatenate(keys, [_fold(keys, group, depth) for group in groups])
    if len(parts) == 1:
        return parts[0]
    if len(parts[0].path) == depth:
        return concatenate(keys, parts)
    # All of it is in one branch: the others log nothing here, so look inside.
    if len({part.path[depth] for part in parts}) == 1:
        return _merge(keys, parts, depth + 1)
    return _fold(keys, parts, depth)


def _by_cond(parts: Sequence[Rows], depth: int) -> list[list[Rows]]:
    """Group what comes from one run of one vmapped `cond`; its branches come in order."""
    groups: list[list[Rows]] = []
    last = None
    for part in parts:
        branch = part.path[depth] if len(part.path) > depth else None
        if groups and _is_same_run(last, branch):
            groups[-1].append(part)
        else:
            groups.append([part])
        last = branch
    return groups


def _is_same_run(last: Branch | None, branch: Branch | None) -> bool:
    """Tell whether a branch comes after another in one run of a `cond`.

    In a Python loop the same `cond` may run again: then branches start from 0 again.
    """
    if last is None or branch is None:
        return last is branch
    return branch.cond == last.cond and branch.index >= last.index


def _fold(keys: Keys, parts: Sequence[Rows], depth: int) -> Rows:
    """Let the branches of one vmapped `cond` share rows."""
    if len(parts[0].path) == depth:
        return concatenate(keys, parts) if len(parts) > 1 else parts[0]
    count = parts[0].path[depth].count
    # First join what each branch has logged. What `_by_cond` put into this group is in the
    # order of the branches, so those of one branch are next to each other.
    by_index = {
        index: _merge(keys, list(group), depth + 1)
        for index, group in it.groupby(parts, lambda part: part.path[depth].index)
    }
    branches = [by_index.get(index) for index in range(count)]
    # Outside this `cond`, its rows are in the branches that are around it.
    prefix = parts[0].path[:depth]
    form = _common_rows(keys, list(by_index.values()), None not in branches)
    # Every example has all of the rows if each branch logs them for all that take it.
    longest = [b for b in branches if b is not None and b.bound == form.bound]
    exact = len(longest) == count and all(
        branch.exact and len(branch.path) == depth + 1 for branch in longest
    )
    form = masked(form).replace(path=prefix, exact=exact)
    # No example is in two branches, so in which order they are selected is all the same.
    rows = nothing(form, form.length)
    for branch in branches:
        if branch is not None:
            rows = _select(align(branch, form), rows)
    # Then no row is masked, and the mask would only cost. Inside another vmapped `cond` it
    # still says which examples got here; thinned rows are masked for another reason.
    is_complete = exact and not prefix and not rows.altered
    return rows.replace(valid=None) if is_complete else rows


def _common_rows(keys: Keys, parts: Sequence[Rows], is_complete: bool) -> Rows:
    """Return the form of rows of which exactly one of `parts` exists, or none."""
    # If one logs fewer rows than another, or none, some of the rows may not exist.
    form = common_form(keys, parts)
    bounds = {part.bound for part in parts} | (set() if is_complete else {0})
    return masked(form).replace(exact=False) if len(bounds) > 1 else form


def _select(rows: Rows, otherwise: Rows) -> Rows:
    """Return the valid ones of `rows`, and the others from `otherwise`."""
    valid, other_valid = rows.valid, otherwise.valid
    assert valid is not None

    def choose(x: jax.Array, y: jax.Array) -> jax.Array:
        # ([time,] *batch) -> ([time,] *batch, ...)
        shape = valid.shape + (1,) * (x.ndim - valid.ndim)
        return lax.select(jnp.broadcast_to(valid.reshape(shape), x.shape), x, y)

    both = jax.tree.map(choose, rows.replace(count=None), otherwise.replace(count=None))
    count = jax.tree.map(jnp.add, rows.count, otherwise.count)
    return both.replace(valid=valid | other_valid, count=count)
