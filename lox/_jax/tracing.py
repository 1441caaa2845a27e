"""Evaluate equations, and ask JAX what it is tracing.

A jaxpr is a list of equations, and lox runs most of them as they are. `evaluate` does that
for some in a row. There are two ways:

    eager, or under `vmap`     JAX evaluates them one by one: `eval_jaxpr`
    while `jit` is tracing     they are copied into the program that is being built

The second is how JAX inlines a jitted function. It skips the rules that would only arrive
at the same equations again, and takes a fifth of the time.

JAX keeps a stack of traces: the innermost is what happens to the next operation, its
`parent_trace` what happens to the result. `jit(vmap(f))` runs `f` under

    BatchTrace -> DynamicJaxprTrace -> evaluation

and a `DynamicJaxprTrace` is a program that is being built.
"""

import contextlib
import contextvars
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from jax._src import (
    core as _core,
    literals as _literals,
    source_info_util as _source_info_util,
)
from jax._src.debugging import DebugEffect as _DebugEffect
from jax._src.interpreters.partial_eval import DynamicJaxprTrace
from jax.core import AbstractValue, Trace, Tracer, eval_jaxpr
from jax.experimental.key_reuse import _core as _key_reuse
from jax.interpreters.partial_eval import DynamicJaxprTracer
from jax.typing import ArrayLike

from lox._jax.extend import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    source_info_util,
)
from lox._jax.types import AnyArray, DType

# Moved from `jax.experimental` in JAX 0.9.
_enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # pyright: ignore[reportAttributeAccessIssue]

T = TypeVar("T")

# Values of variables: arrays, tracers, PRNG keys, and whatever else JAX may compute with.
Env = dict[Var, AnyArray]


class RecordEffect(_DebugEffect):
    """Keeps an equation without outputs alive, in order, through every transformation.

    JAX asks `isinstance` to decide which effects a transformation may carry, so a
    subclass of the debug effect is allowed wherever `jax.debug.callback` is.
    """

    def __init__(self, name: str):
        self.name = name

    def __str__(self):
        return self.name


def leave_keys_unused(primitive: Primitive) -> None:
    """Tell `jax.debug_key_reuse` that logging a PRNG key does not use it up."""
    _key_reuse.key_reuse_signatures[primitive] = _key_reuse.KeyReuseSignature()


# Evaluating equations -----------------------------------------------------------------


def bind(eqn: JaxprEqn, *args: ArrayLike) -> list:
    """Run one equation with these inputs."""
    return evaluate(_empty, [eqn], list(eqn.outvars), _variables(eqn, args))


def as_program(eqn: JaxprEqn, args: Sequence[ArrayLike]) -> tuple[ClosedJaxpr, list]:
    """Return an equation as a program, and those of its inputs that the program takes."""
    env = _variables(eqn, args)
    program = _empty.replace(
        invars=list(env), outvars=list(eqn.outvars), eqns=[eqn], effects=eqn.effects
    )
    return ClosedJaxpr(program, ()), list(env.values())


def _variables(eqn: JaxprEqn, args: Sequence[ArrayLike]) -> Env:
    pairs = zip(eqn.invars, args, strict=True)
    return {atom: arg for atom, arg in pairs if not isinstance(atom, Literal)}


def evaluate(jaxpr: Jaxpr, eqns: list[JaxprEqn], outvars: list[Var], env: Env) -> list:
    """Evaluate some equations of `jaxpr` and return the values of `outvars`."""
    # What the equations read but do not compute are the inputs.
    defined: set[Var] = set()
    invars: dict[Var, None] = {}  # a set that keeps its order
    for eqn in eqns:
        for atom in eqn.invars:
            if not isinstance(atom, Literal) and atom not in defined:
                invars[atom] = None
        defined.update(eqn.outvars)
    trace = _core.trace_ctx.trace
    # A flag of the jaxpr answers for most programs, at no cost.
    may_be_high = jaxpr is _empty or jaxpr.is_high
    is_high = may_be_high and any(map(_is_high, eqns))
    if not is_high and _can_restage(trace, eqns, invars, env):
        return _restage(trace, eqns, outvars, {v: env[v] for v in invars})
    # As a small program: JAX then takes care of contexts, name stacks and source lines.
    small = jaxpr.replace(
        constvars=[],
        invars=list(invars),
        outvars=outvars,
        eqns=eqns,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return eval_jaxpr(small, (), *[env[v] for v in invars])


def _can_restage(
    trace: Trace, eqns: list[JaxprEqn], invars: Iterable[Var], env: Env
) -> bool:
    """Tell whether tracing the equations would give just the same equations."""
    return (
        isinstance(trace, DynamicJaxprTrace)
        and not getattr(trace, "requires_low", False)
        and not any(eqn.effects for eqn in eqns)
        # An argument may have another type than the variable, such as a weak one.
        and all(jax.typeof(env[v]) == v.aval for v in invars)
    )


def _is_high(eqn: JaxprEqn) -> bool:
    """Tell whether an equation is for `hijax`, or holds one that is."""
    return eqn.primitive.is_high(*(atom.aval for atom in eqn.invars), **eqn.params)


def _restage(
    trace: DynamicJaxprTrace, eqns: list[JaxprEqn], outvars: list[Var], env: Env
) -> list:
    """Copy the equations into the program that is being traced."""
    # The name stack is that of the place where they are copied to, and then their own.
    here = source_info_util.current()
    tracers: Env = {v: trace.to_jaxpr_tracer(x, source_info=here) for v, x in env.items()}
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
def context_of(eqn: JaxprEqn) -> Iterator[None]:
    """Give new equations the source line, name stack and settings of `eqn`."""
    # As for `_restage`: first the scopes of the place where we are, then those of `eqn`.
    info = eqn.source_info
    stack = source_info_util.current_name_stack() + info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def source_line(eqn: JaxprEqn) -> str:
    """Return the user's line that made `eqn`."""
    return source_info_util.summarize(eqn.source_info) or "an unknown line"


class SourceFrame(NamedTuple):
    """A line of the user's code that JAX remembers for an equation."""

    file: str
    line: int
    function: str


def user_frames(eqn: JaxprEqn) -> list[SourceFrame]:
    """Return the user's lines that made `eqn`, the innermost first."""
    frames = _source_info_util.user_frames(eqn.source_info.traceback)
    return [SourceFrame(f.file_name, f.start_line, f.function_name) for f in frames]


def place() -> object:
    """Return an object that identifies the user's line that is being traced.

    If an equation is traced again, the object is the same. None: the line is not known.
    """
    return source_info_util.current().traceback


def literal_value(literal: Literal) -> ArrayLike:
    """Return the value of a literal in its own dtype, even if that is not enabled now."""
    dtype: DType = literal.aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
    if jax.dtypes.canonicalize_dtype(dtype) == dtype:
        return np.asarray(literal.val, dtype)
    with _enabled(dtype):
        return jnp.asarray(literal.val, dtype)


def _enabled(dtype: DType) -> contextlib.AbstractContextManager:
    """Enable 64 bits in here if an array of this dtype needs them."""
    is_enabled = jax.dtypes.canonicalize_dtype(dtype) == dtype
    return contextlib.nullcontext() if is_enabled else _enable_x64(True)


def plain_array(x: ArrayLike) -> ArrayLike:
    """Return a constant of a program as a NumPy array, and anything else as it is."""
    return np.asarray(x) if isinstance(x, _CONSTANTS) else x


def returned_array(x: T, aval: AbstractValue) -> T | jax.Array:
    """Return an output of a program as the array that its function would return.

    An output that depends on no input may be a constant or a literal, and then it is no
    `jax.Array`. JAX has arrays of weak type for numbers of Python.
    """
    if not isinstance(x, (*_CONSTANTS, np.ndarray, np.generic, bool, int, float, complex)):
        return x
    array = np.asarray(x, aval.dtype)  # pyright: ignore[reportAttributeAccessIssue]
    is_weak = getattr(aval, "weak_type", False)
    with _enabled(array.dtype):
        return jnp.asarray(array.item() if is_weak else array)


_CONSTANTS = tuple(
    getattr(_literals, name)
    for name in ("LiteralArray", "TypedNdArray")  # JAX 0.7, and since 0.8
    if hasattr(_literals, name)
)


def unbatched_aval(x: ArrayLike, size: int, axis: int) -> AbstractValue:
    """Return the type of one example of a batch, including its sharding."""
    return _core.mapped_aval(size, axis, jax.typeof(x))


# What is being traced -----------------------------------------------------------------


def is_differentiating() -> bool:
    """Tell whether the next operation is differentiated."""
    return type(_core.trace_ctx.trace).__name__ in ("JVPTrace", "LinearizeTrace")


def is_eager() -> bool:
    """Return whether operations are run at once, with no transformation around."""
    return isinstance(_core.trace_ctx.trace, _core.EvalTrace)


def is_staging() -> bool:
    """Return whether operations are only written down now, to be run later."""
    return isinstance(_core.trace_ctx.trace, DynamicJaxprTrace)


def staged_program() -> DynamicJaxprTrace | None:
    """Return the program that is being traced, to be run later. None: everything is run."""
    return _innermost_program(_core.trace_ctx.trace)


def is_nested() -> bool:
    """Tell whether the program that is being traced is a part of another one."""
    program = staged_program()
    return program is not None and _innermost_program(program.parent_trace) is not None


def _innermost_program(trace: Trace | None) -> DynamicJaxprTrace | None:
    while trace is not None and not isinstance(trace, DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace


def is_current(x: object) -> bool:
    """Tell whether `x` belongs to the innermost trace, not to one around it."""
    return isinstance(x, Tracer) and x._trace is _core.trace_ctx.trace


def staged_with(effect: RecordEffect) -> Iterator[tuple[Primitive, Sequence[Tracer]]]:
    """Yield the equations with an effect in the program being traced, the last one first.

    Yields:
        The primitive and the outputs of each.
    """
    program = staged_program()
    if program is None:
        return
    for entry in reversed(program.frame.tracing_eqns):
        # Most are weak references: an equation that nobody needs may be gone.
        eqn = entry() if callable(entry) else entry
        if eqn is not None and effect in eqn.effects:
            outs = [
                DynamicJaxprTracer(program, v.aval, v, eqn.source_info, eqn)
                for v in eqn.outvars
            ]
            yield eqn.primitive, outs


@contextlib.contextmanager
def setting(variable: contextvars.ContextVar[T], value: T) -> Iterator[None]:
    """Let a variable have a value in here."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
