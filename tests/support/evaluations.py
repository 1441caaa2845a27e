"""How much lox evaluates and stages while a program is traced."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from lox._core.interpreter import Interpreter


def evaluations(fun: Callable, *args: Any) -> int:
    """How many programs the interpreter evaluates while `fun` is traced.

    A function that logs is one, and so is the body of each loop, branch and call in it,
    each time that it is evaluated.
    """
    with counted(Interpreter, "_evaluate") as calls:
        jax.make_jaxpr(fun)(*args)
    return len(calls)


@contextlib.contextmanager
def counted(owner: Any, name: str) -> Iterator[list[None]]:
    """Add to a list whenever a method is called."""
    calls: list[None] = []
    method = getattr(owner, name)

    def counting(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return method(*args, **kwargs)

    with mock.patch.object(owner, name, counting):
        yield calls


def equations(jaxpr: Jaxpr, primitive: str) -> Iterator[JaxprEqn]:
    """The equations of a primitive, in a program and in the programs in it."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == primitive:
            yield eqn
        for inner in jax.tree.leaves(eqn.params, is_leaf=is_program):
            if is_program(inner):
                yield from equations(getattr(inner, "jaxpr", inner), primitive)


def is_program(x: Any) -> bool:
    return isinstance(x, Jaxpr | ClosedJaxpr)
