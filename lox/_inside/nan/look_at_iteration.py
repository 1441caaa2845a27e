"""Look at one iteration of a region: which values are bad, and what are they?

`LookAtRegion` keeps two bits for each input and output of each equation in the region, and
`KeepValues` keeps whole arrays of a few equations:

    y = log x         slots   x: 0   y: 1           flags   [0, 2, 2, 0, 3]
    z = mul y p               y: 2   p: 3   z: 4    (NAN = 1, INFINITE = 2)

A loop runs one program for all iterations, so both look in each iteration, and decide by
the counters of the loops whether to keep what they see.
"""

import dataclasses
import functools as ft
import operator
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._core.record import Delivery, Record
from lox._inside.nan.look_at_values import (
    LookAtValues,
    Moment,
    Read,
    State,
    flag,
    floats,
    may_be_bad,
)
from lox._inside.nan.program_map import EqnPath, ProgramMap
from lox._jax import equations
from lox._jax.extend import Jaxpr, JaxprEqn, Literal, Var
from lox._jax.types import AnyArray, Atom, Params
from lox._rows.collected import Collected
from lox._rows.rows import Where, static


class _InOneIteration(LookAtValues):
    """Looks at values at one moment only. Drops records, as an earlier run logged them."""

    def handle(self, record: Record, where: Where) -> Collected:
        return Collected()

    def emit(
        self, records: Sequence[Record | Delivery], token: AnyArray, params: Params
    ) -> AnyArray:
        return token

    def is_now(self, moment: Moment) -> jax.Array:
        """Return whether the moment is now. Only call this in the region of the moment."""
        pairs = zip(self.iterations(), moment.iterations, strict=True)
        same = [count == iteration for count, iteration in pairs]
        if moment.device is not None and self.device is not None:
            same.append(self.device == moment.device)
        return ft.reduce(operator.and_, same, jnp.asarray(True))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LookAtRegion(_InOneIteration):
    """Find out which equations compute NaNs or infinities, at one moment.

    Attributes:
        state: For each input and each output of the equations, `NAN`, `INFINITE` or both.
        moment: When to look.
        slots: The position in `state` of the first input of an equation, by its place. It
            is filled while the program is traced.
    """

    moment: Moment = static(kw_only=True)
    slots: "Slots" = static(kw_only=True)

    @classmethod
    def of(cls, program_map: ProgramMap, moment: Moment, *, masked: bool) -> "LookAtRegion":
        flags = jnp.zeros(max(1, program_map.number_of_atoms), jnp.int8)
        zero = jnp.zeros((), jnp.int32)
        return cls(
            flags,
            counter=zero,
            program_map=program_map,
            moment=moment,
            slots=Slots(),
            masked=masked,
        )

    def inspects(self, program: Jaxpr) -> Collection[Var]:
        if self.region != self.moment.region:
            return ()
        return {*floats(program), *self.mask_variables(program)}

    def seen(self, program: Jaxpr, eqns: Sequence[JaxprEqn], read: Read) -> State:
        if self.region != self.moment.region:
            return self.state
        positions, flags = [], []
        for eqn in eqns:
            first = self.slots.of(self.path, self.program_map.number(eqn), eqn)
            for i, atom in enumerate([*eqn.invars, *eqn.outvars]):
                if may_be_bad(atom):
                    positions.append(first + i)
                    mask = self.mask_of(program, eqn, atom, read)
                    flags.append(flag(read(atom), mask))
        if not positions:
            return self.state
        # One scatter for all flags of these equations, kept only at the right moment.
        new = self.state.at[jnp.asarray(positions)].set(jnp.stack(flags))
        return jnp.where(self.is_now(self.moment), new, self.state)

    def joined(self, states: State) -> State:
        # (devices, flags) -> (flags,). Devices that were not asked have zeros.
        return states.max(0)


class Slots:
    """The position of the flags of each equation. Compared by identity."""

    def __init__(self):
        self.first: dict[tuple[EqnPath, int], int] = {}
        self._next = 0

    def of(self, path: EqnPath, number: int, eqn: JaxprEqn) -> int:
        if (path, number) not in self.first:
            self.first[path, number] = self._next
            self._next += len(eqn.invars) + len(eqn.outvars)
        return self.first[path, number]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeepValues(_InOneIteration):
    """Keep the inputs and outputs of some equations, at one moment.

    Attributes:
        state: The inputs and outputs of each equation, and where its outputs count.
            Literals, and values that are not arrays, are None, and so is where a value
            counts everywhere.
        moment: When to keep them.
        wanted: The places of the equations.
    """

    moment: Moment = static(kw_only=True)
    wanted: tuple[tuple[EqnPath, int], ...] = static(kw_only=True)

    @classmethod
    def of(
        cls, program_map: ProgramMap, moment: Moment, wanted: Sequence, *, masked: bool
    ) -> "KeepValues":
        state = []
        for _, number in wanted:
            eqn = program_map.eqn(number)
            masks = program_map.masks(program_map.program(number))
            values = [_zeros(atom) for atom in (*eqn.invars, *eqn.outvars)]
            counts = [
                _zeros(var, bool) if masked and var in masks else None
                for var in eqn.outvars
            ]
            state.append((values, counts))
        zero = jnp.zeros((), jnp.int32)
        return cls(
            state,
            counter=zero,
            program_map=program_map,
            moment=moment,
            wanted=tuple(wanted),
            masked=masked,
        )

    def inspects(self, program: Jaxpr) -> Collection[Var]:
        numbers = [number for path, number in self.wanted if path == self.path]
        eqns = [self.program_map.eqn(number) for number in numbers]
        return {
            atom
            for eqn in eqns
            for atom in (*eqn.invars, *eqn.outvars)
            if not isinstance(atom, Literal) and not equations.is_dropped(atom)
        } | self.mask_variables(program)

    def seen(self, program: Jaxpr, eqns: Sequence[JaxprEqn], read: Read) -> State:
        state = list(self.state)
        for eqn in eqns:
            place = self.path, self.program_map.number(eqn)
            if place in self.wanted:
                i, is_now = self.wanted.index(place), self.is_now(self.moment)
                values, counts = state[i]
                pairs = zip((*eqn.invars, *eqn.outvars), values, strict=True)
                values = [
                    None if old is None else jnp.where(is_now, read(atom), old)
                    for atom, old in pairs
                ]
                masks = [self.mask_of(program, eqn, var, read) for var in eqn.outvars]
                counts = [
                    None if mask is None else jnp.where(is_now, mask, old)
                    for mask, old in zip(masks, counts, strict=True)
                ]
                state[i] = values, counts
        return state

    def joined(self, states: State) -> State:
        device = self.moment.device
        return states if device is None else jax.tree.map(lambda x: x[device], states)


def _zeros(atom: Atom, dtype: type | None = None) -> jax.Array | None:
    """Return zeros like an input or output of an equation, or None if it is no array."""
    aval: Any = atom.aval
    is_known = hasattr(aval, "shape") and not isinstance(atom, Literal)
    if not is_known or equations.is_dropped(atom):
        return None
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):  # a PRNG key
        return None
    return jnp.zeros(aval.shape, dtype or aval.dtype)
