"""Run a loop again with its logs: what an iteration logs is gathered in the carry.

The rules in `loops.py` say what one iteration is. Here it is run, as a `scan` or a `while`
with a larger carry and more outputs:

    scan                                     carry             outputs
    given          body                      c                 y
    with logs      staged body               (c, state)        (y, rows)
                   state = add(state, logs)

    while                                    carry
    given          body                      c
    with logs      staged body               c, state          rows go into rings

`state` is what `lox._rows.loop_carry.Gathering` says: threaded state, accumulators, rings.

A `while` under `vmap` runs until the last example has finished, and JAX keeps the carry of
the others by a select. That would touch all rows of a ring in each iteration. So the new
loop asks whether any example is running, and selects by itself, everything but the rings:

    running [1 0 1]      c       select(running, body(c), c)
                         ring    what `lox_write` wrote, which is masked by `running`
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from lox._core.interpreter import Interpreter
from lox._core.staging import Staged, split, stage
from lox._jax.extend import JaxprEqn
from lox._jax.types import Params
from lox._rows.collected import Collected, Threaded
from lox._rows.loop_carry import CarriedState, Gathering, choose
from lox._rows.rows import Rows
from lox_host.frozen import frozen

# `step(interpreter, carry, x)` returns the carry, the output and the logs.
Step = Callable[[Interpreter, list, list], tuple[list, list, Collected]]


@frozen
class Body:
    """One iteration of a `scan`.

    Attributes:
        step: Interprets the iteration.
        prepare: `prepare(interpreter)` returns a step that is staged, and what it logs as
            abstract arrays.
    """

    step: Step
    prepare: Callable[[Interpreter], tuple[Step, Collected]]


def scan_with_logs(
    interpreter: Interpreter,
    body: Body,
    init: list,
    xs: list,
    length: int,
    options: Params,
) -> tuple[list, list, Collected]:
    """Run a `scan`, and return the carry, the outputs and the logs."""
    step, gathering = body.step, Gathering(Collected(), {})
    if interpreter.handler.carries():
        step, logs = body.prepare(interpreter)
        handler = interpreter.handler
        gathering = Gathering(
            logs,
            handler.capacities(logs, length),
            differentiable=handler.differentiable,
        )

    def iterate(carry: tuple, x: tuple) -> tuple:
        values, gathered = carry
        index, slices = x
        # The handler of this iteration has the state that the last one has left.
        inside = interpreter.after(gathering.threaded(gathered)).at_iteration(index)
        values, ys, logs = step(inside, values, slices)
        gathered, rows = gathering.add(gathered, logs)
        return (values, gathered), (ys, rows)

    # A symbolic length is only known from `xs`.
    given = None if xs else length
    start = init, gathering.start(interpreter.handler.threaded())
    index = jnp.arange(length) if interpreter.handler.counts else None
    numbered = index, xs
    (carry, gathered), (ys, logs) = jax.lax.scan(iterate, start, numbered, given, **options)
    # A `scan` stacks the rows of each iteration: (length, n, ...), or (length, ...).
    rows = {
        keys: _in_time(stacked, length, options["reverse"])
        for keys, stacked in logs.rows.items()
    }
    return carry, ys, gathering.finish(gathered, logs.replace(groups=rows), length)


def while_with_logs(
    interpreter: Interpreter,
    eqn: JaxprEqn,
    ask: Callable[[Interpreter, list, list], jax.Array],
    prepare: Callable[[Interpreter, list, list], Staged],
    cond_consts: list,
    body_consts: list,
    init: list,
) -> tuple[list, Collected]:
    """Run a `while`, and return the carry and the logs.

    Args:
        interpreter: The interpreter for the programs of the loop.
        eqn: The equation whose parameters are used, except for the programs.
        ask: `ask(interpreter, cond_consts, carry)` returns the predicate.
        prepare: `prepare(interpreter, body_consts, carry)` returns the body, staged for
            these arguments. The body returns the carry and the logs.
        cond_consts: The constants of the predicate.
        body_consts: The constants of the body.
        init: The carry before the first iteration.
    """
    step = prepare(interpreter, body_consts, init)
    logs = step.shape[1]
    handler = interpreter.handler
    capacities = handler.capacities(logs, None)
    gathering = Gathering(logs, capacities, handler.every(), handler.differentiable)
    start = gathering.start(handler.threaded())
    # The arrays of the interpreter that the loop does not carry are constants of the loop.
    extra, with_state = _split_off_carried(interpreter, gathering.threaded(start))

    def running(extra: list, consts: list, carry: list, state: CarriedState) -> jax.Array:
        return ask(with_state(extra, gathering.threaded(state)), consts, carry)

    def run(
        extra: list, consts: list, carry: list, state: CarriedState
    ) -> tuple[list, CarriedState]:
        given = with_state(extra, gathering.threaded(state)), consts, carry
        carry, logs = step(*jax.tree.leaves(given))
        return carry, gathering.add(state, logs)[0]

    def any_running(
        extra: list, consts: list, carry: list, state: CarriedState
    ) -> jax.Array:
        return running(extra, consts, carry, state).any()

    def run_some(extra: list, consts: list, carry: list, state: CarriedState):
        some = running(extra, consts[0], carry, state)
        new_carry, new_state = run(extra, consts[1], carry, state)
        new_carry = [choose(some, x, y) for x, y in zip(new_carry, carry, strict=True)]
        return new_carry, gathering.choose(some, new_state, state)

    cond, body = running, run
    # The predicate has an axis for each `vmap` whose examples finish at different times. By
    # it, JAX would select the whole carry, with all rows of the rings. We select everything
    # but the rings ourselves, in `run_some`.
    is_batched = eqn.params["cond_jaxpr"].out_avals[0].shape
    if is_batched and jax.tree.leaves(start):
        cond, body, body_consts = any_running, run_some, [cond_consts, body_consts]
    params = {
        **eqn.params,
        "cond_nconsts": len(jax.tree.leaves((extra, cond_consts))),
        "body_nconsts": len(jax.tree.leaves((extra, body_consts))),
        "cond_jaxpr": stage(cond, extra, cond_consts, init, start).jaxpr,
        "body_jaxpr": stage(body, extra, body_consts, init, start).jaxpr,
    }
    state, tree = jax.tree.flatten(start)
    operands = jax.tree.leaves((extra, cond_consts, extra, body_consts, init, state))
    outs, state = split(eqn.primitive.bind(*operands, **params), len(init))
    return outs, gathering.finish(jax.tree.unflatten(tree, state), Collected(), None)


def _split_off_carried(
    interpreter: Interpreter, carried: Threaded
) -> tuple[list, Callable[[list, Threaded], Interpreter]]:
    """Return the arrays of an interpreter that a loop does not carry, and how to join both.

    If the carried arrays were constants of the loop, too, the compiler would have to keep a
    copy of each ring as it was before the loop.
    """
    leaves, tree = jax.tree.flatten(interpreter)
    # Replace the carried arrays by a mark, to find out where they are among the leaves.
    mark = object()
    marked = interpreter.after(jax.tree.map(lambda _: mark, carried))
    is_carried = [leaf is mark for leaf in jax.tree.leaves(marked)]
    others = [x for x, known in zip(leaves, is_carried, strict=True) if not known]

    def together(others: list, carried: Threaded) -> Interpreter:
        rest = iter(others)
        merged = [mark if known else next(rest) for known in is_carried]
        return jax.tree.unflatten(tree, merged).after(carried)

    return others, together


def collecting_only(interpreter: Interpreter, capacity: int | None = None) -> Interpreter:
    """Return an interpreter that collects the same but delivers nothing."""
    return interpreter.with_handler(interpreter.handler.collecting(capacity))


def _in_time(rows: Rows, length: int, reverse: bool) -> Rows:
    """Return the rows of all iterations, in the order of execution."""
    rows = rows.replace(bound=rows.bound * length)
    if rows.count is not None:
        rows = rows.replace(count=rows.count.sum(0, dtype=jnp.int32))
    if reverse:
        rows = rows.map(lambda x: jax.lax.rev(x, (0,)))
    if not rows.time:
        return rows.replace(time=True)
    # (length, n, ...) -> (length * n, ...)
    return rows.map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))
