"""Find the equation in which a NaN appeared, given which values of a region hold one.

A NaN *appears* in an equation whose output holds a NaN while none of its inputs does:

    y = log x           x: finite        y: -inf
    z = sub y y         y: -inf          z: NaN      the NaN appears here
    w = add z 1.0       z: NaN           w: NaN      it is only passed on

It often comes from an infinity, which is no mistake by itself. A mask of minus infinity is
common, and so is `exp` of a large number in a denominator. So an infinity counts only if it
becomes a NaN. `infinity_origin.py` finds where the infinity came from.
"""

import dataclasses

import numpy as np

from lox._inside.nan.find_region import Births
from lox._inside.nan.look_at_iteration import Slots
from lox._inside.nan.look_at_values import NAN, Moment
from lox._inside.nan.program_map import EqnPath, ProgramMap

EqnPlace = tuple[EqnPath, int]


@dataclasses.dataclass(frozen=True)
class Flags:
    """What is known about the values of a region at one moment.

    Attributes:
        program_map: Where equations are.
        moment: The moment.
        slots: Where the flags of an equation are.
        flags: The flags.
    """

    program_map: ProgramMap
    moment: Moment
    slots: Slots
    flags: np.ndarray

    def inputs(self, place: EqnPlace) -> np.ndarray:
        first, eqn = self.slots.first[place], self.program_map.eqn(place[1])
        return self.flags[first : first + len(eqn.invars)]

    def outputs(self, place: EqnPlace) -> np.ndarray:
        first, eqn = self.slots.first[place], self.program_map.eqn(place[1])
        return self.flags[first + len(eqn.invars) :][: len(eqn.outvars)]

    def first_birth(self, births: Births) -> EqnPlace | None:
        """Return the first equation in which a NaN appears."""
        for place in self.slots.first:
            path, number = place
            eqn = self.program_map.eqn(number)
            if self.program_map.enters(eqn) or self._is_dropped(path, births.bad):
                continue
            if not births.counts(self.program_map, path, eqn):
                continue
            if _has(self.outputs(place), births.bad) and not _has(
                self.inputs(place), births.bad
            ):
                return place
        return None

    def _is_dropped(self, path: EqnPath, bad: int) -> bool:
        """Return whether a function of JAX itself, on this path, returns nothing bad."""
        for i, number in enumerate(path):
            place, eqn = (path[:i], number), self.program_map.eqn(number)
            if place in self.slots.first and self.program_map.is_closed(eqn):
                return not _has(self.outputs(place), bad)
        return False

    def first_use(self) -> EqnPlace | None:
        """Return the first equation that computes a NaN from a constant that is NaN.

        Equations that only copy the constant, to another shape or type, do not count.
        """
        for place in self.slots.first:
            eqn = self.program_map.eqn(place[1])
            is_copy = self.program_map.enters(eqn) or len(eqn.invars) < 2
            if not is_copy and _has(self.outputs(place), NAN):
                return place
        return None


def _has(flags: np.ndarray, bad: int) -> bool:
    return bool((flags & bad).any())
