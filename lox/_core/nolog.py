"""`nolog`: a function without its logs."""

import functools as ft
from collections.abc import Callable

from lox._core.context import silent
from lox._core.log import check_function
from lox._rows.types import P, R


def nolog(fun: Callable[P, R]) -> Callable[P, R]:
    """Remove the logs of `fun`, at no cost.

    Args:
        fun: Any JAX function.

    Returns:
        A function that does what `fun` would do without its calls of `log`.

    Example:
        >>> @lox.nolog
        ... def f(x):
        ...     lox.log({"x": x})
        ...     return 2 * x
        >>> f(1.0)
        2.0
    """
    check_function("lox.nolog", fun)

    @ft.wraps(fun)
    def unlogged(*args, **kwargs):
        with silent():
            return fun(*args, **kwargs)

    return unlogged
