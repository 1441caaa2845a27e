"""The rows of some keys: their values in time, with their steps and which of them exist.

A row is one record of one key. Under `jit` nothing can be appended to a list, so the rows
of a key are stacked, and what they have in common is known while tracing. Three kinds of
axes are in front of the axes that a value was logged with:

    leading    put in front of everything, after the rows were collected: `vmap(spool(f))`
    time       one index for each row; a single row has no such axis
    batch      one index for each example of a `vmap` and each device of a `shard_map` that
               the rows were logged in: `spool(vmap(f))`

    value      (*leading, [time,] *batch, ...)
    steps      (*leading, [time,] *batch, ...)
    valid      (*leading, [time,] *batch)
    masks      (*leading, [time,] *batch)
    count      (*leading,         *batch)

For example, a loop of 3 iterations that logs a vector of 5 numbers, for 2 examples:

    spool(vmap(f))     value (3, 2, 5)    time, batch and the vector
    vmap(spool(f))     value (2, 3, 5)    leading, time and the vector

Some rows may not exist: one branch of a `cond` logs two rows and the other logs three. Then
there is room for three, and `valid` marks those that were really logged. The others are
masked rows, whose content means nothing.

Invariant: all arrays of some rows have the same leading, time and batch axes. So whatever
stacks, pads or repeats rows treats all of them alike, and need not look into a value.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._jax import tracing
from lox._jax.extend import JaxprEqn
from lox._jax.types import AnyArray, PyTree
from lox._rows.types import RowForm, Shape, Splits
from lox_host.frozen import frozen


@frozen
class Branch:
    """Branch `index` of `count` of a vmapped `cond`: all run, each for its examples."""

    cond: int
    index: int
    count: int


class Where:
    """The source line of an equation. Never tells two structures apart."""

    def __init__(self, eqn: JaxprEqn | None = None):
        self.eqn = eqn

    def __str__(self) -> str:
        if self.eqn is None:
            return "an unknown line"
        return tracing.source_line(self.eqn)

    # Rows are the same program wherever they were logged: JAX compares their structures
    # to find out whether branches and carries agree, and caches by them.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Where)

    def __hash__(self) -> int:
        return 0


def static(**options: Any) -> Any:
    """Declare a field of a pytree that is known while tracing."""
    return dataclasses.field(metadata={"static": True}, **options)


def static_names(cls: type) -> list[str]:
    """Return the names of the fields that are known while tracing."""
    fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    return [field.name for field in fields if field.metadata.get("static")]


@jax.tree_util.register_dataclass
@frozen
class Rows:
    """All rows of one key, or of the keys of one record.

    Attributes:
        value: The logged value, a pytree of arrays. Of several keys: a tuple of values.
        steps: The steps by name.
        valid: Which rows were really logged. None: all of them.
        masks: For each step that only some rows have, which ones have it.
        count: How many rows there were before only the last ones were kept.
        time: Whether there is a time axis. Without it this is a single row.
        ndim: The rank that a row has in the first array of the value, with batch axes.
        batch: The sizes of the batch axes.
        outer: For each of these from outside the `shard_map` around, the mesh axes that
            its `vmap` splits it over (`spmd_axis_name`).
        tags: The tags of the key.
        path: The branches of vmapped `cond`s around these rows.
        exact: Whether each example that takes the path logs all of these rows.
        alike: Whether all examples have the same rows: `valid` is repeated for all of them.
        altered: Whether these are not the rows as logged: "reduced" or "thinned" ones.
        bound: The number of rows that are logged at most; of "thinned" ones, before.
        where: The line that logged the first of them.
    """

    value: PyTree
    steps: dict[str, AnyArray]
    valid: AnyArray | None = None
    masks: dict[str, AnyArray] = dataclasses.field(default_factory=dict)
    count: AnyArray | None = None
    time: bool = static(default=False)
    ndim: int = static(default=0)
    batch: Shape = static(default=())
    outer: Splits = static(default=())
    tags: tuple[str, ...] = static(default=())
    path: tuple[Branch, ...] = static(default=())
    exact: bool = static(default=True)
    alike: bool = static(default=False)
    altered: str = static(default="")
    bound: int = static(default=1)
    where: Where = static(default=Where())

    @property
    def leading(self) -> int:
        """The number of leading axes."""
        return jnp.ndim(jax.tree.leaves(self.value)[0]) - self.ndim - self.time

    @property
    def length(self) -> int:
        """The number of rows. Not `len()`: it may be symbolic."""
        if not self.time:
            return 1
        return jnp.shape(jax.tree.leaves(self.value)[0])[self.leading]

    @property
    def row(self) -> RowForm:
        """The form of one row. There must be no leading axes."""
        # ([time,] *batch, ...) -> (...). There are no leading axes in front of these.
        n = self.time + len(self.batch)
        leaves, treedef = jax.tree.flatten(self.value)
        return treedef, tuple(jax.ShapeDtypeStruct(x.shape[n:], x.dtype) for x in leaves)

    def arrays(self) -> tuple:
        """Return all fields that hold arrays, except for the value."""
        return self.steps, self.valid, self.masks, self.count

    def static_fields(self) -> tuple:
        """Return the class and all fields without arrays, in their order."""
        return Rows, *(getattr(self, name) for name in _STATIC)

    def replace(self, **changes: Any) -> "Rows":
        """Return the same rows with other fields."""
        return dataclasses.replace(self, **changes)

    def with_steps(self, steps: dict[str, AnyArray]) -> "Rows":
        """Return the rows with the same steps for all, in place of those of that name."""
        # (...) -> (*leading, [time,] *batch, ...)
        axes = self.leading + self.time + len(self.batch)
        shape = jnp.shape(jax.tree.leaves(self.value)[0])[:axes]

        def repeat(step: AnyArray) -> AnyArray:
            # What is on the host stays there.
            broadcast = jnp.broadcast_to if isinstance(step, jax.Array) else np.broadcast_to
            return broadcast(step, (*shape, *jnp.shape(step))) if shape else step

        repeated = {name: repeat(step) for name, step in steps.items()}
        masks = {name: mask for name, mask in self.masks.items() if name not in steps}
        return self.replace(steps={**self.steps, **repeated}, masks=masks)

    def without_batch_axis(self) -> "Rows":
        """Return the rows when their first batch axis has become a leading one."""
        outer = self.outer[1:]
        return self.replace(batch=self.batch[1:], outer=outer, ndim=self.ndim - 1)

    def without_origin(self) -> "Rows":
        """Return the rows without what only counts on their way out of the program."""
        return self.replace(
            path=(), outer=(), exact=True, alike=False, bound=1, where=Where()
        )

    def map(self, fun: Callable, **changes: Any) -> "Rows":
        """Apply `fun` to every array that has rows, which `count` has not."""
        mapped = jax.tree.map(fun, self.replace(count=None))
        return mapped.replace(**{"count": self.count, **changes})


_STATIC = static_names(Rows)


def counted(rows: Rows) -> jax.Array:
    """Count the rows that were really logged, `*batch`."""
    if rows.count is not None:
        return rows.count
    if rows.valid is None:
        return jnp.full(rows.batch, rows.length, jnp.int32)
    # ([time,] *batch) -> (*batch)
    valid = rows.valid.astype(jnp.int32)
    return valid.sum(0, dtype=jnp.int32) if rows.time else valid


def key_data(x: AnyArray) -> AnyArray:
    """Return an array as it is, but typed PRNG keys as their data."""
    return jax.random.key_data(x) if _is_key(x) else x


def _is_key(x: AnyArray) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def without_keys(rows: Rows) -> Rows:
    """Return the rows with typed PRNG keys as their data, which has more axes."""
    if not any(map(_is_key, jax.tree.leaves(rows))):
        return rows  # as it is: keys of one record share it
    # (...) of keys -> (..., n) of uint32
    data = rows.map(key_data)
    before, after = jax.tree.leaves(rows.value), jax.tree.leaves(data.value)
    more = np.ndim(after[0]) - np.ndim(before[0]) if after else 0
    return data.replace(ndim=rows.ndim + more)
