"""How logs leave functions with a rule of their own for derivatives or batches.

The function is rebuilt, so that the user's rule stays in force under a transformation
around it: walking through it would collect the logs and drop the rule.
"""

import dataclasses
import functools as ft
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr

from lox._core import context as _context
from lox._core.analysis import function_of, is_differentiable, keys_in
from lox._core.handler import Forward
from lox._core.interpreter import Interpreter
from lox._core.record import listed
from lox._core.rules.loops import collecting
from lox._core.rules.table import rule_for
from lox._core.staging import Program, Staged, split, stage, stage_once, trace
from lox._jax import equations, patches, sharding, tracing
from lox._rows.align import per_example
from lox._rows.collected import Collected, Threaded, signature
from lox._rows.side_by_side import split_entry_key


@rule_for("custom_jvp_call")
def _custom_jvp(interpreter, eqn, *args):
    call = eqn.params["call_jaxpr"]

    def rule(live, args, tangents):
        inputs = [args[i] for i in live]
        outs, tangents = jax.jvp(function_of(eqn, args, live), inputs, tangents)
        return outs, [t for t in tangents if is_differentiable(t)]

    def itself(interpreter, args, tangents) -> Staged:
        return interpreter.stage(call, *args)

    live = _live(args, is_differentiable)
    tangents = [args[i] for i in live]
    gaps = _gaps(interpreter, call, ft.partial(rule, live), list(args), tangents)

    @jax.custom_jvp
    def fun(interpreter, *args):
        return _separately(interpreter, gaps, call, *args)

    def jvp(primals, tangents):
        interpreter, *args = primals
        live = _live(tangents[1:], lambda t: type(t) is not SymbolicZero)
        given = [tangents[1 + i] for i in live]
        settled = _settle(interpreter, gaps, ft.partial(rule, live), itself, args, given)
        (outs, moving), logs = settled
        moving = iter(moving)
        out_tangents = [next(moving) if is_differentiable(x) else _zero(x) for x in outs]
        return (outs, logs), (out_tangents, jax.tree.map(_zero, logs))

    fun.defjvp(jvp, symbolic_zeros=True)
    return fun(interpreter, *args)


@rule_for("custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom_vjp(interpreter, eqn, *args):
    call = eqn.params["call_jaxpr"]

    def rule(perturbed, args):
        return jax.vjp(function_of(eqn, args, perturbed), *[args[i] for i in perturbed])

    def itself(interpreter, args) -> Staged:
        return interpreter.stage(call, *args)

    live = _live(args, is_differentiable)
    gaps = _gaps(interpreter, call, ft.partial(rule, live), list(args))

    @jax.custom_vjp
    def fun(interpreter, *args):
        return _separately(interpreter, gaps, call, *args)

    def forward(interpreter, *args):
        interpreter = jax.tree.map(
            lambda x: x.value, interpreter, is_leaf=lambda x: hasattr(x, "perturbed")
        )
        perturbed = _live(args, lambda x: x.perturbed and is_differentiable(x.value))
        values = [x.value for x in args]
        settled = _settle(interpreter, gaps, ft.partial(rule, perturbed), itself, values)
        (outs, pullback), logs = settled
        in_rules = interpreter.with_handler(interpreter.handler.in_backward_rules())
        return (outs, logs), _Residual(pullback, in_rules, perturbed)

    def backward(residual, cotangents):
        cts = [_zero(ct.aval) if type(ct) is SymbolicZero else ct for ct in cotangents[0]]
        # A rule may run a program that it traced in the forward pass, with records in it.
        given = iter(_run(residual.interpreter, residual.pullback, cts))
        return None, *(
            next(given) if i in residual.live else None for i in range(len(args))
        )

    fun.defvjp(forward, backward, symbolic_zeros=True)
    return fun(interpreter, *args)


@rule_for("custom_vmap_call")
def _custom_vmap(interpreter, eqn, *args):
    call = eqn.params["call"]

    def rule(axes, size, args):
        return jax.vmap(ft.partial(tracing.bind, eqn), axes, axis_size=size)(*args)

    def itself(axes, size, interpreter, args) -> Staged:
        return stage_once(_mapped(axes, size), call, interpreter, *args)

    # How many examples there will be is not known: any number shows what the rule logs.
    some = [jnp.broadcast_to(x, (2, *jnp.shape(x))) for x in args]
    gaps = _gaps(interpreter, call, ft.partial(rule, (0,) * len(args), 2), some)

    @jax.custom_batching.custom_vmap
    def fun(interpreter, *args):
        return _separately(interpreter, gaps, call, *args)

    @fun.def_vmap
    def batched_fun(size, batched, interpreter, *args):
        handler = interpreter.handler.unbatched(batched[0].handler)
        if handler is None:
            raise NotImplementedError(
                "A `custom_vmap` function that logs stands in a `cond` or `while_loop` "
                "under two `vmap`s; lox cannot tell then for which examples it logs. Log "
                "outside of it."
            )
        axes = tuple(0 if is_batched else None for is_batched in batched[1:])
        settled = _settle(
            interpreter.with_handler(handler.batched(size)),
            gaps,
            ft.partial(rule, axes, size),
            ft.partial(itself, axes, size),
            args,
            adapt=ft.partial(_per_example, size),
            fit=ft.partial(_fit_each, size),
        )
        return settled, jax.tree.map(lambda x: True, settled)

    return fun(interpreter, *args)


@ft.cache
def _mapped(axes: tuple[int | None, ...], size: int) -> Callable:
    """Return a function that evaluates a program for all examples of a batch."""

    def evaluate(jaxpr: Program, interpreter: Interpreter, *args: Any):
        # The handler counts the rows of each example.
        offsets = interpreter.handler.threaded().offsets

        def evaluate_one(offsets: dict[str, Any], *args: Any):
            return interpreter.after(Threaded(offsets))(jaxpr, *args)

        return jax.vmap(evaluate_one, (0, *axes), axis_size=size)(offsets, *args)

    return evaluate


@rule_for("custom_linear_solve")
def _custom_linear_solve(interpreter, eqn, *args):
    jaxprs, sizes = eqn.params["jaxprs"], eqn.params["const_lengths"]
    *consts, b = split(args, *sizes)
    solve = interpreter.stage(jaxprs.solve, *consts[2], *b)

    def transpose_solve(*args):
        # What is logged here belongs to whoever is around the derivative.
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), solve.shape[1])
        return _forward(jaxprs.transpose_solve, *args), empty

    staged = [
        stage(ft.partial(_forward, jaxprs.matvec), *consts[0], *b),
        jaxprs.vecmat and stage(ft.partial(_forward, jaxprs.vecmat), *consts[1], *b),
        solve,
        jaxprs.transpose_solve and stage(transpose_solve, *consts[3], *b),
    ]
    programs, operands = [], []
    for part in staged:
        program = part and equations.constants_as_inputs(part.jaxpr.jaxpr)
        programs.append(program and equations.close(program))
        given = [*part.jaxpr.consts, *part.leaves] if part else []
        operands.append(given[: len(given) - len(b)])
    params = {
        "jaxprs": type(jaxprs)(*programs),
        "const_lengths": type(sizes)(*map(len, operands)),
    }
    given = [x for each in operands for x in each]
    return solve.output(eqn.primitive.bind(*given, *b, **{**eqn.params, **params}))


@patches.implements("transposed operators")
def _transposed_in_silence(original: Callable, operator: Callable, b: Any) -> Callable:
    """Let the transpose of a linear operator log nothing: its input has no value there."""

    def silent(*args: Any) -> Any:
        with _context.silent():
            return operator(*args)

    return original(silent, b)


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


@rule_for("_RootLinearMap")
def _root_linear_map(interpreter, eqn, *args):
    """Go into the derivative of a function whose root is found, as JAX does in the end."""
    prim = eqn.params["_prim"]

    def expand(*args):
        return jax.tree.leaves(prim.expand(*jax.tree.unflatten(prim.in_tree, args)))

    traced = interpreter.trace(expand, *args)
    outs, logs = interpreter(traced.jaxpr, *traced.args)
    return traced.output(outs), logs


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


# Keys that a function logs and its rule does not.
Gaps = frozenset[str]
# `fit(logs, form, gaps, given)` returns the logs in a form in which keys may be missing.
Fit = Callable[[Collected, Collected, Gaps, Threaded], Collected]


def _fit(logs: Collected, form: Collected, gaps: Gaps, given: Threaded) -> Collected:
    """Bring logs into a form in which some keys may be missing."""
    if gaps:
        groups = form.groups.items()
        kept = {
            keys: entry for keys, entry in groups if split_entry_key(keys[0])[0] not in gaps
        }
        form = Collected.either([form, Collected.of(kept, form.threaded)])
    return logs.fitted(form, given)


def _fit_each(
    size: int, logs: Collected, form: Collected, gaps: Gaps, given: Threaded
) -> Collected:
    """Do the same where all arrays have an axis of examples in front."""
    if not gaps:
        return logs.fitted(form, given)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), form)
    fit_one = lambda logs, given: _fit(logs, one, gaps, given)  # noqa: E731
    return jax.vmap(fit_one, axis_size=size)(logs, given)


def _batched_like(args: Any, logs: Collected) -> Collected:
    """Return the same logs, all of them batched if anything in `args` is.

    JAX wants the same of a function's outputs to be batched as of its rule's. What is
    missing in one of them does not depend on anything. So each array is chosen, from itself
    and itself, by a condition that depends on all arguments; the compiler drops that.
    """
    is_key = ft.partial(jnp.issubdtype, arg2=jax.dtypes.prng_key)
    arrays = [x for x in jax.tree.leaves(args) if not is_key(jnp.result_type(x))]
    condition = ft.reduce(operator.or_, (jnp.any(x != x) for x in arrays), False)
    return jax.tree.map(lambda x: jnp.where(condition, x, x), logs)


def _gaps(interpreter: Interpreter, call: Program, rule: Callable, *args: Any) -> Gaps:
    """Return the keys that a custom function logs, and its rule does not.

    The two are like the branches of a `cond`: if one of them does not log a key, there is
    a mask which says whether the key was logged. That has to be known before anybody
    differentiates or batches the function, so its rule is traced here, to look at it.
    """
    expected = keys_in(call)
    if not interpreter.handler.captures or not expected:
        return frozenset()
    try:
        with _context.searched():
            return expected - keys_in(trace(rule, *args).jaxpr)
    except Exception:  # A rule that fails does so again when somebody needs it.
        return frozenset()


def _settle(
    interpreter: Interpreter,
    gaps: Gaps,
    rule: Callable,
    itself: Callable[..., Staged],
    primals: Sequence[Any],
    *others: Any,
    adapt: Callable[[Collected], Collected] = lambda logs: logs,
    fit: Fit = _fit,
) -> tuple[Any, Collected]:
    """Run the rule of a custom function, and find the logs of the function in it.

    A rule that calls its function logs what that logs: these are the function's logs.
    What else it logs goes on outward. What it does not log has not happened: the function
    itself is not run. Only where the rule logs a key in another form, as that of a
    `custom_root` before JAX 0.12 does, nobody can tell which of its rows are those of the
    function: then that is run for them.
    """
    args = primals, *others
    if _context.state() == "searched":
        return rule(*args), _nothing(interpreter, gaps, itself, *args, fit=fit)
    traced = interpreter.trace(rule, *args)
    looking = collecting(interpreter, capacity=1)
    expected = _logs_of(itself, looking, *args)
    found = looking.stage(traced.jaxpr, *traced.args).shape[1]
    found = jax.eval_shape(adapt, found)
    same = _same(expected, found)
    absent = {key for key in expected.order if found.get((key,)) is None}
    unexpected = {split_entry_key(key)[0] for key in absent} - gaps
    if unexpected:
        raise _unsettled(unexpected)
    selective = interpreter.with_handler(interpreter.handler.only(same))
    outs, logs = selective(traced.jaxpr, *traced.args)
    parts = [adapt(logs)]
    different = frozenset(expected.order) - same - absent
    if different:
        rest = interpreter.handler.after(logs.threaded).only(different).quiet()
        parts.append(itself(interpreter.with_handler(rest), *args).run()[1])
    given = adapt(Collected(threaded=interpreter.handler.threaded())).threaded
    form = _logs_of(itself, interpreter, *args)
    logs = fit(Collected.joined(parts).separated(), form, gaps, given)
    return traced.output(outs), _batched_like(primals, logs) if gaps else logs


def _nothing(
    interpreter: Interpreter,
    gaps: Gaps,
    itself: Callable[..., Staged],
    *args: Any,
    fit: Fit,
) -> Collected:
    """Return what stands for the logs where nobody looks at them."""
    if not interpreter.handler.captures:
        return Collected()
    form = _logs_of(itself, interpreter, *args)
    if gaps:
        form = jax.eval_shape(lambda logs: fit(logs, logs, gaps, logs.threaded), form)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form)


def _same(expected: Collected, found: Collected) -> frozenset[str]:
    """Return the keys that are logged in the same form here and there."""
    return frozenset(
        key
        for key in expected.order
        if signature(expected[(key,)]) == signature(found.get((key,)))
    )


def _unsettled(keys: Iterable[str]) -> NotImplementedError:
    return NotImplementedError(
        f"{listed(sorted(keys))} is logged by a function with a rule of its own for "
        "derivatives or batches. The rule logs it, too, but not if only some of the "
        "arguments are differentiated or batched, as here. Log the same in all cases, or "
        "put the transformation of lox around the derivative or `vmap`."
    )


def _separately(
    interpreter: Interpreter, gaps: Gaps, jaxpr: Program, *args: Any
) -> tuple[list, Collected]:
    """Evaluate a custom function, and return what it logs of each key by itself.

    Its rule may log the same keys, but not together, or not all of them.
    """
    outs, logs = interpreter(jaxpr, *args)
    logs = logs.separated()
    if gaps:
        logs = _fit(logs, logs, gaps, interpreter.handler.threaded())
        logs = _batched_like(args, logs)
    return outs, logs


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


def _run(interpreter: Interpreter, fun: Callable, *args: Any) -> Any:
    """Call a function, and let an interpreter that collects nothing see what it logs."""
    if _context.state() == "searched":
        return fun(*args)
    traced = interpreter.trace(fun, *args)
    return traced.output(interpreter(traced.jaxpr, *traced.args)[0])


def _forward(jaxpr: ClosedJaxpr, *args: Any) -> list:
    """Evaluate a program whose records belong to the transformations around this place."""
    return Interpreter(Forward()).stage(jaxpr, *args).run()[0]


def _forwarded(fun: Callable) -> Callable:
    """Return a function whose records belong to the transformations around each call."""
    return ft.partial(_run, Interpreter(Forward()), fun)


def _live(xs: Sequence[Any], is_live: Callable[[Any], bool]) -> tuple[int, ...]:
    return tuple(i for i, x in enumerate(xs) if is_live(x))


def _zero(x: Any) -> Any:
    """A tangent or cotangent of `x` that is zero."""
    if is_differentiable(x):
        return sharding.make_varying(jnp.zeros(x.shape, x.dtype), sharding.varying_axes(x))
    return np.zeros(x.shape, jax.dtypes.float0)
