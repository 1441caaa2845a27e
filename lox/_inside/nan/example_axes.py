"""Find the axes of a value that hold the examples of the `vmap`s around it.

`lox._jax.example_marks` marks these axes while JAX batches a function. But the derivative
of an operation is made of several others, which JAX adds later. These have no marks, or
only those of the `vmap`s outside of the derivative:

    y = sqrt x
    y' = lox_example[axis=0] y
    d = div 0.5 y'                      not marked, but its axes are those of y'
    u = mul t d                         ... and those of t

Elementwise operations do not move axes. So this looks at all values that are connected to
the given one by elementwise operations and calls, and takes the marks of the value that has
most of them. That value is inside all `vmap`s.
"""

from collections.abc import Iterator
from typing import cast

from jax.core import ShapedArray

from lox._inside.nan.program_map import CALLS, ELEMENTWISE, EqnPath, ProgramMap
from lox._jax import equations
from lox._jax.example_marks import EXAMPLE
from lox._jax.extend import Jaxpr, JaxprEqn, Literal, Var
from lox._jax.types import Atom

# The most connected values to look at.
_MOST = 64
# The path of a program, the program, and a variable in it.
_Place = tuple[EqnPath, Jaxpr, Atom]


def example_axes(
    program_map: ProgramMap, path: EqnPath, eqn: JaxprEqn, var: Var
) -> list[int]:
    """Return the axes of an output of an equation that hold examples, the outer first."""
    waiting: list[_Place] = [(path, program_map.program(program_map.number(eqn)), var)]
    seen: set[tuple[EqnPath, Atom]] = set()
    axes: list[int] = []
    while waiting and len(seen) < _MOST:
        path, program, current = waiting.pop(0)
        if (path, current) in seen:
            continue
        seen.add((path, current))
        axes = max(axes, _marked(program, current), key=len)
        connected = _connected(program_map, path, program, current)
        # A value of another shape has other axes, and what is behind it as well.
        waiting += [place for place in connected if _is_like(place[2], current)]
    return axes


def _connected(
    program_map: ProgramMap, path: EqnPath, program: Jaxpr, var: Atom
) -> Iterator[_Place]:
    """Yield the values that one equation connects with a variable."""
    for eqn in program.eqns:
        atoms = [*eqn.invars, *eqn.outvars]
        if not any(atom is var for atom in atoms):
            continue
        name = equations.primitive_name(eqn)
        if name in ELEMENTWISE:
            yield from ((path, program, atom) for atom in atoms)
        if name in CALLS:
            (inner, *_) = equations.jaxprs_in(eqn.params)
            deeper = (*path, program_map.number(eqn))
            yield from ((deeper, inner, x) for x in _paired(eqn, inner, var))
    if path and equations.primitive_name(program_map.eqn(path[-1])) in CALLS:
        call, outer = program_map.eqn(path[-1]), program_map.program(path[-1])
        yield from ((path[:-1], outer, x) for x in _paired(program, call, var))


def _paired(one: Jaxpr | JaxprEqn, other: Jaxpr | JaxprEqn, var: Atom) -> Iterator[Atom]:
    """Yield the inputs and outputs of `other` at the positions that a variable has."""
    for name in ("invars", "outvars"):
        atoms, others = getattr(one, name), getattr(other, name)
        if len(atoms) == len(others):
            yield from (y for x, y in zip(atoms, others, strict=True) if x is var)


def _marked(program: Jaxpr, var: Atom) -> list[int]:
    """Return the axes for which a variable is marked, or is a mark itself."""
    makers: dict[Atom, JaxprEqn] = {out: eqn for eqn in program.eqns for out in eqn.outvars}
    # Backwards first: marks of marks, down to what the operation has computed.
    marks, maker = [], makers.get(var)
    while maker is not None and equations.primitive_name(maker) == EXAMPLE:
        marks.append(maker)
        maker = makers.get(maker.invars[0])
    marks += _marks_of(program, var)
    # The axes, once each, in the order of their first marks.
    return list(dict.fromkeys(mark.params["axis"] for mark in marks))


def _marks_of(program: Jaxpr, var: Atom) -> Iterator[JaxprEqn]:
    """Yield the marks of a variable, and the marks of these."""
    for eqn in program.eqns:
        is_mark = equations.primitive_name(eqn) == EXAMPLE
        if is_mark and eqn.invars[0] is var:
            yield eqn
            yield from _marks_of(program, eqn.outvars[0])


def _is_like(atom: Atom, var: Atom) -> bool:
    if isinstance(atom, Literal):
        return False
    return getattr(atom.aval, "shape", None) == cast(ShapedArray, var.aval).shape
