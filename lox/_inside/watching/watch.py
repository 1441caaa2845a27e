"""`watch`: log what flows through the scopes of a program that contains no log calls.

    trace the function           modules of nnx open scopes (`module_scopes.py`), and what
                                 is differentiated inside is watched
                                 (`lox._core.derivative_hook`)
    find the scopes              by the name scopes of equations (`watchable_places.py`)
    evaluate it again            with a handler that logs (`handler.py`)

The result is a program with records like those of `lox.log`, for the transformations
around `watch`.
"""

import functools as ft
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lox._core import context as _context
from lox._core.analysis import records_in
from lox._core.derivative_hook import looking, not_looking
from lox._core.interpreter import Interpreter
from lox._core.log import check_function, steps_of
from lox._core.options import frames_of_lox
from lox._core.transform import transformed
from lox._inside.watching.handler import Watch, WatchInside
from lox._inside.watching.module_scopes import open_module_scopes
from lox._inside.watching.options import Statistic, WatchOptions
from lox._inside.watching.watchable_places import (
    NOWHERE,
    Selection,
    holds_entries,
    matches,
    scope_names,
)
from lox._jax.extend import Jaxpr, JaxprEqn
from lox._jax.types import AnyArray, PyTree
from lox._rows.types import P, R


def watch(
    fun: Callable[P, R],
    scopes: str | Iterable[str] | Callable[[JaxprEqn], Any] = "*",
    values: str | Iterable[str] = ("out", "grad"),
    stats: str | Iterable[str] | Mapping[str, Statistic] = ("rms", "max", "finite"),
    *,
    loops: str | Iterable[str] = "layer",
    tags: str | Iterable[str] = (),
    **steps: Any,
) -> Callable[P, R]:
    """Log statistics of what flows through the layers of `fun`, which needs no log calls.

    Layers are name scopes, which you or a library open with `jax.named_scope`. flax linen
    and haiku open one for each module, and so do the layers of equinox. For modules of flax
    nnx, lox opens them. `lox.scopes` lists all scopes. A value that you named with
    `jax.ad_checkpoint.checkpoint_name` counts as a scope too.

    The records are like those of `lox.log`: the transformations around `watch` decide what
    happens to them. For gradients, put `watch` around the function that you differentiate,
    as in `lox.spool(jax.grad(lox.watch(loss)))`, or around one that calls `jax.grad`, such
    as a training step.

    Args:
        fun: Any JAX function.
        scopes: Which scopes to watch: one or more patterns for their paths, in which `*`
            matches any text. `"*/mlp"` matches `mlp` and `block/mlp`. Or a function that
            takes an equation of the program (`jax.extend.core.JaxprEqn`) and returns
            whether to watch it. If a pattern matches nothing, lox warns and lists the
            scopes that exist.
        values: What to log: `"out"`, what leaves a scope; `"in"`, what it reads, weights
            included; `"grad"`, the cotangent of what leaves it, if there is a gradient.
        stats: Which statistics to log: `"mean"`, `"std"`, `"rms"`, `"norm"`, `"min"`,
            `"max"`, `"zeros"`, `"finite"` and `"nonfinite"` (the last three are shares of
            the values), or a mapping from names to functions of an array.
        loops: The name of the step that counts the iterations of the innermost `scan`
            around a scope, which is usually the loop over layers. With several names, they
            count the loops around it, innermost first.
        tags: One or more tags for all records.
        **steps: Any other keyword is a step, such as `step=i`.

    Returns:
        A function that does and returns what `fun` does. It logs keys such as
        `block/mlp/out/rms`. If several arrays leave a scope, they are numbered:
        `block/mlp/out/0/rms`. Arrays that are not floats are left out. For complex
        numbers, the statistics are those of the absolute values.

    Example:
        >>> def network(weights, x):
        ...     def layer(h, w):
        ...         with jax.named_scope("mlp"):
        ...             h = jnp.tanh(w @ h)
        ...         return h, None
        ...     return jax.lax.scan(layer, x, weights)[0].sum()
        >>> f = jax.grad(lox.watch(network, "mlp", stats="norm"))
        >>> slope, logs = lox.spool(f)(jnp.ones((3, 2, 2)), jnp.zeros(2))
        >>> logs
        {'mlp/out/norm': [0.0, 0.0, 0.0], 'mlp/grad/norm': [1.4142135, 2.828427, 5.656854]}
        >>> print(logs.layer["mlp/grad/norm"])
        [2 1 0]
    """
    check_function("lox.watch", fun)
    options = WatchOptions.of(scopes, values, stats, loops, tags)
    if clash := sorted({*options.loops} & {*steps}):
        raise ValueError(
            f"The step {clash[0]!r} of `lox.watch` has the same name as the step that "
            "counts the iterations of a loop. Rename your step, or the other one with "
            "`loops`."
        )
    return transformed(fun, ft.partial(_watched, options), options, steps_of(steps))


def _watched(
    options: WatchOptions,
    steps: dict[str, AnyArray],
    fun: Callable,
    *args: PyTree,
    **kwargs: PyTree,
) -> PyTree:
    # In silence nothing is logged, and there is no reason to trace.
    if _context.state() == "silent":
        return fun(*args, **kwargs)
    interpreter = Interpreter(Watch(options, steps))
    with looking(WatchInside(options)), open_module_scopes():
        traced = interpreter.trace(fun, *args, **kwargs)
    _warn_of_no_match(options.selection, traced.jaxpr.jaxpr)
    # What is differentiated in the program has been watched while it was traced.
    with not_looking():
        outs, _ = interpreter.on_device()(traced.jaxpr, *traced.args)
    return traced.output(outs)


def _warn_of_no_match(selection: Selection, program: Jaxpr) -> None:
    if selection.predicate is not None:
        is_found = holds_entries(program, NOWHERE, selection) or any(
            record.scope is not None for record in records_in(program)
        )
        text = "`scopes` of `lox.watch` selects no equation of the program."
    else:
        names = scope_names(program)
        unmatched = [
            pattern
            for pattern in selection.patterns
            if not any(matches(name, pattern) for name in names)
        ]
        is_found = not unmatched
        # In a training step, all scopes may be in a derivative.
        listed = names or scope_names(program, derivatives=True)
        text = (
            f"`scopes` {unmatched} of `lox.watch` match nothing. The program has the "
            f"scopes {', '.join(map(repr, listed))}."
        )
        if not listed:
            text = (
                "`lox.watch` finds no name scopes in the program, so it logs nothing. Open "
                'some with `jax.named_scope("name")`.'
            )
    if not is_found:
        warnings.warn(text, stacklevel=frames_of_lox() + 1)
