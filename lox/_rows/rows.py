"""The rows of one key: its values in time, with their steps and which of them exist."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lox._jax import sharding, tracing
from lox_host.axes import embedding


@dataclasses.dataclass(frozen=True)
class Branch:
    """Branch `index` of `count` of a vmapped `cond`: all run, each for its examples."""

    cond: int
    index: int
    count: int


class Where:
    """The source line of an equation. Never tells two structures apart."""

    def __init__(self, eqn: Any = None):
        self._eqn = eqn

    def __str__(self) -> str:
        if self._eqn is None:
            return "a line that is not known"
        return tracing.source_line(self._eqn)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Where)

    def __hash__(self) -> int:
        return 0


def static(**options):
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
        count: How many rows there were before only the last ones were kept, `*batch`.
        time: Whether there is a time axis. Without it this is a single row.
        ndim: The rank that a row has in the first array of the value.
        batch: Sizes of the axes that `vmap` and `shard_map` gave to a row.
        outer: How many of these are from outside of the `shard_map` around.
        tags: The tags of the key.
        path: The branches of vmapped `cond`s around these rows.
        sure: Whether each example that takes the path logs all of these rows.
        altered: Whether these are not the rows as logged: "reduced" or "thinned" ones.
        bound: The number of rows that are logged at most; of "thinned" ones, before.
        where: The line that logged the first of them.
    """

    value: Any
    steps: dict[str, Any]
    valid: Any = None
    masks: dict[str, Any] = dataclasses.field(default_factory=dict)
    count: Any = None
    time: bool = static(default=False)
    ndim: int = static(default=0)
    batch: tuple[int, ...] = static(default=())
    outer: int = static(default=0)
    tags: tuple[str, ...] = static(default=())
    path: tuple[Branch, ...] = static(default=())
    sure: bool = static(default=True)
    altered: str = static(default="")
    bound: int = static(default=1)
    where: Where = static(default=Where())

    @property
    def lead(self) -> int:
        """The number of axes in front, which came after the rows were collected."""
        return jnp.ndim(jax.tree.leaves(self.value)[0]) - self.ndim - self.time

    @property
    def length(self) -> int:
        """The number of rows. Not `len()`: it may be symbolic."""
        if not self.time:
            return 1
        return jnp.shape(jax.tree.leaves(self.value)[0])[self.lead]

    def arrays(self) -> tuple:
        """All that is an array, but for the value."""
        return self.steps, self.valid, self.masks, self.count

    def form(self) -> tuple:
        """All that is known before the program runs, in the order of the attributes."""
        return Rows, *(getattr(self, field) for field in _STATIC)

    def replace(self, **changes: Any) -> "Rows":
        return dataclasses.replace(self, **changes)

    def at(self, steps: dict[str, Any]) -> "Rows":
        """The same with steps for all rows, in place of those with their names."""
        axes = self.lead + self.time + len(self.batch)
        shape = jnp.shape(jax.tree.leaves(self.value)[0])[:axes]

        def wide(step):
            # What is on the host stays there.
            broadcast = jnp.broadcast_to if isinstance(step, jax.Array) else np.broadcast_to
            return broadcast(step, (*shape, *jnp.shape(step))) if shape else step

        same = {name: wide(step) for name, step in steps.items()}
        masks = {name: mask for name, mask in self.masks.items() if name not in steps}
        return self.replace(steps={**self.steps, **same}, masks=masks)

    def without_batch_axis(self) -> "Rows":
        """The same when the first batch axis has become one in front."""
        outer = max(self.outer - 1, 0)
        return self.replace(batch=self.batch[1:], outer=outer, ndim=self.ndim - 1)

    def map(self, fun: Callable, **changes: Any) -> "Rows":
        """Apply `fun` to every array that has rows."""
        without = jax.tree.map(fun, self.replace(count=None))
        return without.replace(**{"count": self.count, **changes})


_STATIC = [f.name for f in dataclasses.fields(Rows) if f.metadata.get("static")]


def concatenate(key: str, parts: Sequence[Rows]) -> Rows:
    """Join rows in time."""
    bound = sum(part.bound for part in parts)
    if len({_form(part) for part in parts}) > 1:
        target = common(key, parts, time=True)
        parts = [conform(part, target, part.length) for part in parts]
    join = lax.concatenate if parts[0].time else _stack
    counts = [part.count for part in parts if part.count is not None]
    rows = [part.replace(count=None) for part in parts]
    joined = jax.tree.map(lambda *xs: join(_alike(xs), 0), *rows)
    count = sum(counts[1:], counts[0]) if counts else None
    return joined.replace(time=True, count=count, bound=bound)


def _alike(xs: Sequence[Any]) -> list:
    """Where shardings are explicit, all as the first."""
    return [xs[0], *(sharding.shard_like(x, xs[0]) for x in xs[1:])]


def common(key: str, parts: Sequence[Rows], time: bool = False) -> Rows:
    """The form that holds any of `parts`: abstract arrays, as long as the longest."""
    first, widest = parts[0], max(parts, key=lambda part: len(part.batch))
    for part in parts:
        check_batch(key, part, widest)
        check_same(key, first, part)
    batch = widest.batch
    time = time or any(part.time for part in parts)
    length = max(part.length for part in parts)
    front = ((length,) if time else ()) + batch

    def form(part: Rows) -> Callable:
        n = part.time + len(part.batch)
        is_whole = part.batch == batch
        lanes = [i + part.time if is_whole else None for i in range(len(batch))]

        def abstract(x):
            axes = [*[None] * time, *lanes, *range(n, jnp.ndim(x))]
            return sharding.abstract_array(front + jnp.shape(x)[n:], x.dtype, x, axes)

        return abstract

    names = dict.fromkeys(name for part in parts for name in part.steps)
    steps = {
        name: next(form(p)(p.steps[name]) for p in parts if name in p.steps)
        for name in names
    }
    partial = {name for p in parts for name in names if name not in p.steps}
    partial.update(name for p in parts for name in p.masks)
    mask = jax.ShapeDtypeStruct(front, bool)
    path = tuple(b for b in first.path if all(b in part.path for part in parts))
    counted = any(part.count is not None for part in parts)
    return Rows(
        value=jax.tree.map(form(first), first.value),
        steps=steps,
        valid=mask if any(p.valid is not None for p in parts) else None,
        masks=dict.fromkeys(sorted(partial), mask),
        count=jax.ShapeDtypeStruct(batch, jnp.int32) if counted else None,
        time=time,
        ndim=first.ndim - len(first.batch) + len(batch),
        batch=batch,
        outer=widest.outer,
        tags=tuple(dict.fromkeys(tag for part in parts for tag in part.tags)),
        path=path,
        sure=all(part.sure and len(part.path) == len(path) for part in parts),
        altered=first.altered,
        bound=max(part.bound for part in parts),
        where=first.where,
    )


def conform(rows: Rows | None, target: Rows, length: int | None = None) -> Rows:
    """Bring `rows` into the form of `target`; rows that it lacks are not valid."""
    length = target.length if length is None else length
    if rows is None:
        empty = target.map(
            lambda x: sharding.shard_like(
                jnp.zeros(_resized(x, target, length), x.dtype), x
            )
        )
        none = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), target.count)
        return empty.replace(masks=jax.tree.map(jnp.ones_like, empty.masks), count=none)
    rows = _aligned(rows, target)
    count = None if target.count is None else counted(rows)
    if target.time and not rows.time:
        rows = rows.map(lambda x: lax.expand_dims(x, (0,)))

    def fill(x, value):
        return jnp.full(_resized(x, target, rows.length), value, x.dtype)

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
        count=count,
        masks={
            name: rows.masks[name] if name in rows.masks else fill(mask, name in rows.steps)
            for name, mask in target.masks.items()
        },
    )
    if same.length == length:
        return same
    missing = conform(None, target, length - same.length)
    both = [part.replace(count=None) for part in (same, missing)]
    padded = jax.tree.map(lambda *xs: lax.concatenate(xs, 0), *both)
    return padded.replace(count=same.count)


def counted(rows: Rows) -> jax.Array:
    """How many rows were really logged, `*batch`."""
    if rows.count is not None:
        return rows.count
    if rows.valid is None:
        return jnp.full(rows.batch, rows.length, jnp.int32)
    valid = rows.valid.astype(jnp.int32)
    return valid.sum(0, dtype=jnp.int32) if rows.time else valid


def _form(rows: Rows) -> Any:
    """What rows must agree in to be joined as they are."""
    leaves, treedef = jax.tree.flatten(rows)
    return treedef, *((np.shape(x)[rows.time :], x.dtype) for x in leaves)


def _stack(xs: Sequence[Any], axis: int) -> Any:
    # Constants, such as steps written as numbers, stay constant.
    if all(isinstance(x, np.ndarray) for x in xs):
        return np.stack(xs, axis)
    return jnp.stack(xs, axis)


def mask_over(target: Rows) -> jax.ShapeDtypeStruct:
    """A mask over the rows of `target`."""
    leaf = jax.tree.leaves(target.value)[0]
    return jax.ShapeDtypeStruct(leaf.shape[: target.time + len(target.batch)], bool)


def _resized(x: Any, target: Rows, length: int) -> tuple[int, ...]:
    return (length, *x.shape[1:]) if target.time else x.shape


def widened(rows: Rows, batch: tuple[int, ...]) -> Rows:
    """The rows with all of the batch axes, repeated along those that they lack."""
    ndim = rows.ndim - len(rows.batch) + len(batch)
    return _aligned(rows, rows.replace(batch=batch, ndim=ndim))


def _aligned(rows: Rows, target: Rows) -> Rows:
    """Repeat what does not depend on a batch axis along it."""
    if rows.batch == target.batch:
        return rows
    own = embedding(rows.batch, target.batch) or ()
    missing = [i + rows.time for i in range(len(target.batch)) if i not in own]

    def align(x):
        front, rest = x.shape[: rows.time], x.shape[rows.time + len(rows.batch) :]
        wide = lax.expand_dims(x, missing)
        return jnp.broadcast_to(wide, front + target.batch + rest)

    count = rows.count
    if count is not None:
        at = [i - rows.time for i in missing]
        count = jnp.broadcast_to(lax.expand_dims(count, at), target.batch)
    form = {"batch": target.batch, "outer": target.outer, "ndim": target.ndim}
    return rows.map(align, count=count, **form)


def key_data(x: Any) -> Any:
    """Return the same, a typed PRNG key as its data."""
    return jax.random.key_data(x) if _is_key(x) else x


def _is_key(x: Any) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def without_keys(rows: Rows) -> Rows:
    """Return the rows with typed PRNG keys as their data, which has more axes."""
    if not any(map(_is_key, jax.tree.leaves(rows))):
        return rows  # as it is: keys of one record share it
    data = rows.map(key_data)
    before, after = (jax.tree.leaves(own.value) for own in (rows, data))
    more = np.ndim(after[0]) - np.ndim(before[0]) if after else 0
    return data.replace(ndim=rows.ndim + more)


def per_example(rows: Any, size: int) -> Any:
    """The rows with their first batch axis, of this size, as one in front."""
    if rows.batch[:1] != (size,):
        return rows.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)))
    front = rows.map(lambda x: jnp.moveaxis(x, int(rows.time), 0))
    return front.without_batch_axis()


def check_batch(key: str, part: Any, widest: Any) -> None:
    if embedding(part.batch, widest.batch) is None:
        raise ValueError(
            f"{key!r} depends on `vmap`s of size {part.batch} at {part.where} and of "
            f"size {widest.batch} at {widest.where}; which of the axes are the same cannot "
            "be told. Use another key, or log a value that depends on all of the axes; in "
            "`lax.map`, use a `batch_size` that divides the length. An `associative_scan` "
            "calls your function with arrays of different lengths: log their sum, say, or "
            "stream them with `lox.tap`."
        )


def check_same(key: str, a: Rows, b: Rows) -> None:
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
    return describe(
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[n:], x.dtype), tree)
    )


def describe(tree: Any) -> str:
    def leaf(x):
        return f"{x.dtype}[{','.join(map(str, x.shape))}]"

    leaves, treedef = jax.tree.flatten(jax.tree.map(leaf, tree))
    if treedef == jax.tree.structure(0):
        return leaves[0]
    return str(jax.tree.unflatten(treedef, leaves)).replace("'", "")
