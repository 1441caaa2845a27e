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
from ._logdict import logdict
from ._merge import alternatives
from ._rows import Rows, conform
from ._stage import Staged, split, stage, stage_walk

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
        outs, logs = walk.iterate(eqn.params["jaxpr"], *consts, *carry, *x)
        carry, ys = split(outs, len(init))
        return carry, (ys, logs)

    options = _compat.scan_options(eqn.params)
    # A symbolic length is known from `xs` only.
    length = None if xs else eqn.params["length"]
    carry, (ys, logs) = jax.lax.scan(body, init, xs, length, **options)
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
        return outs, logdict.of(
            {k: conform(rows.get(k), form) for k, form in forms.items()}
        )

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
    cond = stage_walk(walk, eqn.params["cond_jaxpr"], *cond_consts, *init)
    body = stage_walk(walk, eqn.params["body_jaxpr"], *body_consts, *init)
    for key, rows in {**cond.shape[1].rows(), **body.shape[1].rows()}.items():
        raise ValueError(
            f"Cannot collect the rows of {key!r}, logged at {rows.where}, out of a "
            "`while_loop` (or a `fori_loop` whose bounds are not static): the number of "
            "iterations is not known at trace time. Use a `scan` or a `fori_loop` with "
            "static bounds, or leave the key out with `argnames`."
        )
    extra = jax.tree.leaves(walk)  # in front of the constants, see `stage_walk`
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
