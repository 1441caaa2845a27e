"""Apply a transformation to a function; a jitted function stays jitted.

A transformed function is jitted with the options of the original one. It is kept by the
function and the options of the transformation, so the second call here compiles nothing:

    f = jax.jit(...)
    lox.spool(f)(x)
    lox.spool(f)(x)
"""

import functools as ft
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax

from lox._core.flax_nnx import calls_in_place
from lox._jax import equations
from lox._jax.types import PyTree


def transformed(
    fun: Callable, transform: Callable, options: Hashable, *given: PyTree
) -> Callable:
    """Return `transform(*given, fun, *args)` as a function, jitted and cached if `fun` is.

    Args:
        fun: Any function.
        transform: The transformation, which calls or traces `fun`.
        options: The options of the transformation, by which jitted functions are cached.
        *given: Arrays that the transformation uses.
    """
    if isinstance(fun, equations.Jitted):
        return _jitted_like(fun, transform, options, given)

    @ft.wraps(fun)
    def called(*args: PyTree, **kwargs: PyTree) -> PyTree:
        return calls_in_place(ft.partial(transform, *given), fun, args, kwargs)

    return called


def _jitted_like(
    fun: Any, transform: Callable, options: Hashable, given: tuple
) -> Callable:
    programs = _transformed.setdefault(fun, {})
    jitted = programs.get(options)
    if jitted is None:
        # The result is kept as long as `fun` lives, so it must not keep `fun` alive.
        reference = weakref.ref(fun)

        def called(*args, **kwargs):
            given = kwargs.pop(_GIVEN, ())
            return transform(*given, reference(), *args, **kwargs)

        called.__name__ = called.__qualname__ = fun.__name__
        # Other threads may drop the same one, or the one that this thread is about to use.
        for oldest in list(programs)[: -_MOST + 1]:
            programs.pop(oldest, None)
        jitted = programs[options] = jax.jit(called, **equations.jit_options(fun))
    call = ft.partial(jitted, **{_GIVEN: given}) if given else jitted

    def wrapped(*args, **kwargs):
        return call(*args, **kwargs)

    # `ft.wraps` would take longer than the call.
    wrapped.__name__, wrapped.__doc__ = fun.__name__, fun.__doc__
    wrapped.__wrapped__ = fun  # pyright: ignore[reportFunctionMemberAccess]
    return wrapped


# The keyword by which a jitted function gets the arrays that its transformation uses. No
# function of the user's has a keyword of this name.
_GIVEN = "\0given"
# How many programs are kept per function. Each new callback makes another one.
_MOST = 32
# By function, then by the options of the transformation.
_transformed: weakref.WeakKeyDictionary[Callable, dict[Hashable, Callable]]
_transformed = weakref.WeakKeyDictionary()
