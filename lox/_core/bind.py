"""`bind`: give context to every record that a function logs."""

import functools as ft
from collections.abc import Callable, Iterable
from typing import Any

import jax

from lox._core import context as _context
from lox._core.handler import Handler
from lox._core.interpreter import Interpreter
from lox._core.log import check_function, names_in, relog, steps_of
from lox._core.options import check_prefix
from lox._core.record import Record, log_effect
from lox._core.transform import transformed
from lox._jax.types import AnyArray, PyTree
from lox._rows.collected import Collected
from lox._rows.rows import Where, static
from lox._rows.types import P, R
from lox_host.frozen import frozen


def bind(
    fun: Callable[P, R],
    *,
    prefix: str = "",
    tags: str | Iterable[str] = (),
    **steps: Any,
) -> Callable[P, R]:
    """Give steps, tags and a prefix to every record that `fun` logs.

    Use it to tell a library which iteration of your loop this is, without changing the
    library. It reaches every call of `log` inside `fun`, at any depth, even in jitted
    functions.

    Args:
        fun: Any JAX function.
        prefix: Put before each key.
        tags: One or more tags, added to those of each record.
        **steps: Any other keyword is a step, such as `step=i`. If a record has a step of
            the same name, the record's own step wins.

    Returns:
        A function that does and returns what `fun` does.

    Example:
        >>> def loss(x):
        ...     lox.log({"loss": x**2})
        ...     return x**2
        >>> def f(xs):
        ...     def body(total, x):
        ...         i, x = x
        ...         return total + lox.bind(loss, prefix="train/", step=i)(x), None
        ...     return jax.lax.scan(body, 0.0, (jnp.arange(3), xs))[0]
        >>> y, logs = lox.spool(f)(jnp.array([1.0, 2.0, 3.0]))
        >>> logs
        {'train/loss': [1.0, 4.0, 9.0]}
        >>> print(logs.step["train/loss"])
        [0 1 2]
    """
    check_function("lox.bind", fun)
    check_prefix(prefix)
    added = names_in(tags, "tags")
    annotated = ft.partial(_annotated, prefix, added)
    return transformed(fun, annotated, ("bind", prefix, added), steps_of(steps))


def _annotated(
    prefix: str,
    tags: tuple[str, ...],
    steps: dict[str, AnyArray],
    fun: Callable,
    *args: PyTree,
    **kwargs: PyTree,
) -> PyTree:
    # In silence there is nothing to annotate, and no reason to trace.
    if _context.state() == "silent":
        return fun(*args, **kwargs)
    interpreter = Interpreter(Annotate(steps, prefix, tags))
    traced = interpreter.trace(fun, *args, **kwargs)
    outs, _ = interpreter.on_device()(traced.jaxpr, *traced.args)
    return traced.output(outs)


@jax.tree_util.register_dataclass
@frozen
class Annotate(Handler):
    """Log each record again with more context, for the transformations around.

    Attributes:
        steps: Steps to add. If a record has a step of the same name, the record's wins.
        prefix: Put before each key.
        tags: Added to the tags of each record.
    """

    steps: dict[str, AnyArray]
    prefix: str = static()
    tags: tuple[str, ...] = static()

    captures = True
    effects = frozenset({log_effect})

    def handle(self, record: Record, where: Where) -> Collected:
        relog(
            record.with_default_steps(self.steps).replace(
                keys=tuple(self.prefix + key for key in record.keys),
                tags=tuple(dict.fromkeys((*record.tags, *self.tags))),
            )
        )
        return Collected()
