"""`log`: check what is logged, and put it into the program as a record."""

import functools as ft
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec

import jax
import jax.numpy as jnp
import numpy as np

from lox._core import context as _context
from lox._core.record import Record, bind, is_array, log_p
from lox._jax import sharding
from lox._jax.types import AnyArray, PyTree
from lox._logdict.logdict import logdict, record_of
from lox._rows.reductions import Reduction, reduction_named
from lox._rows.several_reductions import RESERVED

P = ParamSpec("P")


def _with_one_mapping(log: Callable[P, logdict]) -> Callable[P, logdict]:
    """Explain what is wrong with `lox.log("loss", loss)` and `lox.log(loss=loss)`."""

    @ft.wraps(log)
    def checked(*args: P.args, **kwargs: P.kwargs) -> logdict:
        if len([*args]) == 1 or (not args and "data" in kwargs):
            return log(*args, **kwargs)
        key, given = "loss", ", ".join(_kind(x) for x in args)
        if args and isinstance(args[0], str):
            key = args[0]
        elif not args and kwargs:
            key = next(iter(kwargs))
            given = f"keywords alone: {key!r} would be a step"
        raise TypeError(
            "`lox.log` takes one mapping from keys to values, such as "
            f'`lox.log({{"{key}": ...}})`, not {given or "nothing"}.'
        )

    return checked


@_with_one_mapping
def log(
    data: Mapping[str, Any],
    /,
    *,
    tags: str | Iterable[str] = (),
    prefix: str = "",
    reduce: str | Reduction | None = None,
    **steps: Any,
) -> logdict:
    """Log values, anywhere in a JAX program.

    The caller decides what happens to them: `lox.spool` returns them along with the result,
    `lox.tap` calls a function with them while the program runs, and `lox.nolog` and
    `lox.silent` remove them completely. Without any of these, lox prints them.

    Args:
        data: The values by key: numbers, arrays or pytrees of them.
        tags: One or more tags, by which transformations select logs.
        prefix: Put before each key.
        reduce: How `lox.spool` combines repeated records of these keys, such as
            `"mean"`. By default it keeps every row.
        **steps: Any other keyword is a step, a named counter such as `step=i`.

    Returns:
        The record itself.

    Example:
        >>> @jax.jit
        ... def f(x):
        ...     lox.log({"x": x}, step=0)
        ...     return 2 * x
        >>> y, logs = lox.spool(f)(1.0)
        >>> logs, logs.step["x"].item()
        ({'x': 1.0}, 0)
    """
    values = _checked(data, prefix)
    # Check everything first: a bad call is an error even in silence.
    checked_steps = steps_of(steps)
    reduction_named(reduce)
    collector = _context.collector()
    if collector is not None:
        collector.take(values, checked_steps, names_in(tags, "tags"))
    elif values and _context.state() != "silent":
        record = Record(
            values=tuple(_strong(f"The value of {k!r}", v) for k, v in values.items()),
            steps=checked_steps,
            keys=tuple(values),
            tags=names_in(tags, "tags"),
            reduce=reduce,
        )
        relog(record)
    return record_of(values, steps)


def relog(record: Record) -> None:
    """Log a record here: bind it to `lox_log`, print it, or drop it."""
    state = _context.state()
    if state in ("captured", "searched"):
        bind(log_p, [record])
    elif state == "printed" and not record.passed_on:
        _print(record.with_default_steps(sharding.coordinates()))


def print_with(fun: Callable[[Record], None]) -> None:
    """Let `fun` print the records that nothing collects.

    Printing is a host call, and host calls are made in `lox._stream`, a layer above.
    """
    global _print
    _print = fun


_print: Callable[[Record], None]


def _checked(data: object, prefix: str) -> dict[str, PyTree]:
    """Return the values by their full keys, or raise if they cannot be logged."""
    if not isinstance(data, Mapping):
        raise TypeError(
            "`lox.log` takes a mapping from keys to values, such as "
            f'`lox.log({{"loss": loss}})`, not {_kind(data)}.'
        )
    if not isinstance(prefix, str):
        raise TypeError(f"`prefix` must be a string, not {_kind(prefix)}.")
    for key in data:
        if not isinstance(key, str):
            raise TypeError(
                f"The key {key!r} is {_kind(key)}, but keys of `lox.log` are strings."
            )
        if RESERVED in prefix + key:
            raise ValueError(
                f"The key {prefix + key!r} contains a null character, which lox uses "
                "itself. Use another key."
            )
    check_values(data)
    return {prefix + key: value for key, value in data.items()}


def check_values(data: Mapping[str, PyTree]) -> None:
    """Raise if a value cannot be logged."""
    for key, value in data.items():
        if _is_loggable(value):
            continue
        leaves = jax.tree.leaves(value)
        wrong = [leaf for leaf in leaves if not _is_loggable(leaf)]
        if wrong or not leaves:
            what = f"is or contains {_kind(wrong[0])}" if wrong else f"is `{value!r}`"
            raise TypeError(
                f"The value of {key!r} {what}, but `lox.log` takes numbers, arrays and "
                "pytrees of them."
            )


def loggable(logs: Mapping[str, PyTree], steps: Mapping[str, AnyArray] = {}) -> logdict:
    """Return finished logs with arrays only, or raise if they are not logs.

    Each of their rows gets the steps, which replace those with the same name.
    """
    if not isinstance(logs, Mapping):
        raise TypeError(
            "Logs are a mapping from keys to values, such as what `lox.spool` returns or "
            f'`{{"loss": loss}}`, not {_kind(logs)}.'
        )
    values = _checked(logs, "")
    same = steps_of(steps)
    given = logs if isinstance(logs, logdict) else logdict(values)
    arrays = jax.tree.map(lambda x: x if is_array(x) else _strong("A value", x), given)
    if not steps:
        return arrays
    return logdict.of({key: rows.with_steps(same) for key, rows in arrays.rows().items()})


def with_jax_dtypes(logs: logdict) -> logdict:
    """Return the logs as JAX would have them, or raise if an integer does not fit."""
    return jax.tree.map(
        lambda x: x if isinstance(x, jax.Array) else _strong("A value", x), logs
    )


def steps_of(steps: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Return the steps as arrays, or raise if one has a bad name or is not a number."""
    for name, step in steps.items():
        if name.startswith("_") or hasattr(logdict, name):
            raise ValueError(
                f"A step cannot be called {name!r}: `logs.{name}` is an attribute of a "
                "`logdict`, or reserved for one. Choose another name."
            )
        if not _is_loggable(step):
            raise TypeError(
                f"The step {name!r} is {_kind(step)}, but steps are numbers or arrays."
            )
    return {name: _strong(f"The step {name!r}", step) for name, step in steps.items()}


def names_in(given: str | Iterable[str], what: str) -> tuple[str, ...]:
    """Return one string or several as a tuple, or raise and name the option."""
    if not isinstance(given, Iterable):
        raise TypeError(f"`{what}` takes a string or several, not {_kind(given)}.")
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"`{what}` takes strings, not {_kind(name)}.")
    return names


def _is_loggable(x: object) -> bool:
    return isinstance(x, bool | int | float | complex) or is_array(x)


def _strong(name: str, x: PyTree) -> PyTree:
    """Return the same value without a weak type: carries and branches must match."""
    if isinstance(x, jax.Array):
        return jnp.asarray(x, x.dtype) if jax.typeof(x).weak_type else x
    # A pytree: each of its leaves by itself.
    if not _is_loggable(x):
        return jax.tree.map(ft.partial(_strong, name), x)
    if not isinstance(x, int):
        copy = np.array(x)  # the user may change the original in place later
        if (narrow := narrowed(copy)) is None:
            raise _overflow(name, copy.dtype, copy.flat[np.abs(copy).argmax()])
        return narrow
    # An integer of Python may have any size, but JAX gives it 32 bits, or 64 if enabled.
    dtype = jnp.result_type(type(x))
    try:
        return np.array(x, dtype)
    except OverflowError:
        raise _overflow(name, dtype, x) from None


def narrowed(x: np.ndarray) -> np.ndarray | None:
    """Return an array with the dtype that JAX gives it; None if an integer does not fit."""
    narrow = x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)
    # Unlike floats, integers that are too large would become entirely different ones.
    is_exact = narrow is x or x.dtype.kind not in "iu" or np.array_equal(narrow, x)
    return narrow if is_exact else None


def _overflow(name: str, dtype: np.dtype, value: int) -> OverflowError:
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    return OverflowError(
        f"{name} is {value}, which does not fit {dtype}. Log it as a float, or enable 64 "
        "bits with `jax.config.update('jax_enable_x64', True)`."
    )


def check_function(name: str, fun: object) -> None:
    if not callable(fun):
        raise TypeError(f"`{name}` takes a function, not {_kind(fun)}.")


def _kind(x: object) -> str:
    if x is None:
        return "`None`"
    if isinstance(x, np.ndarray):
        return f"an array of {x.dtype}"
    return (
        f"`{type(x).__name__}` ({x!r})"
        if isinstance(x, str | bytes)
        else f"`{type(x).__name__}`"
    )
