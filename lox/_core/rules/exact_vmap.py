"""Exact logs under `vmap`, where JAX runs more than the program says.

Every branch of a `cond` runs for every example, and a `while_loop` runs its body on until
the last example has finished. The records in there are then given a mask that says for
which examples they are real; nothing else of the program changes.
"""

import functools as ft
import itertools as it
from collections.abc import Callable

import jax
from jax.extend.core import jaxpr_as_fun

from lox._core.handler import Mask
from lox._core.interpreter import Interpreter
from lox._core.record import holds_records
from lox._core.staging import carry_predicate, split, stage
from lox._jax import patches, tracing
from lox._rows.rows import Branch

_numbers = it.count()


@patches.implements("cond under vmap")
def _batched_cond(original: Callable, axis, args, dims, *, branches, **params):
    index, *operands = args
    if dims[0] is None or not holds_records(*branches):
        return original(axis, args, dims, branches=branches, **params)
    number = next(_numbers)

    def masked(i: int, index, *operands):
        branch = Branch(number, i, len(branches))
        return Interpreter(Mask(index == i, branch))(branches[i], *operands)[0]

    avals = [tracing.unbatched_aval(index, axis.size, dims[0]), *branches[0].in_avals]
    new = tuple(stage(ft.partial(masked, i), *avals).jaxpr for i in range(len(branches)))
    # The index is an operand, too.
    args, dims = [index, index, *operands], [dims[0], *dims]
    return original(axis, args, dims, branches=new, **params)


@patches.implements("while under vmap")
def _batched_while(original: Callable, axis, args, dims, **params):
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    sizes = params["cond_nconsts"], params["body_nconsts"]
    # A predicate that is batched already has masked the records. Otherwise the records are
    # masked by its value, which is carried along: asked twice, it might log twice.
    if (
        cond.out_avals[0].shape
        or not holds_records(cond, body)
        or not _is_predicate_batched(original, axis, args, dims, params)
    ):
        return original(axis, args, dims, **params)

    predicate = carry_predicate(params)
    jaxpr = predicate["body_jaxpr"]

    def masked(*args):
        running = args[sum(sizes)]
        return Interpreter(Mask(running))(jaxpr, *args)[0]

    cond_args, body_args, init = split(list(zip(args, dims, strict=True)), *sizes)
    values, axes = zip(*cond_args, *init, strict=True)
    vmap = ft.partial(
        jax.vmap,
        axis_size=axis.size,
        axis_name=axis.name,
        spmd_axis_name=axis.spmd_name,
    )
    (running,) = vmap(jaxpr_as_fun(cond), axes)(*values)
    operands = [*cond_args, *body_args, (running, 0), *init]
    params = {**predicate, "body_jaxpr": stage(masked, *jaxpr.in_avals).jaxpr}
    outs, out_dims = original(
        axis, [x for x, _ in operands], [dim for _, dim in operands], **params
    )
    return outs[1:], out_dims[1:]


def _is_predicate_batched(original: Callable, axis, args, dims, params) -> bool:
    def batched(*args):
        return original(axis, list(args), list(dims), **params)[0]

    eqns = jax.make_jaxpr(batched)(*args).jaxpr.eqns
    loop = next(eqn for eqn in eqns if eqn.primitive.name == "while")
    return bool(loop.params["cond_jaxpr"].out_avals[0].shape)
