"""How logs leave a `checkpoint`, each once, however often JAX computes it.

Without JAX's upgrade flags that is simple. JAX differentiates the function and splits the
result into what is known in the forward pass and what is not, and a record that is known
stays in the forward pass.

With `jax_remat3` it runs the function twice: in the forward pass, for its values, and again
in the backward pass, for its derivatives. The primitives of lox tell JAX to leave them out
there. That is enough for records in the program itself, or in a `jit`, `scan` or `cond` in
it. It is not for what JAX runs again as a whole, such as a `while_loop`, nor for a function
with derivative rules: the forward pass runs the function, the backward pass its rule, and a
rule may log other things than its function.

    forward                          backward
    y = f(x)                         y, pull = jax.vjp(f, x);  pull(g)

Then the records are those of a derivative without `checkpoint`, of which nothing else is
kept, and both runs go without. They have no records in the program, and their rules run in
the state "recomputed", in which `log` does nothing. Backward rules run later, and do log.

    _ = jax.vjp(f, x)                y, pull = jax.vjp(without_records(f), x);  pull(g)
    y = without_records(f)(x)
"""

import contextlib
import functools as ft
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr, JaxprEqn, jaxpr_as_fun

from lox._core import context as _context
from lox._core.analysis import records_in
from lox._core.handler import Drop
from lox._core.interpreter import Interpreter
from lox._core.record import holds_records, listed
from lox._core.rules.table import rule_for
from lox._core.staging import Staged, stage
from lox._jax import equations, patches, tracing


@rule_for("checkpoint", "remat", "remat2")
def _checkpoint(interpreter: Interpreter, eqn: JaxprEqn, *args: Any):
    staged = interpreter.stage(eqn.params["jaxpr"], *args)
    program, operands = _open(staged)
    more = len(operands) - len(args)
    prevent_cse = _for_more_inputs(eqn.params["prevent_cse"], more)
    params = {**eqn.params, "jaxpr": program, "prevent_cse": prevent_cse}
    return staged.output(eqn.primitive.bind(*operands, **params))


@rule_for("RematTraced", since=(0, 12, 0))
def _checkpoint_of_hijax(interpreter: Interpreter, eqn: JaxprEqn, *args: Any):
    prim = eqn.params["_prim"]
    staged = interpreter.stage(prim.jaxpr, *args)
    program, operands = _open(staged)
    prevent_cse = _for_more_inputs(prim.prevent_cse, len(operands) - len(args))
    rebuilt = type(prim)(equations.close(program), prim.policy, prevent_cse)
    return staged.output(rebuilt(*operands))


def _open(staged: Staged) -> tuple[Any, list]:
    """Return a program without constants, and all of its operands."""
    program = equations.constants_as_inputs(staged.jaxpr.jaxpr)
    return program, [*staged.jaxpr.consts, *staged.leaves]


def _for_more_inputs(prevent_cse: bool | tuple[bool, ...], number: int) -> Any:
    """Extend what may be said of each input by inputs in front of them."""
    if isinstance(prevent_cse, bool):
        return prevent_cse
    return (False,) * number + prevent_cse


@patches.implements("checkpoint under grad")
def _linearize(
    original: Callable, is_vjp: bool, nonzero: Sequence[bool], *args: Any, _prim: Any
) -> tuple:
    """Log in the forward pass of a `checkpoint`, and not when it is run again."""
    linearize = ft.partial(original, is_vjp, nonzero, *args)
    if not (_runs_again(_prim) and any(nonzero) and _logs_twice(_prim.jaxpr, is_vjp)):
        return linearize(_prim=_prim)
    _log_forward_pass(_prim.jaxpr, is_vjp, nonzero, args)
    jaxpr = Interpreter(Drop()).stage(_prim.jaxpr, *_prim.jaxpr.in_avals).jaxpr
    with _context.recomputed():
        return linearize(_prim=type(_prim)(jaxpr, _prim.policy, _prim.prevent_cse))


def _runs_again(prim: Any) -> bool:
    """Return whether a primitive runs its function once more for its derivative."""
    saves_all = jax.checkpoint_policies.everything_saveable
    return type(prim).__name__ == "RematTraced" and prim.policy is not saves_all


def _log_forward_pass(
    jaxpr: ClosedJaxpr, is_vjp: bool, nonzero: Sequence[bool], args: Sequence[Any]
) -> None:
    """Log what a derivative without `checkpoint` logs before its linear part."""
    program, linear = _differentiate(jaxpr_as_fun(jaxpr), is_vjp, nonzero, args)
    if is_vjp and not holds_records(linear):
        # The linear part of a `custom_jvp` may be hidden in the residuals of `jax.vjp`.
        with contextlib.suppress(NotImplementedError):
            _, linear = _differentiate(jaxpr_as_fun(jaxpr), False, nonzero, args)
    if holds_records(linear):
        keys = listed(key for record in records_in(linear) for key in record.keys)
        raise ValueError(
            f"{keys} holds a tangent, logged in a `custom_jvp` rule inside "
            "`jax.checkpoint`: when that is run again, the tangent has no value. Log "
            "primals there, or use `jax.jvp`."
        )
    eval_jaxpr(program.jaxpr, program.consts, *args)


def _differentiate(
    fun: Callable, is_vjp: bool, nonzero: Sequence[bool], args: Sequence[Any]
) -> tuple[ClosedJaxpr, Any]:
    """Return the programs of a derivative: what runs before its linear part, and that."""
    differentiate: Any = jax.vjp if is_vjp else jax.linearize
    linear = []

    def run(*args: Any) -> list:
        outs, derivative = differentiate(fun, *args, in_nzs=tuple(nonzero))
        linear.append(equations.linear_program(derivative))
        return outs  # If they are differentiated in turn, what makes them may log.

    return equations.without_dead_code(stage(run, *args).jaxpr), linear[0]


def _logs_twice(jaxpr: ClosedJaxpr, is_vjp: bool) -> bool:
    """Return whether anything in a program would log in both runs of it."""
    state = _context.state()
    known = _known.setdefault(jaxpr, {})
    if (state, is_vjp) not in known:
        known[state, is_vjp] = any(_equation_logs_twice(e, is_vjp) for e in jaxpr.eqns)
    return known[state, is_vjp]


# By program, then by the state and whether it is for reverse mode.
_known: weakref.WeakKeyDictionary[Any, dict[tuple[str, bool], bool]]
_known = weakref.WeakKeyDictionary()


def _equation_logs_twice(eqn: JaxprEqn, is_vjp: bool) -> bool:
    """Return whether an equation, or its derivative rule, would log in both runs."""
    name = equations.primitive_name(eqn)
    if equations.has_derivative_rule(eqn) and name != "RematTraced":
        return holds_records(eqn) or _rule_logs(eqn, is_vjp)
    is_run_as_a_whole = name not in _RUN_IN_PARTS and "form" not in eqn.params
    if is_run_as_a_whole and holds_records(eqn):
        return True
    inner = equations.jaxprs_in(eqn.params)
    return any(_logs_twice(jaxpr, is_vjp) for jaxpr in inner)


# What JAX runs again equation by equation.
_RUN_IN_PARTS = ("jit", "pjit", "scan", "cond", "eval_jaxpr", "RematTraced", "shard_map")


def _rule_logs(eqn: JaxprEqn, is_vjp: bool) -> bool:
    """Return whether the derivative of an equation logs."""
    if _context.state() not in ("captured", "printed"):
        return False
    avals = [atom.aval for atom in eqn.invars]
    nonzero = [equations.is_differentiable(aval) for aval in avals]
    try:
        program, _ = _differentiate(ft.partial(tracing.bind, eqn), is_vjp, nonzero, avals)
    except Exception:  # It cannot be differentiated, and perhaps need not be.
        return False
    return holds_records(program)
