"""How logs leave programs that run once or not at all: `jit`, `cond`, `checkpoint`."""

import functools as ft
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from lox._core.rules.table import rule_for
from lox._core.staging import Program, Staged, alike, stage, stage_once
from lox._jax import equations
from lox._logdict.logdict import logdict
from lox._rows.merge import alternatives, fitted
from lox._rows.rows import Rows


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
    branches = [
        stage_once(_branch, jaxpr, interpreter, *args) for jaxpr in eqn.params["branches"]
    ]
    each = [branch.shape[1].rows() for branch in branches]
    keys = dict.fromkeys(key for logs in each for key in logs)
    forms = {key: alternatives(key, [logs.get(key) for logs in each]) for key in keys}

    def unified(branch: Staged, *leaves) -> tuple[list, logdict]:
        outs, logs = branch(*leaves)
        rows = logs.rows()
        return outs, logdict.of({k: fitted(rows.get(k), form) for k, form in forms.items()})

    if any(signature(logs) != signature(forms) for logs in each):
        branches = [stage(ft.partial(unified, b), *b.leaves) for b in branches]
    branches = alike(branches, index)
    jaxprs = tuple(branch.jaxpr for branch in branches)
    params = {**eqn.params, "branches": jaxprs}
    return branches[0].output(eqn.primitive.bind(index, *branches[0].leaves, **params))


def _branch(jaxpr: Program, interpreter, *args) -> tuple[list, logdict]:
    outs, logs = interpreter(jaxpr, *args)
    # Also by a branch that does nothing with it.
    return outs, logdict.of({**interpreter.handler.threaded(), **logs.rows()})


def signature(rows: dict[str, Rows]) -> Any:
    leaves, treedef = jax.tree.flatten(logdict.of(rows))
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]


@rule_for("checkpoint", "remat", "remat2")
def _remat(interpreter, eqn, *args):
    staged = interpreter.stage(eqn.params["jaxpr"], *args)
    params = {**eqn.params, "jaxpr": equations.constants_as_inputs(staged.jaxpr.jaxpr)}
    operands = [*staged.jaxpr.consts, *staged.leaves]
    return staged.output(eqn.primitive.bind(*operands, **params))
