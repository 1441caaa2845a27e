"""Primitives of hijax, which are objects with a method for each transformation.

JAX has one primitive for all of them, `call_hi_primitive`, with the object as its parameter
`_prim`. With its upgrade flags (since JAX 0.11), `checkpoint`, `custom_jvp` and
`custom_vjp` are such objects, too:

    flag                without it           with it
    jax_remat3          checkpoint           RematTraced
    jax_custom_jvp3     custom_jvp_call      CustomJVPTraced
    jax_custom_vjp3     custom_vjp_call      CustomVJPTraced
"""

import contextlib
import copy
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import AbstractValue
from jax.typing import ArrayLike

from lox._jax.extend import ClosedJaxpr, JaxprEqn, Primitive
from lox._jax.tracing import RecordEffect
from lox._jax.types import PyTree

# A primitive of hijax. Its class is private, and had other names before JAX 0.12.
HiPrim = Any


def program_of(eqn: JaxprEqn) -> ClosedJaxpr:
    """Return the program of a function with custom rules."""
    if "_prim" not in eqn.params:
        return eqn.params["call_jaxpr"]
    prim = eqn.params["_prim"]
    # JAX has traced it already. The program serves if it takes the inputs of the equation.
    traced = getattr(prim, "traced", None)
    if traced is not None and len(traced.jaxpr.in_avals) == len(eqn.invars):
        return traced.jaxpr
    return expanded(prim)


def expanded(prim: HiPrim) -> ClosedJaxpr:
    """Return what a primitive does, as a program from flat inputs to flat outputs."""

    def expand(*args: ArrayLike) -> list:
        outs = prim.expand(*jax.tree.unflatten(prim.in_tree, args))
        return prim.out_tree.flatten_up_to(outs)

    return jax.make_jaxpr(expand)(*prim.in_avals_flat)


def with_effect(prim: HiPrim, effect: RecordEffect) -> HiPrim:
    """Return the same primitive, with one more effect."""
    # A copy: JAX keeps primitives in its caches, and others may hold the original.
    changed = copy.copy(prim)
    changed.effects = prim.effects | {effect}
    return changed


def defines(prim: HiPrim, rule: str) -> bool:
    """Return whether the author of a primitive wrote this rule for it."""
    *_, base, _ = type(prim).__mro__  # `HiPrim`, which had other names before JAX 0.12
    return getattr(type(prim), rule, None) is not getattr(base, rule, None)


def is_checkpoint(prim: HiPrim) -> bool:
    return type(prim).__name__ == "RematTraced"


def bind_checkpoint(prim: HiPrim, args: Sequence[ArrayLike]) -> list:
    """Bind a `checkpoint` of hijax as the primitive that it is without the flag."""
    from jax.extend.core.primitives import remat_p

    return remat_p.bind(
        *args,
        jaxpr=prim.jaxpr,
        prevent_cse=prim.prevent_cse,
        differentiated=False,
        policy=_ByName(prim.policy) if callable(prim.policy) else prim.policy,
    )


class _ByName:
    """A policy of `checkpoint` that also knows names given with the flag on."""

    def __init__(self, policy: Callable):
        self._policy = policy

    def __call__(
        self, primitive: Primitive, *avals: AbstractValue, **params: PyTree
    ) -> object:
        prim: HiPrim = params.get("_prim")
        if type(prim).__name__ in ("CheckpointName", "CheckpointNameFwd"):
            from jax.extend.core.primitives import name_p

            return self._policy(name_p, *avals, name=prim.name)
        return self._policy(primitive, *avals, **params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByName) and self._policy == other._policy

    def __hash__(self) -> int:
        return hash(self._policy)


def with_rules_in(
    context: Callable[[], contextlib.AbstractContextManager], prim: HiPrim
) -> HiPrim:
    """Return the same primitive, whose rules run in a context whenever they run."""
    # It may be bound several times, by each transformation that it passes through.
    if getattr(prim, "_rules_are_wrapped", False):
        return prim

    def in_context(rule: Callable) -> Callable:
        @ft.wraps(rule)
        def run(*args: object, **kwargs: object) -> object:
            with context():
                return rule(*args, **kwargs)

        return run

    wrapped = copy.copy(prim)
    wrapped._rules_are_wrapped = True
    # `custom_jvp` and `custom_vjp` keep the user's rules as parameters, from which their
    # methods make new primitives (under `vmap`, for example).
    held = {name: prim.params[name] for name in _HELD_RULES if prim.params.get(name)}
    held = jax.tree.map(in_context, held)
    wrapped.params = {**prim.params, **held}
    wrapped.__dict__.update(held)
    for name in _METHODS:
        # Bound to the new primitive, as a method may pass itself on to another equation.
        setattr(wrapped, name, in_context(getattr(wrapped, name)))
    return wrapped


_HELD_RULES = ("jvp_rule", "fwd", "bwd", "bwd_accums", "remat_rules")
_METHODS = ("expand", "vjp_fwd", "vjp_bwd", "jvp", "lin", "linearized", "transpose")
