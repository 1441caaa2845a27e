"""`MarkTaken`: mark the values of a branch with the examples that take it.

It is a `Mask` that also puts a mark behind each equation that computes floats, so that
`lox.find_nan` knows which values are real. The values themselves stay what they are:

    y = log x             ->       y = log x
                                   y' = lox_taken y condition
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox._core.analysis import last_uses
from lox._core.mask import Mask
from lox._core.rules.registry import rule_of
from lox._jax import equations
from lox._jax.example_marks import mark_taken
from lox._jax.extend import Jaxpr, JaxprEqn, Var
from lox_host.frozen import frozen


@frozen
class _Marked:
    variables: Sequence[Var]


@jax.tree_util.register_dataclass
@frozen
class MarkTaken(Mask):
    """Mask records, and mark values, by the same conditions."""

    def concerns(self, program: Any) -> bool:
        if super().concerns(program):
            return True
        if not isinstance(program, JaxprEqn):
            return any(map(_computes_floats, program.eqns))
        inner = equations.jaxprs_in(program.params)
        return rule_of(program) is not None and any(map(self.concerns, inner))

    def stops(self, program: Jaxpr) -> Mapping[int, Sequence[_Marked]]:
        uses = last_uses(program)
        # What the program is given may be NaN for the others, such as the carry of a loop.
        computed = [program.invars, *(eqn.outvars for eqn in program.eqns)]
        found = {}
        for i, each in enumerate(computed):
            variables = [var for var in each if _is_float(var) and var in uses]
            if variables:
                found[i] = [_Marked(variables)]
        return found

    def visit(self, stop: _Marked, values: list) -> list:
        for condition in self.conditions:
            if not condition.ndim:
                values = [mark_taken(x, condition) for x in values]
        return values


def _computes_floats(eqn: JaxprEqn) -> bool:
    return any(map(_is_float, eqn.outvars))


def _is_float(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, jnp.inexact)
