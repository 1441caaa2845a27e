"""Transformations of functions: what is jitted already stays jitted."""

import functools as ft
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax

from lox._core.in_place import calls_in_place
from lox._jax import equations


def transformed(
    fun: Callable, transform: Callable, options: Hashable, *given: Any
) -> Callable:
    """`transform(*given, fun, *args)` as a function, jitted and cached if `fun` is.

    Args:
        fun: Any function.
        transform: What to do with it.
        options: What tells transformations of the same jitted function apart.
        *given: Arrays that the transformation uses.
    """
    if isinstance(fun, equations.Jitted):
        return _jitted_like(fun, transform, options, given)

    @ft.wraps(fun)
    def called(*args, **kwargs):
        return calls_in_place(ft.partial(transform, *given), fun, args, kwargs)

    return called


def _jitted_like(
    fun: Any, transform: Callable, options: Hashable, given: tuple
) -> Callable:
    jitted = _transformed.setdefault(fun, {})
    if options not in jitted:
        # Kept as long as `fun` lives: it must not keep `fun` alive.
        reference = weakref.ref(fun)

        def called(*args, **kwargs):
            given = kwargs.pop(_GIVEN, ())
            return transform(*given, reference(), *args, **kwargs)

        called.__name__ = called.__qualname__ = fun.__name__
        if len(jitted) >= _MOST:
            del jitted[next(iter(jitted))]
        jitted[options] = jax.jit(called, **equations.jit_options(fun))
    call = ft.partial(jitted[options], **{_GIVEN: given}) if given else jitted[options]

    def wrapped(*args, **kwargs):
        return call(*args, **kwargs)

    # `ft.wraps` would take longer than the call.
    wrapped.__name__, wrapped.__doc__ = fun.__name__, fun.__doc__
    wrapped.__wrapped__ = fun  # pyright: ignore[reportFunctionMemberAccess]
    return wrapped


# The name by which a jitted function is given what its transformation uses.
_GIVEN = "\0given"
# How many programs are kept of one function. Each new callback makes another.
_MOST = 32
_transformed: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
