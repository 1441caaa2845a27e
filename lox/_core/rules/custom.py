"""How logs leave functions with a custom rule for derivatives or batches.

Evaluating such a function equation by equation would collect its logs and drop its rule.
So it is rebuilt: a new custom function returns the outputs and the logs, and its rule runs
the user's rule.

    @jax.custom_jvp                          @jax.custom_jvp
    def f(x):                                def fun(interpreter, x):
        log({"a": x})                 ->         return sin(x), {a: x}
        return sin(x)

    @f.defjvp                                @fun.defjvp
    def f_jvp(primals, tangents):            def jvp(primals, tangents):
        y = f(*primals)                          run `f_jvp`; of what it logs, `a` is what
        log({"b": y})                            `f` logs: return it. Pass `b` on outwards.
        return y, cos(x) * t

JAX runs either the function or its rule, never both, and their outputs must have the same
form. That is the difficulty here, since a rule need not log what its function logs.
`custom_logs.py` says what happens to each key. Its `find_gaps` finds the keys that only the
function logs, before the function is rebuilt, and `run_rule` does the rest when JAX runs
the rule.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.typing import ArrayLike

from lox._core import context as _context
from lox._core.analysis import function_of, is_differentiable
from lox._core.interpreter import Interpreter
from lox._core.rules.custom_logs import (
    evaluate_separately,
    find_gaps,
    fit_each_example,
    run_rule,
)
from lox._core.rules.registry import rule_for
from lox._core.staging import Staged, stage_once
from lox._jax import hijax, sharding, tracing
from lox._jax.extend import JaxprEqn
from lox._jax.types import AnyArray, Program, PyTree
from lox._rows.align import per_example
from lox._rows.collected import Collected, Threaded
from lox_host.frozen import frozen

T = TypeVar("T")


@rule_for("custom_jvp_call", "CustomJVPTraced")
def _custom_jvp(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    return custom_jvp(interpreter, eqn, hijax.program_of(eqn), *args)


def custom_jvp(
    interpreter: Interpreter, eqn: JaxprEqn, call: Program, *args: ArrayLike
) -> tuple[list, Collected]:
    """Return the outputs and the logs of `call`, and keep the jvp rule of its equation."""

    def rule(
        live: Sequence[int], args: Sequence[AnyArray], tangents: Sequence[AnyArray]
    ) -> tuple[list, list]:
        inputs = [args[i] for i in live]
        outs, tangents = jax.jvp(function_of(eqn, args, live), inputs, tangents)
        # Tangents of integers are zeros of the dtype float0: `jvp` below makes its own.
        return outs, [t for t in tangents if is_differentiable(t)]

    def itself(interpreter: Interpreter, args: list, tangents: list) -> Staged:
        return interpreter.stage(call, *args)

    # To look for gaps, any tangents will do: the primals have the right types.
    live = _live(args, is_differentiable)
    tangents = [args[i] for i in live]
    gaps = find_gaps(interpreter, call, ft.partial(rule, live), list(args), tangents)

    @jax.custom_jvp
    def fun(interpreter, *args):
        return evaluate_separately(interpreter, gaps, call, *args)

    def jvp(primals, tangents):
        interpreter, *args = primals
        # Arguments that are not differentiated here have no tangent to give to the rule.
        live = _live(tangents[1:], lambda t: type(t) is not SymbolicZero)
        given = [tangents[1 + i] for i in live]
        settled = run_rule(interpreter, gaps, ft.partial(rule, live), itself, args, given)
        (outs, moving), logs = settled
        # Logs carry no derivatives, so their tangents are zero.
        moving = iter(moving)
        out_tangents = [
            next(moving) if is_differentiable(x) else _zero_tangent(x) for x in outs
        ]
        return (outs, logs), (out_tangents, jax.tree.map(_zero_tangent, logs))

    fun.defjvp(jvp, symbolic_zeros=True)
    return fun(interpreter, *args)


@rule_for("custom_vjp_call", "custom_vjp_call_jaxpr", "CustomVJPTraced")
def _custom_vjp(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    return custom_vjp(interpreter, eqn, hijax.program_of(eqn), *args)


def custom_vjp(
    interpreter: Interpreter, eqn: JaxprEqn, call: Program, *args: ArrayLike
) -> tuple[list, Collected]:
    """Return the outputs and the logs of `call`, and keep the vjp rule of its equation."""

    def rule(perturbed: Sequence[int], args: list) -> tuple[list, Callable]:
        return jax.vjp(function_of(eqn, args, perturbed), *[args[i] for i in perturbed])

    def itself(interpreter: Interpreter, args: list) -> Staged:
        return interpreter.stage(call, *args)

    live = _live(args, is_differentiable)
    gaps = find_gaps(interpreter, call, ft.partial(rule, live), list(args))

    @jax.custom_vjp
    def fun(interpreter, *args):
        return evaluate_separately(interpreter, gaps, call, *args)

    def forward(interpreter, *args):
        # With symbolic zeros, JAX wraps each argument in a pair of a value and a flag.
        interpreter = jax.tree.map(
            lambda x: x.value, interpreter, is_leaf=lambda x: hasattr(x, "perturbed")
        )
        perturbed = _live(args, lambda x: x.perturbed and is_differentiable(x.value))
        values = [x.value for x in args]
        settled = run_rule(interpreter, gaps, ft.partial(rule, perturbed), itself, values)
        (outs, pullback), logs = settled
        # The backward rule runs when this program has long ended, and its records belong to
        # the transformations around the derivative.
        in_rules = interpreter.with_handler(interpreter.handler.in_backward_rules())
        return (outs, logs), _Residual(pullback, in_rules, perturbed)

    def backward(residual, cotangents):
        cts = [_zero(ct.aval) if type(ct) is SymbolicZero else ct for ct in cotangents[0]]
        # A rule may run a program that was traced in the forward pass and holds records.
        given = iter(run_with(residual.interpreter, residual.pullback, cts))
        # None is the cotangent of the interpreter, and of what is not differentiated.
        return None, *(
            next(given) if i in residual.live else None for i in range(len(args))
        )

    fun.defvjp(forward, backward, symbolic_zeros=True)
    return fun(interpreter, *args)


@rule_for("custom_vmap_call")
def _custom_vmap(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    call = eqn.params["call"]

    def rule(axes, size, args):
        return jax.vmap(ft.partial(tracing.bind, eqn), axes, axis_size=size)(*args)

    def itself(axes, size, interpreter, args) -> Staged:
        return stage_once(_mapped(axes, size), call, interpreter, *args)

    # The size of the batch is not known yet. Any size shows which keys the rule logs.
    some = [jnp.broadcast_to(x, (2, *jnp.shape(x))) for x in args]
    gaps = find_gaps(interpreter, call, ft.partial(rule, (0,) * len(args), 2), some)

    @jax.custom_batching.custom_vmap
    def fun(interpreter, *args):
        return evaluate_separately(interpreter, gaps, call, *args)

    @fun.def_vmap
    def batched_fun(size, batched, interpreter, *args):
        # The user's rule runs once for the whole batch, and so does its handler.
        handler = interpreter.handler.unbatched(batched[0].handler)
        if handler is None:
            raise NotImplementedError(
                "A `custom_vmap` function that logs is inside a `cond` or `while_loop` "
                "under two `vmap`s. lox cannot tell for which examples it logs. Log "
                "outside it."
            )
        axes = tuple(0 if is_batched else None for is_batched in batched[1:])
        settled = run_rule(
            interpreter.with_handler(handler.batched(size)),
            gaps,
            ft.partial(rule, axes, size),
            ft.partial(itself, axes, size),
            args,
            adapt=ft.partial(_per_example, size),
            fit=ft.partial(fit_each_example, size),
        )
        # All outputs are batched: `_per_example` has put the axis in front of all logs.
        return settled, jax.tree.map(lambda x: True, settled)

    return fun(interpreter, *args)


# Cached: `stage_once` remembers by function, so equal axes must give the same one.
@ft.cache
def _mapped(axes: tuple[int | None, ...], size: int) -> Callable:
    """Return a function that evaluates a program for all examples of a batch."""

    def evaluate(jaxpr: Program, interpreter: Interpreter, *args: ArrayLike):
        # Each example counts its own rows, so the offsets are mapped over as well.
        offsets = interpreter.handler.threaded().offsets

        def evaluate_one(
            offsets: dict[str, AnyArray], *args: ArrayLike
        ) -> tuple[list, Collected]:
            return interpreter.after(Threaded(offsets))(jaxpr, *args)

        return jax.vmap(evaluate_one, (0, *axes), axis_size=size)(offsets, *args)

    return evaluate


@jax.tree_util.register_dataclass
@frozen
class _Residual:
    """What a rebuilt `custom_vjp` keeps for the backward pass.

    Attributes:
        pullback: The backward rule.
        interpreter: The interpreter for the records in the backward rule.
        live: The indices of the arguments whose cotangents the rule returns.
    """

    pullback: Callable[[list], Sequence[AnyArray]]
    interpreter: Interpreter
    live: tuple[int, ...] = dataclasses.field(metadata={"static": True})


def _per_example(size: int, logs: Collected) -> Collected:
    """Return logs with an axis of examples in front of all arrays."""
    groups = {
        keys: per_example(entry, size)  # pyright: ignore[reportArgumentType]
        for keys, entry in logs.groups.items()
    }
    token = logs.threaded.token
    if token is not None:
        token = jnp.broadcast_to(token, (size, *token.shape))
    # The offsets have the axis of examples already, see `_mapped`.
    return Collected(groups, logs.order, Threaded(logs.threaded.offsets, token=token))


def run_with(interpreter: Interpreter, fun: Callable, *args: PyTree) -> PyTree:
    """Call a function with an interpreter for its records, one that collects nothing."""
    if _context.state() == "searched":
        return fun(*args)
    traced = interpreter.trace(fun, *args)
    return traced.output(interpreter(traced.jaxpr, *traced.args)[0])


def _live(xs: Sequence[T], is_live: Callable[[T], bool]) -> tuple[int, ...]:
    return tuple(i for i, x in enumerate(xs) if is_live(x))


def _zero_tangent(x: AnyArray) -> AnyArray:
    """Return a tangent of an output that is zero."""
    # Inside a `shard_map`, only a symbolic one can have the varying axes of an integer.
    if not is_differentiable(x) and sharding.varying_axes(x):
        return zero_from_primal(x, symbolic_zeros=True)
    return _zero(x)


def _zero(x: AnyArray) -> AnyArray:
    """Return a tangent or cotangent of `x` that is zero."""
    if is_differentiable(x):
        return sharding.make_varying(jnp.zeros(x.shape, x.dtype), sharding.varying_axes(x))
    return np.zeros(x.shape, jax.dtypes.float0)
