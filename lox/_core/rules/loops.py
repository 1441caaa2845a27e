"""How loops run: what they log leaves them as rows, is carried along, or is delivered."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from lox._core.staging import split, stage
from lox._logdict.logdict import logdict
from lox._rows.loop_carry import Gathering
from lox._rows.merge import is_handed_on, merge
from lox._rows.rows import Rows


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
    if interpreter.handler.gathers:
        staged = stage(step, interpreter, body.carry, body.x)
        step = lambda *args: staged(*jax.tree.leaves(args))  # noqa: E731
        logs = staged.shape[2]
        gathering = Gathering(logs, interpreter.handler.rooms(logs, length))

    def iterate(carry, x):
        carry, gathered = carry
        carry, ys, logs = step(interpreter.after(gathered[0]), carry, x)
        gathered, rows = gathering.add(gathered, logs)
        return (carry, gathered), (ys, rows)

    # A symbolic length is known from `xs` only.
    given = None if xs else length
    start = init, gathering.start(interpreter.handler.handed_on())
    (carry, gathered), (ys, logs) = jax.lax.scan(iterate, start, xs, given, **options)
    entries = logs.rows().items()
    rows = {key: _in_time(own, length, options["reverse"]) for key, own in entries}
    rows |= gathering.finish(gathered, length)
    return carry, ys, logdict.of(_in_order(rows, gathering.logs))


def rows_of(interpreter, step: Callable, *args: Any) -> int:
    """How many rows of a key are collected in one step, at most."""
    return _most_rows(logged(interpreter.collecting(), step, *args))


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
            carry, ys, logs = scan(interpreter.collecting(), body, carry, xs, size, options)
            return carry, ys, interpreter.deliver(logs, size)

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


def poured(interpreter, logs: logdict) -> logdict:
    """What is left of the logs of a loop when all that still waits has been delivered."""
    rows = logs.rows()
    rest = interpreter.after(rows).handler.poured()
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
    rooms = interpreter.handler.rooms(logs, None)
    gathering = Gathering(logs, rooms, interpreter.handler.interval or 1, shape)
    start = gathering.start(interpreter.handler.handed_on())

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
        inner = interpreter.collecting(capacity=room)
        outs, logs = repeat(
            inner, eqn, ask_inside, step_inside, [], consts, [start, *carry]
        )
        return outs[1:], interpreter.deliver(logs, outs[0].max())

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
