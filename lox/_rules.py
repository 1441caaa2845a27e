"""How logs leave each higher-order primitive: the one table of all transformations.

A rule is `rule(walk, eqn, *args) -> (outs, logs)`, where `walk(jaxpr, *args)` evaluates
an inner program and returns its outputs and its logs. It uses the public function behind
the primitive, or binds the primitive with its parameters as they are but for the
programs: the other parameters change between JAX releases.

`walk` holds a handler, and with it possibly arrays: what is staged takes it as argument.
"""

import dataclasses
import functools as ft
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn

from . import _compat
from ._logdict import logdict
from ._rows import Rows, alternatives, conform

Rule = Callable[..., tuple[list, logdict]]

rules: dict[str, Rule] = {}


def rule_for(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        rules.update(dict.fromkeys(names, rule))
        return rule

    return register


@rule_for("jit", "pjit")
def _jit(walk, eqn, *args):
    return _jitted(eqn)(walk, *args)


def _jitted(eqn: JaxprEqn) -> Callable:
    """One jitted function for each jaxpr, or every call would compile anew."""
    jaxpr = eqn.params["jaxpr"]
    options = _compat.inner_jit_options(eqn.params)
    jitted = _jits.setdefault(jaxpr, {})
    if options not in jitted:
        # Kept as long as the jaxpr lives: it must not keep the jaxpr alive.
        reference = weakref.ref(jaxpr)

        def fun(walk, *args):
            return walk(reference(), *args)

        fun.__name__ = fun.__qualname__ = eqn.params["name"]
        jitted[options] = _compat.jit(fun, options)
    return jitted[options]


_jits: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@rule_for("closed_call", "core_closed_call", "core_call", "call", "eval_jaxpr")
def _call(walk, eqn, *args):
    return walk(eqn.params["call_jaxpr"], *args)


@rule_for("scan")
def _scan(walk, eqn, *args):
    consts, init, xs = split(args, *_compat.scan_sizes(eqn.params))

    def body(carry, x):
        outs, logs = walk(eqn.params["jaxpr"], *consts, *carry, *x)
        carry, ys = split(outs, len(init))
        return carry, (ys, logs)

    options = _compat.scan_options(eqn.params)
    carry, (ys, logs) = jax.lax.scan(body, init, xs, **options)
    rows = {key: _in_time(own, options["reverse"]) for key, own in logs.rows().items()}
    return [*carry, *ys], logdict.of(rows)


def _in_time(rows: Rows, reverse: bool) -> Rows:
    """The rows of all iterations, in the order of execution."""
    if reverse:
        rows = rows.map(lambda x: jax.lax.rev(x, (0,)))
    if not rows.time:
        return rows.replace(time=True)
    # (length, n, ...) -> (length * n, ...)
    return rows.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))


@rule_for("cond")
def _cond(walk, eqn, index, *args):
    branches = [stage_walk(walk, branch, *args) for branch in eqn.params["branches"]]
    logged = [branch.shape[1].rows() for branch in branches]
    keys = dict.fromkeys(key for logs in logged for key in logs)
    forms = {key: alternatives(key, [logs.get(key) for logs in logged]) for key in keys}

    def unified(branch: Staged, *leaves) -> tuple[list, logdict]:
        outs, logs = branch(*leaves)
        rows = logs.rows()
        return outs, logdict.of({k: conform(rows.get(k), form) for k, form in forms.items()})

    if any(_signature(logs) != _signature(forms) for logs in logged):
        branches = [stage(ft.partial(unified, b), *b.leaves) for b in branches]
    jaxprs = tuple(branch.jaxpr for branch in branches)
    params = {**eqn.params, "branches": jaxprs}
    return branches[0].output(eqn.primitive.bind(index, *branches[0].leaves, **params))


def _signature(rows: dict[str, Rows]) -> Any:
    leaves, treedef = jax.tree.flatten(logdict.of(rows))
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]


@rule_for("while")
def _while(walk, eqn, *args):
    sizes = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_consts, body_consts, init = split(args, *sizes)
    cond = stage_walk(walk, eqn.params["cond_jaxpr"], *cond_consts, *init)
    body = stage_walk(walk, eqn.params["body_jaxpr"], *body_consts, *init)
    for key, rows in {**cond.shape[1].rows(), **body.shape[1].rows()}.items():
        raise ValueError(
            f"Cannot collect the rows of {key!r}, logged at {rows.where}, out of a "
            "`while_loop` (or a `fori_loop` whose bounds are not static): the number of "
            "iterations is not known at trace time. Use a `scan` or a `fori_loop` with "
            "static bounds, or leave the key out with `argnames`."
        )
    extra = jax.tree.leaves(walk)
    params = {
        **eqn.params,
        "cond_nconsts": sizes[0] + len(extra),
        "body_nconsts": sizes[1] + len(extra),
        "cond_jaxpr": cond.jaxpr,
        "body_jaxpr": body.jaxpr,
    }
    operands = [*extra, *cond_consts, *extra, *body_consts, *init]
    return eqn.primitive.bind(*operands, **params), logdict()


@rule_for("checkpoint", "remat", "remat2")
def _remat(walk, eqn, *args):
    staged = stage_walk(walk, eqn.params["jaxpr"], *args)
    jaxpr, consts = _compat.without_consts(staged.jaxpr)
    params = {**eqn.params, "jaxpr": jaxpr}
    return staged.output(eqn.primitive.bind(*consts, *staged.leaves, **params))


@rule_for("custom_jvp_call")
def _custom_jvp(walk, eqn, *args):
    call = eqn.params["call_jaxpr"]

    @jax.custom_jvp
    def fun(walk, *args):
        return walk(call, *args)

    def jvp(primals, tangents):
        walk, *args = primals
        live = _live(tangents[1:], lambda t: type(t) is not SymbolicZero)

        def original(args, tangents):
            inputs = [args[i] for i in live]
            outs, tangents = jax.jvp(_original(eqn, args, live), inputs, tangents)
            return outs, [t for t in tangents if _is_differentiable(t)]

        def itself(args, tangents):
            return walk.quiet()(call, *args)[1]

        given = [tangents[1 + i] for i in live]
        (outs, moving), logs = _settle(walk, original, itself, args, given)
        moving = iter(moving)
        out_tangents = [next(moving) if _is_differentiable(x) else _zero(x) for x in outs]
        return (outs, logs), (out_tangents, jax.tree.map(_zero, logs))

    fun.defjvp(jvp, symbolic_zeros=True)
    return fun(walk, *args)


@rule_for("custom_vjp_call", "custom_vjp_call_jaxpr")
def _custom_vjp(walk, eqn, *args):
    call = eqn.params["call_jaxpr"]

    @jax.custom_vjp
    def fun(walk, *args):
        return walk(call, *args)

    def forward(walk, *args):
        walk = jax.tree.map(lambda x: x.value, walk, is_leaf=lambda x: hasattr(x, "perturbed"))
        perturbed = _live(args, lambda x: x.perturbed and _is_differentiable(x.value))
        values = [x.value for x in args]

        def original(args):
            return jax.vjp(_original(eqn, args, perturbed), *[args[i] for i in perturbed])

        def itself(args):
            return walk.quiet()(call, *args)[1]

        (outs, pullback), logs = _settle(walk, original, itself, values)
        return (outs, logs), _Residual(pullback, perturbed)

    def backward(residual, cotangents):
        cts = [_zero(ct.aval) if type(ct) is SymbolicZero else ct for ct in cotangents[0]]
        given = iter(residual.pullback(cts))
        return None, *(next(given) if i in residual.live else None for i in range(len(args)))

    fun.defvjp(forward, backward, symbolic_zeros=True)
    return fun(walk, *args)


@rule_for("custom_vmap_call")
def _custom_vmap(walk, eqn, *args):
    call = eqn.params["call"]

    @jax.custom_batching.custom_vmap
    def fun(walk, *args):
        return walk(call, *args)

    @fun.def_vmap
    def rule(size, batched, walk, *args):
        if any(jax.tree.leaves(batched[0])):
            raise NotImplementedError(
                "A `custom_vmap` function that logs stands in a `cond` or `while_loop` "
                "under two `vmap`s; lox cannot tell then for which examples it logs. Log "
                "outside of it."
            )
        axes = [0 if is_batched else None for is_batched in batched[1:]]

        def original(*args):
            return jax.vmap(ft.partial(_compat.bind, eqn), axes, axis_size=size)(*args)

        def itself(*args):
            vmapped = jax.vmap(ft.partial(walk.quiet(), call), axes, axis_size=size)
            return vmapped(*args)[1]

        def per_example(rows: Rows) -> Rows:
            if rows.batch[:1] != (size,):
                return rows.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)))
            front = rows.map(lambda x: jnp.moveaxis(x, int(rows.time), 0))
            return front.replace(batch=rows.batch[1:], ndim=rows.ndim - 1)

        settled = _settle(walk, original, itself, *args, adapt=per_example)
        return settled, jax.tree.map(lambda x: True, settled)

    return fun(walk, *args)


@rule_for("custom_linear_solve")
def _custom_linear_solve(walk, eqn, *args):
    jaxprs, sizes = eqn.params["jaxprs"], eqn.params["const_lengths"]
    matvec, _, solve, transpose_solve, b = split(args, *sizes)
    logs_of_solve = stage_walk(walk, jaxprs.solve, *solve, *b).shape[1]

    def apply_matvec(x):
        return walk.forward(jaxprs.matvec, *matvec, *x)

    def apply_solve(_, b):
        outs, logs = walk(jaxprs.solve, *solve, *b)
        return outs[: len(b)], (outs[len(b) :], logs)

    def apply_transpose(_, b):
        # What is logged here belongs to whoever is around the derivative.
        outs = walk.forward(jaxprs.transpose_solve, *transpose_solve, *b)
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), logs_of_solve)
        return outs[: len(b)], (outs[len(b) :], empty)

    x, (aux, logs) = jax.lax.custom_linear_solve(
        apply_matvec,
        b,
        apply_solve,
        None if jaxprs.transpose_solve is None else apply_transpose,
        has_aux=True,
    )
    return [*x, *aux], logs


@rule_for("CustomRoot")
def _custom_root(walk, eqn, *args):
    root = eqn.params["_prim"]
    consts, *rest = jax.tree.unflatten(jax.tree.structure(root.in_avals), args)

    def solve(walk_and_consts, guess):
        walk, consts = walk_and_consts
        outs, logs = walk(root.solve_jaxpr, *jax.tree.leaves((consts, guess)))
        solution = jax.tree.unflatten(root.out_tree, outs)
        return (*solution, logs) if root.has_aux else (solution, logs)

    walk_avals = jax.tree.map(jax.typeof, walk)
    in_avals = ((walk_avals, root.in_avals[0]), *root.in_avals[1:])

    def solve_with_aux(walk_and_consts, guess):
        solution, *aux = solve(walk_and_consts, guess)
        return solution, tuple(aux)

    rebuilt = type(root)(
        walk.forwarded(root.f),
        solve_with_aux,
        walk.forwarded(root.tangent_solve),
        jax.jit(solve_with_aux).trace(*in_avals[:2]),
        in_avals,
        True,
    )
    solution, (*aux, logs) = rebuilt((walk, consts), *rest)
    return jax.tree.leaves((solution, aux)), logs


SymbolicZero = jax.custom_derivatives.SymbolicZero


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Residual:
    """What a rebuilt `custom_vjp` keeps: the pullback, and of which arguments it is."""

    pullback: Any
    live: tuple[int, ...] = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Staged:
    """A function traced into a program, to be called with the leaves of its arguments."""

    jaxpr: ClosedJaxpr
    shape: Any
    leaves: Sequence[Any]

    def __call__(self, *leaves: Any) -> Any:
        jaxpr = self.jaxpr
        return self.output(jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *leaves))

    def output(self, outs: Sequence[Any]) -> Any:
        return jax.tree.unflatten(jax.tree.structure(self.shape), outs)


def stage(fun: Callable, *args: Any) -> Staged:
    jaxpr, shape = jax.make_jaxpr(fun, return_shape=True)(*args)
    return Staged(jaxpr, shape, jax.tree.leaves(args))


def stage_walk(walk, jaxpr, *args) -> Staged:
    return stage(lambda walk, *args: walk(jaxpr, *args), walk, *args)


def _settle(walk, rule: Callable, itself: Callable, *args, adapt: Callable = lambda x: x):
    """Run the rule of a custom function, and find the logs of the function in it.

    A rule that calls its function logs what that logs: these are the function's logs.
    What else it logs goes on outward. For what it does not log, the function `itself`
    is run.
    """
    traced = walk.trace(rule, *args)
    expected = jax.eval_shape(itself, *args).rows()
    found = stage_walk(walk, traced.jaxpr, *traced.args).shape[1].rows()
    found = {key: jax.eval_shape(adapt, rows) for key, rows in found.items()}
    same = {
        key: rows
        for key, rows in expected.items()
        if key in found and _signature({key: rows}) == _signature({key: found[key]})
    }
    outs, logs = walk.only(frozenset(same))(traced.jaxpr, *traced.args)
    rows = {key: adapt(own) for key, own in logs.rows().items()}
    if len(same) < len(expected):
        rows = {**itself(*args).rows(), **rows}
    return traced.output(outs), logdict.of({key: rows[key] for key in expected})


def _original(eqn: JaxprEqn, args: Sequence[Any], live: Sequence[int]) -> Callable:
    """The equation as it was, as a function of its live arguments."""

    def fun(*values):
        merged = list(args)
        for i, value in zip(live, values, strict=True):
            merged[i] = value
        return _compat.bind(eqn, *merged)

    return fun


def _live(xs: Sequence[Any], is_live: Callable[[Any], bool]) -> tuple[int, ...]:
    return tuple(i for i, x in enumerate(xs) if is_live(x))


def _is_differentiable(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


def _zero(x: Any) -> Any:
    """A tangent or cotangent of `x` that is zero."""
    if _is_differentiable(x):
        return jnp.zeros(x.shape, x.dtype)
    return np.zeros(x.shape, jax.dtypes.float0)


def split(xs: Sequence[Any], *sizes: int) -> tuple[list, ...]:
    parts, start = [], 0
    for size in sizes:
        parts.append(list(xs[start : start + size]))
        start += size
    return *parts, list(xs[start:])
