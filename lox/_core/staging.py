"""Trace a function into a program that can be put into an equation."""

import dataclasses
import functools as ft
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer, eval_jaxpr
from jax.extend.core import ClosedJaxpr, Jaxpr

from lox._core.record import is_array
from lox._jax import sharding, tracing
from lox._jax.equations import close

Program = ClosedJaxpr | Jaxpr


@dataclasses.dataclass(frozen=True)
class Staged:
    """A function traced into a program, to be called with the leaves of its arguments."""

    jaxpr: ClosedJaxpr
    shape: Any
    leaves: Sequence[Any]

    def __call__(self, *leaves: Any) -> Any:
        outs = eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *leaves)
        # JAX returns an output that is always True as a Python bool, which has no shape.
        return self.output([np.asarray(x) if isinstance(x, bool) else x for x in outs])

    def run(self) -> Any:
        """Evaluate it with the inputs that it was staged for."""
        return self(*self.leaves)

    def output(self, outs: Sequence[Any]) -> Any:
        return jax.tree.unflatten(jax.tree.structure(self.shape), outs)


def stage(fun: Callable, *args: Any) -> Staged:
    """Trace a function with arguments of this form."""
    jaxpr, shape = jax.make_jaxpr(fun, return_shape=True)(*args)
    return Staged(jaxpr, shape, jax.tree.leaves(args))


def stage_once(fun: Callable, jaxpr: Program, *args: Any) -> Staged:
    """Stage `fun(jaxpr, *args)`, or recall what became of it before.

    A rule asks several times what a program logs: to find out what a loop must carry,
    how many rows there are, and for the loop itself. If each question were a new
    interpretation, one of a nest of loops would take time exponential in its depth.

    JAX has a cache for this, that of `jit`. It goes by the function, the structure of the
    arguments (so by the form of a handler), the types of all arrays in them, and whatever
    else a trace depends on: the mesh, axis names, the user context. So there is one
    jitted function for each program, kept as long as the program.
    """
    if any(isinstance(x, Tracer) for x in close(jaxpr).consts):
        # They belong to the trace that we are in, and the result would, too.
        return stage(lambda *args: fun(jaxpr, *args), *args)
    functions = _functions.setdefault(jaxpr, {})
    if fun not in functions:
        reference = weakref.ref(jaxpr)  # or the function would keep its own key alive
        functions[fun] = jax.jit(lambda *args: fun(reference(), *args))
    traced = functions[fun].trace(*args)
    return Staged(traced.jaxpr, traced.out_info, jax.tree.leaves(args))


_functions: weakref.WeakKeyDictionary[Program, dict[Callable, Any]]
_functions = weakref.WeakKeyDictionary()


def alike(branches: Sequence[Staged], index: Any) -> Sequence[Staged]:
    """The branches of a `cond`, their outputs of one type as to what devices differ in.

    They differ, too, where devices take different branches.
    """
    taken = sharding.varying_axes(index)
    each = [[sharding.varying_axes(aval) for aval in b.jaxpr.out_avals] for b in branches]
    union = [taken.union(*axes) for axes in zip(*each, strict=True)]
    if all(axes == union for axes in each):
        return branches

    def varied(branch: Staged, *leaves):
        outs, tree = jax.tree.flatten(branch(*leaves))
        return jax.tree.unflatten(tree, map(sharding.make_varying, outs, union))

    return [stage(ft.partial(varied, branch), *branch.leaves) for branch in branches]


def split(xs: Sequence[Any], *sizes: int) -> tuple[list, ...]:
    parts, start = [], 0
    for size in sizes:
        parts.append(list(xs[start : start + size]))
        start += size
    return *parts, list(xs[start:])


def carry_predicate(params: dict[str, Any]) -> dict[str, Any]:
    """Return the same `while` with a predicate that is carried in front.

    It is asked before the loop, and at the end of each iteration.
    """
    sizes = params["cond_nconsts"], params["body_nconsts"]
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    cond_consts, carry = split(cond.in_avals, sizes[0])
    body_consts, running = body.in_avals[: sizes[1]], cond.out_avals[0]
    step = stage_once(_step, body, _Held(cond), cond_consts, body_consts, running, carry)
    return {
        **params,
        "cond_nconsts": 0,
        "body_nconsts": sum(sizes),
        "cond_jaxpr": stage_once(_first, body, running, carry).jaxpr,
        "body_jaxpr": step.jaxpr,
    }


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Held:
    """A program as an argument, told apart from others by what it is, not by its form."""

    jaxpr: ClosedJaxpr = dataclasses.field(metadata={"static": True})


def _step(
    body: ClosedJaxpr,
    cond: _Held,
    cond_consts: list,
    body_consts: list,
    running: Any,
    carry: list,
) -> list:
    outs = eval_jaxpr(body.jaxpr, body.consts, *body_consts, *carry)
    asked = eval_jaxpr(cond.jaxpr.jaxpr, cond.jaxpr.consts, *cond_consts, *outs)
    return [*asked, *outs]


def _first(body: ClosedJaxpr, running: Any, carry: list) -> Any:
    return running


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function traced with some arguments."""

    jaxpr: ClosedJaxpr
    args: list
    output: Callable[[list], Any]


def trace(fun: Callable, *args: Any, **kwargs: Any) -> Traced:
    """Trace `fun`. Arrays are traced as by `jit`, everything else stays what it is."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    at = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    result: list = []

    def flat(*arrays):
        merged = list(leaves)
        for i, array in zip(at, arrays, strict=True):
            merged[i] = array
        args, kwargs = jax.tree.unflatten(treedef, merged)
        outs, out_tree = jax.tree.flatten(fun(*args, **kwargs))
        traced = [isinstance(leaf, Tracer) for leaf in outs]
        # What does not depend on the trace is returned as the object that it is.
        result[:] = (
            [None if t else x for t, x in zip(traced, outs, strict=True)],
            traced,
            out_tree,
        )
        return [x for t, x in zip(traced, outs, strict=True) if t]

    arrays = [leaves[i] for i in at]
    jaxpr = jax.make_jaxpr(flat)(*arrays)
    others, traced, out_tree = result

    def output(values: list) -> Any:
        each = map(tracing.returned_array, values, jaxpr.out_avals)
        merged = [next(each) if t else x for t, x in zip(traced, others, strict=True)]
        return jax.tree.unflatten(out_tree, merged)

    return Traced(jaxpr, arrays, output)
