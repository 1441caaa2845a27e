"""What happens before JAX starts a program that calls the host.

JAX starts such programs from Python, each time, so that lox can wait there for packets that
must come before their host calls (see `arrivals.py`).
"""

from collections.abc import Callable
from typing import Any

from lox._jax import patches

_waits: list[Callable[[], None]] = []


def wait_before_host_calls(wait: Callable[[], None]) -> None:
    """Have this called before a program starts that calls the host."""
    _waits.append(wait)


@patches.implements("packets before host calls")
def _run_program(execute: Callable, program: Any, *args: object) -> object:
    if program.has_host_callbacks:
        for wait in _waits:
            wait()
    return execute(program, *args)
