"""How logs leave functions with a rule of their own for derivatives or batches.

The function is rebuilt, so that the user's rule stays in force under a transformation
around it: walking through it would collect the logs and drop the rule.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr

from lox._core.analysis import function_of, is_differentiable
from lox._core.handler import Forward
from lox._core.interpreter import Interpreter
from lox._core.rules.loops import collecting
from lox._core.rules.table import rule_for
from lox._core.staging import Program, Staged, split, stage_once
from lox._jax import sharding, tracing
from lox._rows.align import per_example
from lox._rows.collected import Collected, Threaded, signature


@rule_for("custom_jvp_call")
def _custom_jvp(interpreter, eqn, *args):
    call = eqn.params["call_jaxpr"]

    @jax.custom_jvp
    def fun(interpreter, *args):
        return _separately(interpreter, call, *args)

    def jvp(primals, tangents):
        interpreter, *args = primals
        live = _live(tangents[1:], lambda t: type(t) is not SymbolicZero)

        def original(args, tangents):
            inputs = [args[i] for i in live]
            outs, tangents = jax.jvp(function_of(eqn, args, live), inputs, tangents)
            return outs, [t for t in tangents if is_differentiable(t)]

        def itself(interpreter, args, tangents) -> Staged:
            return interpreter.stage(call, *args)

        given = [tangents[1 + i] for i in live]
        (outs, moving), logs = _settle(interpreter, original, itself, args, given)
        moving = iter(moving)
        out_tangents = [next(moving) if is_differentiable(x) else _zero(x) for x in outs]
        return (outs, logs), (out_tangents, jax.tree.map(_zero, logs))

    fun.defjvp(jvp, symbolic_zeros=True)
    return fun(interpreter, *args)


@rule_for("custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom_vjp(interpreter, eqn, *args):
    call = eqn.params["call_jaxpr"]

    @jax.custom_vjp
    def fun(interpreter, *args):
        return _separately(interpreter, call, *args)

    def forward(interpreter, *args):
        interpreter = jax.tree.map(
            lambda x: x.value, interpreter, is_leaf=lambda x: hasattr(x, "perturbed")
        )
        perturbed = _live(args, lambda x: x.perturbed and is_differentiable(x.value))
        values = [x.value for x in args]

        def original(args):
            return jax.vjp(function_of(eqn, args, perturbed), *[args[i] for i in perturbed])

        def itself(interpreter, args) -> Staged:
            return interpreter.stage(call, *args)

        (outs, pullback), logs = _settle(interpreter, original, itself, values)
        in_rules = interpreter.with_handler(interpreter.handler.in_backward_rules())
        return (outs, logs), _Residual(pullback, in_rules, perturbed)

    def backward(residual, cotangents):
        cts = [_zero(ct.aval) if type(ct) is SymbolicZero else ct for ct in cotangents[0]]
        # A rule may run a program that it traced in the forward pass, with records in it.
        traced = residual.interpreter.trace(residual.pullback, cts)
        given = iter(traced.output(residual.interpreter(traced.jaxpr, *traced.args)[0]))
        return None, *(
            next(given) if i in residual.live else None for i in range(len(args))
        )

    fun.defvjp(forward, backward, symbolic_zeros=True)
    return fun(interpreter, *args)


@rule_for("custom_vmap_call")
def _custom_vmap(interpreter, eqn, *args):
    call = eqn.params["call"]

    @jax.custom_batching.custom_vmap
    def fun(interpreter, *args):
        return _separately(interpreter, call, *args)

    @fun.def_vmap
    def rule(size, batched, interpreter, *args):
        handler = interpreter.handler.unbatched(batched[0].handler)
        if handler is None:
            raise NotImplementedError(
                "A `custom_vmap` function that logs stands in a `cond` or `while_loop` "
                "under two `vmap`s; lox cannot tell then for which examples it logs. Log "
                "outside of it."
            )
        axes = [0 if is_batched else None for is_batched in batched[1:]]

        def original(*args):
            return jax.vmap(ft.partial(tracing.bind, eqn), axes, axis_size=size)(*args)

        def itself(interpreter, *args) -> Staged:
            return stage_once(_mapped(tuple(axes), size), call, interpreter, *args)

        adapt = ft.partial(_per_example, size)
        inside = interpreter.with_handler(handler.batched(size))
        settled = _settle(inside, original, itself, *args, adapt=adapt)
        return settled, jax.tree.map(lambda x: True, settled)

    return fun(interpreter, *args)


@ft.cache
def _mapped(axes: tuple[int | None, ...], size: int) -> Callable:
    """Return a function that evaluates a program for all examples of a batch."""

    def evaluate(jaxpr: Program, interpreter: Interpreter, *args: Any):
        return jax.vmap(ft.partial(interpreter, jaxpr), axes, axis_size=size)(*args)

    return evaluate


@rule_for("custom_linear_solve")
def _custom_linear_solve(interpreter, eqn, *args):
    jaxprs, sizes = eqn.params["jaxprs"], eqn.params["const_lengths"]
    matvec, _, solve, transpose_solve, b = split(args, *sizes)
    logs_of_solve = interpreter.stage(jaxprs.solve, *solve, *b).shape[1]

    def apply_matvec(x):
        return _forward(jaxprs.matvec, *matvec, *x)

    def apply_solve(_, b):
        outs, logs = interpreter.stage(jaxprs.solve, *solve, *b).run()
        return outs[: len(b)], (outs[len(b) :], logs)

    def apply_transpose(_, b):
        # What is logged here belongs to whoever is around the derivative.
        outs = _forward(jaxprs.transpose_solve, *transpose_solve, *b)
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), logs_of_solve)
        return outs[: len(b)], (outs[len(b) :], empty)

    solution: Any = jax.lax.custom_linear_solve(
        apply_matvec,
        b,
        apply_solve,
        None if jaxprs.transpose_solve is None else apply_transpose,
        has_aux=True,
    )
    x, (aux, logs) = solution
    return [*x, *aux], logs


@rule_for("CustomRoot")
def _custom_root(interpreter, eqn, *args):
    root = eqn.params["_prim"]
    consts, *rest = jax.tree.unflatten(jax.tree.structure(root.in_avals), args)

    def solve(interpreter_and_consts, guess):
        interpreter, consts = interpreter_and_consts
        given = jax.tree.leaves((consts, guess))
        outs, logs = interpreter.stage(root.solve_jaxpr, *given).run()
        solution = jax.tree.unflatten(root.out_tree, outs)
        x, aux = solution if root.has_aux else (solution, ())
        return x, (aux, logs)

    interpreter_avals = jax.tree.map(jax.typeof, interpreter)
    in_avals = ((interpreter_avals, root.in_avals[0]), *root.in_avals[1:])
    rebuilt = type(root)(
        _forwarded(root.f),
        solve,
        _forwarded(root.tangent_solve),
        jax.jit(solve).trace(*in_avals[:2]),
        in_avals,
        has_aux=True,
    )
    x, (aux, logs) = rebuilt((interpreter, consts), *rest)
    return jax.tree.leaves((x, aux)), logs


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Residual:
    """What a rebuilt `custom_vjp` keeps for the backward pass.

    Attributes:
        pullback: The backward rule.
        interpreter: Evaluates what it logs.
        live: The arguments whose cotangents it returns.
    """

    pullback: Any
    interpreter: Interpreter
    live: tuple[int, ...] = dataclasses.field(metadata={"static": True})


def _settle(
    interpreter: Interpreter,
    rule: Callable,
    itself: Callable[..., Staged],
    *args: Any,
    adapt: Callable[[Collected], Collected] = lambda logs: logs,
) -> tuple[Any, Collected]:
    """Run the rule of a custom function, and find the logs of the function in it.

    A rule that calls its function logs what that logs: these are the function's logs.
    What else it logs goes on outward. For what it does not log, the function `itself`
    is run.
    """
    traced = interpreter.trace(rule, *args)
    looking = collecting(interpreter, capacity=1)
    expected = _logs_of(itself, looking, *args)
    found = looking.stage(traced.jaxpr, *traced.args).shape[1]
    found = jax.eval_shape(adapt, found)
    same = {
        key
        for key in expected.order
        if signature(expected[(key,)]) == signature(found.get((key,)))
    }
    selective = interpreter.with_handler(interpreter.handler.only(frozenset(same)))
    outs, logs = selective(traced.jaxpr, *traced.args)
    parts = [adapt(logs)]
    missing = frozenset(expected.order) - same
    if missing:
        rest = interpreter.handler.after(logs.threaded).only(missing).quiet()
        parts.append(itself(interpreter.with_handler(rest), *args).run()[1])
    form = _logs_of(itself, interpreter, *args)
    given = adapt(Collected(threaded=interpreter.handler.threaded())).threaded
    return traced.output(outs), Collected.joined(parts).separated().fitted(form, given)


def _separately(
    interpreter: Interpreter, jaxpr: Program, *args: Any
) -> tuple[list, Collected]:
    """Evaluate a custom function, and return what it logs of each key by itself.

    Its rule may log the same keys, but not together.
    """
    outs, logs = interpreter(jaxpr, *args)
    return outs, logs.separated()


def _logs_of(
    itself: Callable[..., Staged], interpreter: Interpreter, *args: Any
) -> Collected:
    """Return what a function logs of each key by itself, as abstract arrays."""
    quiet = interpreter.with_handler(interpreter.handler.quiet())
    return itself(quiet, *args).shape[1].separated()


def _per_example(size: int, logs: Collected) -> Collected:
    """Return logs with an axis of examples in front of all arrays."""
    groups = {
        keys: per_example(entry, size)  # pyright: ignore[reportArgumentType]
        for keys, entry in logs.groups.items()
    }
    token = logs.threaded.token
    if token is not None:
        token = jnp.broadcast_to(token, (size, *token.shape))
    # The handler has counted the rows of each example.
    return Collected(groups, logs.order, Threaded(logs.threaded.offsets, token=token))


def _forward(jaxpr: ClosedJaxpr, *args: Any) -> list:
    """Evaluate a program whose records belong to the transformations around this place."""
    return Interpreter(Forward()).stage(jaxpr, *args).run()[0]


def _forwarded(fun: Callable) -> Callable:
    """Return a function whose records belong to the transformations around each call."""

    def called(*args: Any) -> Any:
        interpreter = Interpreter(Forward())
        traced = interpreter.trace(fun, *args)
        return traced.output(interpreter(traced.jaxpr, *traced.args)[0])

    return called


def _live(xs: Sequence[Any], is_live: Callable[[Any], bool]) -> tuple[int, ...]:
    return tuple(i for i, x in enumerate(xs) if is_live(x))


def _zero(x: Any) -> Any:
    """A tangent or cotangent of `x` that is zero."""
    if is_differentiable(x):
        return sharding.make_varying(jnp.zeros(x.shape, x.dtype), sharding.varying_axes(x))
    return np.zeros(x.shape, jax.dtypes.float0)
