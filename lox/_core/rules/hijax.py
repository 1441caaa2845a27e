"""How logs leave the primitives of `hijax`, which bring their own derivatives and batches.

JAX has one primitive, `call_hi_primitive`, for all of them. What it does is in an object, a
`HiPrim`, with a method for each transformation: `expand` is the function itself, `jvp`,
`lin` and `vjp_fwd` are its derivatives, `batch` is for `vmap`. `custom_root` is made of it,
and so are `custom_jvp`, `custom_vjp` and `checkpoint` under JAX's upgrade flags.

The rule puts another `HiPrim` in its place, which returns the logs along with the results:

    y = Sine x     ->     y, logs = WithLogs[Sine] interpreter x

    expand         the interpreter evaluates what `Sine.expand` was traced into
    jvp, lin, ...  the rule of `Sine` runs, and its logs stand for those of the function;
                   logs have no derivative
    batch          the same, and the logs of all examples are side by side

So the user's rules stay in force, whatever is around. The primitives behind `custom_jvp`,
`custom_vjp` and `checkpoint` have rules of their own, in `custom.py` and `checkpoint.py`.
"""

import contextlib
import copy
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jax.interpreters import ad

from lox._core import context as _context
from lox._core.interpreter import Interpreter
from lox._core.record import RECORD_EFFECTS, listed, log_effect
from lox._core.rules.custom import examples_first, forwarded, separately, settle
from lox._core.rules.table import rule_for, rules
from lox._core.staging import Staged, stage
from lox._jax import patches, tracing
from lox._rows.collected import Collected

try:
    from jax.experimental.hijax import HiPrim, NullAccum, ValAccum
except ImportError:  # JAX < 0.12
    HiPrim = NullAccum = ValAccum = object


@rule_for("call_hi_primitive", since=(0, 12, 0))
def _hi_primitive(interpreter: Interpreter, eqn: JaxprEqn, *args: Any):
    prim = eqn.params["_prim"]
    captures = interpreter.handler.captures
    with _context.captured() if captures else contextlib.nullcontext():
        call = _expand(prim)
    replacement = WithLogs(prim, call, interpreter)
    outs, logs = replacement(interpreter, *jax.tree.unflatten(prim.in_tree, args))
    return prim.out_tree.flatten_up_to(outs), logs


def _expand(prim: Any) -> ClosedJaxpr:
    """Return the program of a primitive, from flat inputs to flat outputs."""

    def expand(*args: Any) -> list:
        outs = prim.expand(*jax.tree.unflatten(prim.in_tree, args))
        return prim.out_tree.flatten_up_to(outs)

    return stage(expand, *prim.in_avals_flat).jaxpr


def _run(call: ClosedJaxpr, interpreter: Interpreter, *args: Any) -> tuple[list, Collected]:
    return separately(interpreter, call, *args)


class WithLogs(HiPrim):
    """A primitive of `hijax` that also returns the logs of another one.

    It takes the interpreter in front of the arguments, and returns the pair of the results
    and the logs.

    Attributes:
        prim: The other one.
        call: What `prim` does, as a program with records in it.
        program: The same as evaluated by the interpreter, which returns the logs.
    """

    def __init__(self, prim: Any, call: ClosedJaxpr, interpreter: Interpreter):
        staged = stage(ft.partial(_run, call), interpreter, *prim.in_avals_flat)
        self.prim, self.call = prim, call
        self.in_avals = (jax.tree.map(jax.typeof, interpreter), *prim.in_avals)
        avals = jax.tree.unflatten(jax.tree.structure(staged.shape), staged.jaxpr.out_avals)
        self.out_aval = (jax.tree.unflatten(prim.out_tree, avals[0]), avals[1])
        self.effects = (prim.effects - RECORD_EFFECTS) | staged.jaxpr.effects
        self.skip_linearization_on_zero_tangents = prim.skip_linearization_on_zero_tangents
        # Whoever looks for records in the parameters must not find those that are gone.
        self.params = {"program": staged.jaxpr}
        super().__init__()

    def expand(self, *args: Any) -> Any:
        program = self.params["program"]
        outs = eval_jaxpr(program.jaxpr, program.consts, *jax.tree.leaves(args))
        return jax.tree.unflatten(self.out_tree, outs)

    def _itself(self, interpreter: Interpreter, args: Sequence[Any], *_: Any) -> Staged:
        """Return the function without its rules."""
        return interpreter.stage(self.call, *jax.tree.leaves(args))

    # Forward mode.

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        interpreter, *args = primals
        (outs, out_tangents), logs = settle(
            interpreter, self.prim.jvp, self._itself, tuple(args), tuple(tangents[1:])
        )
        return (outs, logs), (out_tangents, jax.tree.map(_zero, logs))

    def lin(self, nonzero: Sequence[Any], interpreter: Interpreter, *args: Any) -> Any:
        return self._linearize(self.prim.lin, nonzero, interpreter, args)

    def linearized(self, *given: Any) -> Any:
        residuals, (_, *tangents) = self._split(given)
        run = ft.partial(self.prim.linearized, *residuals, *tangents)
        return forwarded(run)(), jax.tree.map(_zero, self.out_aval[1])

    def _linearize(
        self, rule: Callable, nonzero: Sequence[Any], interpreter: Interpreter, args: tuple
    ) -> tuple:
        """Run `lin` or `vjp_fwd`, which return the results, residuals, and maybe more."""

        def original(args: tuple) -> tuple:
            return rule(nonzero[1:], *args)

        result, logs = settle(interpreter, original, self._itself, args)
        outs, residuals, *rest = result
        nonzero_outs, *rest = rest or [any(jax.tree.leaves(nonzero))]
        return (outs, logs), residuals, (nonzero_outs, False), *rest

    def _split(self, given: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Tell one or two residuals from what there is for each argument."""
        number = len(self.in_avals)
        return given[:-number], given[-number:]

    # Reverse mode.

    def vjp_fwd(self, nonzero: Sequence[Any], interpreter: Interpreter, *args: Any) -> Any:
        return self._linearize(self.prim.vjp_fwd, nonzero, interpreter, args)

    def vjp_bwd(self, *given: Any) -> Any:
        (*residuals, (cotangents, _)), (_, *sums) = self._split(given)
        leaves, tree = jax.tree.flatten(sums)

        def run() -> tuple:
            fresh = [s if isinstance(s, NullAccum) else ValAccum(s.aval) for s in leaves]
            entries = self.prim.vjp_bwd(
                *residuals, cotangents, *jax.tree.unflatten(tree, fresh)
            )
            return [
                None if isinstance(s, NullAccum) else s.freeze() for s in fresh
            ], entries

        # A rule may run a program that it traced in the forward pass, with records in it.
        gradients, entries = forwarded(run)()
        for s, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:
                s.accum(gradient)
        return entries

    # vmap.

    def batch(self, axis: Any, args: Sequence[Any], dims: Sequence[Any]) -> Any:
        interpreter, *args = args
        interpreter = self._unbatched(axis, interpreter, dims[0])
        axes = self.prim.in_tree.flatten_up_to(tuple(dims[1:]))

        def original(args: tuple) -> tuple:
            return self.prim.batch(axis, args, tuple(dims[1:]))

        def itself(interpreter: Interpreter, args: tuple) -> Staged:
            return stage(vmapped, interpreter, *jax.tree.leaves(args))

        def vmapped(interpreter: Interpreter, *args: Any) -> tuple[list, Collected]:
            names = {"axis_name": axis.name, "spmd_axis_name": axis.spmd_name}
            run = ft.partial(interpreter, self.call)
            return jax.vmap(run, axes, axis_size=axis.size, **names)(*args)

        adapt = ft.partial(examples_first, axis.size)
        inside = interpreter.with_handler(interpreter.handler.batched(axis.size))
        (outs, out_dims), logs = settle(inside, original, itself, tuple(args), adapt=adapt)
        return (outs, logs), (out_dims, jax.tree.map(lambda _: 0, logs))

    def _unbatched(self, axis: Any, interpreter: Interpreter, dims: Any) -> Interpreter:
        """Return the interpreter for all examples."""
        batched = jax.tree.map(lambda at: at is not None, dims, is_leaf=_is_none)
        leaves, tree = jax.tree.flatten(interpreter)
        ats = tree.flatten_up_to(dims)
        moved = [
            x if at is None else jnp.moveaxis(x, at, 0)
            for x, at in zip(leaves, ats, strict=True)
        ]
        moved = jax.tree.unflatten(tree, moved)
        handler = moved.handler.unbatched(batched.handler)
        if handler is None:
            raise NotImplementedError(
                f"`{type(self.prim).__name__}` logs {listed(self.out_aval[1].order)}, "
                "is in a `cond` or `while_loop` under `vmap`, and has its own rule for "
                "batches: lox cannot tell for which examples it logs. Log outside it."
            )
        return moved.with_handler(handler)


def _is_none(x: Any) -> bool:
    return x is None


def _zero(x: Any) -> ad.Zero:
    """A tangent of `x` that is zero."""
    aval = x if hasattr(x, "to_tangent_aval") else jax.typeof(x)
    return ad.Zero(aval.to_tangent_aval())


@rule_for("call_hi_primitive_linearized", since=(0, 12, 0))
def _linearized(interpreter: Interpreter, eqn: JaxprEqn, *args: Any):
    """Run nothing: it waits to be transposed, and its primitive logs then."""
    return tracing.bind(eqn, *args), Collected()


@patches.implements("rules of hijax")
def _bind(bind: Callable, *args: Any, _prim: Any) -> Any:
    """Let a primitive say that it logs, or keep its rules silent, as the place demands."""
    state = _context.state()
    if state == "silent":
        _prim = _with_rules_in(_context.silent, _prim, _RULES)
    elif state == "recomputed":
        _prim = _with_rules_in(_context.recomputed, _prim, _FORWARD_RULES)
    elif state == "captured" and _hides_logs(_prim):
        _prim = copy.copy(_prim)
        _prim.effects = _prim.effects | {log_effect}
    return bind(*args, _prim=_prim)


def _hides_logs(prim: Any) -> bool:
    """Return whether a primitive of somebody else logs, which its effects do not say."""
    if isinstance(prim, WithLogs) or type(prim).__name__ in rules:
        return False
    if log_effect in prim.effects:
        return False
    try:
        return log_effect in _expand(prim).effects
    except Exception:  # It may not be meant to be run at all, only to be differentiated.
        return False


def _with_rules_in(
    context: Callable[[], contextlib.AbstractContextManager],
    prim: Any,
    names: Sequence[str],
) -> Any:
    """Return the same primitive with rules that run in a context, whenever they run."""
    if "_quiet" in prim.params:
        return prim

    def in_context(rule: Callable) -> Callable:
        @ft.wraps(rule)
        def run(*args: Any) -> Any:
            with context():
                return rule(*args)

        return run

    quiet = copy.copy(prim)
    # Functions that the rules hand on to other primitives.
    functions = {name: prim.params[name] for name in names if name in prim.params}
    functions = jax.tree.map(in_context, functions)
    quiet.params = {**prim.params, **functions, "_quiet": True}
    quiet.__dict__.update(functions)
    for name in names:
        if hasattr(type(prim), name):
            setattr(quiet, name, in_context(getattr(quiet, name)))
    return quiet


# Methods of all primitives, and functions that those of `custom_jvp` and `custom_vjp` hold.
_FORWARD_RULES = ("expand", "jvp", "lin", "vjp_fwd", "batch", "remat", "jvp_rule", "fwd")
_BACKWARD_RULES = ("linearized", "vjp_bwd", "transpose", "bwd", "bwd_accums", "remat_rules")
_RULES = (*_FORWARD_RULES, *_BACKWARD_RULES)
