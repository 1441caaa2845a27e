"""Which cases the tests meet: a selection, or all of them if `LOX_FULL=1`."""

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
FULL = os.environ.get("LOX_FULL") == "1"


def thin(cases: Sequence[T], every: int, start: int = 0) -> list[T]:
    """Every so many of `cases`, in a full run all of them.

    Among the ways to run a program, `start` is its number in the catalogue: each program
    then meets some of the ways, and each way many programs.
    """
    return [*cases] if FULL else [*cases[start % every :: every]]
