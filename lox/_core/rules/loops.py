"""How loops run: what they log leaves them as rows, is carried along, or is delivered."""

import dataclasses
import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from lox._core.interpreter import Interpreter
from lox._core.rules.table import rule_for
from lox._core.staging import carry_predicate, split, stage, stage_program
from lox._jax import equations
from lox._logdict.logdict import logdict
from lox._rows.loop_carry import Gathering
from lox._rows.merge import is_handed_on, merge
from lox._rows.rows import Rows


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
    buffering = _buffering(interpreter, eqn, *form)
    with equations.linear_as(eqn, args):
        carry, ys, logs = run(buffering or interpreter, body, init, xs, length, options)
    return [*carry, *ys], flushed(buffering, logs) if buffering else logs


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
    buffering = _buffering(interpreter, eqn, *form)
    if buffering:
        outs, logs = _while(buffering, eqn, *args)
        return outs, flushed(buffering, logs)
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


@dataclasses.dataclass(frozen=True)
class Body:
    """One iteration of a `scan`.

    Attributes:
        step: `step(interpreter, carry, x)` returns the carry, the output and the logs.
        carry: The form of the carry, as abstract arrays.
        x: The form of a slice.
    """

    step: Callable[..., tuple[list, list, logdict]]
    carry: list
    x: list


def scan(
    interpreter, body: Body, init: list, xs: list, length: int, options: dict[str, Any]
):
    """Run a `scan`; returns the carry, the outputs and the logs."""
    step, gathering = body.step, Gathering(logdict(), {})
    if interpreter.handler.carries():
        staged = stage(step, interpreter, body.carry, body.x)
        step = lambda *args: staged(*jax.tree.leaves(args))  # noqa: E731
        logs = staged.shape[2]
        gathering = Gathering(logs, interpreter.handler.capacities(logs, length))

    def iterate(carry, x):
        carry, gathered = carry
        carry, ys, logs = step(interpreter.after(gathered[0]), carry, x)
        gathered, rows = gathering.add(gathered, logs)
        return (carry, gathered), (ys, rows)

    # A symbolic length is known from `xs` only.
    given = None if xs else length
    start = init, gathering.start(interpreter.handler.threaded())
    (carry, gathered), (ys, logs) = jax.lax.scan(iterate, start, xs, given, **options)
    entries = logs.rows().items()
    rows = {key: _in_time(own, length, options["reverse"]) for key, own in entries}
    rows |= gathering.finish(gathered, length)
    return carry, ys, logdict.of(_in_order(rows, gathering.logs))


def rows_of(interpreter, step: Callable, *args: Any) -> int:
    """How many rows of a key are collected in one step, at most."""
    return _most_rows(logged(collecting(interpreter), step, *args))


def logged(interpreter, step: Callable, *args: Any) -> logdict:
    """What is collected in one step, as abstract arrays."""
    return stage(step, interpreter, *args).shape[-1]


def scan_in_chunks(
    interpreter, body: Body, init, xs, length: int, options: dict[str, Any], size: int
):
    """The same, and deliver what has been collected every `size` iterations."""
    size = min(size, length)
    number, rest = divmod(length, size)
    # The rest comes last, which is in front if the loop runs backwards.
    start = rest if options["reverse"] else 0
    blocks = [
        x[start : start + number * size].reshape(number, size, *x.shape[1:]) for x in xs
    ]

    def chunk(size: int) -> Callable:
        def step(interpreter, carry, xs):
            carry, ys, logs = scan(collecting(interpreter), body, carry, xs, size, options)
            return carry, ys, _delivered(interpreter, logs, size)

        return step

    block = [jax.eval_shape(lambda x: x[0], x) for x in blocks]
    outer = Body(chunk(size), body.carry, block)
    unrolled_inside = {**options, "unroll": 1}
    carry, ys, logs = scan(interpreter, outer, init, blocks, number, unrolled_inside)
    ys = [y.reshape(number * size, *y.shape[2:]) for y in ys]
    if not rest:
        return carry, ys, logs
    last = slice(0, rest) if options["reverse"] else slice(number * size, None)
    interpreter = interpreter.after(logs.rows())
    carry, zs, more = chunk(rest)(interpreter, carry, [x[last] for x in xs])
    pairs = [(z, y) if options["reverse"] else (y, z) for y, z in zip(ys, zs, strict=True)]
    ys = [jax.lax.concatenate(pair, 0) for pair in pairs]
    return carry, ys, in_sequence(logs, more)


def collecting(interpreter: Interpreter, capacity: int | None = None) -> Interpreter:
    """Return an interpreter that collects the same, and delivers nothing."""
    return interpreter.with_handler(interpreter.handler.collecting(capacity))


def _delivered(interpreter: Interpreter, logs: logdict, iterations: Any) -> logdict:
    """Deliver what was collected in some iterations, and return what is left."""
    parts = interpreter.handler.deliver([logs.rows()], iterations)
    return logdict.of({key: own for part in parts for key, own in part.items()})


def _buffering(
    interpreter: Interpreter, eqn: JaxprEqn, step: Callable, *args: Any
) -> Interpreter | None:
    """Return an interpreter for a loop in which rows wait for others. None: they don't."""
    handler = interpreter.handler.buffering(
        eqn, lambda: logged(collecting(interpreter, 1), step, *args)
    )
    return None if handler is None else interpreter.with_handler(handler)


def flushed(interpreter: Interpreter, logs: logdict) -> logdict:
    """Send the rows that still wait after a loop, and return what is left of its logs."""
    rows = logs.rows()
    rest = interpreter.after(rows).handler.flush()
    kept = {key: own for key, own in rows.items() if not is_handed_on(own)}
    return in_sequence(logdict.of(kept), logdict.of(rest))


def repeat(interpreter, eqn: JaxprEqn, ask: Callable, step: Callable, *args: list):
    """Run a `while`; returns the carry and the logs.

    Args:
        interpreter: Evaluates what is inside.
        eqn: The equation whose parameters to use, but for the programs.
        ask: `ask(interpreter, cond_consts, carry)` returns the predicate.
        step: `step(interpreter, body_consts, carry)` returns the carry and the logs.
        *args: The constants of the predicate, those of the body, and the carry.
    """
    cond_consts, body_consts, init = args
    logs = stage(step, interpreter, body_consts, init).shape[1]
    shape = stage(ask, interpreter, cond_consts, init).shape.shape
    rooms = interpreter.handler.capacities(logs, None)
    gathering = Gathering(logs, rooms, interpreter.handler.every(), shape)
    start = gathering.start(interpreter.handler.threaded())

    def run(interpreter, consts, carry, state):
        carry, logs = step(interpreter.after(state[0]), consts, carry)
        return carry, gathering.add(state, logs)[0]

    extra = jax.tree.leaves(interpreter)
    params = {
        **eqn.params,
        "cond_nconsts": len(extra) + len(cond_consts),
        "body_nconsts": len(extra) + len(body_consts),
        "cond_jaxpr": stage(
            lambda interpreter, consts, carry, state: ask(interpreter, consts, carry),
            interpreter, cond_consts, init, start,
        ).jaxpr,
        "body_jaxpr": stage(run, interpreter, body_consts, init, start).jaxpr,
    }  # fmt: skip
    state, tree = jax.tree.flatten(start)
    operands = [*extra, *cond_consts, *extra, *body_consts, *init, *state]
    outs, state = split(eqn.primitive.bind(*operands, **params), len(init))
    gathered = gathering.finish(jax.tree.unflatten(tree, state), length=None)
    return outs, logdict.of(_in_order(gathered, logs))


def repeat_in_chunks(interpreter, eqn: JaxprEqn, *args: Any, size: int):
    """The same for one whose predicate is carried in front, delivered now and then."""
    body = eqn.params["body_jaxpr"]
    consts, init = split(args, eqn.params["body_nconsts"])
    room = size * rows_of(
        interpreter, lambda interpreter, *args: interpreter(body, *args), *args
    )

    def ask_inside(interpreter, _, carry):
        i, running, *_ = carry
        return running & (i < size)

    def step_inside(interpreter, consts, carry):
        i, *carry = carry
        outs, logs = interpreter(body, *consts, *carry)
        return [i + 1, *outs], logs

    def step(interpreter, consts, carry):
        start = jnp.zeros(carry[0].shape, jnp.int32)
        inner = collecting(interpreter, capacity=room)
        outs, logs = repeat(
            inner, eqn, ask_inside, step_inside, [], consts, [start, *carry]
        )
        return outs[1:], _delivered(interpreter, logs, outs[0].max())

    return repeat(
        interpreter, eqn, lambda interpreter, _, carry: carry[0], step, [], consts, init
    )


def _most_rows(logs: logdict) -> int:
    """How many rows there are of a key, at most."""
    rows = [own.length for own in logs.rows().values() if isinstance(own, Rows)]
    return max(rows, default=1)


def in_sequence(*parts: logdict) -> logdict:
    """The logs of one thing after the other."""
    each = [logs.rows() for logs in parts]
    keys = dict.fromkeys(key for rows in each for key in rows)
    return logdict.of(
        {key: merge(key, [rows[key] for rows in each if key in rows]) for key in keys}
    )


def _in_order(rows: dict[str, Any], logs: logdict) -> dict[str, Any]:
    """The keys in the order of first logging, where some went another way than others."""
    return {key: rows[key] for key in (logs or rows)}


def _in_time(rows: Rows, length: int, reverse: bool) -> Rows:
    """The rows of all iterations, in the order of execution."""
    rows = rows.replace(bound=rows.bound * length)
    if rows.count is not None:
        rows = rows.replace(count=rows.count.sum(0, dtype=jnp.int32))
    if reverse:
        rows = rows.map(lambda x: jax.lax.rev(x, (0,)))
    if not rows.time:
        return rows.replace(time=True)
    # (length, n, ...) -> (length * n, ...)
    return rows.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))
