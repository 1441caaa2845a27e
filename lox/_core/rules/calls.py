"""How logs leave programs that run once or not at all: `jit`, `cond`, `checkpoint`.

The logs of a call are further outputs of it. The branches of a `cond` must have outputs of
the same form, so each branch returns all keys that any branch logs. Keys that a branch does
not log are masked:

    cond i                          cond i
      0: log a                ->      0: a=row valid=1,  b=zeros valid=0
      1: log b                        1: a=zeros valid=0, b=row valid=1
"""

import functools as ft
import weakref
from collections.abc import Callable
from typing import Any

import jax

from lox._core.interpreter import Interpreter
from lox._core.rules.table import rule_for
from lox._core.staging import Staged, alike, stage
from lox._jax import equations
from lox._jax.extend import JaxprEqn
from lox._rows.collected import Collected, signature


@rule_for("jit", "pjit")
def _jit(interpreter, eqn, *args):
    return _jitted(eqn)(interpreter, *args)


def _jitted(eqn: JaxprEqn) -> Callable:
    """Return one jitted function per program and options, or every call would compile."""
    jaxpr = eqn.params["jaxpr"]
    options = equations.inner_jit_options(eqn.params)
    jitted = _jits.setdefault(jaxpr, {})
    if options not in jitted:
        # The function is kept as long as the program, so it must not keep it alive.
        reference = weakref.ref(jaxpr)

        def fun(interpreter, *args):
            return interpreter(reference(), *args)

        fun.__name__ = fun.__qualname__ = eqn.params["name"]
        jitted[options] = equations.jit_with(fun, options)
    return jitted[options]


_jits: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@rule_for("closed_call", "core_closed_call", "core_call", "call", "eval_jaxpr")
def _call(interpreter, eqn, *args):
    return interpreter(eqn.params["call_jaxpr"], *args)


@rule_for("cond")
def _cond(interpreter, eqn, index, *args):
    branches = [interpreter.stage(jaxpr, *args) for jaxpr in eqn.params["branches"]]
    logs = [branch.shape[1] for branch in branches]
    form = Collected.either(logs)
    if any(signature(own) != signature(form) for own in logs):
        unify = ft.partial(_in_form, form)
        branches = [stage(ft.partial(unify, b), interpreter, *args) for b in branches]
    branches = alike(branches, index)
    jaxprs = tuple(branch.jaxpr for branch in branches)
    params = {**eqn.params, "branches": jaxprs}
    return branches[0].output(eqn.primitive.bind(index, *branches[0].leaves, **params))


def _in_form(
    form: Collected, branch: Staged, interpreter: Interpreter, *args: Any
) -> tuple[list, Collected]:
    """Run a branch, and bring its logs into the form that all branches share."""
    outs, logs = branch(*jax.tree.leaves((interpreter, args)))
    return outs, logs.fitted(form, interpreter.handler.threaded())


@rule_for("checkpoint", "remat", "remat2")
def _remat(interpreter, eqn, *args):
    staged = interpreter.stage(eqn.params["jaxpr"], *args)
    operands = [*staged.jaxpr.consts, *staged.leaves]
    params = {**eqn.params, "jaxpr": equations.constants_as_inputs(staged.jaxpr.jaxpr)}
    if isinstance(params["prevent_cse"], tuple):
        # It has a flag for each input. Those that the handler adds come first.
        more = len(operands) - len(args)
        params["prevent_cse"] = (False,) * more + params["prevent_cse"]
    return staged.output(eqn.primitive.bind(*operands, **params))
