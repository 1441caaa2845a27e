"""Questions about a program that are answered without evaluating it.

The interpreter, the rules and the handlers ask:

    records_in, carried_in, keys_in       which records does it hold?
    may_hold_records                      does it log, at the latest when differentiated?
    check, unsupported                    would a record be lost?
    is_bounded, lets_buffer_through       is the number of rows known; if not, can a buffer
                                          be passed through?
    holds_writes, written_from            which outputs are rings that it wrote into?
    donates, last_uses, variables         what must the interpreter keep, and how long?
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

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
from lox._core.rules.registry import rule_of
from lox._jax import equations, sharding, tracing
from lox._jax.extend import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive, Var
from lox._jax.types import AnyArray, Atom, Code, Params, Program, PyTree
from lox._rows.ring_write import write_p


def records_in(params: Program | Params) -> Iterator[Record]:
    """Yield the records in a program or in the parameters of an equation.

    They have variables in place of arrays. A record inside a `shard_map` has a batch axis
    of devices, as its rows will have.
    """
    yield from _carried_by(params, (log_p,))


def carried_in(params: Program | Params) -> Iterator[Record | Delivery]:
    """Yield records, and what is already on its way to the host (`lox_emit`)."""
    yield from _carried_by(params, (log_p, emit_p))


def _carried_by(
    params: Program | Params, primitives: tuple[Primitive, ...]
) -> Iterator[Any]:
    for jaxpr in equations.jaxprs_in(params):
        for eqn in jaxpr.eqns:
            if eqn.primitive in primitives:
                operands = eqn.invars[len(eqn.outvars) :]  # without the token
                yield from jax.tree.unflatten(eqn.params["form"], operands)
            elif holds_records(eqn):
                for record in _carried_by(eqn.params, primitives):
                    # Inside a `shard_map`, `record` is what one device logs.
                    batch = sharding.batch_outside(eqn, record.batch, record.outer)
                    yield record.replace(batch=batch)


def may_hold_records(program: Code) -> bool:
    """Return whether a program or an equation holds records, or will when differentiated.

    It will if it calls `log_grad`, or a function whose derivative rules log.
    """
    if holds_records(program):
        return True
    # In silence, rules do not log either. A program that is only searched is never run.
    if _context.state() in ("silent", "searched"):
        return False
    if not isinstance(program, JaxprEqn):
        (jaxpr,) = equations.jaxprs_in(program)
        return _rules_log(jaxpr)
    programs = equations.jaxprs_in(program.params)
    return _logs_when_differentiated(program) or any(map(_rules_log, programs))


def _rules_log(jaxpr: Jaxpr) -> bool:
    """Return whether a program logs when it is differentiated. The answer is remembered."""
    if jaxpr not in _known_to_log:
        _known_to_log[jaxpr] = any(map(may_hold_records, jaxpr.eqns))
    return _known_to_log[jaxpr]


_known_to_log: weakref.WeakKeyDictionary[Jaxpr, bool]
_known_to_log = weakref.WeakKeyDictionary()


def _logs_when_differentiated(eqn: JaxprEqn) -> bool:
    """Return whether the derivative of an equation logs.

    For a function with custom rules, these have to be traced to find out.
    """
    name = equations.primitive_name(eqn)
    if name == LOG_GRAD:
        return True
    if name not in FORWARD_RULES and name not in REVERSE_RULES:
        return False
    try:
        with _context.searched():
            derivative = _derivative(eqn, by_jvp=name in FORWARD_RULES)
            return holds_records(derivative) or _holds_log_grads(derivative.jaxpr)
    except Exception:  # Rules that fail here fail again when they are needed.
        return False


def _holds_log_grads(jaxpr: Jaxpr) -> bool:
    return any(
        equations.primitive_name(eqn) == LOG_GRAD
        or any(map(_holds_log_grads, equations.jaxprs_in(eqn.params)))
        for eqn in jaxpr.eqns
    )


# The primitive whose transpose logs, see `log_grad.py`.
LOG_GRAD = "lox_log_grad"
# Functions with a custom rule for `jvp`, and those with custom forward and backward rules.
FORWARD_RULES = "custom_jvp_call", "CustomJVPTraced"
REVERSE_RULES = "custom_vjp_call", "custom_vjp_call_jaxpr", "CustomVJPTraced"


def _derivative(eqn: JaxprEqn, *, by_jvp: bool) -> ClosedJaxpr:
    """Return the derivative of a function as a program that runs all of its rules."""
    avals = [atom.aval for atom in eqn.invars]
    live = tuple(i for i, aval in enumerate(avals) if is_differentiable(aval))

    def differentiated(*args: ArrayLike) -> PyTree:
        fun, given = function_of(eqn, args, live), [args[i] for i in live]
        if by_jvp:
            return jax.jvp(fun, given, given)
        outs, pullback = jax.vjp(fun, *given)
        # Outputs that are not floats have cotangents of the dtype float0.
        zeros = [np.zeros(x.shape, jax.dtypes.float0) for x in outs]
        pairs = zip(outs, zeros, strict=True)
        return pullback([x if is_differentiable(x) else zero for x, zero in pairs])

    return jax.make_jaxpr(differentiated)(*avals)


def function_of(
    eqn: JaxprEqn, args: Sequence[ArrayLike], live: Sequence[int]
) -> Callable[..., list]:
    """Return an equation as a function of its live arguments."""

    def fun(*values: ArrayLike) -> list:
        merged = list(args)
        for i, value in zip(live, values, strict=True):
            merged[i] = value
        return tracing.bind(eqn, *merged)

    return fun


def is_differentiable(x: AnyArray) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def keys_in(program: Program | Params) -> frozenset[str]:
    """Return the keys that a program logs."""
    return frozenset(key for record in records_in(program) for key in record.keys)


def check(jaxpr: Jaxpr, seen: set[int] | None = None) -> None:
    """Raise if an equation holds a record but not its effect: it would be lost."""
    seen = set() if seen is None else seen
    for eqn in jaxpr.eqns:
        for inner in equations.jaxprs_in(eqn.params):
            hidden = log_effect in inner.effects and log_effect not in eqn.effects
            # An equation with a rule has the effects of what it runs. Other programs in it,
            # such as derivative rules, run later, and are not lost.
            if hidden and rule_of(eqn) is None:
                raise unsupported(eqn)
            if id(inner) not in seen:
                seen.add(id(inner))
                check(inner, seen)


def unsupported(eqn: JaxprEqn) -> NotImplementedError:
    """Return the error for an equation that holds records and has no rule."""
    keys = listed(key for record in carried_in(eqn.params) for key in record.keys)
    return NotImplementedError(
        f"lox does not know how to get logs out of `{equations.primitive_name(eqn)}`, "
        f"which logs {keys} (at {tracing.source_line(eqn)}). Log outside it, or wrap the "
        "function inside it in `lox.nolog`."
    )


def is_bounded(program: Code) -> bool:
    """Return whether a program or an equation logs at most a known number of rows."""
    if isinstance(program, JaxprEqn):
        if equations.primitive_name(program) in ("while", "shard_map"):
            return False
        return all(map(is_bounded, equations.jaxprs_in(program.params)))
    return all(is_bounded(eqn) for eqn in program.eqns if log_effect in eqn.effects)


def lets_buffer_through(eqn: JaxprEqn) -> bool:
    """Return whether a buffer of rows can be passed through an equation."""
    return equations.primitive_name(eqn) in _LETS_THROUGH


# Those whose rules carry threaded state as it is. A `shard_map` would have to divide the
# buffer among its devices, and a function with a custom rule has two programs to agree.
_LETS_THROUGH = ("lox_log", "jit", "pjit", "scan", "cond", "while")


def lets_buffer_everywhere(program: Code) -> bool:
    """Return whether a buffer can be passed to all that logs in a program or equation."""
    if isinstance(program, JaxprEqn) and not lets_buffer_through(program):
        return False
    inside = program.params if isinstance(program, JaxprEqn) else program
    return all(
        lets_buffer_everywhere(eqn)
        for jaxpr in equations.jaxprs_in(inside)
        for eqn in jaxpr.eqns
        if log_effect in eqn.effects
    )


def holds_writes(program: Code) -> bool:
    """Return whether a program or an equation writes into a ring."""
    if isinstance(program, JaxprEqn):
        if program.primitive is write_p:
            return True
        return any(map(holds_writes, equations.jaxprs_in(program.params)))
    (jaxpr,) = equations.jaxprs_in(program)
    if jaxpr not in _writing:
        _writing[jaxpr] = any(map(holds_writes, jaxpr.eqns))
    return _writing[jaxpr]


# Programs do not change, so the answer is found once for each of them.
_writing: weakref.WeakKeyDictionary[Jaxpr, bool] = weakref.WeakKeyDictionary()


def written_from(program: Program) -> list[int | None]:
    """Return for each output the index of the input that it is, perhaps written into.

    None: it is no input, or something other than `lox_write` has changed it.

        { lambda ; ring x. let        [0, None]
            y = sin x
            ring', n = lox_write ring y
          in (ring', y) }
    """
    jaxpr = equations.close(program).jaxpr
    origins: dict[Var, int] = {var: i for i, var in enumerate(jaxpr.invars)}

    def origin(atom: Atom) -> int | None:
        return None if isinstance(atom, Literal) else origins.get(atom)

    for eqn in jaxpr.eqns:
        if holds_writes(eqn):
            for var, i in zip(eqn.outvars, _written_by(eqn), strict=True):
                source = None if i is None else origin(eqn.invars[i])
                if source is not None:
                    origins[var] = source
    return [origin(atom) for atom in jaxpr.outvars]


def _written_by(eqn: JaxprEqn) -> list[int | None]:
    """Return for each output of an equation the index of the input that it is."""
    name, params = equations.primitive_name(eqn), eqn.params
    if eqn.primitive is write_p:
        # Operands: columns, their rows, the count, ... Outputs: columns, the count.
        columns = len(eqn.outvars) - 1
        return [*range(columns), 2 * columns]
    if name in ("jit", "pjit"):
        return written_from(params["jaxpr"])
    if name == "lox_deferred":
        # The arrays of the interpreter come first, see `rules/deferred.py`.
        before, found = params["tree"].num_leaves, written_from(params["jaxpr"])
        return [None if i is None else before + i for i in found]
    if name == "cond":
        # All branches must have written into the same input, or left it alone.
        of_branches = zip(*map(written_from, params["branches"]), strict=True)
        same = [origins[0] if len({*origins}) == 1 else None for origins in of_branches]
        return [None if i is None else i + 1 for i in same]  # after the index
    if name == "while":
        before = params["body_nconsts"]
        skipped = params["cond_nconsts"]
        found = written_from(params["body_jaxpr"])
        # If one iteration leaves an input at the same place of the carry, so does the loop.
        return [skipped + i if i == before + k else None for k, i in enumerate(found)]
    if name == "scan":
        before, carried = equations.scan_sizes(params)
        # As for a `while`; outputs behind the carry are stacked, and no rings.
        found = written_from(params["jaxpr"])[:carried]
        kept = [i if i == before + k else None for k, i in enumerate(found)]
        return [*kept, *[None] * (len(eqn.outvars) - carried)]
    return [None] * len(eqn.outvars)


def donates(jaxpr: Jaxpr) -> bool:
    """Return whether a jitted function in the program takes over buffers (donation)."""
    return any(any(eqn.params.get("donated_invars", ())) for eqn in jaxpr.eqns)


def last_uses(jaxpr: Jaxpr) -> dict[Var, float]:
    """Return the last equation that reads each variable; for outputs, infinity."""
    uses: dict[Var, float] = {}
    # Later equations overwrite what earlier ones said.
    for i, eqn in enumerate(jaxpr.eqns):
        uses.update(dict.fromkeys(variables(eqn.invars), i))
    uses.update(dict.fromkeys(variables(jaxpr.outvars), float("inf")))
    return uses


def variables(atoms: Iterable[Atom]) -> list[Var]:
    """Return the atoms of an equation that are not literals."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]
