"""Find the origin of an infinity that became a NaN.

    a = log x             -inf, of 0.0: the origin
    b = mul a 2.0         -inf
    c = mul p b           NaN, of 0.0 and -inf: here the NaN appears

The search goes backwards, from an infinite input to the equation that computed it, and then
to an infinite input of that equation. It may leave the iteration: a carried value comes
from the iteration before, and the backward pass of a `scan` reads what the forward pass has
stacked. To look at the values of another iteration takes one more run of the program.

    forward scan, iteration 3:   d = div 0.5 y         inf, stacked
    backward scan, iteration 3:  c = mul ct d          NaN, of 0.0 and inf

The search gives up where it cannot be certain: at a constant or an argument, at another
device, at a loop of unknown length, or after `_MOST` runs.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from lox._core.staging import split
from lox._inside.nan.find_equation import EqnPlace, Flags
from lox._inside.nan.look_at_values import INFINITE, Moment
from lox._inside.nan.program_map import CALLS, ELEMENTWISE, LOOPS, EqnPath, ProgramMap
from lox._jax import equations
from lox._jax.extend import Jaxpr, JaxprEqn, Literal
from lox._jax.types import Atom

# The most moments to look at.
_MOST = 8
# Pairs of an axis and a position along it.
Positions = tuple[tuple[int, int], ...]
# An equation, the iterations in which it runs, and the part of its output that is meant.
_Maker = tuple[EqnPlace, tuple[int, ...], Positions]


@dataclasses.dataclass(frozen=True)
class _Value:
    """A value on the way back.

    Attributes:
        path: The path of its program.
        program: The program.
        atom: The variable.
        iterations: How many iterations of the loops around it have ended.
        index: The positions along some of its axes, if only a part of it is meant.
    """

    path: EqnPath
    program: Jaxpr
    atom: Atom
    iterations: tuple[int, ...]
    index: Positions = ()


class OriginSearch:
    """The search for the origin of a NaN.

    Args:
        program_map: Where equations are.
        look_at: Returns the flags at a moment.
    """

    def __init__(self, program_map: ProgramMap, look_at: Callable[[Moment], Flags]):
        self.program_map = program_map
        self._look_at = look_at
        self._looked: dict[Moment, Flags] = {}

    def run(self, flags: Flags, place: EqnPlace) -> tuple[Moment, EqnPlace] | None:
        """Return where the infinity that became a NaN appeared. None: unknown."""
        self._looked[flags.moment] = flags
        device, moment, index = flags.moment.device, flags.moment, ()
        seen = set()
        while (moment, place) not in seen:
            seen.add((moment, place))
            flags_now = self._flags(moment)
            if flags_now is None or place not in flags_now.slots.first:
                return None
            infinite = np.flatnonzero(flags_now.inputs(place) & INFINITE)
            # Finite inputs: the infinity appeared here. If this is where the search began,
            # the NaN did not come from an infinity.
            if not len(infinite):
                return (moment, place) if len(seen) > 1 else None
            path, number = place
            eqn = self.program_map.eqn(number)
            index = _index_before(eqn, index)
            atom = eqn.invars[infinite[0]]
            program = self.program_map.program(number)
            maker = self._maker(_Value(path, program, atom, moment.iterations, index))
            if maker is None:
                return None
            place, iterations, index = maker
            moment = Moment(self.program_map.region_of(place[0]), iterations, device)
        return None

    def _flags(self, moment: Moment) -> Flags | None:
        if moment not in self._looked:
            if len(self._looked) >= _MOST:
                return None
            self._looked[moment] = self._look_at(moment)
        return self._looked[moment]

    def _maker(self, value: _Value) -> _Maker | None:
        """Return the equation that computes a value, its iterations, and the index."""
        if isinstance(value.atom, Literal):
            return None
        for eqn in value.program.eqns:
            if any(out is value.atom for out in eqn.outvars):
                return self._computed_by(eqn, value)
        for i, var in enumerate(value.program.invars):
            if var is value.atom and value.path:
                outside = self._passed_in(i, value)
                return outside and self._maker(outside)
        return None

    def _computed_by(self, eqn: JaxprEqn, value: _Value) -> _Maker | None:
        """Follow an output of an equation into the program that computes it, if any."""
        number, name = self.program_map.number(eqn), equations.primitive_name(eqn)
        if not self.program_map.enters(eqn):
            return (value.path, number), value.iterations, value.index
        position = [out is value.atom for out in eqn.outvars].index(True)
        path = (*value.path, number)
        if name in CALLS:
            (program, *_) = equations.jaxprs_in(eqn.params)
            return self._maker(
                dataclasses.replace(
                    value, path=path, program=program, atom=program.outvars[position]
                )
            )
        if name == "cond":
            return self._in_a_branch(eqn, position, path, value)
        if name != "scan":
            return None
        # A carried output comes from the last iteration. A stacked output comes from the
        # iteration at its index along the first axis, and loses this axis inside.
        program, length = eqn.params["jaxpr"].jaxpr, eqn.params["length"]
        _, carried = equations.scan_sizes(eqn.params)
        if position < carried:
            count, index = length - 1, value.index
        elif 0 in dict(value.index):
            count = _count(eqn, dict(value.index)[0])
            index = tuple((axis - 1, i) for axis, i in value.index if axis)
        else:
            return None
        iterations = (*value.iterations, count)
        atom = program.outvars[position]
        return self._maker(_Value(path, program, atom, iterations, index))

    def _in_a_branch(
        self, eqn: JaxprEqn, position: int, path: EqnPath, value: _Value
    ) -> _Maker | None:
        """Follow an output of a `cond` into the branch that was taken."""
        for branch in eqn.params["branches"]:
            program = branch.jaxpr
            found = self._maker(
                dataclasses.replace(
                    value, path=path, program=program, atom=program.outvars[position]
                )
            )
            if found is None:
                continue
            place, iterations, _ = found
            region = self.program_map.region_of(place[0])
            device = next(iter(self._looked)).device
            flags = self._flags(Moment(region, iterations, device))
            # The flags of a branch that was not taken are all zero.
            if flags is None or place not in flags.slots.first:
                continue
            if (flags.outputs(place) & INFINITE).any():
                return found
        return None

    def _passed_in(self, position: int, value: _Value) -> _Value | None:
        """Return the value outside of a program that is passed in as an input."""
        *path, number = value.path
        eqn, outer = self.program_map.eqn(number), self.program_map.program(number)
        name = equations.primitive_name(eqn)
        outside = dataclasses.replace(value, path=tuple(path), program=outer)
        if name in CALLS:
            return dataclasses.replace(outside, atom=eqn.invars[position])
        if name == "cond":
            return dataclasses.replace(outside, atom=eqn.invars[position + 1])
        if name not in LOOPS or self.program_map.is_predicate(value.program):
            return None
        *around, count = value.iterations
        sizes = _input_sizes(eqn)
        consts, carry, _ = split(range(len(value.program.invars)), *sizes)
        atom = eqn.invars[position + _skipped(eqn)]
        outside = dataclasses.replace(outside, atom=atom, iterations=tuple(around))
        # A constant, or the carry of the first iteration, comes from outside of the loop. A
        # later carry comes from the iteration before. The rest are slices of `xs`.
        if position in consts or (position in carry and not count):
            return outside
        if position in carry:
            before = value.program.outvars[position - len(consts)]
            return dataclasses.replace(value, atom=before, iterations=(*around, count - 1))
        index = (0, _count(eqn, count)), *((axis + 1, i) for axis, i in value.index)
        return dataclasses.replace(outside, index=index)


def _index_before(eqn: JaxprEqn, index: Positions) -> Positions:
    """Return the part of the inputs from which a part of the output is computed."""
    name = equations.primitive_name(eqn)
    if name in ELEMENTWISE:
        return index
    if name == "transpose":
        return tuple((eqn.params["permutation"][axis], i) for axis, i in index)
    return ()


def _count(scan: JaxprEqn, i: int) -> int:
    """Turn an index of `xs` into a number of iterations, or the other way round."""
    return scan.params["length"] - 1 - i if scan.params["reverse"] else i


def _input_sizes(loop: JaxprEqn) -> Sequence[int]:
    """Return how many constants and carried values the body of a loop takes."""
    if equations.primitive_name(loop) == "scan":
        return equations.scan_sizes(loop.params)
    consts = loop.params["body_nconsts"]
    return consts, len(loop.params["body_jaxpr"].in_avals) - consts


def _skipped(loop: JaxprEqn) -> int:
    """Return how many inputs of a loop its body does not take."""
    return loop.params.get("cond_nconsts", 0)
