"""Bring entries of one key that were logged in different places into one form.

Rows are joined in time, the branches of a `cond` return one of several entries, a loop
carries an accumulator: all of this asks for arrays of the same shapes and dtypes. But the
same key may be logged here without steps and there with two, here by all examples of a
batch and there by none in particular, here as an int32 and there as a float32.

    log({"x": 1})                          in a `vmap` of size 3, with x of float32:
    log({"x": x}, step=i)

                  value          steps            valid    masks
    first         int32 ()       {}               -        {}
    second        float32 (3,)   step: (3,)       -        {}

    common form   float32 (3,)   step: (3,)       -        step: (3,)
    first         1.0 1.0 1.0    step: 0 0 0      -        step: False False False
    second        x0 x1 x2       step: i i i      -        step: True True True

It takes two steps. `common_form` finds the form: an entry whose arrays are abstract, with
all batch axes that any of the entries has, all steps, masks for what not all of them have,
and dtypes that are promoted as JAX promotes arrays. `align` brings an entry into that form:
it repeats it along batch axes that it lacks, casts it, fills in what is missing, and adds
masked rows until it is long enough.

Both take rows and accumulators, which have all of this in common. Rows have a time axis,
and accumulators do not.

Invariant: entries that were aligned to one form have the same pytree structure, and their
arrays the same shapes (but for time, if a length is given) and dtypes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from lox._jax import sharding
from lox._jax.types import DType, PyTree
from lox._rows.accumulator import Accumulator, Entry, empty, where_valid
from lox._rows.rows import Rows, counted
from lox._rows.types import Keys, Shape
from lox_host.batch_axes import embedding

E = TypeVar("E", Rows, Accumulator)
FrontAxes = tuple[Shape, Shape]  # ([length],) and the batch axes


def common_form(keys: Keys, entries: Sequence[E], *, time: bool = False) -> E:
    """Return the form that holds any of the entries, as long as the longest.

    Args:
        keys: The keys of the entries, for messages.
        entries: What was logged of them.
        time: Whether there is a time axis, even if all entries are single rows.
    """
    first, widest = entries[0], max(entries, key=lambda entry: len(entry.batch))
    for entry in entries:
        check_batch(keys[0], entry, widest)
        _check_same(keys, first, entry)
    has_time = time or any(entry.time for entry in entries)
    length = (max(entry.length for entry in entries),) if has_time else ()
    axes = length, widest.batch
    # A step that any entry has is in the form, and one that only some have gets a mask.
    steps = {}
    for name in dict.fromkeys(name for entry in entries for name in entry.steps):
        having = [entry for entry in entries if name in entry.steps]
        dtype = promoted(entry.steps[name].dtype for entry in having)
        steps[name] = _abstract(having[0].steps[name], having[0], axes, dtype)
    partial = {name for e in entries for name in steps if name not in e.steps}
    partial.update(name for entry in entries for name in entry.masks)
    mask = jax.ShapeDtypeStruct(length + widest.batch, bool)
    form = first.replace(
        steps=steps,
        valid=mask if any(entry.valid is not None for entry in entries) else None,
        masks=dict.fromkeys(sorted(partial), mask),
        batch=widest.batch,
        outer=widest.outer,
        tags=tuple(dict.fromkeys(tag for entry in entries for tag in entry.tags)),
    )
    # The value, and what only one of the two kinds has. There is no TypeVar that says that
    # `entries` and `special` are of the same kind.
    special = _of_rows if isinstance(form, Rows) else _of_accumulators
    return form.replace(**special(entries, widest, axes))  # pyright: ignore[reportArgumentType]


def _of_rows(entries: Sequence[Rows], widest: Rows, axes: FrontAxes) -> dict[str, Any]:
    """Return what is special to the common form of rows."""
    first = entries[0]

    def common(*xs: jax.Array) -> jax.ShapeDtypeStruct:
        return _abstract(xs[0], first, axes, promoted(x.dtype for x in xs))

    is_counted = any(entry.count is not None for entry in entries)
    # Only the branches around all of them are around the whole. Rows of a deeper branch are
    # not logged by every example that gets here.
    path = tuple(b for b in first.path if all(b in entry.path for entry in entries))
    return {
        "value": jax.tree.map(common, *(entry.value for entry in entries)),
        "count": jax.ShapeDtypeStruct(widest.batch, jnp.int32) if is_counted else None,
        "time": bool(axes[0]),
        "ndim": first.ndim - len(first.batch) + len(widest.batch),
        "path": path,
        "exact": all(e.exact and len(e.path) == len(path) for e in entries),
        "alike": all(entry.alike for entry in entries),
        "bound": max(entry.bound for entry in entries),
    }


def _of_accumulators(
    entries: Sequence[Accumulator], widest: Accumulator, axes: FrontAxes
) -> dict[str, Any]:
    """Return what is special to the common form of accumulators."""
    row, dtypes = widest.row, jax.tree.map(lambda x: x.dtype, widest.value)
    if any(entry.row != row for entry in entries):
        # The reduction decides in which dtypes it accumulates rows of the promoted dtype.
        treedef, leaves = row
        promoted_leaves = []
        for i, leaf in enumerate(leaves):
            dtype = promoted(entry.row[1][i].dtype for entry in entries)
            promoted_leaves.append(jax.ShapeDtypeStruct(leaf.shape, dtype))
        row = treedef, tuple(promoted_leaves)
        made = [jax.eval_shape(widest.reduction.empty, leaf) for leaf in promoted_leaves]
        dtypes = jax.tree.map(lambda x: x.dtype, made)

    def common_array(x: jax.Array, dtype: DType) -> jax.ShapeDtypeStruct:
        return _abstract(x, widest, axes, dtype)

    return {"value": jax.tree.map(common_array, widest.value, dtypes), "row": row}


def _abstract(
    x: jax.Array, entry: Entry, axes: FrontAxes, dtype: DType
) -> jax.ShapeDtypeStruct:
    """Return an array of an entry with other axes in front, sharded like it is.

    ([time,] *entry.batch, ...) -> ([length,] *batch, ...)
    """
    length, batch = axes
    # Axes that JAX has sharded stay sharded, those that are new are on all devices.
    # For `like`: time is new, batch axes are the same or new, the axes of a row the same.
    n = entry.time + len(entry.batch)
    is_whole = entry.batch == batch
    same = [i + entry.time if is_whole else None for i in range(len(batch))]
    like = [*[None] * len(length), *same, *range(n, jnp.ndim(x))]
    return sharding.abstract_array(length + batch + jnp.shape(x)[n:], dtype, x, like)


def masked(form: E) -> E:
    """Return the form of rows that may not exist."""
    length = (form.length,) if form.time else ()
    return form.replace(valid=jax.ShapeDtypeStruct(length + form.batch, bool))


def align(entry: E | None, form: E, length: int | None = None) -> E:
    """Bring an entry into a form; rows that it lacks are masked.

    Args:
        entry: The entry. None: it has no rows at all.
        form: What `common_form` found.
        length: The number of rows. Default: that of the form.
    """
    length = form.length if length is None else length
    if entry is None:
        return nothing(form, length)
    entry = _cast(repeated(entry, form.batch), form)
    # Rows are counted before there are any that only fill up the length.
    count = {}
    if isinstance(entry, Rows) and isinstance(form, Rows) and form.count is not None:
        count = {"count": counted(entry)}
    if form.time and not entry.time:
        entry = entry.map(lambda x: lax.expand_dims(x, (0,)), time=True)

    def fill(x: jax.Array, value: bool | int) -> jax.Array:
        # An array of the form, with as many rows as the entry has.
        return jnp.full(_resized(x, form, entry.length), value, x.dtype)

    # Whatever the entry lacks is filled in. It has all of its rows, and its own steps.
    valid = entry.valid
    if form.valid is not None and valid is None:
        valid = fill(form.valid, True)
    aligned = form.replace(
        value=entry.value,
        steps={
            name: entry.steps[name] if name in entry.steps else fill(step, 0)
            for name, step in form.steps.items()
        },
        valid=valid,
        masks={
            name: entry.masks[name]
            if name in entry.masks
            else fill(mask, name in entry.steps)
            for name, mask in form.masks.items()
        },
        **count,
    )
    if aligned.length == length:
        return aligned
    # (rows, ...) -> (length, ...)
    missing = nothing(form, length - aligned.length)
    both = [rows.replace(count=None) for rows in (aligned, missing)]
    padded = jax.tree.map(lambda *xs: lax.concatenate(xs, 0), *both)
    return padded.replace(**count)


def nothing(form: E, length: int) -> E:
    """Return `length` rows that do not exist, or the accumulator of no rows."""
    if isinstance(form, Accumulator):
        return empty(form)

    def zeros(x: jax.Array) -> jax.Array:
        return sharding.shard_like(jnp.zeros(_resized(x, form, length), x.dtype), x)

    rows = form.map(zeros)
    # `valid` says already that there is no row.
    masks = jax.tree.map(jnp.ones_like, rows.masks)
    count = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form.count)
    return rows.replace(masks=masks, count=count)


def _resized(x: jax.Array, form: Entry, length: int) -> Shape:
    return (length, *x.shape[1:]) if form.time else x.shape


# Batch axes -----------------------------------------------------------------------------


def repeated(entry: E, batch: Shape) -> E:
    """Repeat an entry along the batch axes that it lacks."""
    if entry.batch == batch:
        return entry
    # For `entry.batch` (3,) and `batch` (2, 3): axis 1 is present, axis 0 is missing.
    present = embedding(entry.batch, batch) or ()
    missing = [i for i in range(len(batch)) if i not in present]

    def repeat(x: jax.Array, time: int) -> jax.Array:
        # ([time,] *entry.batch, ...) -> ([time,] *batch, ...)
        wide = lax.expand_dims(x, [time + i for i in missing])
        rest = x.shape[time + len(entry.batch) :]
        return jnp.broadcast_to(wide, x.shape[:time] + batch + rest)

    wide = entry.map(lambda x: repeat(x, int(entry.time)), batch=batch)
    if isinstance(wide, Accumulator):
        return wide
    count = None if wide.count is None else repeat(wide.count, 0)
    return wide.replace(ndim=wide.ndim + len(missing), count=count)


def per_example(entry: E, size: int) -> E:
    """Turn the first batch axis, of this size, into a leading one.

    What has no such axis is the same for all examples, and is repeated.
    """
    # ([time,] size, *inner, ...) -> (size, [time,] *inner, ...)
    if entry.batch[:1] != (size,):
        return entry.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)))
    moved = entry.map(lambda x: jnp.moveaxis(x, int(entry.time), 0))
    return moved.without_batch_axis()


def check_batch(key: str, entry: Entry, widest: Entry) -> None:
    """Raise if it is not clear which batch axes of two entries are the same."""
    if embedding(entry.batch, widest.batch) is None:
        raise ValueError(
            f"{key!r} depends on `vmap`s of size {entry.batch} at {entry.where} and of "
            f"size {widest.batch} at {widest.where}, and lox cannot tell which of the axes "
            "are the same. Use another key, or log a value that depends on all of the "
            "axes; in `lax.map`, use a `batch_size` that divides the length. An "
            "`associative_scan` calls your function with arrays of different lengths: log "
            "their sum, for example, or stream them with `lox.tap`."
        )


# Dtypes ---------------------------------------------------------------------------------


def promoted(dtypes: Iterable[DType]) -> DType:
    """Return the dtype that JAX promotes to; an error if there is none."""
    different = list(dict.fromkeys(dtypes))
    if len(different) == 1:
        return different[0]
    # Whatever the user has chosen for arrays that meet in an operation.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*different)


def _cast(entry: E, form: E) -> E:
    """Cast the value and the steps of an entry to the dtypes of a form."""

    def cast(x: jax.Array, like: jax.ShapeDtypeStruct) -> jax.Array:
        return x if x.dtype == like.dtype else x.astype(like.dtype)

    steps = {name: cast(step, form.steps[name]) for name, step in entry.steps.items()}
    value = jax.tree.map(cast, entry.value, form.value)
    if isinstance(form, Accumulator) and form.row != entry.row and entry.valid is not None:
        # What is neutral among the smaller dtype need not be among the larger: the minimum
        # of no int32 may be the largest int32, and there are larger floats.
        value = where_valid(entry.valid, value, empty(form).value)
    return entry.replace(value=value, steps=steps)


# Messages -------------------------------------------------------------------------------


def _check_same(keys: Keys, first: Entry, other: Entry) -> None:
    """Raise if two entries cannot be brought into one form, with the name of the key."""
    if isinstance(first, Accumulator) and isinstance(other, Accumulator):
        _check_reduction(keys[0], first, other)
    # The same rows, but for their dtypes: nearly always, and quick to see.
    if first.row != other.row:
        rows = [entry.row[0].unflatten(entry.row[1]) for entry in (first, other)]
        for key, one, two in zip(keys, *rows, strict=True):
            if reason := _difference("rows", one, two):
                raise ValueError(
                    f"{key!r} is logged as {_described(one)} at {first.where} and as "
                    f"{_described(two)} at {other.where}. {reason}"
                )
    for name in first.steps.keys() & other.steps.keys():
        one, two = _step_form(first, name), _step_form(other, name)
        if reason := _difference("steps", one, two):
            raise ValueError(
                f"The step {name!r} of {keys[0]!r} is {_described(one)} at {first.where} "
                f"and {_described(two)} at {other.where}. {reason}"
            )


def _check_reduction(key: str, first: Accumulator, other: Accumulator) -> None:
    if first.reduction != other.reduction:
        raise ValueError(
            f"{key!r} is reduced by {first.reduction.name} at {first.where} and by "
            f"{other.reduction.name} at {other.where}. Use the same reduction in all calls "
            "of `log`, or override it in `lox.spool` with `reduce=`."
        )


def _step_form(entry: Entry, name: str) -> jax.ShapeDtypeStruct:
    step = entry.steps[name]
    n = entry.time + len(entry.batch)
    return jax.ShapeDtypeStruct(step.shape[n:], step.dtype)


def _difference(what: str, one: PyTree, two: PyTree) -> str | None:
    """Tell why two rows or steps of one key cannot become one array. None: they can."""
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(two)
    is_same_structure = jax.tree.structure(one) == jax.tree.structure(two)
    if not is_same_structure or [x.shape for x in leaves] != [x.shape for x in others]:
        return (
            f"The {what} of one key must have one structure and one shape: use another "
            "key, or `reshape` the value."
        )
    for x, y in zip(leaves, others, strict=True):
        try:
            promoted([x.dtype, y.dtype])
        except (TypeError, ValueError):
            return (
                f"JAX has no common dtype for {x.dtype} and {y.dtype}: use another key, or "
                "`astype` the value."
            )
    return None


def _described(tree: PyTree) -> str:
    """Describe the form of a row, such as `float32[3]`."""

    def leaf(x: jax.ShapeDtypeStruct) -> str:
        return f"{x.dtype}[{','.join(map(str, x.shape))}]"

    leaves, treedef = jax.tree.flatten(jax.tree.map(leaf, tree))
    if treedef == jax.tree.structure(0):
        return leaves[0]
    return str(jax.tree.unflatten(treedef, leaves)).replace("'", "")
