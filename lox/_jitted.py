"""Transformations of functions that are jitted already: they stay jitted."""

import weakref
from collections.abc import Callable, Hashable
from typing import Any

import jax

from . import _compat


def jitted_like(fun: Any, transform: Callable, options: Hashable) -> Callable:
    """`transform(fun, *args)` as a function that is jitted and cached like `fun`.

    Args:
        fun: A jitted function.
        transform: What to do with it.
        options: What tells transformations of the same function apart.
    """
    jitted = _transformed.setdefault(fun, {})
    if options not in jitted:
        # Kept as long as `fun` lives: it must not keep `fun` alive.
        reference = weakref.ref(fun)

        def transformed(*args, **kwargs):
            return transform(reference(), *args, **kwargs)

        transformed.__name__ = transformed.__qualname__ = fun.__name__
        if len(jitted) >= _MOST:
            del jitted[next(iter(jitted))]
        jitted[options] = jax.jit(transformed, **_compat.jit_options(fun))
    call = jitted[options]

    def wrapped(*args, **kwargs):
        return call(*args, **kwargs)

    # `ft.wraps` would take longer than the call.
    wrapped.__name__, wrapped.__doc__ = fun.__name__, fun.__doc__
    wrapped.__wrapped__ = fun  # pyright: ignore[reportFunctionMemberAccess]
    return wrapped


# How many programs are kept of one function. Each new callback makes another.
_MOST = 32
_transformed: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
