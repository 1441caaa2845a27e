"""Exact logs under `grad` and `checkpoint`, where JAX runs loops less often, or twice.

To differentiate a program, JAX splits it into what is known in the forward pass and what
has to wait for the backward pass. Loops are not always split as the program was written:

    `scan`      What is the same in all iterations is moved out of the loop, records
                included. A record would then be logged once instead of `length` times:

                    scan { lox_log[k] k }    ->    lox_log[k] k ; scan { }

                lox ties such a record to a counter in the carry. It then depends on the
                iteration, and stays:

                    scan { lox_log[k] k anchors=i ; i' = i + 1 }

    `while`     The loop runs once for what is known and again, as a whole, for its
                derivative or for a block that `checkpoint` computes again. The second run
                must not log, so lox removes its records.

Invariant: each record is in exactly one of the two parts, and runs as often as the program
says.
"""

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Trace, Tracer
from jax.typing import ArrayLike

from lox._core import context as _context
from lox._core.analysis import carried_in
from lox._core.interpreter import Interpreter, without_records
from lox._core.mask import Anchor
from lox._core.record import RECORD_EFFECTS, emit_effect, holds_records, listed
from lox._core.rules.hoisting import has_loose_records
from lox._core.staging import split
from lox._jax import equations, patches, tracing
from lox._jax.extend import JaxprEqn, Primitive, jaxpr_as_fun
from lox._jax.types import AnyArray, Params


@patches.implements("scan under grad")
def _anchored_scan(bind: Callable, *args: ArrayLike, **params: Any) -> list:
    """Tie the records in a `scan` that is being differentiated to the loop."""
    jaxpr, sizes = params["jaxpr"], equations.scan_sizes(params)
    if not holds_records(jaxpr) or not tracing.is_differentiating():
        return equations.bind_scan(bind, args, params)
    if _context.state() == "searched":
        return equations.bind_scan(bind, args, params)
    # Binding the anchored loop below comes back here, with `_is_anchored` set.
    if _is_anchored.get() or not has_loose_records(jaxpr.jaxpr, sizes[0]):
        with tracing.setting(_is_anchored, False):  # The loops inside are not anchored yet
            return equations.bind_scan(bind, args, params)
    consts, init, xs = split(args, *sizes)

    def body(carry: tuple, x: list) -> tuple:
        # JAX sees that the counter changes from iteration to iteration, and so does every
        # record that takes it as an operand.
        counter, values = carry
        outs, _ = Interpreter(Anchor(counter))(jaxpr, *consts, *values, *x)
        values, ys = split(outs, len(init))
        return (counter + 1, values), ys

    start = jnp.zeros((), jnp.int32)
    options = equations.scan_options(params)
    length = None if xs else params["length"]
    with tracing.setting(_is_anchored, True):
        (_, carry), ys = jax.lax.scan(body, (start, init), xs, length, **options)
    return [*carry, *ys]


@patches.implements("while under grad")
def _pruned_while(bind: Callable, *args: ArrayLike, **params: Any) -> list:
    """Stop the derivatives of arguments of a `while` that only its records use.

    With them, JAX would run the loop again for the derivatives, or fail to transpose it.
    """
    if not holds_records(params["cond_jaxpr"], params["body_jaxpr"]):
        return bind(*args, **params)
    # Inside `_traced_while`: this is the known part, which runs now.
    if _known_records.get() is not None:
        _known_records.set(len(list(carried_in(params))))
    if not tracing.is_differentiating():
        return bind(*args, **params)
    # JAX itself drops the derivatives of what only the predicate uses.
    body = without_records(params["body_jaxpr"])
    used = [True] * params["cond_nconsts"] + equations.used_inputs(body)
    pairs = zip(args, used, strict=True)
    stopped = [x if is_used else jax.lax.stop_gradient(x) for x, is_used in pairs]
    return bind(*stopped, **params)


@patches.implements("while under checkpoint")
def _partially_known_while(
    rule: Callable,
    saveable: Callable,
    unknown: Sequence[bool],
    inst: Sequence[bool],
    eqn: JaxprEqn,
) -> tuple:
    """Leave the records of a `while` in the known part, which alone runs only once.

    JAX's rule returns both parts as equations: `known` runs now, and `staged` runs in the
    backward pass. Applied to the loop without its records, it returns the right `staged`;
    applied to the loop with them, the right `known`.
    """

    def original(eqn: JaxprEqn) -> tuple:
        return rule(saveable, unknown, inst, eqn)

    if not holds_records(eqn):
        return original(eqn)
    bare = eqn.replace(
        params=_silent_while(eqn.params), effects=eqn.effects - RECORD_EFFECTS
    )
    known, staged, *rest = original(bare)
    # If nothing is known, all of the loop runs later, once, with its records. If all of it
    # is known, it runs now.
    if known is None:
        return None, eqn, *rest
    if not any(unknown):
        return eqn, staged, *rest
    if emit_effect in eqn.effects:
        keys = listed(key for record in carried_in(eqn.params) for key in record.keys)
        raise NotImplementedError(
            f"`lox.tap` cannot deliver {keys} from a `while_loop` inside `jax.linearize`: "
            "JAX cannot tell which parts of the loop it needs once and which it needs "
            "again. Put `lox.tap` around the derivative, or use `jax.jvp`."
        )
    known, *_ = original(eqn)
    _check_all_known(len(list(carried_in(known.params))), eqn.params)
    return known, staged, *rest


def _silent_while(params: Params) -> Params:
    names = "cond_jaxpr", "body_jaxpr"
    return {**params, **{name: without_records(params[name]) for name in names}}


@patches.implements("while under linearize")
def _traced_while(
    rule: Callable, trace: Trace, *tracers: Tracer, **params: Any
) -> list[Tracer]:
    """Do the same for `linearize`, where JAX's rule runs the known part while it traces.

    It binds the known part of the loop, which `_pruned_while` sees and counts the records
    of. Then it stages the whole loop for later, through `trace`. We hand it a trace that
    removes the records of the loop at this point.
    """
    with tracing.setting(_known_records, 0):
        return rule(_StageSilently(trace), *tracers, **params)


class _StageSilently:
    """Replace a trace in JAX's rule of `while`, and stage loops without records."""

    def __init__(self, trace: Any):
        self._trace = trace

    def default_process_primitive(
        self, primitive: Primitive, tracers: Sequence[Tracer], params: Params
    ) -> list[Tracer]:
        params = _silent_second_run(params)
        return self._trace.default_process_primitive(primitive, tracers, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)


def _silent_second_run(params: Params) -> Params:
    """Return the parameters of the second run of a `while`, without records.

    If the first run had none of them, the second one is the only run that logs.
    """
    known = _known_records.get()
    if not known:
        return params
    _check_all_known(known, params)
    return _silent_while(params)


def _check_all_known(number: int, params: Params) -> None:
    records = list(carried_in(params))
    if number < len(records):
        keys = listed(key for record in records for key in record.keys)
        raise ValueError(
            f"One of {keys} in a `while_loop` contains a tangent, logged in a `custom_jvp` "
            "rule. Tangents have no value under `jax.linearize`. Log primals there, or use "
            "`jax.jvp`."
        )


# Whether the next differentiated `scan` is anchored already.
_is_anchored = contextvars.ContextVar("is_anchored", default=False)
# How many records the known part of a `while` had when it ran. None: no `while` is being
# split.
_known_records = contextvars.ContextVar[int | None]("known_records", default=None)


@patches.implements("closed_call under checkpoint")
def _inlined_call(bind: Callable, *args: AnyArray, **params: Any) -> list:
    """Run a call that holds records as if its equations were in the program itself.

    JAX drops a call without outputs, see the table in `lox._jax.patches`.
    """
    if "call_jaxpr" in params:  # JAX 0.11
        jaxpr = params["call_jaxpr"]
        return jaxpr_as_fun(jaxpr)(*args) if holds_records(jaxpr) else bind(*args, **params)
    (fun,), operands = equations.split_subfunctions(args, params)
    jaxpr, *_ = getattr(fun.f, "args", [None])
    if hasattr(jaxpr, "effects") and holds_records(jaxpr):
        return fun.call_wrapped(*operands)
    return bind(*args, **params)


@patches.implements("equations that wait under grad")
def _kept_recipe(
    original: Callable,
    trace: Trace,
    inputs: Sequence[Tracer],
    outputs: Sequence[Tracer],
    primitive: Primitive,
    params: dict[str, Any],
    *args: object,
) -> Any:
    """Keep an equation that logs, though nothing uses its results.

    JAX builds the part of a program that waits from its outputs. It keeps most equations
    with effects by a handle each, but makes none for a `cond` or a `custom_vjp`.
    """
    if "out_trees" in params and holds_records(params["call_jaxpr"]):
        params = _with_residuals_behind_constants(params)
    recipe = original(trace, inputs, outputs, primitive, params, *args)
    if holds_records(recipe):
        equations.keep_recipe(trace, inputs, recipe)
    return recipe


def _with_residuals_behind_constants(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a `custom_vjp` call that has got constants in front.

    What a call computes from constants alone is taken out of a loop, and its result becomes
    another input, before the others. Residuals that are inputs are known by their position,
    which JAX forgets to move, so that the backward rule gets a constant in their place. A
    log in a `vmap` is often the only reason for such a constant.
    """

    def out_trees() -> tuple:
        out_tree, res_tree, forwarded = params["out_trees"]()
        moved = [i if i is None else i + params["num_consts"] for i in forwarded]
        return out_tree, res_tree, moved

    return {**params, "out_trees": out_trees}
