"""`spool`: return the logs of a function along with its output."""

import functools as ft
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from lox._core.collect import Collect
from lox._core.interpreter import Interpreter
from lox._core.log import check_function
from lox._core.options import check_positive, check_prefix, listening, selection
from lox._core.transform import transformed
from lox._core.when import check_when
from lox._jax.types import PyTree
from lox._logdict.logdict import logdict
from lox._rows.reductions import Reduction, ReductionLike, reduction_named
from lox._rows.rows import Rows
from lox._rows.several_reductions import name_entries
from lox._rows.types import P, R


def spool(
    fun: Callable[P, R],
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    keep_logs: bool = False,
    interval: int | None = None,
    reduce: str | Reduction | Mapping[str, str | Reduction] | None = None,
    prefix: str = "",
    *,
    capacity: int | None = None,
    when: Callable[[logdict], Any] | None = None,
    differentiable: bool = False,
) -> Callable[P, tuple[R, logdict]]:
    """Make `fun` return its logs along with its output.

    A key that is logged once keeps the shape it was logged with. A key that is logged
    several times, or in a loop, gets a leading time axis with one row per record, in the
    order of execution. If some rows may not have been logged, because a branch was not
    taken, `logs.valid[key]` says which ones were.

    Logs carry no derivatives: they never change the gradients of `fun`, and whatever you
    compute from them has a gradient of zero. If the logs are part of your loss, use
    `differentiable=True`.

    Args:
        fun: Any JAX function. It may contain `jit`, `scan`, `cond`, `vmap` and `grad`.
            Modules and optimizers of flax nnx among its arguments are updated in place, and
            so is a `jax.Ref`. Other pytrees are copied, as under `jax.jit`.
        argnames: The key or keys to collect. Others are passed on outwards.
        tags: The tag or tags to collect. With both `argnames` and `tags`, both must match.
        keep_logs: Also pass the collected logs on outwards.
        interval: Keep only rows 0, k, 2k, ... of each key.
        reduce: Combine all rows of a key into one value while the program runs, in
            constant memory: `"mean"`, `"sum"`, `"min"`, `"max"`, `"first"`, `"last"`,
            `"count"`, `"std"`, `"var"`, `"histogram"`, a `lox.Reduction`, or a mapping from
            key to one of them. It overrides the `reduce` of the calls of `log`.
        prefix: Put before each key.
        capacity: How many rows to keep of a loop of unknown length. The last ones are kept;
            `logs.valid` says which of them exist, and `logs.count` how many there were.
        when: Collect a record only if this function returns true for it, such as
            `lambda logs: logs["loss"] > 5` or `lox.nonfinite`. It runs on the device, for
            each record and each example; `logs.valid` says where it was true.
        differentiable: Let the logs carry derivatives, so that you can log a loss deep
            inside and add it outside: `loss + 0.01 * logs["balance"].sum()`. Logs in a
            function with a `custom_jvp` or `custom_vjp` rule still carry none.

    Returns:
        A function that returns a pair, the output of `fun` and a `logdict`.

    Example:
        >>> def f(xs):
        ...     def step(total, x):
        ...         lox.log({"total": total + x}, step=x)
        ...         return total + x, None
        ...     return jax.lax.scan(step, 0, xs)[0]
        >>> y, logs = lox.spool(f)(jnp.arange(3))
        >>> logs
        {'total': [0, 1, 3]}
        >>> print(logs.step["total"])
        [0 1 2]
    """
    check_function("lox.spool", fun)
    check_prefix(prefix)
    check_positive(interval=interval, capacity=capacity)
    check_when("lox.spool", when)
    handler = Collect(
        keys=selection(argnames, "argnames"),
        tags=selection(tags, "tags"),
        keep=keep_logs,
        reduce=_reductions(reduce),
        interval=interval,
        capacity=capacity,
        when=when,
        differentiable=differentiable,
        buffers=True,
    )
    # A jitted `fun` stays jitted, with one program for each combination of options.
    options = handler, prefix
    spooled = ft.partial(spool_into, ft.partial(_logs, prefix), handler)
    return transformed(fun, spooled, options)


def spool_into(
    form: Callable[[dict[str, Rows]], R],
    handler: Collect,
    fun: Callable,
    *args: PyTree,
    **kwargs: PyTree,
) -> tuple[PyTree, R]:
    """Call `fun`, and return its output and `form(entries)`, made from what it logs."""
    traced, handler = listening("lox.spool", handler, fun, *args, **kwargs)
    outs, logs = Interpreter(handler).on_device()(traced.jaxpr, *traced.args)
    return traced.output(outs), form(handler.finished(logs))


def _logs(prefix: str, entries: dict[str, Rows]) -> logdict:
    arrays = {key: rows.replace(value=_arrays(rows.value)) for key, rows in entries.items()}
    logs = logdict.of(name_entries(arrays))
    return logs.prefix(prefix) if prefix else logs


def _arrays(value: PyTree) -> PyTree:
    """Return a value in which constants are JAX arrays, too."""
    return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jnp.asarray(x), value)


def _reductions(
    given: ReductionLike | Mapping[str, ReductionLike],
) -> tuple[tuple[str | None, ReductionLike], ...]:
    # Hashable, because jitted programs are cached by it. None stands for all keys.
    if given is None:
        return ()
    asked = given if isinstance(given, Mapping) else {None: given}
    for reduction in asked.values():
        reduction_named(reduction)
    return tuple(asked.items())
