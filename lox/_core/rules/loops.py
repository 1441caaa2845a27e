"""How logs leave loops: as rows, along the carry, or to the host every few iterations.

The body of a loop is a program that logs. How its logs leave the loop depends on the kind:

    rows of a `scan`         leave it as its outputs do, stacked: (length, ...)
    reduced keys, tokens     are carried, and combined in each iteration
    rows of a `while`        are carried, in a ring of fixed capacity; those of nested loops
                             in one buffer, see `loop_carry.py`

So the carry depends on what an iteration logs, which staging the body finds out. The body
is interpreted only once: the new loop, in `loop_with_logs.py`, runs the staged body.

    while carry: running(carry)          while (carry, state): running(carry)
        carry = body(carry)       ->         carry, logs = staged body(carry)
                                             state = gathering.add(state, logs)

A handler may deliver every `size` iterations. The loop then becomes a loop over chunks. A
chunk is a loop of `size` iterations that only collects, followed by one delivery:

    for x in xs: body            for chunk in xs.reshape(number, size):
                          ->         for x in chunk: body, collect
                                     deliver what was collected
"""

import functools as ft
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from lox._core.analysis import lets_buffer_everywhere
from lox._core.interpreter import Interpreter
from lox._core.rules.loop_with_logs import (
    Body,
    Step,
    collecting_only,
    scan_with_logs,
    while_with_logs,
)
from lox._core.rules.registry import rule_for
from lox._core.staging import Staged, carry_predicate, split, stage
from lox._jax import equations, sharding
from lox._jax.extend import JaxprEqn
from lox._jax.types import Params
from lox._rows.collected import Collected


@rule_for("scan")
def _scan(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    jaxpr, options = eqn.params["jaxpr"], equations.scan_options(eqn.params)
    consts, init, xs = split(args, *equations.scan_sizes(eqn.params))
    others = zip(jaxpr.in_avals[len(consts) :], [*init, *xs], strict=True)
    # The types of one iteration: of `xs`, the body gets one slice at a time.
    form = *consts, *(sharding.vary_like(aval, x) for aval, x in others)

    def in_parts(outs: list, logs: Collected) -> tuple[list, list, Collected]:
        carry, ys = split(outs, len(init))
        return carry, ys, logs

    def step(interpreter: Interpreter, carry: list, x: list):
        return in_parts(*interpreter.iterate(jaxpr, *consts, *carry, *x))

    def prepare(interpreter: Interpreter) -> tuple[Step, Collected]:
        staged = interpreter.stage_iteration(jaxpr, *form)

        def step(interpreter: Interpreter, carry: list, x: list):
            return in_parts(*staged(*jax.tree.leaves(interpreter), *consts, *carry, *x))

        return step, staged.shape[1]

    def logs(capacity: int | None) -> Collected:
        inside = collecting_only(interpreter, capacity)
        return inside.stage_iteration(jaxpr, *form).shape[1]

    length = eqn.params["length"]
    rows = lambda: _most_rows(logs(None))  # noqa: E731
    size = interpreter.handler.chunk([jaxpr], rows, length) if length else None
    run = scan_with_logs if size is None else ft.partial(scan_in_chunks, size=size)
    buffering = _buffering(interpreter, eqn, logs)
    inside, body = buffering or interpreter, Body(step, prepare)
    with equations.keep_linear(eqn, args):
        carry, ys, left = run(inside, body, init, xs, length, options)
    return [*carry, *ys], _flushed(buffering, left) if buffering else left


@rule_for("while")
def _while(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    sizes = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    cond_consts, body_consts, init = split(args, *sizes)
    cond, body = eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]

    def ask(interpreter: Interpreter, consts: list, carry: list) -> jax.Array:
        return interpreter.stage(cond, *consts, *carry).run()[0][0]

    def prepare(interpreter: Interpreter, consts: list, carry: list) -> Staged:
        return interpreter.stage(body, *consts, *carry)

    def logs(capacity: int | None) -> Collected:
        return prepare(collecting_only(interpreter, capacity), body_consts, init).shape[1]

    def logs_of_both(capacity: int | None) -> Collected:
        """Return what one iteration logs, in the predicate and in the body."""
        inside = collecting_only(interpreter, capacity)
        asked = inside.stage(cond, *cond_consts, *init).shape[1]
        return jax.eval_shape(Collected.joined, [asked, logs(capacity)])

    buffering = _buffering(interpreter, eqn, logs_of_both)
    if buffering:
        # Run this rule again with a buffer, whose handler does not ask for another one.
        outs, left = _while(buffering, eqn, *args)
        return outs, _flushed(buffering, left)
    rows = lambda: _most_rows(logs(None))  # noqa: E731
    size = interpreter.handler.chunk([cond, body], rows, None)
    predicate = interpreter.stage(cond, *cond_consts, *init)
    if size is None and not predicate.shape[1]:
        return while_with_logs(
            interpreter, eqn, ask, prepare, cond_consts, body_consts, init
        )
    # A predicate can have no outputs but its value. So it is evaluated before the loop and
    # at the end of the body, where its logs can be carried.
    (running,), first = predicate.run()
    loop = eqn.replace(params=carry_predicate(eqn.params))
    run = _while if size is None else ft.partial(repeat_in_chunks, size=size)
    # `carry_predicate` has made constants of the body of those of both.
    operands = [*cond_consts, *body_consts, running, *init]
    outs, rest = run(interpreter.after(first.threaded), loop, *operands)
    return outs[1:], Collected.joined([first, rest])


def scan_in_chunks(
    interpreter: Interpreter,
    body: Body,
    init: list,
    xs: list,
    length: int,
    options: Params,
    size: int,
) -> tuple[list, list, Collected]:
    """Run a `scan`, and deliver what has been collected every `size` iterations."""
    size = min(size, length)
    number, rest = divmod(length, size)
    # The remaining iterations come last. If the loop runs backwards, these are in front.
    start = rest if options["reverse"] else 0
    # (length, ...) -> (number, size, ...)
    blocks = [
        x[start : start + number * size].reshape(number, size, *x.shape[1:]) for x in xs
    ]
    block = [jax.eval_shape(lambda x: x[0], x) for x in blocks]

    def chunk(size: int) -> Step:
        def step(interpreter: Interpreter, carry: list, xs: list):
            carry, ys, logs = scan_with_logs(
                collecting_only(interpreter), body, carry, xs, size, options
            )
            return carry, ys, _delivered(interpreter, logs, size)

        return step

    def prepare(interpreter: Interpreter) -> tuple[Step, Collected]:
        staged = stage(chunk(size), interpreter, init, block)
        return lambda *args: staged(*jax.tree.leaves(args)), staged.shape[2]

    outer, unrolled_inside = Body(chunk(size), prepare), {**options, "unroll": 1}
    carry, ys, logs = scan_with_logs(
        interpreter, outer, init, blocks, number, unrolled_inside
    )
    # (number, size, ...) -> (number * size, ...)
    ys = [y.reshape(number * size, *y.shape[2:]) for y in ys]
    if not rest:
        return carry, ys, logs
    last = slice(0, rest) if options["reverse"] else slice(number * size, None)
    interpreter = interpreter.after(logs.threaded)
    carry, zs, more = chunk(rest)(interpreter, carry, [x[last] for x in xs])
    pairs = [(z, y) if options["reverse"] else (y, z) for y, z in zip(ys, zs, strict=True)]
    ys = [jax.lax.concatenate(pair, 0) for pair in pairs]
    return carry, ys, Collected.joined([logs, more])


def repeat_in_chunks(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike, size: int
) -> tuple[list, Collected]:
    """Run a `while` whose predicate is carried in front, and deliver after each chunk.

    The inner loop counts its iterations, and ends after `size` of them or when the whole
    loop does. The outer loop runs until the predicate is false.
    """
    body = eqn.params["body_jaxpr"]
    consts, init = split(args, eqn.params["body_nconsts"])
    logs = collecting_only(interpreter).stage(body, *args).shape[1]
    capacity = size * _most_rows(logs)

    def ask_inside(interpreter: Interpreter, _, carry: list) -> jax.Array:
        i, running, *_ = carry
        return running & (i < size)

    def step_inside(interpreter: Interpreter, consts: list, carry: list):
        i, *carry = carry
        outs, logs = interpreter.stage(body, *consts, *carry).run()
        return [i + 1, *outs], logs

    def step(interpreter: Interpreter, consts: list, carry: list):
        # Under `vmap` each example has a counter, as some end before the others.
        start = jnp.zeros(carry[0].shape, jnp.int32)
        inner, init = collecting_only(interpreter, capacity), [start, *carry]
        prepare = ft.partial(stage, step_inside)
        outs, logs = while_with_logs(inner, eqn, ask_inside, prepare, [], consts, init)
        return outs[1:], _delivered(interpreter, logs, outs[0].max())

    def ask(interpreter: Interpreter, _, carry: list) -> jax.Array:
        return carry[0]

    return while_with_logs(interpreter, eqn, ask, ft.partial(stage, step), [], consts, init)


def _delivered(
    interpreter: Interpreter, logs: Collected, iterations: ArrayLike
) -> Collected:
    """Deliver what was collected in some iterations, and return what is left."""
    return Collected.joined(interpreter.handler.deliver([logs], iterations))


def _buffering(
    interpreter: Interpreter, eqn: JaxprEqn, logs: Callable[[int], Collected]
) -> Interpreter | None:
    """Return an interpreter for a loop whose rows wait in a buffer. None: they do not."""
    # Rows of loops inside go into the same buffer when they are logged, so only their form
    # matters. Where the buffer does not get, they come in a ring, perhaps masked and
    # counted. For that form, any capacity will do.
    capacity = 0 if lets_buffer_everywhere(eqn) else 1
    handler = interpreter.handler.buffering(eqn, lambda: logs(capacity))
    return None if handler is None else interpreter.with_handler(handler)


def _flushed(interpreter: Interpreter, logs: Collected) -> Collected:
    """Flush the buffer after such a loop, and return the logs that were not buffered."""
    return interpreter.handler.after(logs.threaded).flush(logs)


def _most_rows(logs: Collected) -> int:
    """Return how many rows of a key are logged at most, not counting on an interval."""
    return max((rows.bound for rows in logs.rows.values()), default=1)
