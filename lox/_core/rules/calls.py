"""How logs leave programs that run once: `jit`, `closed_call`, `checkpoint`.

There is nothing to join or to mask. The logs of a call are further outputs of it, behind
its own, and the arrays of the handler, such as a token, are further inputs in front:

    y = jit[name=f { log a ; ... }] x    ->    y, a = jit[name=f { ... }] token x

What matters is that everything else stays: the name of a jitted function, its shardings and
donated arguments, the policy of a `checkpoint`.
"""

import weakref
from collections.abc import Callable

from jax.typing import ArrayLike

from lox._core.interpreter import Interpreter
from lox._core.rules.registry import rule_for
from lox._jax import equations
from lox._jax.extend import ClosedJaxpr, JaxprEqn
from lox._rows.collected import Collected


@rule_for("jit", "pjit")
def _jit(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
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


# By program, then by options. Entries go when JAX lets go of the program.
_jits: weakref.WeakKeyDictionary[ClosedJaxpr, dict[equations.JitOptions, Callable]]
_jits = weakref.WeakKeyDictionary()


@rule_for("closed_call", "core_closed_call", "core_call", "call", "eval_jaxpr")
def _call(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    return interpreter(eqn.params["call_jaxpr"], *args)


@rule_for("checkpoint", "remat", "remat2")
def _remat(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    staged = interpreter.stage(eqn.params["jaxpr"], *args)
    # The primitive takes an open jaxpr, so constants become operands.
    operands = [*staged.jaxpr.consts, *staged.leaves]
    params = {**eqn.params, "jaxpr": equations.constants_as_inputs(staged.jaxpr.jaxpr)}
    if isinstance(params["prevent_cse"], tuple):
        # It has a flag for each input. Those that the handler adds come first.
        more = len(operands) - len(args)
        params["prevent_cse"] = (False,) * more + params["prevent_cse"]
    return staged.output(eqn.primitive.bind(*operands, **params))
