"""Pack rows into a few wide arrays in place of many narrow ones.

A loop that carries twenty rings writes into twenty arrays in each iteration, and each of
these writes costs a separate operation. So the numbers of a row are put side by side, those
of 16 bits and those of 32 bits as unsigned integers with the same bits, all others if they
have the same dtype:

    value    loss float32, acc float32, norm float32[2]
    steps    step int32, number int32                           uint32[6] = l a n n s n

`unpack` restores the rows: `packing.unpack(packing.pack(rows))` is `rows`.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._rows.loop_carry import RingForm
from lox._rows.rows import Rows
from lox._rows.types import Keys
from lox._stream.packet import LARGE


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the rows of some keys are packed.

    Attributes:
        form: The form of one row, as it was logged.
        groups: Which of its arrays are put side by side, by their numbers.
    """

    form: RingForm
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, keys: Keys, rows: Rows) -> "Packing":
        form = RingForm.of(keys, rows)
        row, groups = form.row(), {}
        for i, leaf in enumerate(jax.tree.leaves(_columns(row))):
            one = _one(row, leaf)
            # A large array is not packed: copying it costs more than a separate write.
            is_large = math.prod(one.shape) * one.dtype.itemsize >= LARGE
            groups.setdefault(i if is_large else _packed(one.dtype), []).append(i)
        return cls(form, tuple(map(tuple, groups.values())))

    def pack(self, rows: Rows) -> Rows:
        """Return rows of this form with packed arrays as their value, and no steps."""
        front = 1 + len(rows.batch)
        # (time, *batch, ...) -> (time, *batch, size)
        leaves = [
            x.reshape(*x.shape[:front], math.prod(x.shape[front:]))
            for x in jax.tree.leaves(_columns(rows))
        ]
        value = tuple(_side_by_side([leaves[i] for i in group]) for group in self.groups)
        return rows.replace(value=value, steps={}, masks={}, ndim=front)

    def unpack(self, rows: Rows) -> Rows:
        """Return the rows as they were logged."""
        row = self.form.row()
        forms, tree = jax.tree.flatten(_columns(row))
        leaves: dict[int, jax.Array] = {}
        for array, group in zip(rows.value, self.groups, strict=True):
            start = 0
            for i in group:
                one = _one(row, forms[i])
                end = start + math.prod(one.shape)
                own = array[..., start:end].reshape(*array.shape[:-1], *one.shape)
                leaves[i] = _with_dtype(own, one.dtype)
                start = end
        value, steps, masks = jax.tree.unflatten(tree, [leaves[i] for i in sorted(leaves)])
        return rows.replace(value=value, steps=steps, masks=masks, ndim=row.ndim)


def _columns(rows: Rows) -> Any:
    return rows.value, rows.steps, rows.masks


def _packed(dtype: Any) -> Any:
    """Return the dtype in which numbers of a dtype are packed."""
    is_number = jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)
    return _BITS.get(dtype.itemsize, dtype) if is_number else dtype


# Eight bytes are left out: not every device can look at a float64 as bits.
_BITS = {2: jnp.dtype(jnp.uint16), 4: jnp.dtype(jnp.uint32)}


def _side_by_side(leaves: Sequence[jax.Array]) -> jax.Array:
    if len(leaves) == 1:
        return leaves[0]
    axis = leaves[0].ndim - 1
    return jax.lax.concatenate([_with_dtype(x, _packed(x.dtype)) for x in leaves], axis)


def _with_dtype(x: jax.Array, dtype: Any) -> jax.Array:
    """Return the same bits as another dtype of the same size."""
    return x if x.dtype == dtype else jax.lax.bitcast_convert_type(x, dtype)


def _one(row: Rows, x: Any) -> jax.ShapeDtypeStruct:
    """Return the form of an array in one row of one example."""
    return jax.ShapeDtypeStruct(jnp.shape(x)[1 + len(row.batch) :], x.dtype)
