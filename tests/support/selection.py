"""Which cases the tests meet: a selection, or all of them if `LOX_FULL=1`."""

import functools as ft
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr

from support.programs import Program

T = TypeVar("T")
FULL = os.environ.get("LOX_FULL") == "1"


def thin(cases: Sequence[T], every: int, start: int = 0) -> list[T]:
    """Every so many of `cases`, in a full run all of them.

    Among the ways to run a program, `start` is its number in the catalogue: each program
    then meets some of the ways, and each way many programs.
    """
    return [*cases] if FULL else [*cases[start % every :: every]]


def half(programs: Sequence[Program], turn: int) -> list[Program]:
    """Of two ways to run programs, those for one of them; in a full run all."""
    return [p for i, p in enumerate(programs) if FULL or i // 2 % 2 == turn]


def covering(programs: Sequence[Program], every: int, start: int = 0) -> list[Program]:
    """The same of programs, and as many of the others as have a construct of their own."""
    chosen = thin(programs, every, start)
    seen = {construct for p in chosen for construct in constructs(p)}
    for p in programs:
        if constructs(p) - seen:
            chosen.append(p)
            seen |= constructs(p)
    return chosen


@ft.cache
def constructs(p: Program) -> frozenset[tuple[str, str]]:
    """Which primitives of a program hold others that hold something, or log."""
    return frozenset(nested("", jax.make_jaxpr(p.fun)(p.x).jaxpr))


def nested(outer: str, jaxpr: Jaxpr) -> Iterator[tuple[str, str]]:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        inside = [x for x in jax.tree.leaves(eqn.params, is_leaf=is_jaxpr) if is_jaxpr(x)]
        if inside or name.startswith("lox"):
            yield outer, name
        for inner in inside:
            yield from nested(
                name, inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
            )


def is_jaxpr(x: Any) -> bool:
    return isinstance(x, (Jaxpr, ClosedJaxpr))
