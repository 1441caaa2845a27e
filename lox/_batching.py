"""Exact logs where JAX runs more than the program says, or less.

Under `vmap`, every branch of a `cond` runs for every example, and a `while_loop` runs its
body on until the last example has finished. The records in there are then given a mask
that says for which examples they are real; nothing else of the program changes.

Under `grad`, what does not change in a `scan` is taken out of it, records included. Those
are then tied to a counter in the carry. And a `while_loop` runs once for its value and
once more for its derivative, or for a block that is checkpointed. The second time it runs
without its records.
"""

import contextlib
import contextvars
import functools as ft
import itertools as it
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, jaxpr_as_fun
from jax.interpreters import batching

from . import _compat
from ._handlers import Anchor, Drop, Mask
from ._interpret import Walk, records_in
from ._record import listed
from ._rows import Branch
from ._stage import carry_predicate, split, stage

_numbers = it.count()


def _holds_records(*jaxprs: Any) -> bool:
    return any(not Mask.effects.isdisjoint(jaxpr.effects) for jaxpr in jaxprs)


def _batched_cond(original: Callable, axis, args, dims, *, branches, **params):
    index, *operands = args
    if dims[0] is None or not _holds_records(*branches):
        return original(axis, args, dims, branches=branches, **params)
    number = next(_numbers)

    def masked(i: int, index, *operands):
        branch = Branch(number, i, len(branches))
        return Walk(Mask(index == i, branch))(branches[i], *operands)[0]

    avals = [_compat.unbatched(index, axis.size, dims[0]), *branches[0].in_avals]
    new = tuple(stage(ft.partial(masked, i), *avals).jaxpr for i in range(len(branches)))
    # The index is an operand, too.
    args, dims = [index, index, *operands], [dims[0], *dims]
    return original(axis, args, dims, branches=new, **params)


def _batched_while(original: Callable, axis, args, dims, **params):
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    sizes = params["cond_nconsts"], params["body_nconsts"]
    # A predicate that is batched already has masked the records. Otherwise the records are
    # masked by its value, which is carried along: asked twice, it might log twice.
    if (
        cond.out_avals[0].shape
        or not _holds_records(cond, body)
        or not _is_predicate_batched(original, axis, args, dims, params)
    ):
        return original(axis, args, dims, **params)

    predicate = carry_predicate(params)
    jaxpr = predicate["body_jaxpr"]

    def masked(*args):
        running = args[sum(sizes)]
        return Walk(Mask(running))(jaxpr, *args)[0]

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


def _anchored_scan(bind: Callable, *args, **params):
    """Tie the records in a `scan` that is being differentiated to the loop."""
    jaxpr, sizes = params["jaxpr"], _compat.scan_sizes(params)
    if not _holds_records(jaxpr) or not _compat.differentiating():
        return bind(*args, **params)
    if _is_anchored.get() or not _has_loose_records(jaxpr.jaxpr, sizes[0]):
        with _set(_is_anchored, False):  # The loops inside are not anchored yet.
            return bind(*args, **params)
    consts, init, xs = split(args, *sizes)

    def body(carry, x):
        counter, carry = carry
        outs, _ = Walk(Anchor(counter))(jaxpr, *consts, *carry, *x)
        carry, ys = split(outs, len(init))
        return (counter + 1, carry), ys

    start = jnp.zeros((), jnp.int32)
    options = _compat.scan_options(params)
    length = None if xs else params["length"]
    with _set(_is_anchored, True):
        (_, carry), ys = jax.lax.scan(body, (start, init), xs, length, **options)
    return [*carry, *ys]


def _pruned_while(bind: Callable, *args, **params):
    """Keep derivatives out of a `while` if nothing but records would have them.

    With them, JAX would run the loop again for the derivatives, or could not transpose it.
    """
    if not _holds_records(params["cond_jaxpr"], params["body_jaxpr"]):
        return bind(*args, **params)
    if _is_split.get():
        raise _twice(params)
    if not _compat.differentiating():
        return bind(*args, **params)
    body = _without_records(params["body_jaxpr"])
    used = [True] * params["cond_nconsts"] + _compat.used_inputs(body)
    pairs = zip(args, used, strict=True)
    return bind(*(x if is_used else jax.lax.stop_gradient(x) for x, is_used in pairs), **params)


def _partially_known_while(original: Callable, unknown: Sequence[bool], eqn, *args):
    """Let the records of a `while` be in what is known: it alone is run only once."""
    if not _holds_records(eqn):
        return original(unknown, eqn, *args)
    jaxprs = {name: _without_records(eqn.params[name]) for name in ("cond_jaxpr", "body_jaxpr")}
    effects = eqn.effects - Mask.effects
    bare = eqn.replace(params={**eqn.params, **jaxprs}, effects=effects)
    known, staged, *rest = original(unknown, bare, *args)
    if known is None:
        return None, eqn, *rest
    if any(unknown):
        raise _twice(eqn.params)
    return eqn, staged, *rest


def _twice(params: dict[str, Any]) -> NotImplementedError:
    keys = listed(key for record in records_in(params) for key in record.keys)
    return NotImplementedError(
        f"A `while_loop` that logs {keys} is differentiated by `jax.linearize`, for which "
        "JAX runs it once more: everything would be logged twice. Use `jax.jvp`, or wrap "
        "the function in `lox.nolog`. (`jax.grad` of a `while_loop` is not possible at "
        "all, unless its derivative is zero.)"
    )


def _without_records(jaxpr: Any) -> Any:
    return stage(lambda *args: Walk(Drop())(jaxpr, *args)[0], *jaxpr.in_avals).jaxpr


# Whether the next differentiated `scan` is one that is anchored already.
_is_anchored = contextvars.ContextVar("is_anchored", default=False)
# Whether the next `while` is what is known of one that is run again for the rest.
_is_split = contextvars.ContextVar("is_split", default=False)


@contextlib.contextmanager
def _set(variable: contextvars.ContextVar, value: bool):
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def _has_loose_records(jaxpr, num_consts: int) -> bool:
    """Whether a record may depend on nothing that changes from iteration to iteration."""
    changing = set(jaxpr.invars[num_consts:])
    for eqn in jaxpr.eqns:
        changes = any(
            not isinstance(atom, Literal) and atom in changing for atom in eqn.invars
        )
        if changes:
            changing.update(eqn.outvars)
        if _holds_records(eqn) and not (changes and "form" in eqn.params):
            return True
    return False


for _name, _rule in (("cond", _batched_cond), ("while", _batched_while)):
    _primitive = _compat.primitive_named(_name)
    _original = batching.fancy_primitive_batchers[_primitive]
    batching.fancy_primitive_batchers[_primitive] = ft.partial(_rule, _original)

_compat.wrap_bind(_compat.primitive_named("scan"), _anchored_scan)
_compat.wrap_bind(_compat.primitive_named("while"), _pruned_while)
_compat.around_partial_eval(
    _compat.primitive_named("while"), lambda: _set(_is_split, True)
)
_compat.wrap_partial_eval(_compat.primitive_named("while"), _partially_known_while)
_compat.inline_calls(_holds_records)
