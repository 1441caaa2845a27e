"""Defer the rewriting of an inner program until JAX batches the equation that holds it.

A vmapped `cond` masks the records in its branches, at every depth. A `cond` inside it is
vmapped next, and masks its records again. If the outer one rewrote the inner one, and
the inner one then rewrote itself again, the innermost of n nested `cond`s would be
rewritten n times, and all of them n + (n - 1) + ... + 1 times. So the outer one rewrites
only the records directly in its branches, and puts an equation `lox_deferred` in place of
each equation that holds other programs:

    cond[branches=(..., { log x             ->  { log x valid=m
                          y = cond[...] x })      y = lox_deferred[cond[...]] m x })

JAX batches the new branches right away. It reaches `lox_deferred` with a trace that
evaluates equations instead of staging them. At that point the inner `cond` is rewritten
with the mask `m`, and batched; the programs in its own branches are deferred in turn. If a
second mask meets `lox_deferred` before JAX does, both are applied together. So every
equation is rewritten once for all masks around it, and once for its own.

Invariant: no `lox_deferred` is left in a finished program. A mask is batched everywhere, so
JAX has to evaluate every equation that has a mask as an operand.
"""

from collections.abc import Collection
from typing import Any

import jax
from jax.core import AbstractValue
from jax.typing import ArrayLike

from lox._core.rules.registry import rule_for, rule_of
from lox._core.staging import stage_once
from lox._jax import equations, tracing
from lox._jax.extend import ClosedJaxpr, JaxprEqn, Literal, Primitive
from lox._jax.types import PyTreeDef
from lox._rows.collected import Collected

# An `Interpreter`, whose module imports this one.
InterpreterLike = Any


def can_defer(eqn: JaxprEqn) -> bool:
    """Return whether an equation holds programs, and JAX is staging it to run it later."""
    return tracing.is_staging() and any(True for _ in equations.jaxprs_in(eqn.params))


def defer(
    interpreter: InterpreterLike, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    """Stage an equation whose rule runs once JAX evaluates it. It must collect nothing."""
    # The arrays of the handler (its masks) become operands, so that JAX batches them, too.
    leaves, tree = jax.tree.flatten(interpreter)
    jaxpr, operands = tracing.as_program(eqn, args)
    return _deferred_p.bind(*leaves, *operands, tree=tree, jaxpr=jaxpr), Collected()


class _Deferred(Primitive):
    """Runs the rule of an equation with an interpreter, unless JAX only stages it."""

    multiple_results = True

    def bind(self, *args: ArrayLike, tree: PyTreeDef, jaxpr: ClosedJaxpr) -> list:
        if tracing.is_staging():
            return super().bind(*args, tree=tree, jaxpr=jaxpr)
        # Inside a loop, JAX batches this several times. If it is staged only once, JAX
        # finds the same program each time, and its caches hit.
        interpreter, *operands = _parts(args, tree)
        return stage_once(_apply, jaxpr, interpreter, *operands).run()[0]


_deferred_p = _Deferred("lox_deferred")


@_deferred_p.def_effectful_abstract_eval
def _(
    *avals: AbstractValue, tree: PyTreeDef, jaxpr: ClosedJaxpr
) -> tuple[list, Collection[object]]:
    return jaxpr.out_avals, jaxpr.effects


@rule_for("lox_deferred")
def _deferred(
    interpreter: InterpreterLike, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    # A second mask has met the equation before JAX does: apply both at once.
    earlier, *operands = _parts(args, eqn.params["tree"])
    handler = interpreter.handler.following(earlier.handler)
    return _apply(eqn.params["jaxpr"], interpreter.with_handler(handler), *operands)


def _apply(
    jaxpr: ClosedJaxpr, interpreter: InterpreterLike, *operands: ArrayLike
) -> tuple[list, Collected]:
    """Run the rule of the only equation of a program, as `as_program` made it."""
    (eqn,) = jaxpr.eqns
    env = dict(zip(jaxpr.jaxpr.invars, operands, strict=True))
    args = [atom.val if isinstance(atom, Literal) else env[atom] for atom in eqn.invars]
    rule = rule_of(eqn)
    assert rule is not None
    return rule(interpreter, eqn, *args)


def _parts(args: tuple, tree: PyTreeDef) -> tuple:
    """Split operands into the interpreter and the operands of the equation."""
    # In the order in which `defer` binds them.
    n = tree.num_leaves
    return jax.tree.unflatten(tree, args[:n]), *args[n:]
