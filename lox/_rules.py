"""How logs leave each higher-order primitive: the one table of all transformations.

A rule is `rule(walk, eqn, *args) -> (outs, logs)`, where `walk(jaxpr, *args)` evaluates
an inner program and returns its outputs and its logs. It uses the public function behind
the primitive, or binds the primitive with its parameters as they are but for the
programs: the other parameters change between JAX releases.

`walk` holds a handler, and with it possibly arrays: what is staged takes it as argument.
"""

import functools as ft
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from . import _compat
from ._gather import Gathering
from ._logdict import logdict
from ._merge import alternatives, fitted, merge
from ._rows import Rows
from ._stage import Staged, carry_predicate, split, stage, stage_walk

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
    jaxpr, options = eqn.params["jaxpr"], _compat.scan_options(eqn.params)
    consts, init, xs = split(args, *_compat.scan_sizes(eqn.params))
    step: Callable = lambda walk, *args: walk.iterate(jaxpr, *args)  # noqa: E731
    gathering = Gathering(logdict(), {})
    if walk.handler.gathers:
        staged = stage_walk(walk, jaxpr, *consts, *jaxpr.in_avals[len(consts) :])
        step = lambda *args: staged(*jax.tree.leaves(args))  # noqa: E731
        rooms = walk.handler.rooms(staged.shape[1], eqn.params["length"])
        gathering = Gathering(staged.shape[1], rooms)

    def body(carry, x):
        carry, gathered = carry
        outs, logs = step(walk.after(gathered[0]), *consts, *carry, *x)
        carry, ys = split(outs, len(init))
        gathered, rows = gathering.add(gathered, logs)
        return (carry, gathered), (ys, rows)

    # A symbolic length is known from `xs` only.
    length, start = None if xs else eqn.params["length"], (init, gathering.start())
    (carry, gathered), (ys, logs) = jax.lax.scan(body, start, xs, length, **options)
    length = eqn.params["length"]
    entries = logs.rows().items()
    rows = {key: _in_time(own, length, options["reverse"]) for key, own in entries}
    rows |= gathering.finish(gathered, length)
    return [*carry, *ys], logdict.of(_in_order(rows, gathering.logs))


def _in_order(rows: dict[str, Any], logs: logdict) -> dict[str, Any]:
    """The keys in the order of first logging, where some went another way than others."""
    return {key: rows[key] for key in (logs or rows)}


def _in_time(rows: Rows, length: int, reverse: bool) -> Rows:
    """The rows of all iterations, in the order of execution."""
    rows = rows.replace(bound=rows.bound * length)
    if rows.count is not None:
        rows = rows.replace(count=rows.count.sum(0))
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
        return outs, logdict.of({k: fitted(rows.get(k), form) for k, form in forms.items()})

    if any(signature(logs) != signature(forms) for logs in logged):
        branches = [stage(ft.partial(unified, b), *b.leaves) for b in branches]
    jaxprs = tuple(branch.jaxpr for branch in branches)
    params = {**eqn.params, "branches": jaxprs}
    return branches[0].output(eqn.primitive.bind(index, *branches[0].leaves, **params))


def signature(rows: dict[str, Rows]) -> Any:
    leaves, treedef = jax.tree.flatten(logdict.of(rows))
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]


@rule_for("while")
def _while(walk, eqn, *args):
    sizes = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_consts, body_consts, init = split(args, *sizes)
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
    if stage_walk(walk, cond, *cond_consts, *init).shape[1]:
        return _while_with_logging_predicate(walk, eqn, *args)
    logs = stage_walk(walk, body, *body_consts, *init).shape[1]
    gathering = Gathering(logs, walk.handler.rooms(logs, None), walk.handler.interval or 1)
    state, tree = jax.tree.flatten(gathering.start())

    def ask(walk, *operands):
        return walk(cond, *operands[: sizes[0] + len(init)])[0]

    def step(walk, *operands):
        inner, leaves = split(operands, sizes[1] + len(init))
        state = jax.tree.unflatten(tree, leaves)
        outs, logs = walk.after(state[0])(body, *inner)
        state, _ = gathering.add(state, logs)
        return [*outs, *jax.tree.leaves(state)]

    extra = jax.tree.leaves(walk)
    params = {
        **eqn.params,
        "cond_nconsts": sizes[0] + len(extra),
        "body_nconsts": sizes[1] + len(extra),
        "cond_jaxpr": stage(ask, walk, *cond_consts, *init, *state).jaxpr,
        "body_jaxpr": stage(step, walk, *body_consts, *init, *state).jaxpr,
    }
    operands = [*extra, *cond_consts, *extra, *body_consts, *init, *state]
    outs, state = split(eqn.primitive.bind(*operands, **params), len(init))
    gathered = gathering.finish(jax.tree.unflatten(tree, state), length=None)
    return outs, logdict.of(_in_order(gathered, logs))


def _while_with_logging_predicate(walk, eqn, *args):
    """Ask the predicate before the loop and in its body, where its logs can be carried."""
    sizes = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_consts, body_consts, init = split(args, *sizes)
    (running,), first = walk(eqn.params["cond_jaxpr"], *cond_consts, *init)
    loop = eqn.replace(params=carry_predicate(eqn.params))
    walk = walk.after(first.rows())
    outs, rest = _while(walk, loop, *cond_consts, *body_consts, running, *init)
    parts = [first.rows(), rest.rows()]
    keys = dict.fromkeys(key for rows in parts for key in rows)
    logs = {key: merge(key, [rows[key] for rows in parts if key in rows]) for key in keys}
    return outs[1:], logdict.of(logs)


@rule_for("checkpoint", "remat", "remat2")
def _remat(walk, eqn, *args):
    staged = stage_walk(walk, eqn.params["jaxpr"], *args)
    jaxpr, consts = _compat.without_consts(staged.jaxpr)
    params = {**eqn.params, "jaxpr": jaxpr}
    return staged.output(eqn.primitive.bind(*consts, *staged.leaves, **params))
