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
form. That is the difficulty here, since a rule need not log what its function logs:

    the rule logs a key     what happens
    as the function does    its rows are the function's rows
    in another form         the function is run once more, for this key only
    not at all              the key is a gap: it gets a mask, which is false under the rule

`_gaps` finds the gaps before the function is rebuilt, and `_settle` does the rest when JAX
runs the rule.
"""

import dataclasses
import functools as ft
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero, zero_from_primal
from jax.extend.core import ClosedJaxpr, JaxprEqn

from lox._core import context as _context
from lox._core.analysis import function_of, is_differentiable, keys_in
from lox._core.handler import Forward
from lox._core.interpreter import Interpreter
from lox._core.record import listed
from lox._core.rules.loops import collecting
from lox._core.rules.table import rule_for
from lox._core.staging import Program, Staged, split, stage, stage_once, trace
from lox._jax import equations, hijax, patches, sharding, tracing
from lox._rows.align import per_example
from lox._rows.collected import Collected, Threaded, signature
from lox._rows.side_by_side import split_entry_key


@rule_for("custom_jvp_call", "CustomJVPTraced")
def _custom_jvp(interpreter, eqn, *args):
    return custom_jvp(interpreter, eqn, hijax.program_of(eqn), *args)


def custom_jvp(
    interpreter: Interpreter, eqn: JaxprEqn, call: Program, *args: Any
) -> tuple[list, Collected]:
    """Return the outputs and the logs of `call`, and keep the jvp rule of its equation."""

    def rule(live, args, tangents):
        inputs = [args[i] for i in live]
        outs, tangents = jax.jvp(function_of(eqn, args, live), inputs, tangents)
        return outs, [t for t in tangents if is_differentiable(t)]

    def itself(interpreter, args, tangents) -> Staged:
        return interpreter.stage(call, *args)

    # To look for gaps, any tangents will do: the primals have the right types.
    live = _live(args, is_differentiable)
    tangents = [args[i] for i in live]
    gaps = _gaps(interpreter, call, ft.partial(rule, live), list(args), tangents)

    @jax.custom_jvp
    def fun(interpreter, *args):
        return _separately(interpreter, gaps, call, *args)

    def jvp(primals, tangents):
        interpreter, *args = primals
        # Arguments that are not differentiated here have no tangent to give to the rule.
        live = _live(tangents[1:], lambda t: type(t) is not SymbolicZero)
        given = [tangents[1 + i] for i in live]
        settled = _settle(interpreter, gaps, ft.partial(rule, live), itself, args, given)
        (outs, moving), logs = settled
        moving = iter(moving)
        out_tangents = [
            next(moving) if is_differentiable(x) else _zero_tangent(x) for x in outs
        ]
        return (outs, logs), (out_tangents, jax.tree.map(_zero_tangent, logs))

    fun.defjvp(jvp, symbolic_zeros=True)
    return fun(interpreter, *args)


@rule_for("custom_vjp_call", "custom_vjp_call_jaxpr", "CustomVJPTraced")
def _custom_vjp(interpreter, eqn, *args):
    return custom_vjp(interpreter, eqn, hijax.program_of(eqn), *args)


def custom_vjp(
    interpreter: Interpreter, eqn: JaxprEqn, call: Program, *args: Any
) -> tuple[list, Collected]:
    """Return the outputs and the logs of `call`, and keep the vjp rule of its equation."""

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
        # With symbolic zeros, JAX wraps each argument in a pair of a value and a flag.
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
        # A rule may run a program that was traced in the forward pass and holds records.
        given = iter(_run(residual.interpreter, residual.pullback, cts))
        # None is the cotangent of the interpreter, and of what is not differentiated.
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

    # The size of the batch is not known yet. Any size shows which keys the rule logs.
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
                "A `custom_vmap` function that logs is inside a `cond` or `while_loop` "
                "under two `vmap`s. lox cannot tell for which examples it logs. Log "
                "outside it."
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
        # Each example counts its own rows, so the offsets are mapped over as well.
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
        # JAX wants `solve` and `transpose_solve` to return the same. Records in the latter
        # belong to the transformations around the derivative, so its logs are empty.
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), solve.shape[1])
        return _forward(jaxprs.transpose_solve, *args), empty

    staged = [
        stage(ft.partial(_forward, jaxprs.matvec), *consts[0], *b),
        jaxprs.vecmat and stage(ft.partial(_forward, jaxprs.vecmat), *consts[1], *b),
        solve,
        jaxprs.transpose_solve and stage(transpose_solve, *consts[3], *b),
    ]
    # The primitive takes closed programs and the numbers of their constants. What staging
    # adds to the constants, such as a token, is passed as operands.
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
    """Trace an operator in silence to transpose it: its input has no value there."""

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

    # The interpreter is passed along with the constants; the logs leave as a part of `aux`.
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
    """Expand the derivative of a function whose root is found, as JAX does in the end."""
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
        interpreter: The interpreter for the records in the backward rule.
        live: The indices of the arguments whose cotangents the rule returns.
    """

    pullback: Any
    interpreter: Interpreter
    live: tuple[int, ...] = dataclasses.field(metadata={"static": True})


# The keys that a function logs and its rule does not.
Gaps = frozenset[str]
# `fit(logs, form, gaps, given)` brings logs into a form in which the gaps may be missing.
# `given` is the state before the logs, for what they do not change.
Fit = Callable[[Collected, Collected, Gaps, Threaded], Collected]


def _fit(logs: Collected, form: Collected, gaps: Gaps, given: Threaded) -> Collected:
    """Bring logs into a form in which some keys may be missing."""
    if gaps:
        # As for a `cond` with two branches, of which the second does not log the gaps: in
        # the form that both share, these keys have a mask.
        groups = form.groups.items()
        kept = {
            keys: entry for keys, entry in groups if split_entry_key(keys[0])[0] not in gaps
        }
        form = Collected.either([form, Collected.of(kept, form.threaded)])
    return logs.fitted(form, given)


def _fit_each(
    size: int, logs: Collected, form: Collected, gaps: Gaps, given: Threaded
) -> Collected:
    """Bring logs into a form, where all arrays have an axis of examples in front."""
    if not gaps:
        return logs.fitted(form, given)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), form)
    fit_one = lambda logs, given: _fit(logs, one, gaps, given)  # noqa: E731
    return jax.vmap(fit_one, axis_size=size)(logs, given)


def _batched_like(args: Any, logs: Collected) -> Collected:
    """Return the same logs, all of them batched if anything in `args` is.

    JAX requires that the outputs of a function are batched exactly where those of its rule
    are. But rows that fill a gap are constants, which are never batched. So each array is
    selected from itself and itself, by a condition that depends on all arguments. The
    compiler drops the select.
    """
    is_key = ft.partial(jnp.issubdtype, arg2=jax.dtypes.prng_key)
    arrays = [x for x in jax.tree.leaves(args) if not is_key(jnp.result_type(x))]
    condition = ft.reduce(operator.or_, (jnp.any(x != x) for x in arrays), False)
    return jax.tree.map(lambda x: jnp.where(condition, x, x), logs)


def _gaps(interpreter: Interpreter, call: Program, rule: Callable, *args: Any) -> Gaps:
    """Return the keys that a custom function logs and its rule does not.

    The two are like the branches of a `cond`: if one of them does not log a key, a mask
    says whether the key was logged. The mask must exist before JAX differentiates or
    batches the function, so the rule is traced here, only to look at its records.
    """
    expected = keys_in(call)
    if not interpreter.handler.captures or not expected:
        return frozenset()
    try:
        with _context.searched():
            return expected - keys_in(trace(rule, *args).jaxpr)
    except Exception:  # A rule that fails here fails again when it is needed.
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
    """Run the rule of a custom function, and find the logs of the function among its logs.

    A rule usually calls its function and logs what the function logs: these are the
    function's logs. Its other logs are passed on outwards. A key that the rule does not log
    has not been logged, as the function itself is not run. If the rule logs a key in
    another form, as that of a `custom_root` before JAX 0.12 does, lox cannot tell which
    rows are the function's. Only then is the function run, for these keys alone.

    Args:
        interpreter: The interpreter for the function.
        gaps: The keys that only the function logs.
        rule: The user's rule, called as `rule(primals, *others)`.
        itself: `itself(interpreter, primals, *others)` stages the function itself.
        primals: The arguments of the function.
        *others: What else the rule takes, such as tangents.
        adapt: Turns logs as the rule returns them into logs as the function returns them.
        fit: Brings logs into a form, see `Fit`.
    """
    args = primals, *others
    if _context.state() == "searched":
        return rule(*args), _nothing(interpreter, gaps, itself, *args, fit=fit)
    traced = interpreter.trace(rule, *args)
    # Compare what both log. For this, any capacity of rings will do.
    looking = collecting(interpreter, capacity=1)
    expected = _logs_of(itself, looking, *args)
    found = looking.stage(traced.jaxpr, *traced.args).shape[1]
    found = jax.eval_shape(adapt, found)
    same = _same(expected, found)
    absent = {key for key in expected.order if found.get((key,)) is None}
    unexpected = {split_entry_key(key)[0] for key in absent} - gaps
    if unexpected:
        raise _unsettled(unexpected)
    # Run the rule. It collects the keys that it logs as the function does, no others.
    selective = interpreter.with_handler(interpreter.handler.only(same))
    outs, logs = selective(traced.jaxpr, *traced.args)
    parts = [adapt(logs)]
    different = frozenset(expected.order) - same - absent
    if different:
        # `quiet`, because the rule has passed these records on already.
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
    """Return zeros in place of the logs, for a trace in which nothing uses them."""
    if not interpreter.handler.captures:
        return Collected()
    form = _logs_of(itself, interpreter, *args)
    if gaps:
        form = jax.eval_shape(lambda logs: fit(logs, logs, gaps, logs.threaded), form)
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), form)


def _same(expected: Collected, found: Collected) -> frozenset[str]:
    """Return the keys that are logged in the same form in both."""
    return frozenset(
        key
        for key in expected.order
        if signature(expected[(key,)]) == signature(found.get((key,)))
    )


def _unsettled(keys: Iterable[str]) -> NotImplementedError:
    return NotImplementedError(
        f"{listed(sorted(keys))} is logged by a function with a custom rule for "
        "derivatives or batches. The rule logs it too, but not if JAX differentiates or "
        "batches only some of the arguments, as here. Log the same keys in all cases, or "
        "put the lox transformation around the derivative or `vmap`."
    )


def _separately(
    interpreter: Interpreter, gaps: Gaps, jaxpr: Program, *args: Any
) -> tuple[list, Collected]:
    """Evaluate a custom function, and return its logs with a group for each key.

    Keys that one call of `log` logs share a group, but a rule may log them one by one, or
    only some of them.
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
    """Return the logs of a function with a group for each key, as abstract arrays."""
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
    # The offsets have the axis of examples already, see `_mapped`.
    return Collected(groups, logs.order, Threaded(logs.threaded.offsets, token=token))


def _run(interpreter: Interpreter, fun: Callable, *args: Any) -> Any:
    """Call a function with an interpreter for its records, one that collects nothing."""
    if _context.state() == "searched":
        return fun(*args)
    traced = interpreter.trace(fun, *args)
    return traced.output(interpreter(traced.jaxpr, *traced.args)[0])


def _forward(jaxpr: ClosedJaxpr, *args: Any) -> list:
    """Evaluate a program, and pass its records on to the transformations around."""
    return Interpreter(Forward()).stage(jaxpr, *args).run()[0]


def _forwarded(fun: Callable) -> Callable:
    """Return a function that passes its records on to the transformations around it."""
    return ft.partial(_run, Interpreter(Forward()), fun)


def _live(xs: Sequence[Any], is_live: Callable[[Any], bool]) -> tuple[int, ...]:
    return tuple(i for i, x in enumerate(xs) if is_live(x))


def _zero_tangent(x: Any) -> Any:
    """Return a tangent of an output that is zero."""
    # Inside a `shard_map`, only a symbolic one can have the varying axes of an integer.
    if not is_differentiable(x) and sharding.varying_axes(x):
        return zero_from_primal(x, symbolic_zeros=True)
    return _zero(x)


def _zero(x: Any) -> Any:
    """Return a tangent or cotangent of `x` that is zero."""
    if is_differentiable(x):
        return sharding.make_varying(jnp.zeros(x.shape, x.dtype), sharding.varying_axes(x))
    return np.zeros(x.shape, jax.dtypes.float0)
