"""`when`: decide on the device which records to collect, by their values.

    lox.tap(f, callback, when=lox.nonfinite)
    lox.tap(f, callback, when=lambda logs: logs["loss"] > 5)

The condition becomes part of the mask of a record, as if the call of `log` were inside a
`cond`. Everything else follows from masks: the host is not called if no example has logged,
and reductions leave out masked rows.
"""

import functools as ft
from collections.abc import Callable

import jax
import jax.numpy as jnp

from lox._core.record import Record, listed
from lox._jax.types import AnyArray, PyTree
from lox._logdict.logdict import logdict
from lox._rows.histogram import Histogram
from lox._rows.rows import Where

# Takes the record of one example, and returns whether to collect it.
Condition = Callable[[logdict], AnyArray]


def nonfinite(logs: logdict) -> jax.Array:
    """Return whether any value of a record holds a NaN or an infinity.

    A `lox.Histogram` does if any of the values that it counts was one.

    Use it as the option `when` of `lox.tap` and `lox.spool`.

    Args:
        logs: The record of one example.

    Returns:
        A scalar boolean.

    Example:
        >>> def f(xs):
        ...     def step(total, x):
        ...         lox.log({"log": jnp.log(x)}, step=x)
        ...         return total + x, None
        ...     return jax.lax.scan(step, 0.0, xs)[0]
        >>> y = lox.tap(f, when=lox.nonfinite)(jnp.arange(3.0))
        {'log': -inf} step=0.0
    """
    values = jax.tree.leaves(logs.data, is_leaf=_is_histogram)
    found = [_is_nonfinite(x) for x in values if _may_be_nonfinite(x)]
    # Not stacked: the compiler computes a chain of scalars in one go.
    return ft.reduce(jnp.logical_or, found, jnp.zeros((), bool))


def _is_histogram(x: object) -> bool:
    return isinstance(x, Histogram)


def _may_be_nonfinite(x: AnyArray) -> bool:
    return _is_histogram(x) or jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def _is_nonfinite(x: AnyArray) -> jax.Array:
    if _is_histogram(x):
        return (x.nonfinite > 0).any()
    return ~jnp.isfinite(x).all()


def check_when(transformation: str, when: object) -> None:
    if when is not None and not callable(when):
        raise TypeError(
            f"`when` of `{transformation}` takes a function from a record to a boolean, "
            f'such as `lambda logs: logs["loss"] > 5` or `lox.nonfinite`, not {when!r}.'
        )


def only_when(condition: Condition, record: Record, where: Where) -> Record:
    """Return the record with a mask: it is valid only where the condition holds."""
    keep = asked_of_record(condition, record, where)
    valid = keep if record.valid is None else record.valid & keep
    return record.replace(valid=valid, exact=False)


def asked_of_record(condition: Condition, record: Record, where: Where) -> jax.Array:
    """Return for which examples of a record the condition holds, `*batch`."""

    def holds(values: tuple, steps: dict[str, AnyArray]) -> jax.Array:
        return _asked(condition, dict(zip(record.keys, values, strict=True)), steps, where)

    # The condition is written for one example.
    for _ in record.batch:
        holds = jax.vmap(holds)
    return holds(record.values, record.steps)


def _asked(
    condition: Condition,
    values: dict[str, PyTree],
    steps: dict[str, AnyArray],
    where: Where,
) -> jax.Array:
    """Ask the condition about the record of one example."""
    by_key = {name: dict.fromkeys(values, step) for name, step in steps.items()}
    try:
        answer = condition(logdict(values, **by_key))
    except KeyError as error:
        raise KeyError(
            f"`when` uses {error.args[0]!r}, which is not in the record of "
            f"{listed(values)}, logged at {where}. lox calls `when` for every record: "
            "select records with `argnames` or `tags`, or check first whether "
            f"`{error.args[0]!r} in logs`."
        ) from error
    is_scalar = jnp.shape(answer) == () if _is_array_like(answer) else False
    if not is_scalar or jnp.result_type(answer) != jnp.bool_:
        what = str(jax.typeof(answer)) if _is_array_like(answer) else repr(answer)
        raise TypeError(
            f"`when` returns {what} for the record of {listed(values)}, logged at {where}, "
            "but it must return one boolean: reduce it with `.any()` or `.all()`, or "
            "compare it with a number."
        )
    return jnp.asarray(answer)


def _is_array_like(x: object) -> bool:
    return isinstance(x, bool | int | float | complex) or hasattr(x, "dtype")
