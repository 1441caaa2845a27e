"""Who listens: whether a `log` call is captured, printed, or leaves no trace at all.

The state is a JAX user context, which is part of the key of every cache of JAX: a
function that was jitted in silence is traced again inside `spool`, and both programs
stay cached side by side.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import jax

from lox._jax import equations, patches

State = Literal["captured", "printed", "silent", "searched"]


def _default() -> State:
    value = os.environ.get("LOX_DEFAULT", "print")
    if value not in ("print", "silent"):
        raise ValueError(
            f"LOX_DEFAULT is {value!r}; it says what becomes of logs that nobody "
            "collects: `print` (the default) or `silent`."
        )
    return "silent" if value == "silent" else "printed"


# Made at import: a context that is added later recompiles what was compiled before.
_state = jax.make_user_context(_default())


def state() -> State:
    """What becomes of a record that is logged here."""
    return _state.value


def captured() -> AbstractContextManager:
    """Programs traced in here hold their logs, for a transformation to hear."""
    return _state("captured")


def searched() -> AbstractContextManager:
    """Programs traced in here hold their logs as they are written, to be looked for.

    Nobody runs them, so nothing is done to keep the logs exact.
    """
    return _state("searched")


def silent() -> AbstractContextManager:
    """Drop every log that is traced or run in here, unless something collects it.

    Example:
        >>> with lox.silent():
        ...     logs = lox.log({"x": 1.0})
    """
    return _state("silent")


@patches.implements("memoized rules")
def _memoize_per_state(memoize: Callable, rule: Callable) -> Callable:
    """Remember the program of a derivative rule once per state, as `rule` may log or not.

    The rules of a function that was called in silence stay silent, whoever traces them.
    """
    was_silent = _state.value == "silent"
    memoized: dict[State, Callable] = {}

    def program(*args: Any) -> Any:
        state = "silent" if was_silent else _state.value
        if state not in memoized:
            memoized[state] = memoize(rule)
        with _state(state):
            return memoized[state](*args)

    return program


@patches.implements("custom_vjp in silence")
def _bind_custom_vjp(bind: Callable, *args: Any, **params: Any) -> Any:
    if _state.value == "silent":
        args, params = equations.with_rules_in(silent, args, params)
    return bind(*args, **params)
