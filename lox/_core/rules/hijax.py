"""How logs leave primitives of hijax, among them those behind JAX's upgrade flags.

A primitive of hijax is an object: `expand` says what it does, and other methods how it is
differentiated and batched. The three that JAX makes itself go where they would go without
its flags (see `lox._jax.hijax`):

    CustomJVPTraced    the rule of `custom_jvp`, in `custom.py`
    CustomVJPTraced    the rule of `custom_vjp`, in `custom.py`
    RematTraced        bound as `checkpoint`, if anything in it logs

The last one needs a reason. With `jax_remat3`, JAX runs a function forward and, for its
derivative, runs it again. The second run takes the derivative rules of functions in it, and
they may log something else than these functions do:

    forward     y = f(x)               f logs
    backward    y, pull = vjp(f, x)    the rule of f logs, and f itself if the rule calls it

The implementation without the flag splits the derivative into what is known and what is
not, so each record is in one of the two. That is what an eager run logs.

Any other primitive is expanded, and keeps its derivative rules: it is rebuilt as a function
with a custom rule.
"""

import contextlib
from collections.abc import Callable

from jax.typing import ArrayLike

from lox._core import context as _context
from lox._core.analysis import may_hold_records
from lox._core.interpreter import Interpreter
from lox._core.record import holds_records, log_effect
from lox._core.rules.custom import custom_jvp, custom_vjp
from lox._core.rules.registry import rule_for, rules
from lox._jax import hijax, patches
from lox._jax.extend import JaxprEqn
from lox._jax.types import PyTree
from lox._rows.collected import Collected


@rule_for("call_hi_primitive")
def _any_other(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    prim = eqn.params["_prim"]
    captures = interpreter.handler.captures
    with _context.captured() if captures else contextlib.nullcontext():
        call = hijax.expanded(prim)
    if hijax.defines(prim, "jvp"):
        return custom_jvp(interpreter, eqn, call, *args)
    if hijax.defines(prim, "vjp_fwd"):
        return custom_vjp(interpreter, eqn, call, *args)
    return interpreter(call, *args)


@patches.implements("hijax")
def _bind(bind: Callable, *args: PyTree, _prim: hijax.HiPrim) -> PyTree:
    """Bind a primitive of hijax so that its logs are found, whenever they are logged."""
    state = _context.state()
    if state == "silent":
        return bind(*args, _prim=hijax.with_rules_in(_context.silent, _prim))
    if hijax.is_checkpoint(_prim):
        if may_hold_records(_prim.jaxpr):
            return hijax.bind_checkpoint(_prim, args)
    elif state == "captured" and _hides_logs(_prim):
        # JAX keeps an equation with this effect, and lox knows that it holds a record.
        _prim = hijax.with_effect(_prim, log_effect)
    return bind(*args, _prim=_prim)


def _hides_logs(prim: hijax.HiPrim) -> bool:
    """Return whether a primitive of somebody else logs, which its effects do not say."""
    if type(prim).__name__ in rules or holds_records(prim):
        return False
    try:
        return holds_records(hijax.expanded(prim))
    except Exception:  # It may not be meant to be run, only to be differentiated.
        return False
