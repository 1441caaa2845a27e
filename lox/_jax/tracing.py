"""Evaluate equations and ask what is being traced, with JAX's private parts.

`evaluate` runs some equations of a program. Within a trace of `jit` it stages them as they
are, which is how JAX inlines a jitted function and takes a fifth of the time. The other
functions know about the trace that is current and the source line of an equation.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from jax._src import core as _core, literals as _literals
from jax._src.debugging import DebugEffect as _DebugEffect
from jax._src.interpreters.partial_eval import DynamicJaxprTrace
from jax.core import Tracer, eval_jaxpr
from jax.experimental.key_reuse import _core as _key_reuse
from jax.extend import source_info_util
from jax.extend.core import JaxprEqn, Literal, Primitive
from jax.interpreters.partial_eval import DynamicJaxprTracer

# Moved from `jax.experimental` in JAX 0.9.
_enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # pyright: ignore[reportAttributeAccessIssue]


class RecordEffect(_DebugEffect):
    """Keeps an equation without outputs alive, in order, through every transformation.

    JAX asks `isinstance` to decide which effects a transformation may carry, so a
    subclass of the debug effect is allowed wherever `jax.debug.callback` is.
    """

    def __init__(self, name: str):
        self.name = name

    def __str__(self):
        return self.name


def leaves_keys_unused(primitive: Primitive) -> None:
    """Tell `jax.debug_key_reuse` that to log a PRNG key is not to use it up."""
    _key_reuse.key_reuse_signatures[primitive] = _key_reuse.KeyReuseSignature()


def bind(eqn: JaxprEqn, *args) -> list:
    """Run `eqn` unchanged."""
    return evaluate(_empty, [eqn], list(eqn.outvars), dict(_bindings(eqn, args)))


def _bindings(eqn: JaxprEqn, args) -> Iterator[tuple]:
    for atom, arg in zip(eqn.invars, args, strict=True):
        if not isinstance(atom, Literal):
            yield atom, arg


def evaluate(jaxpr: Any, eqns: list[JaxprEqn], outvars: list, env: dict) -> list:
    """Evaluate some equations of `jaxpr` as a small program of their own.

    JAX then takes care of bind parameters, contexts, name stacks and source lines.
    """
    defined, invars = set(), {}
    for eqn in eqns:
        for atom in eqn.invars:
            if not isinstance(atom, Literal) and atom not in defined:
                invars[atom] = None
        defined.update(eqn.outvars)
    trace = _core.trace_ctx.trace
    may_be_high = jaxpr is _empty or jaxpr.is_high
    is_high = may_be_high and any(map(_is_high, eqns))
    if not is_high and _can_restage(trace, eqns, invars, env):
        return _restage(trace, eqns, outvars, {v: env[v] for v in invars})
    small = jaxpr.replace(
        constvars=[],
        invars=list(invars),
        outvars=outvars,
        eqns=eqns,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return eval_jaxpr(small, (), *[env[v] for v in invars])


def _can_restage(trace: Any, eqns: list[JaxprEqn], invars, env: dict) -> bool:
    """Whether the equations would be traced into just what they are already."""
    return (
        isinstance(trace, DynamicJaxprTrace)
        and not getattr(trace, "requires_low", False)
        and not any(eqn.effects for eqn in eqns)
        and all(jax.typeof(env[v]) == v.aval for v in invars)
    )


def _is_high(eqn: JaxprEqn) -> bool:
    """Whether an equation is for `hijax`, or holds one that is."""
    return eqn.primitive.is_high(*(atom.aval for atom in eqn.invars), **eqn.params)


def _restage(trace: Any, eqns: list[JaxprEqn], outvars: list, env: dict) -> list:
    """Put the equations into a program that is being traced, as they are.

    This is how JAX inlines a jitted function; it takes a fifth of the time.
    """
    here = source_info_util.current()
    tracers = {v: trace.to_jaxpr_tracer(x, source_info=here) for v, x in env.items()}
    for eqn in eqns:
        info = eqn.source_info
        info = info.replace(name_stack=here.name_stack + info.name_stack)
        args = [
            DynamicJaxprTracer(trace, atom.aval, atom, info)
            if isinstance(atom, Literal)
            else tracers[atom]
            for atom in eqn.invars
        ]
        avals = [v.aval for v in eqn.outvars]
        outs = trace.emit_eqn(
            args, avals, eqn.primitive, eqn.params, eqn.effects, info, eqn.ctx
        )
        tracers.update(zip(eqn.outvars, outs, strict=True))
    return [tracers[v] for v in outvars]


_empty = jax.make_jaxpr(lambda: ())().jaxpr


@contextlib.contextmanager
def at(eqn: JaxprEqn):
    """New equations belong to the source line, name stack and context of `eqn`."""
    info = eqn.source_info
    stack = source_info_util.current_name_stack() + info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def where(eqn: JaxprEqn) -> str:
    """The user's line that made `eqn`."""
    return source_info_util.summarize(eqn.source_info) or "a line that is not known"


def unbatched(x: Any, size: int, axis: int) -> Any:
    """What one example of a batch is, abstractly, its sharding included."""
    return _core.mapped_aval(size, axis, jax.typeof(x))


def constant(literal: Literal) -> Any:
    """The value of a literal, in its own dtype also where that is not enabled now."""
    dtype: Any = literal.aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
    if jax.dtypes.canonicalize_dtype(dtype) == dtype:
        return np.asarray(literal.val, dtype)
    with _enable_x64(True):
        return jnp.asarray(literal.val, dtype)


def array(x: Any) -> Any:
    """The same, a constant of a program as NumPy's array and not one of JAX's own kind."""
    return np.asarray(x) if isinstance(x, _CONSTANTS) else x


_CONSTANTS = tuple(
    getattr(_literals, name)
    for name in ("LiteralArray", "TypedNdArray")  # JAX < 0.8, and since then
    if hasattr(_literals, name)
)


@contextlib.contextmanager
def setting(variable: contextvars.ContextVar, value: Any):
    """Let a variable have a value in here."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def differentiating() -> bool:
    """Whether the operation that is about to be traced is being differentiated."""
    trace = _core.trace_ctx.trace
    return type(trace).__name__ in ("JVPTrace", "LinearizeTrace")


def staged_program() -> Any:
    """What stands for the program that is being traced, to be run later. None: none."""
    trace = _core.trace_ctx.trace
    while trace is not None and not isinstance(trace, DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace


def is_nested() -> bool:
    """Whether the program that is being traced is for a part of another one."""
    program = staged_program()
    trace = None if program is None else program.parent_trace
    while trace is not None and not isinstance(trace, DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def is_current(x: Any) -> bool:
    """Whether `x` belongs to what is being traced now, not to something around."""
    return isinstance(x, Tracer) and x._trace is _core.trace_ctx.trace


def staged_with(effect: Any) -> Iterator[tuple[Primitive, list]]:
    """The equations with an effect of the program that is being traced, the last first.

    Yields:
        What each of them does, and what comes out of it.
    """
    program = staged_program()
    if program is None:
        return
    for entry in reversed(program.frame.tracing_eqns):
        eqn = entry if hasattr(entry, "effects") else entry()
        if eqn is not None and effect in eqn.effects:
            yield (
                eqn.primitive,
                [
                    DynamicJaxprTracer(program, v.aval, v, eqn.source_info, eqn)
                    for v in eqn.outvars
                ],
            )
