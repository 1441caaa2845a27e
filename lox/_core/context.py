"""The context of a call of `log`: is it captured, printed, or dropped without a trace?

    captured   inside a transformation of lox: `log` adds a record to the program
    printed    nothing collects it: `log` adds a host call that prints
    silent     in `nolog` or `lox.silent()`: `log` adds nothing
    searched   lox only looks at which records a program holds, and does not run it

In Python code inside `with logger.run(key)`, a run takes records before any of these: see
`collecting`.

The state is a JAX user context, which is part of the key of every cache in JAX. A function
that was jitted in silence is traced again inside `spool`, and both programs stay cached.
"""

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple

import jax

from lox._jax import equations, patches, tracing
from lox._jax.types import AnyArray, PyTree

State = Literal["captured", "printed", "silent", "searched"]


def _default() -> State:
    value = os.environ.get("LOX_DEFAULT", "print")
    if value not in ("print", "silent"):
        raise ValueError(
            f"LOX_DEFAULT is {value!r}. It says what happens to logs that nothing "
            "collects: `print` (the default) or `silent`."
        )
    return "silent" if value == "silent" else "printed"


# Made at import, as JAX recompiles everything when a context is added later.
_state = jax.make_user_context(_default())


def state() -> State:
    """Return what happens to a record that is logged here."""
    return _state.value


def captured() -> AbstractContextManager:
    """Trace programs with their records, for a transformation to handle."""
    return _state("captured")


def searched() -> AbstractContextManager:
    """Trace programs with their records, only to look at these.

    Such a program is never run, so nothing is done to keep its logs exact.
    """
    return _state("searched")


def silent() -> AbstractContextManager:
    """Drop every log inside this context, unless something collects it.

    Example:
        >>> with lox.silent():
        ...     logs = lox.log({"x": 1.0})
    """
    return _state("silent") if _collector.get() is None else _silent_inside()


@contextlib.contextmanager
def _silent_inside() -> Iterator[None]:
    """Do the same where a run collects what Python code logs."""
    with _state("silent"), tracing.setting(_collector, None):
        yield


# Is called with the values by key, the steps and the tags.
Take = Callable[[dict[str, PyTree], dict[str, AnyArray], tuple[str, ...]], None]


class Collector(NamedTuple):
    """Takes what Python code logs.

    Attributes:
        take: What takes it.
        program: The program that was being traced where it began. None: none.
    """

    take: Take
    program: object


_collector: contextvars.ContextVar[Collector | None] = contextvars.ContextVar(
    "lox_collector", default=None
)


def collecting(
    take: Take,
) -> AbstractContextManager[None]:
    """Call `take` with what is logged in this context, outside of transformations.

    It does not get the logs of programs that are compiled in this context and run later.
    """
    return tracing.setting(_collector, Collector(take, tracing.staged_program()))


def collector() -> Collector | None:
    """Return what takes a record that is logged here, if anything does."""
    here = _collector.get()
    if here is None or _state.value in ("captured", "searched"):
        return None
    return here if tracing.staged_program() is here.program else None


@patches.implements("memoized rules")
def _memoize_per_state(memoize: Callable, rule: Callable) -> Callable:
    """Memoize the program of a derivative rule per state, as it may or may not log.

    If a function was called in silence, its rules stay silent wherever they are traced.
    """
    was_silent = _state.value == "silent"
    memoized: dict[State, Callable] = {}

    def program(*args: object) -> object:
        state = "silent" if was_silent else _state.value
        if state not in memoized:
            memoized[state] = memoize(rule)
        with _state(state):
            return memoized[state](*args)

    return program


@patches.implements("custom_vjp in silence")
def _bind_custom_vjp(bind: Callable, *args: AnyArray, **params: Any) -> list:
    if _state.value == "silent":
        args, params = equations.with_rules_in(silent, args, params)
    return bind(*args, **params)
