"""How logs leave a `cond`, which runs one of its branches.

The branches must have outputs of the same form, so each returns all keys that any of them
logs. A key that a branch does not log, or of which it logs fewer rows, is masked there:

    cond i                          cond i
      0: log a                ->      0: a=row valid=1,   b=zeros valid=0
      1: log b                        1: a=zeros valid=0, b=row valid=1

The same holds for threaded state, such as the token of the last host call: a branch without
a host call returns the token that it was given.

Under `vmap`, a `cond` with a batched index is no longer a `cond`: all branches run for all
examples. What this means for logs is in `exact_vmap.py`.
"""

import functools as ft

import jax
from jax.typing import ArrayLike

from lox._core.interpreter import Interpreter
from lox._core.rules.registry import rule_for
from lox._core.staging import Staged, alike, stage
from lox._jax.extend import JaxprEqn
from lox._rows.collected import Collected, signature


@rule_for("cond")
def _cond(
    interpreter: Interpreter, eqn: JaxprEqn, index: ArrayLike, *args: ArrayLike
) -> tuple[list, Collected]:
    branches = [interpreter.stage(jaxpr, *args) for jaxpr in eqn.params["branches"]]
    logs_of_branches = [branch.shape[1] for branch in branches]
    form = Collected.either(logs_of_branches)
    # Branches that log the same, or nothing, are used as they were staged.
    if any(signature(logs) != signature(form) for logs in logs_of_branches):
        unify = ft.partial(_in_form, form)
        branches = [stage(ft.partial(unify, b), interpreter, *args) for b in branches]
    branches = alike(branches, index)
    jaxprs = tuple(branch.jaxpr for branch in branches)
    params = {**eqn.params, "branches": jaxprs}
    # All branches were staged for the same arguments, so they have the same operands: the
    # arrays of the interpreter, and then those of the equation.
    return branches[0].output(eqn.primitive.bind(index, *branches[0].leaves, **params))


def _in_form(
    form: Collected, branch: Staged, interpreter: Interpreter, *args: ArrayLike
) -> tuple[list, Collected]:
    """Run a branch, and bring its logs into the form that all branches share."""
    outs, logs = branch(*jax.tree.leaves((interpreter, args)))
    return outs, logs.fitted(form, interpreter.handler.threaded())
