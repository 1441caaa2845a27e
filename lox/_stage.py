"""Trace a function into a program that can be put into an equation."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import eval_jaxpr
from jax.extend.core import ClosedJaxpr


@dataclasses.dataclass(frozen=True)
class Staged:
    """A function traced into a program, to be called with the leaves of its arguments."""

    jaxpr: ClosedJaxpr
    shape: Any
    leaves: Sequence[Any]

    def __call__(self, *leaves: Any) -> Any:
        jaxpr = self.jaxpr
        return self.output(eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *leaves))

    def output(self, outs: Sequence[Any]) -> Any:
        return jax.tree.unflatten(jax.tree.structure(self.shape), outs)


def stage(fun: Callable, *args: Any) -> Staged:
    jaxpr, shape = jax.make_jaxpr(fun, return_shape=True)(*args)
    return Staged(jaxpr, shape, jax.tree.leaves(args))


def stage_walk(walk, jaxpr, *args) -> Staged:
    return stage(lambda walk, *args: walk(jaxpr, *args), walk, *args)


def split(xs: Sequence[Any], *sizes: int) -> tuple[list, ...]:
    parts, start = [], 0
    for size in sizes:
        parts.append(list(xs[start : start + size]))
        start += size
    return *parts, list(xs[start:])
