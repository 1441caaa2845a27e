"""Exact logs under `grad` and `checkpoint`, where JAX runs loops less often, or more.

What does not change in a `scan` is taken out of it, records included: those are then tied
to a counter in the carry. A `while_loop` is run once more for its derivative, or for a
block that is computed again: that time it runs without its records.
"""

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from lox._core import context as _context
from lox._core.analysis import carried_in
from lox._core.handler import Anchor
from lox._core.interpreter import Interpreter, without_records
from lox._core.record import RECORD_EFFECTS, emit_effect, holds_records, listed
from lox._core.rules.hoisting import has_loose_records
from lox._core.staging import split
from lox._jax import equations, patches, tracing


@patches.implements("scan under grad")
def _anchored_scan(bind: Callable, *args, **params):
    """Tie the records in a `scan` that is being differentiated to the loop."""
    jaxpr, sizes = params["jaxpr"], equations.scan_sizes(params)
    if not holds_records(jaxpr) or not tracing.is_differentiating():
        return equations.bind_scan(bind, args, params)
    if _context.state() == "searched":
        return equations.bind_scan(bind, args, params)
    if _is_anchored.get() or not has_loose_records(jaxpr.jaxpr, sizes[0]):
        with tracing.setting(_is_anchored, False):  # The loops inside are not anchored yet.
            return equations.bind_scan(bind, args, params)
    consts, init, xs = split(args, *sizes)

    def body(carry, x):
        counter, carry = carry
        outs, _ = Interpreter(Anchor(counter))(jaxpr, *consts, *carry, *x)
        carry, ys = split(outs, len(init))
        return (counter + 1, carry), ys

    start = jnp.zeros((), jnp.int32)
    options = equations.scan_options(params)
    length = None if xs else params["length"]
    with tracing.setting(_is_anchored, True):
        (_, carry), ys = jax.lax.scan(body, (start, init), xs, length, **options)
    return [*carry, *ys]


@patches.implements("while under grad")
def _pruned_while(bind: Callable, *args, **params):
    """Keep derivatives out of a `while` if nothing but records would have them.

    With them, JAX would run the loop again for the derivatives, or could not transpose it.
    """
    if not holds_records(params["cond_jaxpr"], params["body_jaxpr"]):
        return bind(*args, **params)
    if _known_records.get() is not None:
        _known_records.set(len(list(carried_in(params))))
    if not tracing.is_differentiating():
        return bind(*args, **params)
    body = without_records(params["body_jaxpr"])
    used = [True] * params["cond_nconsts"] + equations.used_inputs(body)
    pairs = zip(args, used, strict=True)
    args = [x if is_used else jax.lax.stop_gradient(x) for x, is_used in pairs]
    return bind(*args, **params)


@patches.implements("while under checkpoint")
def _partially_known_while(rule: Callable, saveable, unknown: Sequence[bool], inst, eqn):
    """Let the records of a `while` be in what is known: it alone is run only once."""

    def original(eqn) -> tuple:
        return rule(saveable, unknown, inst, eqn)

    if not holds_records(eqn):
        return original(eqn)
    bare = eqn.replace(
        params=_silent_while(eqn.params), effects=eqn.effects - RECORD_EFFECTS
    )
    known, staged, *rest = original(bare)
    if known is None:
        return None, eqn, *rest
    if not any(unknown):
        return eqn, staged, *rest
    if emit_effect in eqn.effects:
        keys = listed(key for record in carried_in(eqn.params) for key in record.keys)
        raise NotImplementedError(
            f"`lox.tap` of a `while_loop` that logs {keys}, inside of `jax.linearize`: JAX "
            "cannot tell what of the loop is needed once and what again. Put `lox.tap` "
            "around the derivative, or use `jax.jvp`."
        )
    known, *_ = original(eqn)
    _check_all_known(len(list(carried_in(known.params))), eqn.params)
    return known, staged, *rest


def _silent_while(params: dict[str, Any]) -> dict[str, Any]:
    names = "cond_jaxpr", "body_jaxpr"
    return {**params, **{name: without_records(params[name]) for name in names}}


@patches.implements("while under linearize")
def _traced_while(rule: Callable, trace: Any, *tracers, **params):
    """The same while tracing: JAX's rule runs what is known, then stages the whole loop."""
    with tracing.setting(_known_records, 0):
        return rule(_StageSilently(trace), *tracers, **params)


class _StageSilently:
    """A trace for JAX's rule of `while`, which stages what is not known without records."""

    def __init__(self, trace: Any):
        self._trace = trace

    def default_process_primitive(self, primitive: Any, tracers: Any, params: dict) -> Any:
        params = _silent_second_run(params)
        return self._trace.default_process_primitive(primitive, tracers, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)


def _silent_second_run(params: dict[str, Any]) -> dict[str, Any]:
    """What is not known of a `while`, if all that is known has been run."""
    known = _known_records.get()
    if not known:
        return params
    _check_all_known(known, params)
    return _silent_while(params)


def _check_all_known(number: int, params: dict[str, Any]) -> None:
    records = list(carried_in(params))
    if number < len(records):
        keys = listed(key for record in records for key in record.keys)
        raise ValueError(
            f"One of {keys} in a `while_loop` holds a tangent, logged in a `custom_jvp` "
            "rule: under `jax.linearize` it has no value. Log primals there, or use "
            "`jax.jvp`."
        )


# Whether the next differentiated `scan` is one that is anchored already.
_is_anchored = contextvars.ContextVar("is_anchored", default=False)
# Of a `while` that is being split into what is known and what is not: how many records
# were in the former when it was run.
_known_records = contextvars.ContextVar[int | None]("known_records", default=None)


@patches.implements("closed_call under checkpoint")
def _inlined_call(bind: Callable, *args, **params):
    """Run a call that holds records as if it stood in the program itself."""
    if "call_jaxpr" in params:  # JAX 0.11
        jaxpr = params["call_jaxpr"]
        return jaxpr_as_fun(jaxpr)(*args) if holds_records(jaxpr) else bind(*args, **params)
    (fun,), operands = equations.split_subfunctions(args, params)
    jaxpr, *_ = getattr(fun.f, "args", [None])
    if hasattr(jaxpr, "effects") and holds_records(jaxpr):
        return fun.call_wrapped(*operands)
    return bind(*args, **params)
