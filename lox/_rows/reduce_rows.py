"""Reduce rows that were kept, to what `spool` would have reduced them to.

`logs.reduce("mean")` has to give the bits that `spool(f, reduce="mean")` gives. So it does
not sum up an array, which would add in another order, but runs the same loop: one row after
the other is lifted and combined.

    value (*leading, time, *batch, ...)    ->    (*leading, *batch, ...)
"""

import functools as ft
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax

from lox._jax.types import AnyArray
from lox._rows.accumulator import Accumulator, check_reducible, empty, finished, reduced
from lox._rows.align import align, common_form, masked
from lox._rows.merge import combine
from lox._rows.reductions import Reduction, ReductionLike, reduction_named
from lox._rows.rows import Rows

# In front of the names of masks, which go along with the steps.
_MASK = "\0"


def reduce_rows(
    rows: Mapping[str, Rows], given: ReductionLike | Mapping[str, ReductionLike]
) -> dict[str, Rows]:
    """Reduce the rows of all keys, or of those that are keys of `given`."""
    if not isinstance(given, Mapping):
        reduction_named(given)  # a wrong name is an error even if there are no keys
        given = dict.fromkeys(rows, given)
    reductions = {key: reduction_named(name) for key, name in given.items()}
    return {key: _reduce(key, of_key, reductions.get(key)) for key, of_key in rows.items()}


def _reduce(key: str, rows: Rows, reduction: Reduction | None) -> Rows:
    # What `spool` has reduced already has no time axis left to reduce over.
    done = rows.altered == "reduced" and not rows.time
    if reduction is None or done:
        return rows
    rows = rows.map(_strong, count=None)
    check_reducible(repr(key), rows.value, reduction)
    return _over_leading(rows, key, reduction, jax.config.jax_debug_infs)


def _strong(x: AnyArray) -> jax.Array:
    # Without a weak type: the carry of a loop must have one type in all iterations.
    array = jnp.asarray(x)
    return jnp.asarray(array, array.dtype)


# Jitted, or each call would compile its loop again. The loop of `"min"` and `"max"` depends
# on `jax_debug_infs`, and JAX 0.7 does not trace again when that flag changes.
@ft.partial(jax.jit, static_argnames=("key", "reduction", "debug_infs"))
def _over_leading(rows: Rows, key: str, reduction: Reduction, debug_infs: bool) -> Rows:
    fun = ft.partial(_over_time, key, reduction)
    for _ in range(rows.leading):
        fun = jax.vmap(fun)
    return fun(rows)


def _over_time(key: str, reduction: Reduction, rows: Rows) -> Rows:
    """Combine the rows one after the other, as a loop that logs them does."""
    if not rows.time:
        rows = rows.map(lambda x: lax.expand_dims(x, (0,)), time=True)
    # A mask says of each row whether it has a step, so it goes where the step goes: the
    # result has the mask of the row whose steps it has.
    masks = {_MASK + name: mask for name, mask in rows.masks.items()}
    columns = rows.value, {**rows.steps, **masks}, rows.valid

    def lift(columns: tuple) -> Accumulator:
        value, steps, valid = columns
        row = Rows((value,), steps, valid, batch=rows.batch, tags=rows.tags)
        return reduced((key,), row, reduction)

    def abstract(x: AnyArray) -> jax.ShapeDtypeStruct:
        # (time, *batch, ...) -> (*batch, ...)
        return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)

    one = jax.eval_shape(lift, jax.tree.map(abstract, columns))
    form = masked(common_form((key,), [one]))

    def add(total: Accumulator, columns: tuple) -> tuple[Accumulator, None]:
        return align(combine((key,), [total, lift(columns)]), form), None

    total, _ = lax.scan(add, empty(form), columns)
    surely = rows.valid is None and rows.length > 0
    result = finished(total.replace(valid=None if surely else total.valid, paths=()))
    return result.replace(
        value=result.value[0],
        steps={name: result.steps[name] for name in rows.steps},
        masks={name: result.steps[_MASK + name] for name in rows.masks},
    )
