"""Trace a function to look inside, and look into what it differentiates.

Seen from the outside, a training step is one program with both passes. In there, nothing
tells apart what leaves a scope, what the forward pass keeps for later, and what is a
cotangent. So lox does not try. While it traces a function to look inside, it looks at each
function that is differentiated in there, before JAX differentiates it:

    def step(params, x):                    lox.watch(step) traces `step`
        jax.grad(loss)(params, x)           JAX differentiates not `loss`, but what `look`
                                            makes of it, such as `lox.watch(loss)`

The equations of `loss` and its derivative are marked, and passed over when it is the turn
of those of `step` around it.
"""

import contextlib
from collections.abc import Callable

import jax

from lox._jax import equations, patches
from lox._jax.name_scopes import is_transposing
from lox._jax.types import PyTree

# `look(fun, *args)` calls a function that is about to be differentiated. It is hashable.
LookInto = Callable[..., PyTree]

# Part of the key of JAX's caches: what was jitted before is traced again to look inside.
# Made at import, as JAX recompiles everything when a context is added later.
_look = jax.make_user_context(None)


def looking(look: LookInto) -> contextlib.AbstractContextManager:
    """Trace a function in here, with a look into what it differentiates."""
    return _look(look)


@patches.implements("reverse mode in watch")
@patches.implements("forward mode in watch")
def _differentiate(
    original: Callable, fun: Callable, *args: object, **options: object
) -> object:
    # In a backward pass it is JAX that differentiates, what has been looked at already.
    if _look.value is None or is_transposing():
        return original(fun, *args, **options)
    return original(equations.around_function(fun, _looked_at), *args, **options)


def _looked_at(fun: Callable, *args: PyTree) -> PyTree:
    return _look.value(fun, *args)


def not_looking() -> contextlib.AbstractContextManager:
    """Evaluate programs in here that have been looked at."""
    return _look(None)
