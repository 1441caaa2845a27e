"""Evaluate a program, and hand each of its records to a handler.

Programs are never edited, because JAX caches them. They are evaluated again, equation by
equation, with the given arguments: arrays, or tracers of a `jit`, `vmap` or `grad`
around. The result is that of the program without its records, and what was collected:

    { lambda ; x. let        interpreter = Interpreter(handler)
        y = sin x            pending
        lox_log[a] y         pending, for the handler
        z = mul y y          pending
        w = scan[...] z      evaluate what is pending, hand over `a`, run the `scan` rule
      in (w,) }

Equations without records stay pending until their outputs are needed, and are then
evaluated together. That is much quicker than one by one, and while JAX is tracing they are
staged as they are. Consecutive records are handed over together, so that they can share one
host call.

A handler may also ask to see values between two equations (`stops`), whether these are
logged or not.

Invariant: a record is handed over before any rule runs that comes after it. So the handler
always meets records in the order of the program.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_jaxpr

from lox._core import context as _context
from lox._core.analysis import donates, last_uses, unsupported, variables
from lox._core.handler import Drop, Handler, Stop
from lox._core.record import emit_p, log_p
from lox._core.rules.deferred import can_defer, defer
from lox._core.rules.registry import rule_of
from lox._core.staging import Staged, Traced, stage_once, trace
from lox._jax import equations, sharding, tracing
from lox._jax.extend import ClosedJaxpr, JaxprEqn, Literal
from lox._jax.types import AnyArray, Atom, Program, PyTree
from lox._rows.collected import Collected, Threaded
from lox._rows.rows import Where
from lox_host.frozen import frozen

G = TypeVar("G", bound=Handler)
H = TypeVar("H", bound=Handler)


@jax.tree_util.register_dataclass
@frozen
class Interpreter(Generic[H]):
    """Evaluates programs with a handler.

    `interpreter(jaxpr, *args)` returns the outputs and the logs.
    """

    handler: H

    def __call__(self, jaxpr: Program, *args: AnyArray) -> tuple[list, Collected]:
        """Evaluate a program. Logs carry no derivatives, unless the handler wants them.

        Otherwise an infinite derivative of a log would spoil the gradient of a loop, even
        if the log is not used: zero times infinity is NaN.
        """
        outs, logs = self._evaluate(jaxpr, *args)
        if self.handler.differentiable:
            return outs, logs
        return outs, _map_rows(_constant, logs)

    def iterate(self, jaxpr: Program, *args: AnyArray) -> tuple[list, Collected]:
        """Evaluate the body of a loop.

        An input that is logged unchanged has a finite derivative. It is not wrapped in
        `stop_gradient`: JAX recognises an output that is an input, and does not copy it.
        """
        outs, logs = self._evaluate(jaxpr, *args)
        if self.handler.differentiable:
            return outs, logs

        def stop(x: AnyArray) -> AnyArray:
            return x if any(x is given for given in args) else _constant(x)

        return outs, _map_rows(stop, logs)

    def stage(self, jaxpr: Program, *args: AnyArray) -> Staged:
        """Stage the evaluation of a program, once for each form of the handler."""
        return stage_once(_evaluate, jaxpr, self, *args)

    def stage_iteration(self, jaxpr: Program, *args: AnyArray) -> Staged:
        """Stage the evaluation of the body of a loop, see `iterate`."""
        return stage_once(_iterate, jaxpr, self, *args)

    def with_handler(self, handler: G) -> "Interpreter[G]":
        return Interpreter(handler)

    def after(self, state: Threaded) -> "Interpreter[H]":
        """Return the interpreter for what comes next, given the threaded state."""
        return Interpreter(self.handler.after(state))

    def at_iteration(self, index: jax.Array | None) -> "Interpreter[H]":
        """Return the interpreter for one iteration of a `scan`. None: it does not count."""
        return self if index is None else Interpreter(self.handler.at_iteration(index))

    def on_device(self) -> "Interpreter[H]":
        """Return the interpreter for this place; in a `shard_map`, for each device."""
        return jax.tree.map(sharding.make_varying, Interpreter(self.handler.on_device()))

    def trace(self, fun: Callable, *args: PyTree, **kwargs: PyTree) -> Traced:
        """Trace a function with its records, if the handler captures them."""
        with _context.captured() if self.handler.captures else contextlib.nullcontext():
            return trace(fun, *args, **kwargs)

    def _evaluate(self, jaxpr: Program, *args: AnyArray) -> tuple[list, Collected]:
        jaxpr = equations.close(jaxpr)
        # Most programs inside a program log nothing, and stay what they are.
        if not self.handler.concerns(jaxpr.jaxpr):
            return eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *args), Collected()
        # JAX may evaluate what a rule has deferred long after the `shard_map` around it.
        with self.handler.evaluating(), sharding.splitting_examples():
            return _Evaluation(self.handler, jaxpr, args).run()


class _Evaluation:
    """One evaluation of one program.

    Attributes:
        handler: The handler for what comes next.
        env: The values of the variables that are still needed.
        pending: Equations without records that have not been evaluated yet.
        records: Records that have not been handed over yet. Their operands may come from
            pending equations.
        inspected: Variables whose values the handler wants to see. None: it wants none.
        collected: What has been collected so far.
    """

    def __init__(self, handler: Handler, jaxpr: ClosedJaxpr, args: Sequence[AnyArray]):
        self.handler = handler
        self.program = jaxpr.jaxpr
        self.env: tracing.Env = dict(zip(self.program.constvars, jaxpr.consts, strict=True))
        self.env.update(zip(self.program.invars, args, strict=True))
        self.last_use = last_uses(self.program)
        self.donates = donates(self.program)
        self.inspected = handler.inspects(self.program)
        self.pending: list[JaxprEqn] = []
        self.records: list[JaxprEqn] = []
        self.collected: list[Collected] = []

    def run(self) -> tuple[list, Collected]:
        stops = self.handler.stops(self.program)
        for i, eqn in enumerate(self.program.eqns):
            self._show(i, stops.get(i, ()))
            if not self.handler.concerns(eqn):
                self.pending.append(eqn)
            elif eqn.primitive is log_p:
                self.records.append(eqn)
                if self.donates:
                    # A later `jit` may take over the buffer of a value that is logged here,
                    # so it is read at once.
                    self._catch_up(i + 1)
            else:
                self._catch_up(i)
                self._apply(eqn)
        # The outputs of the program are read behind the last equation.
        end = len(self.program.eqns)
        self._catch_up(end)
        self._show(end, stops.get(end, ()))
        if self.inspected is not None:
            self._collect(self.handler.finish(self.program))
        outs = [self._read(atom) for atom in self.program.outvars]
        return outs, Collected.joined(self.collected)

    def _show(self, i: int, stops: Sequence[Stop]) -> None:
        """Show values to the handler before equation `i`, and keep what it returns."""
        if not stops:
            return
        self._catch_up(i)
        # What it adds to the program belongs to the equation before.
        with tracing.context_of(self.program.eqns[max(i - 1, 0)]):
            for stop in stops:
                # A value that depends on nothing may be a number.
                values = [
                    tracing.returned_array(self.env[var], var.aval)
                    for var in stop.variables
                ]
                shown = self.handler.visit(stop, values)
                self.env.update(zip(stop.variables, shown, strict=True))

    def _catch_up(self, i: int) -> None:
        """Evaluate what is pending before equation `i`, and hand over the records.

        For the program above, at the `scan` (equation 3): `sin` and `mul` are evaluated as
        one small program, which returns `y` for the record and `z` for the `scan`. Then the
        record is handed over, and `x` and `y` are dropped, as nothing reads them later.
        """
        logged = {var for eqn in self.records for var in variables(eqn.invars)}
        if self.pending:
            # Return only what something reads later.
            needed = []
            for var in [var for eqn in self.pending for var in eqn.outvars]:
                is_read_later = self.last_use.get(var, -1) >= i
                if is_read_later or var in logged or var in (self.inspected or ()):
                    needed.append(var)
            outs = tracing.evaluate(self.program, self.pending, needed, self.env)
            self.env.update(zip(needed, outs, strict=True))
            self._inspect(self.pending)
        if self.records:
            self._hand_over(self.records)
        # Drop values that nothing reads later, so that their memory is free. A handler
        # may want to see the others again, next to a later value.
        kept = self.inspected or ()
        for eqn in (*self.pending, *self.records):
            for var in variables(eqn.invars):
                if self.last_use[var] < i and var not in kept:
                    self.env.pop(var, None)
        self.pending, self.records = [], []

    def _hand_over(self, eqns: Sequence[JaxprEqn]) -> None:
        """Hand over the records of some equations, and deliver them together."""
        # Each record sees the state that the one before it leaves behind, such as counts.
        handler, parts = self.handler, []
        for eqn in eqns:
            operands = [self._read_lasting(atom) for atom in eqn.invars]
            (record,) = jax.tree.unflatten(eqn.params["form"], operands)
            with tracing.context_of(eqn):
                parts.append(handler.handle(record, Where(eqn)))
            handler = handler.after(parts[-1].threaded)
        # Delivered by the handler from before them: it has the token that they follow.
        for part in self.handler.deliver(parts, 0):
            self._collect(part)

    def _apply(self, eqn: JaxprEqn) -> None:
        """Evaluate an equation that holds records, by its rule.

        A host call (`lox_emit`) holds records, too; it goes to the handler itself.
        """
        args = [self._read(atom) for atom in eqn.invars]
        collected = Collected()
        with tracing.context_of(eqn):
            if eqn.primitive is emit_p:
                token, *leaves = args
                params = dict(eqn.params)
                records = jax.tree.unflatten(params.pop("form"), leaves)
                outs = [self.handler.emit(records, token, params)]
                collected = Collected(threaded=self.handler.emitted(outs[0]))
            else:
                # Without a rule the records would be lost, so this is an error.
                rule = rule_of(eqn)
                if rule is None:
                    raise unsupported(eqn)
                if self.handler.defers and can_defer(eqn):
                    rule = defer
                inside = Interpreter(self.handler.enter(eqn))
                outs, collected = rule(inside, eqn, *args)
        self.env.update(zip(eqn.outvars, outs, strict=True))
        self._collect(self.handler.leave(collected))
        self._inspect([eqn])

    def _inspect(self, eqns: Sequence[JaxprEqn]) -> None:
        """Show the handler the values of equations that have been evaluated."""
        if self.inspected is not None:
            self._collect(self.handler.inspect(self.program, eqns, self._read))

    def _collect(self, part: Collected) -> None:
        # All that comes later sees the state that this part has left behind.
        self.handler = self.handler.after(part.threaded)
        self.collected.append(part)

    def _read(self, atom: Atom) -> AnyArray:
        return atom.val if isinstance(atom, Literal) else self.env[atom]

    def _read_lasting(self, atom: Atom) -> AnyArray:
        """Read a value that is logged, as an array that survives donation of its buffer."""
        if isinstance(atom, Literal):
            return tracing.literal_value(atom)
        x = tracing.plain_array(self.env[atom])
        is_concrete = isinstance(x, jax.Array) and not isinstance(x, Tracer)
        return jnp.array(x, copy=True) if self.donates and is_concrete else x


def without_records(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Return a program that does the same and logs nothing."""
    return Interpreter(Drop()).stage(jaxpr, *jaxpr.in_avals).jaxpr


def _evaluate(
    jaxpr: Program, interpreter: Interpreter, *args: AnyArray
) -> tuple[list, Collected]:
    return interpreter(jaxpr, *args)


def _iterate(
    jaxpr: Program, interpreter: Interpreter, *args: AnyArray
) -> tuple[list, Collected]:
    return interpreter.iterate(jaxpr, *args)


def _map_rows(fun: Callable[[AnyArray], AnyArray], logs: Collected) -> Collected:
    """Apply a function to the arrays of logs, but not to the threaded state."""
    mapped = jax.tree.map(fun, logs.replace(threaded=Threaded()))
    return mapped.replace(threaded=logs.threaded)


def _constant(x: AnyArray) -> AnyArray:
    """Return the same value without derivatives."""
    has_derivatives = isinstance(x, Tracer) and jax.dtypes.issubdtype(x.dtype, np.inexact)
    return jax.lax.stop_gradient(x) if has_derivatives else x
