"""Find out for which examples the values of a program count.

Under `vmap`, a `cond` runs all branches for all examples. `lox._jax.example_marks` marks
what they compute with the examples that take the branch:

    p = eq index 1                      bool[8]
    y = log x                           float32[8, 3]      counts where p is true
    y' = lox_taken[axes=(0,)] y p                          the same
    z = transpose y'                    float32[3, 8]      the same, on its second axis
    w = select_n index x z                                 counts everywhere
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lox._jax import equations
from lox._jax.example_marks import EXAMPLE, TAKEN
from lox._jax.extend import Jaxpr, JaxprEqn, Var


class Mask(NamedTuple):
    """Where a value counts: a condition, and the axes of the value that it has."""

    condition: Var
    axes: tuple[int, ...]


# The masks of each value that does not count everywhere. All of them must hold.
Masks = Mapping[Var, Sequence[Mask]]


def find_masks(program: Jaxpr) -> Masks:
    """Return where the values of a program count.

    A mark also holds for the value that is marked, and for one that JAX only moves to other
    axes. But a value that is older than a condition is not computed in the branch, it is
    passed through. The mark of what comes out says nothing about it.
    """
    masks: dict[Var, list[Mask]] = {}
    pairs, position = [], {}
    for i, eqn in enumerate(program.eqns):
        position.update(dict.fromkeys(eqn.outvars, i))
        name = equations.primitive_name(eqn)
        if name not in _MARKS_AND_MOVES or not isinstance(eqn.invars[0], Var):
            continue
        marked, out = eqn.invars[0], eqn.outvars[0]
        own = [Mask(each.condition, _moved(eqn, each)) for each in masks.get(marked, ())]
        if name == TAKEN and isinstance(eqn.invars[1], Var):
            own.append(Mask(eqn.invars[1], eqn.params["axes"]))
        masks[out] = own
        if name in (TAKEN, EXAMPLE):
            pairs.append((marked, out))
    for marked, out in reversed(pairs):
        defined = position.get(marked, -1)
        masks[marked] = [x for x in masks[out] if position.get(x.condition, -1) < defined]
    return {var: own for var, own in masks.items() if own}


_MARKS_AND_MOVES = TAKEN, EXAMPLE, "transpose", "broadcast_in_dim"


def _moved(eqn: JaxprEqn, mask: Mask) -> tuple[int, ...]:
    """Return where the axes of a mask of the input of an equation are in its output."""
    if "permutation" in eqn.params:
        return tuple(eqn.params["permutation"].index(axis) for axis in mask.axes)
    if "broadcast_dimensions" in eqn.params:
        return tuple(int(eqn.params["broadcast_dimensions"][axis]) for axis in mask.axes)
    return mask.axes


def counts_alike(masks: Masks, var: Var, reader: JaxprEqn) -> bool:
    """Return whether what an equation computes counts wherever a variable does."""
    own = {mask.condition for mask in masks.get(var, ())}
    return all(
        mask.condition in own for out in reader.outvars for mask in masks.get(out, ())
    )


def widened(condition: jax.Array, mask: Mask, ndim: int) -> jax.Array:
    """Return the condition of a mask with as many axes as the value, some of size 1."""
    order = sorted(range(len(mask.axes)), key=mask.axes.__getitem__)
    others = [axis for axis in range(ndim) if axis not in mask.axes]
    return jnp.expand_dims(jnp.transpose(condition, order), others)
