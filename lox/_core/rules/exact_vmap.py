"""Exact logs under `vmap`, where JAX runs more than the program says.

With a batched predicate, every branch of a `cond` runs for every example, and a
`while_loop` runs until the last example has finished. So lox gives each record inside a
mask that says for which examples it is real. Nothing else changes:

    cond index                       index = [0 1 0], all branches run for all examples
      0: lox_log[a] x         ->       0: lox_log[a] x valid=[1 0 1]
      1: lox_log[b] x                  1: lox_log[b] x valid=[0 1 0]

JAX then selects: the outputs of the branch that an example takes, and for a loop the old
carry of examples that have finished. To select a ring of rows (`lox._rows.ring`), each
iteration would touch all of its rows. But if what is written is masked, there is nothing to
select:

    carry    new value                         after the iteration, for running [1 0 1]
    x        body(x)                           select(running, body(x), x)
    ring     lox_write ring row valid          lox_write ring row (valid & running)

So lox batches loops and branches that write into rings itself, and leaves the rings out of
the select.
"""

import itertools as it
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from lox._core import context as _context
from lox._core.analysis import holds_writes, may_hold_records, written_from
from lox._core.handler import Strip
from lox._core.interpreter import Interpreter
from lox._core.mask import Mask
from lox._core.record import holds_records
from lox._core.rules.registry import rule_for
from lox._core.staging import carry_predicate, split, stage, stage_once
from lox._core.taken_branches import MarkTaken
from lox._jax import patches, tracing
from lox._jax.example_marks import is_marking
from lox._jax.extend import ClosedJaxpr, JaxprEqn, jaxpr_as_fun
from lox._jax.types import AnyArray, AxisData, Params
from lox._rows.collected import Collected
from lox._rows.loop_carry import choose
from lox._rows.ring_write import narrowed_write
from lox._rows.rows import Branch, static
from lox_host.frozen import frozen


@patches.implements("cond under vmap")
def _batched_cond(
    original: Callable,
    axis: AxisData,
    args: Sequence[jax.Array],
    dims: Sequence[int | None],
    *,
    branches: Sequence[ClosedJaxpr],
    **params: Any,
) -> tuple[list, list]:
    index, *operands = args
    is_searched = _context.state() == "searched"
    has_writes = any(map(holds_writes, branches))
    has_any = has_writes or is_marking() or any(map(may_hold_records, branches))
    if dims[0] is None or is_searched or not has_any:
        return original(axis, args, dims, branches=branches, **params)
    aval, number = tracing.unbatched_aval(index, axis.size, dims[0]), _number_of(branches)

    def masked(i: int) -> ClosedJaxpr:
        choice = _Choice(aval, Branch(number, i, len(branches)))
        return stage_once(_masked_branch, branches[i], choice, *branches[i].in_avals).jaxpr

    # The mask is made from the index, so the index is also the first operand of a branch.
    args, dims = [index, index, *operands], [dims[0], *dims]
    new = tuple(map(masked, range(len(branches))))
    if has_writes:
        return _choose_in_place(axis, branches, new, args, dims)
    return original(axis, args, dims, branches=new, **params)


def _choose_in_place(
    axis: AxisData,
    branches: Sequence[ClosedJaxpr],
    masked: Sequence[ClosedJaxpr],
    args: Sequence[jax.Array],
    dims: Sequence[int | None],
) -> tuple[list, list]:
    """Run all branches, and select their outputs by the index, which comes first.

    A ring is not selected. It is passed from branch to branch, and each branch writes for
    the examples that take it.
    """
    # For each output that is a ring, which operand of the masked branches it comes from. It
    # must be the same one in all branches; masked branches have the index in front.
    rings = []
    for origins in zip(*map(written_from, branches), strict=True):
        origin = origins[0] if len({*origins}) == 1 else None
        rings.append(None if origin is None else origin + 1)
    index, _ = _over_examples(args[0], dims[0], axis.size)
    operands, axes = [*args[1:]], [*dims[1:]]
    outs_of_branches = []
    for branch in masked:
        outs = _vmap(axis, jaxpr_as_fun(branch), axes)(*operands)
        outs_of_branches.append(outs)
        # The next branch writes into what this one has written.
        for out, operand in zip(outs, rings, strict=True):
            if operand is not None:
                operands[operand], axes[operand] = out, 0
    outs = []
    for operand, *alternatives in zip(rings, *outs_of_branches, strict=True):
        first, last = alternatives[0], alternatives[-1]
        # index (size,) -> (size, 1, ...) -> the shape of the outputs
        wide = jnp.broadcast_to(jnp.expand_dims(index, range(1, first.ndim)), first.shape)
        outs.append(jax.lax.select_n(wide, *alternatives) if operand is None else last)
    return outs, [0] * len(outs)


def _vmap(axis: AxisData, fun: Callable, axes: Sequence[int | None]) -> Callable:
    """Map a function over all examples, which are the first axis of its outputs."""
    return jax.vmap(
        fun,
        tuple(axes),
        axis_size=axis.size,
        axis_name=axis.name,
        spmd_axis_name=axis.spmd_name,
    )


@jax.tree_util.register_dataclass
@frozen
class _Choice:
    """Which branch an example takes (`index`), and the branch to be masked."""

    index: AnyArray
    branch: Branch = static()


def _masked_branch(jaxpr: ClosedJaxpr, choice: _Choice, *operands: ArrayLike) -> list:
    kind = MarkTaken if is_marking() else Mask
    mask = kind.of(choice.index == choice.branch.index, choice.branch)
    return Interpreter(mask)(jaxpr, *operands)[0]


def _number_of(branches: Sequence[ClosedJaxpr]) -> int:
    """Return a number that identifies a `cond`, the same each time JAX batches it.

    Inside a loop, JAX batches a `cond` several times, with more and more batched operands.
    With the same number, the masked branches are the same programs, and JAX's caches hit.
    Two `cond`s may share their branches, so their place in the user's code counts, too.
    """
    place = tracing.place()
    known = _numbers.setdefault(branches[0], {})
    key = *map(weakref.ref, branches), id(place)
    if place is None or key not in known:
        known[key] = place, next(_next_number)
    return known[key][1]


# By the first branch, then by all branches and the id of the place. The place is kept with
# the number, so that nothing else gets its id.
_numbers: weakref.WeakKeyDictionary[ClosedJaxpr, dict[Hashable, tuple[object, int]]]
_numbers = weakref.WeakKeyDictionary()
_next_number = it.count()


@patches.implements("while under vmap")
def _batched_while(
    original: Callable,
    axis: AxisData,
    args: Sequence[jax.Array],
    dims: Sequence[int | None],
    **params: Any,
) -> tuple[list, list]:
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    sizes = params["cond_nconsts"], params["body_nconsts"]
    # Where an outer `vmap` has batched the predicate, the records are masked already.
    # Otherwise its value masks them. It is carried along instead of computed again in the
    # body, since a predicate that logs would log twice.
    has_any = holds_writes(body) or is_marking() or any(map(may_hold_records, (cond, body)))
    if (
        cond.out_avals[0].shape
        or not has_any
        or _context.state() == "searched"
        or not _is_predicate_batched(original, axis, args, dims, params)
    ):
        return original(axis, args, dims, **params)

    predicate = carry_predicate(params)
    step = predicate["body_jaxpr"]
    consts, (running, *carry) = split(step.in_avals, sum(sizes))
    masked = stage_once(_masked_step, step, consts, running, carry).jaxpr
    cond_args, body_args, init = split(list(zip(args, dims, strict=True)), *sizes)
    values, axes = zip(*cond_args, *init, strict=True)
    # The first value of the predicate, before the loop: running (size,)
    (running,) = _vmap(axis, jaxpr_as_fun(cond), axes)(*values)
    # With a batched predicate, JAX batches the whole carry. If it is batched from the
    # start, JAX does not look for a fixed point, and batches the body only once.
    carry = [(running, 0), *(_over_examples(x, dim, axis.size) for x, dim in init)]
    operands = [*cond_args, *body_args, *carry]
    if holds_writes(step):
        return _repeat_in_place(axis, step, masked, operands, len(carry))
    params = {**predicate, "body_jaxpr": masked}
    outs, out_dims = original(
        axis, [x for x, _ in operands], [dim for _, dim in operands], **params
    )
    return outs[1:], out_dims[1:]


def _repeat_in_place(
    axis: AxisData,
    step: ClosedJaxpr,
    masked: ClosedJaxpr,
    operands: Sequence[tuple[AnyArray, int | None]],
    number: int,
) -> tuple[list, list]:
    """Run a `while` whose predicate is carried in front, for all examples at once.

    JAX keeps the carry of an example that has finished by a select. A ring needs none:
    nothing is written for that example.
    """
    consts, carry = split(operands, len(operands) - number)
    values, axes = [x for x, _ in consts], [dim for _, dim in consts]
    batched = _vmap(axis, jaxpr_as_fun(masked), [*axes, *[0] * number])
    origins = written_from(step)
    # A ring is at the same place of the carry before and after an iteration.
    is_in_place = [origins[i] == len(consts) + i for i in range(number)]

    def body(carry: list) -> list:
        new = batched(*values, *carry)
        chosen = []
        for in_place, after, before in zip(is_in_place, new, carry, strict=True):
            chosen.append(after if in_place else choose(carry[0], after, before))
        return chosen

    start = []
    for x, dim in carry:
        assert dim is not None  # the whole carry is batched
        start.append(jnp.moveaxis(x, dim, 0))
    outs = jax.lax.while_loop(lambda carry: carry[0].any(), body, start)
    return outs[1:], [0] * (number - 1)


def _masked_step(jaxpr: ClosedJaxpr, consts: list, running: jax.Array, carry: list) -> list:
    kind = MarkTaken if is_marking() else Mask
    return Interpreter(kind.of(running))(jaxpr, *consts, running, *carry)[0]


def _over_examples(x: AnyArray, dim: int | None, size: int) -> tuple[AnyArray, int]:
    """Return a value with an axis of examples, and the position of this axis."""
    return (x, dim) if dim is not None else (jnp.broadcast_to(x, (size, *jnp.shape(x))), 0)


def _is_predicate_batched(
    original: Callable,
    axis: AxisData,
    args: Sequence[jax.Array],
    dims: Sequence[int | None],
    params: Params,
) -> bool:
    """Return whether some examples may finish before others.

    They may if the predicate depends on the examples from the start, or does so after some
    iterations because the carry does. JAX's own rule knows the answer: batch the loop and
    look at the shape of the new predicate. The first question needs no body, the second one
    the body without records, which is quick to batch since nothing has to be masked.
    """

    def is_batched(cond: ClosedJaxpr, body: ClosedJaxpr) -> bool:
        changed = {**params, "cond_jaxpr": cond, "body_jaxpr": body}

        def batched(*args):
            return original(axis, list(args), list(dims), **changed)[0]

        eqns = jax.make_jaxpr(batched)(*args).jaxpr.eqns
        loop = next(eqn for eqn in eqns if eqn.primitive.name == "while")
        return bool(loop.params["cond_jaxpr"].out_avals[0].shape)

    n, body = params["body_nconsts"], params["body_jaxpr"]
    cond, idle = params["cond_jaxpr"], stage(lambda *args: args[n:], *body.in_avals).jaxpr
    cond = _stripped(cond) if holds_records(cond) else cond
    return is_batched(cond, idle) or is_batched(cond, _stripped(body))


def _stripped(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Return a program that does the same but neither logs nor writes into a ring."""
    return Interpreter(Strip()).stage(jaxpr, *jaxpr.in_avals).jaxpr


@rule_for("lox_write")
def _write(
    interpreter: Interpreter, eqn: JaxprEqn, *args: AnyArray
) -> tuple[list, Collected]:
    condition = interpreter.handler.narrow(jnp.bool_(True))
    return narrowed_write(args, condition, **eqn.params), Collected()
