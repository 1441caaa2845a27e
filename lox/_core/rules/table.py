"""How logs leave each higher-order primitive: the one table of all transformations.

A rule is `rule(interpreter, eqn, *args) -> (outs, logs)`. `interpreter(jaxpr, *args)`
evaluates an inner program and returns its outputs and its logs. A rule uses the public
function behind the primitive, or binds the primitive with its parameters as they are but
for the programs: the other parameters change between JAX releases.

The interpreter holds a handler, and with it possibly arrays: a function that is staged
takes it as an argument.
"""

import functools as ft
import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from lox._core.rules.loops import (
    Body,
    in_sequence,
    logged,
    poured,
    repeat,
    repeat_in_chunks,
    rows_of,
    scan,
    scan_in_chunks,
)
from lox._core.staging import Staged, alike, carry_predicate, split, stage, stage_program
from lox._jax import equations
from lox._logdict.logdict import logdict
from lox._rows.merge import alternatives, fitted
from lox._rows.rows import Rows

Rule = Callable[..., tuple[list, logdict]]

rules: dict[str, Rule] = {}


def rule_for(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        rules.update(dict.fromkeys(names, rule))
        return rule

    return register


@rule_for("jit", "pjit")
def _jit(interpreter, eqn, *args):
    return _jitted(eqn)(interpreter, *args)


def _jitted(eqn: JaxprEqn) -> Callable:
    """One jitted function for each jaxpr, or every call would compile anew."""
    jaxpr = eqn.params["jaxpr"]
    options = equations.inner_jit_options(eqn.params)
    jitted = _jits.setdefault(jaxpr, {})
    if options not in jitted:
        # Kept as long as the jaxpr lives: it must not keep the jaxpr alive.
        reference = weakref.ref(jaxpr)

        def fun(interpreter, *args):
            return interpreter(reference(), *args)

        fun.__name__ = fun.__qualname__ = eqn.params["name"]
        jitted[options] = equations.jit(fun, options)
    return jitted[options]


_jits: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


@rule_for("closed_call", "core_closed_call", "core_call", "call", "eval_jaxpr")
def _call(interpreter, eqn, *args):
    return interpreter(eqn.params["call_jaxpr"], *args)


@rule_for("scan")
def _scan(interpreter, eqn, *args):
    jaxpr, options = eqn.params["jaxpr"], equations.scan_options(eqn.params)
    consts, init, xs = split(args, *equations.scan_sizes(eqn.params))

    def step(interpreter, carry, x):
        outs, logs = interpreter.iterate(jaxpr, *consts, *carry, *x)
        carry, ys = split(outs, len(init))
        return carry, ys, logs

    body = Body(step, *split(jaxpr.in_avals[len(consts) :], len(init)))
    length = eqn.params["length"]
    form = step, body.carry, body.x
    rows = lambda: rows_of(interpreter, *form)  # noqa: E731
    size = interpreter.handler.chunk([jaxpr], rows, length) if length else None
    run = scan if size is None else ft.partial(scan_in_chunks, size=size)
    pooling = interpreter.pooling(eqn, lambda: logged(interpreter.collecting(1), *form))
    with equations.linear_as(eqn, args):
        carry, ys, logs = run(pooling or interpreter, body, init, xs, length, options)
    return [*carry, *ys], poured(pooling, logs) if pooling else logs


@rule_for("cond")
def _cond(interpreter, eqn, index, *args):
    def run(branch, interpreter, *args):
        outs, logs = interpreter(branch, *args)
        # Also by a branch that does nothing with it.
        return outs, logdict.of({**interpreter.handler.handed_on(), **logs.rows()})

    branches = [
        stage(ft.partial(run, b), interpreter, *args) for b in eqn.params["branches"]
    ]
    each = [branch.shape[1].rows() for branch in branches]
    keys = dict.fromkeys(key for logs in each for key in logs)
    forms = {key: alternatives(key, [logs.get(key) for logs in each]) for key in keys}

    def unified(branch: Staged, *leaves) -> tuple[list, logdict]:
        outs, logs = branch(*leaves)
        rows = logs.rows()
        return outs, logdict.of({k: fitted(rows.get(k), form) for k, form in forms.items()})

    if any(signature(logs) != signature(forms) for logs in each):
        branches = [stage(ft.partial(unified, b), *b.leaves) for b in branches]
    branches = alike(branches, index)
    jaxprs = tuple(branch.jaxpr for branch in branches)
    params = {**eqn.params, "branches": jaxprs}
    return branches[0].output(eqn.primitive.bind(index, *branches[0].leaves, **params))


def signature(rows: dict[str, Rows]) -> Any:
    leaves, treedef = jax.tree.flatten(logdict.of(rows))
    return treedef, [(leaf.shape, leaf.dtype) for leaf in leaves]


@rule_for("while")
def _while(interpreter, eqn, *args):
    sizes = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_consts, body_consts, init = split(args, *sizes)
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]

    def ask(interpreter, consts, carry):
        return interpreter(cond, *consts, *carry)[0][0]

    def step(interpreter, consts, carry):
        return interpreter(body, *consts, *carry)

    form = step, body_consts, init
    pooling = interpreter.pooling(eqn, lambda: logged(interpreter.collecting(1), *form))
    if pooling:
        outs, logs = _while(pooling, eqn, *args)
        return outs, poured(pooling, logs)
    size = interpreter.handler.chunk(
        [cond, body], lambda: rows_of(interpreter, *form), None
    )
    if size is None and not stage_program(interpreter, cond, *cond_consts, *init).shape[1]:
        return repeat(interpreter, eqn, ask, step, cond_consts, body_consts, init)
    # The predicate is asked before the loop and in its body, where its logs can be carried.
    (running,), first = interpreter(cond, *cond_consts, *init)
    loop = eqn.replace(params=carry_predicate(eqn.params))
    run = _while if size is None else ft.partial(repeat_in_chunks, size=size)
    operands = [*cond_consts, *body_consts, running, *init]
    outs, rest = run(interpreter.after(first.rows()), loop, *operands)
    return outs[1:], in_sequence(first, rest)


@rule_for("lox_full")
def _full(interpreter, eqn, condition):
    return [interpreter.handler.full(condition)], logdict()


@rule_for("checkpoint", "remat", "remat2")
def _remat(interpreter, eqn, *args):
    staged = stage_program(interpreter, eqn.params["jaxpr"], *args)
    jaxpr, consts = equations.without_consts(staged.jaxpr)
    params = {**eqn.params, "jaxpr": jaxpr}
    return staged.output(eqn.primitive.bind(*consts, *staged.leaves, **params))
