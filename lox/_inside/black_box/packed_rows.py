"""Pack rows into a few wide arrays in place of many narrow ones.

A loop that carries twenty rings writes into twenty arrays in each iteration, and each of
these writes costs a separate operation. So all numbers of a row that have the same dtype
are put side by side:

    value    loss float32, acc float32, norm float32[2]         float32[4] = l a n n
    steps    step int32, number int32                           int32[2]   = s n

`unpack` restores the rows: `packing.unpack(packing.pack(rows))` is `rows`.
"""

import dataclasses
import math
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
            groups.setdefault(i if is_large else one.dtype, []).append(i)
        return cls(form, tuple(map(tuple, groups.values())))

    def pack(self, rows: Rows) -> Rows:
        """Return rows of this form with packed arrays as their value, and no steps."""
        front = 1 + len(rows.batch)
        # (time, *batch, ...) -> (time, *batch, size)
        leaves = [
            x.reshape(*x.shape[:front], math.prod(x.shape[front:]))
            for x in jax.tree.leaves(_columns(rows))
        ]
        value = tuple(
            jax.lax.concatenate([leaves[i] for i in group], front) for group in self.groups
        )
        return rows.replace(value=value, steps={}, masks={}, ndim=front)

    def unpack(self, rows: Rows) -> Rows:
        """Return the rows as they were logged."""
        row = self.form.row()
        forms, tree = jax.tree.flatten(_columns(row))
        leaves: dict[int, jax.Array] = {}
        for array, group in zip(rows.value, self.groups, strict=True):
            start = 0
            for i in group:
                shape = _one(row, forms[i]).shape
                end = start + math.prod(shape)
                leaves[i] = array[..., start:end].reshape(*array.shape[:-1], *shape)
                start = end
        value, steps, masks = jax.tree.unflatten(tree, [leaves[i] for i in sorted(leaves)])
        return rows.replace(value=value, steps=steps, masks=masks, ndim=row.ndim)


def _columns(rows: Rows) -> Any:
    return rows.value, rows.steps, rows.masks


def _one(row: Rows, x: Any) -> jax.ShapeDtypeStruct:
    """Return the form of an array in one row of one example."""
    return jax.ShapeDtypeStruct(jnp.shape(x)[1 + len(row.batch) :], x.dtype)
