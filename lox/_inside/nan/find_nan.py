"""`find_nan`: find the first NaN of a program."""

import functools as ft
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.core import Tracer

from lox._core.analysis import check
from lox._core.flax_nnx import calls_in_place
from lox._core.handler import Forward
from lox._core.interpreter import Interpreter
from lox._core.log import check_function, names_in
from lox._core.record import is_array
from lox._inside.nan.find_region import Births
from lox._inside.nan.report import NanReport
from lox._inside.nan.search import Search, Searched
from lox._jax import equations
from lox._jax.example_marks import marked
from lox._jax.extend import ClosedJaxpr
from lox._jax.types import PyTree
from lox._rows.types import P


def find_nan(
    fun: Callable[P, object],
    *,
    infinities: bool = False,
    ignore: str | Iterable[str] = (),
) -> Callable[P, NanReport | None]:
    """Find the first NaN that appears in `fun`, forwards or backwards.

    The returned function runs `fun`, and says where a NaN appeared first: the operation and
    the value it could not handle, your line of code, the iterations of the loops around it
    and the example of the `vmap`. A NaN counts even if `jnp.where` drops it later, because
    its derivative may still be NaN. Infinities are often intended, so they count only if
    they become NaNs, or if `fun` returns them.

    Your function runs once if there is no NaN, with few checks added, and about three
    times to find one. Arguments stay as they are: they are neither donated nor updated. If
    `fun` is jitted, the second call of the returned function compiles nothing.

    Args:
        fun: Any JAX function, such as a training step, with `jit`, `grad`, `vmap` and loops
            inside.
        infinities: Whether infinities also count if they appear where all inputs are
            finite. This takes longer.
        ignore: One or more lines, such as `"loss.py:41"`, where NaNs are harmless. Those
            that appear there do not count.

    Returns:
        A function that returns a report, or None if everything is finite. Print the report
        to read it.

    Example:
        >>> def entropy(p):
        ...     def step(total, p):
        ...         return total - p * jnp.log(p), None
        ...     return jax.lax.scan(step, 0.0, p)[0]
        >>> report = lox.find_nan(entropy)(jnp.array([0.5, 0.5, 0.0]))
        >>> report.operation, report.culprit, report.iterations
        ('log', (0.0,), (2,))
        >>> lox.find_nan(entropy)(jnp.array([0.5, 0.5])) is None
        True
    """
    check_function("lox.find_nan", fun)
    births, known = Births(bool(infinities), names_in(ignore, "ignore")), _Known()

    @ft.wraps(fun)
    def finding(*args: P.args, **kwargs: P.kwargs) -> NanReport | None:
        _check_arguments((args, kwargs))
        # These options raise where a NaN appears, and it is to be reported.
        with jax.debug_nans(False), jax.debug_infs(False):
            return calls_in_place(ft.partial(_find, births, known), fun, args, kwargs)

    return finding


def _check_arguments(arguments: object) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(arguments):
        if isinstance(leaf, Tracer):
            raise TypeError(
                "`lox.find_nan` runs your function and returns a report, so it cannot be "
                "called inside `jit`, `vmap`, `grad` or a JAX loop. Put it around them: "
                "`lox.find_nan(jax.jit(f))(x)`."
            )
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            raise ValueError(
                f"The argument {_argument_name(path)} has been deleted: an earlier call "
                "donated it (`donate_argnums`). Keep a copy to call `lox.find_nan` with."
            )


def _argument_name(path: Sequence[Any]) -> str:
    """Return the name of a leaf of `(args, kwargs)`."""
    (kind, place, *rest) = path
    name = f"{place.idx}" if kind.idx == 0 else repr(place.key)
    return name + jax.tree_util.keystr(tuple(rest))


def _find(
    births: Births, known: "_Known", fun: Callable, *args: PyTree, **kwargs: PyTree
) -> NanReport | None:
    with marked():
        traced = Interpreter(Forward()).trace(fun, *args, **kwargs)
    check(traced.jaxpr.jaxpr)
    leaves = jax.tree_util.tree_leaves_with_path((args, kwargs))
    names = [_argument_name(path) for path, leaf in leaves if is_array(leaf)]
    return Search(known.program(traced.jaxpr), traced.args, names, births).run()


class _Known:
    """The last programs that were searched, so that they are not compiled again.

    A jitted function is traced once, so its program is the same object each time.
    """

    def __init__(self):
        self._programs: list[tuple[ClosedJaxpr, Searched]] = []

    def program(self, jaxpr: ClosedJaxpr) -> Searched:
        for other, searched in self._programs:
            if equations.is_same_call(jaxpr, other):
                return searched
        # What neither an output nor an effect needs is not run, so it has no NaN to find.
        searched = Searched(equations.without_dead_code(jaxpr))
        self._programs = [(jaxpr, searched), *self._programs[: _MOST - 1]]
        return searched


# How many programs are kept: one for each shape of the arguments.
_MOST = 4
