"""What can be said of a program before it is evaluated."""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var

from lox._core import context as _context
from lox._core.record import (
    Delivery,
    Record,
    emit_p,
    holds_records,
    listed,
    log_effect,
    log_p,
)
from lox._core.rules.table import rules
from lox._jax import equations, sharding, tracing


def records_in(params: Any) -> Iterator[Record]:
    """Yield the records in a program or in the parameters of an equation.

    They have variables in place of arrays. A record inside a `shard_map` has a batch axis
    for the devices, as its rows will have.
    """
    yield from _carried_by(params, (log_p,))


def carried_in(params: Any) -> Iterator[Record | Delivery]:
    """Yield the same, and what is on its way to the host already."""
    yield from _carried_by(params, (log_p, emit_p))


def _carried_by(params: Any, primitives: tuple[Primitive, ...]) -> Iterator[Any]:
    for jaxpr in equations.jaxprs_in(params):
        for eqn in jaxpr.eqns:
            if eqn.primitive in primitives:
                operands = eqn.invars[len(eqn.outvars) :]  # without the token
                yield from jax.tree.unflatten(eqn.params["form"], operands)
            elif holds_records(eqn):
                devices = sharding.device_counts(eqn)
                for record in _carried_by(eqn.params, primitives):
                    outer, inner = (
                        record.batch[: record.outer],
                        record.batch[record.outer :],
                    )
                    yield record.replace(batch=(*outer, *devices, *inner))


def may_hold_records(program: Any) -> bool:
    """Return whether a program or an equation holds records, or will when differentiated.

    The second is so if a function in it has derivative rules that log.
    """
    if holds_records(program):
        return True
    if _context.state() in ("silent", "searched"):  # silent rules, or nobody to care
        return False
    if hasattr(program, "eqns"):
        return _rules_log(equations.close(program).jaxpr)
    programs = equations.jaxprs_in(program.params)
    return _logs_when_differentiated(program) or any(map(_rules_log, programs))


def _rules_log(jaxpr: Jaxpr) -> bool:
    """Return whether derivative rules of functions in a program log."""
    if jaxpr not in _known_to_log:
        _known_to_log[jaxpr] = any(map(may_hold_records, jaxpr.eqns))
    return _known_to_log[jaxpr]


_known_to_log: weakref.WeakKeyDictionary[Jaxpr, bool]
_known_to_log = weakref.WeakKeyDictionary()


def _logs_when_differentiated(eqn: JaxprEqn) -> bool:
    """Return whether the derivative rules of a function log. That takes a trace of them."""
    name = equations.primitive_name(eqn)
    if name not in FORWARD_RULES and name not in REVERSE_RULES:
        return False
    try:
        with _context.searched():
            return holds_records(_derivative(eqn, by_jvp=name in FORWARD_RULES))
    except Exception:  # Rules that fail do so again when somebody needs them.
        return False


# Functions with a rule for `jvp`, and with rules for the forward and the backward pass.
FORWARD_RULES = "custom_jvp_call", "CustomJVPTraced"
REVERSE_RULES = "custom_vjp_call", "custom_vjp_call_jaxpr", "CustomVJPTraced"


def _derivative(eqn: JaxprEqn, *, by_jvp: bool) -> ClosedJaxpr:
    """Return the derivative of a function as a program, which runs all of its rules."""
    avals = [atom.aval for atom in eqn.invars]
    live = tuple(i for i, aval in enumerate(avals) if is_differentiable(aval))

    def differentiated(*args: Any) -> Any:
        fun, given = function_of(eqn, args, live), [args[i] for i in live]
        if by_jvp:
            return jax.jvp(fun, given, given)
        outs, pullback = jax.vjp(fun, *given)
        zeros = [np.zeros(x.shape, jax.dtypes.float0) for x in outs]
        pairs = zip(outs, zeros, strict=True)
        return pullback([x if is_differentiable(x) else zero for x, zero in pairs])

    return jax.make_jaxpr(differentiated)(*avals)


def function_of(eqn: JaxprEqn, args: Sequence[Any], live: Sequence[int]) -> Any:
    """Return an equation as a function of its live arguments."""

    def fun(*values: Any) -> list:
        merged = list(args)
        for i, value in zip(live, values, strict=True):
            merged[i] = value
        return tracing.bind(eqn, *merged)

    return fun


def is_differentiable(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def keys_in(program: Any) -> frozenset[str]:
    """Return the keys that a program logs."""
    return frozenset(key for record in records_in(program) for key in record.keys)


def check(jaxpr: Any, seen: set[int] | None = None) -> None:
    """Raise if a record is in an equation that does not show it, and would be lost."""
    seen = set() if seen is None else seen
    for eqn in jaxpr.eqns:
        for inner in equations.jaxprs_in(eqn.params):
            hidden = log_effect in inner.effects and log_effect not in eqn.effects
            # What has a rule shows what it runs; what it may run later is not lost.
            if hidden and equations.primitive_name(eqn) not in rules:
                raise unsupported(eqn)
            if id(inner) not in seen:
                seen.add(id(inner))
                check(inner, seen)


def unsupported(eqn: JaxprEqn) -> NotImplementedError:
    """Return the error for an equation that holds records and has no rule."""
    keys = listed(key for record in carried_in(eqn.params) for key in record.keys)
    return NotImplementedError(
        f"lox does not know how logs leave `{equations.primitive_name(eqn)}`, which holds "
        f"{keys} (at {tracing.source_line(eqn)}). Log outside of it, or wrap what is "
        "inside in `lox.nolog`."
    )


def donates(jaxpr: Any) -> bool:
    """Return whether a jitted function in the program takes over buffers."""
    return any(any(eqn.params.get("donated_invars", ())) for eqn in jaxpr.eqns)


def last_uses(jaxpr: Any) -> dict[Var, float]:
    """Return for each variable the last equation that reads it; for outputs infinity."""
    uses: dict[Var, float] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        uses.update(dict.fromkeys(variables(eqn.invars), i))
    uses.update(dict.fromkeys(variables(jaxpr.outvars), float("inf")))
    return uses


def variables(atoms: Any) -> list[Var]:
    """Return the atoms of an equation that are not literals."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]
