"""How logs leave programs that run once or not at all: `jit` and `cond`."""

import functools as ft
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from lox._core.interpreter import Interpreter
from lox._core.rules.table import rule_for
from lox._core.staging import Staged, alike, stage
from lox._jax import equations
from lox._rows.collected import Collected, signature


@rule_for("jit", "pjit")
def _jit(interpreter, eqn, *args):
    return _jitted(eqn)(interpreter, *args)


def _jitted(eqn: JaxprEqn) -> Callable:
    """One jitted function for each jaxpr, or every call would compile anew."""
    jaxpr = eqn.params["jaxpr"]
    options = equations.inner_jit_options(eqn.params)
    jitted = _jits.setdefault(jaxpr, {})
    if options not in jitted:
        # Kept as long as the jaxpr lives: it must not keep the jaxpr alive.
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
    """Run a branch, and bring what it logs into the form that all branches have."""
    outs, logs = branch(*jax.tree.leaves((interpreter, args)))
    return outs, logs.fitted(form, interpreter.handler.threaded())
