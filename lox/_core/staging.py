"""Trace functions into programs, for the equations that rules build.

There are two ways, for two purposes:

    stage(fun, *args)    `fun` becomes a program of all leaves of `args`. Rules use it for
                         the body of a new loop or branch: everything in `args` is traced.
    trace(fun, *args)    `fun` is the user's function. Only arrays are traced. Other leaves,
                         such as strings, stay what they are, in the arguments and outputs.

Both return the program together with what is needed to call it and to put its outputs back
together. `stage_once` remembers: see there why that matters.
"""

import dataclasses
import functools as ft
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.core import Tracer, eval_jaxpr
from jax.typing import ArrayLike

from lox._core.record import is_array
from lox._jax import sharding, tracing
from lox._jax.equations import close
from lox._jax.extend import ClosedJaxpr
from lox._jax.types import AnyArray, Params, Program, PyTree
from lox_host.frozen import frozen

T = TypeVar("T")


@frozen
class Staged:
    """A function traced into a program, to be called with the leaves of its arguments.

    Attributes:
        jaxpr: The program.
        shape: What the function returns, with abstract arrays.
        leaves: The leaves of the arguments that it was staged for.
    """

    jaxpr: ClosedJaxpr
    shape: PyTree
    leaves: Sequence[AnyArray]

    def __call__(self, *leaves: AnyArray) -> PyTree:
        outs = eval_jaxpr(self.jaxpr.jaxpr, self.jaxpr.consts, *leaves)
        # JAX returns an output that is always True as a Python bool, which has no shape.
        return self.output([np.asarray(x) if isinstance(x, bool) else x for x in outs])

    def run(self) -> PyTree:
        """Evaluate the program with the arguments that it was staged for."""
        return self(*self.leaves)

    def output(self, outs: Sequence[AnyArray]) -> PyTree:
        return jax.tree.unflatten(jax.tree.structure(self.shape), outs)


def stage(fun: Callable, *args: PyTree) -> Staged:
    """Trace a function with arguments like these."""
    jaxpr, shape = jax.make_jaxpr(fun, return_shape=True)(*args)
    return Staged(jaxpr, shape, jax.tree.leaves(args))


def stage_once(fun: Callable, jaxpr: Program, *args: PyTree) -> Staged:
    """Stage `fun(jaxpr, *args)`, or return what an earlier call staged.

    A rule asks several times what a program logs: to find out what a loop must carry, how
    many rows there are, and for the loop itself. If it interpreted the program each
    time, tracing nested loops would take time exponential in their depth.

    The cache of `jax.jit` is right for this. Its key holds the function, the structure of
    the arguments (and so the form of a handler), the types of all arrays, and everything
    else that a trace depends on: the mesh, axis names, the user context. So there is one
    jitted function per program and `fun`, kept as long as the program lives.
    """
    if any(isinstance(x, Tracer) for x in close(jaxpr).consts):
        # These tracers belong to the current trace, and so would a remembered result.
        return stage(lambda *args: fun(jaxpr, *args), *args)
    functions = _functions.setdefault(jaxpr, {})
    if fun not in functions:
        reference = weakref.ref(jaxpr)  # a strong one would keep the key alive forever
        functions[fun] = jax.jit(lambda *args: fun(reference(), *args))
    traced = functions[fun].trace(*args)
    return Staged(traced.jaxpr, traced.out_info, jax.tree.leaves(args))


_functions: weakref.WeakKeyDictionary[Program, dict[Callable, Any]]
_functions = weakref.WeakKeyDictionary()


def alike(branches: Sequence[Staged], index: ArrayLike) -> Sequence[Staged]:
    """Return the branches of a `cond` with outputs that vary over the same mesh axes.

    In a `shard_map`, JAX wants all branches to agree on which outputs differ from device to
    device. If devices take different branches, all outputs do.
    """
    taken = sharding.varying_axes(index)
    # For each branch, the axes of each output; then for each output, those of any branch.
    axes_of = [[*map(sharding.varying_axes, b.jaxpr.out_avals)] for b in branches]
    union = [taken.union(*axes) for axes in zip(*axes_of, strict=True)]
    if all(axes == union for axes in axes_of):
        return branches

    def varied(branch: Staged, *leaves: AnyArray) -> PyTree:
        outs, tree = jax.tree.flatten(branch(*leaves))
        return jax.tree.unflatten(tree, map(sharding.make_varying, outs, union))

    return [stage(ft.partial(varied, branch), *branch.leaves) for branch in branches]


def split(xs: Sequence[T], *sizes: int) -> tuple[list[T], ...]:
    """Split a sequence into parts of these sizes, and the rest."""
    parts, start = [], 0
    for size in sizes:
        parts.append(list(xs[start : start + size]))
        start += size
    return *parts, list(xs[start:])


def carry_predicate(params: Params) -> Params:
    """Return the parameters of the same `while`, with the predicate carried in front.

        while cond(carry):           running = cond(carry)      (up to the caller)
            carry = body(carry)  ->  while running:
                                         carry = body(carry)
                                         running = cond(carry)

    So the logs of the predicate are logs of the body, and its value is there for a mask.
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
@frozen
class _Held:
    """A program as a static argument. JAX compares programs by identity."""

    jaxpr: ClosedJaxpr = dataclasses.field(metadata={"static": True})


def _step(
    body: ClosedJaxpr,
    cond: _Held,
    cond_consts: list,
    body_consts: list,
    running: jax.Array,
    carry: list,
) -> list:
    outs = eval_jaxpr(body.jaxpr, body.consts, *body_consts, *carry)
    asked = eval_jaxpr(cond.jaxpr.jaxpr, cond.jaxpr.consts, *cond_consts, *outs)
    return [*asked, *outs]


def _first(body: ClosedJaxpr, running: jax.Array, carry: list) -> jax.Array:
    return running


@frozen
class Traced:
    """A function traced with some arguments.

    Attributes:
        jaxpr: The program.
        args: The arrays among the arguments, which the program takes.
        output: Turns the outputs of the program into what the function returns.
    """

    jaxpr: ClosedJaxpr
    args: list
    output: Callable[[list], PyTree]


# Stands for an output that the program returns. A tracer must not outlive its trace.
_TRACED = object()


def trace(fun: Callable, *args: PyTree, **kwargs: PyTree) -> Traced:
    """Trace `fun`. Arrays are traced as by `jit`; everything else stays what it is."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    positions = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    # Filled while tracing: the outputs, marked where they are tracers, and their structure.
    result: list = []

    def flat(*arrays: jax.Array) -> list[jax.Array]:
        merged = list(leaves)
        for i, array in zip(positions, arrays, strict=True):
            merged[i] = array
        args, kwargs = jax.tree.unflatten(treedef, merged)
        outs, out_tree = jax.tree.flatten(fun(*args, **kwargs))
        # An output that is no tracer does not depend on the arrays. It never enters the
        # program, and the same object is returned.
        result[:] = [_TRACED if isinstance(x, Tracer) else x for x in outs], out_tree
        return [x for x in outs if isinstance(x, Tracer)]

    arrays = [leaves[i] for i in positions]
    jaxpr = jax.make_jaxpr(flat)(*arrays)
    outs, out_tree = result

    def output(values: list) -> PyTree:
        arrays = map(tracing.returned_array, values, jaxpr.out_avals)
        merged = [next(arrays) if x is _TRACED else x for x in outs]
        return jax.tree.unflatten(out_tree, merged)

    return Traced(jaxpr, arrays, output)
