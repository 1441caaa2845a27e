"""Trace a function, and evaluate a program, handing each of its records to a handler."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer, eval_jaxpr
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

from lox._core import context as _context
from lox._core.handlers import Forward
from lox._core.log import log_effect, log_p
from lox._core.record import Record, is_array, listed
from lox._core.rules import rules
from lox._jax import equations, sharding, tracing
from lox._logdict.logdict import logdict
from lox._rows.merge import Entry, merge
from lox._rows.rows import Where
from lox._stream.emit import emit_effect, emit_p


class Handler(Protocol):
    """What a transformation does with each record. A pytree: it passes through `jit`."""

    captures: bool
    """Whether functions are traced anew for it so that their logs are captured."""

    interval: int | None
    """Every how many rows of a key one is collected."""

    gathers: bool
    """Whether it collects anything that a loop has to carry."""

    def concerns(self, program: Any) -> bool:
        """Whether there is anything for it in a program or an equation.

        If it wants records that are on their way to the host, it has `emit(args, params)`,
        and `full(condition)` for the question whether such records need wait no longer.
        """
        ...

    def __call__(self, record: Record, where: Where) -> dict[str, Entry]:
        """Do something with a record, and return the rows to be collected of it."""
        ...

    def deliver(self, parts: list[dict[str, Entry]], iterations: Any) -> list:
        """Do something with what was collected in a row, and return what is left.

        `iterations` says of how many iterations of a loop it is, 0 outside of a chunk.
        """
        ...

    def chunk(self, body: list, rows: Callable[[], int], length: int | None) -> int | None:
        """After how many iterations a loop delivers what was collected. None: it doesn't.

        `body` are the programs that it runs in one iteration, `rows()` is how many rows of
        a key they log.
        """
        ...

    def pooling(self, loop: JaxprEqn, logs: Callable[[], logdict]) -> Any:
        """The handler for a loop in which rows wait for others. None: they don't.

        `logs()` is what is logged in one iteration.
        """
        ...

    def handed_on(self) -> dict[str, Any]:
        """What is handed on from one part of a program to the next."""
        ...

    def after(self, entries: Mapping[str, Entry]) -> Any:
        """The handler for what comes after these entries."""
        ...

    def batched(self, size: int) -> Any:
        """The handler for the inside of a `vmap` of this size."""
        ...

    def unbatched(self, batched: Any) -> Any:
        """The handler for all examples, given which of its arrays are one for each.

        None: it is not the same for all of them.
        """
        ...

    def per_device(self, records: Sequence[Record]) -> Any:
        """Which axis of its arrays is that of the devices of a `shard_map`; -1: none.

        Args:
            records: What is logged in there.
        """
        ...

    def on_device(self) -> Any:
        """The handler for where we are now, which may be inside a `shard_map`."""
        ...

    def rooms(self, logs: logdict, length: int | None) -> dict[str, int]:
        """For keys whose rows a loop keeps in a buffer, how many it keeps."""
        ...

    def only(self, keys: frozenset[str]) -> Any:
        """The handler that collects no other keys."""
        ...

    def collecting(self, capacity: int | None = None) -> Any:
        """The handler that collects the same, and delivers nothing."""
        ...

    def quiet(self) -> Any:
        """The handler that collects the same, and does nothing else."""
        ...


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Interpreter:
    """Evaluates programs with a handler.

    `interpreter(jaxpr, *args)` returns the outputs and the logs.
    """

    handler: Any

    def __call__(self, jaxpr: ClosedJaxpr, *args: Any) -> tuple[list, logdict]:
        """Evaluate a program. Logs carry no derivatives.

        A derivative that is infinite would otherwise spoil the gradient of a loop, even
        though nobody asks for it.
        """
        outs, logs = self._evaluate(jaxpr, *args)
        return outs, jax.tree.map(_constant, logs)

    def iterate(self, jaxpr: ClosedJaxpr, *args: Any) -> tuple[list, logdict]:
        """Evaluate the body of a loop.

        An input that is logged as it is has no derivative to be afraid of, and JAX need
        not copy it out of the loop as long as it is the input itself.
        """
        outs, logs = self._evaluate(jaxpr, *args)

        def stop(x):
            return x if any(x is given for given in args) else _constant(x)

        return outs, jax.tree.map(stop, logs)

    def _evaluate(self, jaxpr: ClosedJaxpr, *args: Any) -> tuple[list, logdict]:
        jaxpr = equations.close(jaxpr)
        interpreter, program = self, jaxpr.jaxpr
        if not self.handler.concerns(program):
            return eval_jaxpr(program, jaxpr.consts, *args), logdict()
        env = dict(zip(program.constvars, jaxpr.consts, strict=True))
        env.update(zip(program.invars, args, strict=True))
        last_use, donates = _last_use(program), _donates(program)
        pending: list[JaxprEqn] = []
        records: list[JaxprEqn] = []
        collected: dict[str, list[Entry]] = {}

        def read(atom):
            return atom.val if isinstance(atom, Literal) else env[atom]

        def read_lasting(atom):
            return _lasting(read(atom)) if donates else read(atom)

        def collect(logs: Mapping[str, Entry]) -> None:
            for key, rows in logs.items():
                collected.setdefault(key, []).append(rows)

        def catch_up(interpreter: Interpreter, i: float) -> Interpreter:
            """Evaluate what comes before equation `i`, and hand over its records."""
            logged = {
                atom
                for eqn in records
                for atom in eqn.invars
                if not isinstance(atom, Literal)
            }
            outvars = [
                v
                for eqn in pending
                for v in eqn.outvars
                if last_use.get(v, -1) >= i or v in logged
            ]
            if pending:
                outs = tracing.evaluate(program, pending, outvars, env)
                env.update(zip(outvars, outs, strict=True))
            for logs in interpreter._hand_over(records, read_lasting) if records else ():
                interpreter = interpreter.after(logs)
                collect(logs)
            for eqn in (*pending, *records):
                for atom in eqn.invars:
                    if not isinstance(atom, Literal) and last_use[atom] < i:
                        env.pop(atom, None)
            pending.clear()
            records.clear()
            return interpreter

        for i, eqn in enumerate(program.eqns):
            if not self.handler.concerns(eqn):
                pending.append(eqn)
                continue
            if eqn.primitive is log_p:
                records.append(eqn)
                # What is logged may be given away before the others are.
                interpreter = catch_up(interpreter, i + 1) if donates else interpreter
                continue
            interpreter = catch_up(interpreter, i)
            with tracing.at(eqn):
                outs, logs = interpreter._apply(eqn, [read(atom) for atom in eqn.invars])
            interpreter = interpreter.after(logs)
            env.update(zip(eqn.outvars, outs, strict=True))
            collect(logs)
        catch_up(interpreter, len(program.eqns))
        outs = [read(atom) for atom in program.outvars]
        rows = {key: merge(key, parts) for key, parts in collected.items()}
        return outs, logdict.of(rows)

    def after(self, entries: Mapping[str, Any]) -> "Interpreter":
        """Go on after something has been logged."""
        return Interpreter(self.handler.after(entries))

    def pooling(self, loop: JaxprEqn, logs: Callable[[], logdict]) -> "Interpreter | None":
        """Go on inside a loop in which rows wait for others. None: they don't."""
        handler = self.handler.pooling(loop, logs)
        return None if handler is None else Interpreter(handler)

    def batched(self, size: int) -> "Interpreter":
        """Go on inside a `vmap`."""
        return Interpreter(self.handler.batched(size))

    def unbatched(self, batched: "Interpreter") -> "Interpreter | None":
        """Go on for all examples, given which arrays are one for each of them."""
        handler = self.handler.unbatched(batched.handler)
        return None if handler is None else Interpreter(handler)

    def per_device(self, eqn: JaxprEqn) -> "Interpreter":
        """Which axis of its arrays is that of the devices of a `shard_map`; -1: none."""
        return Interpreter(self.handler.per_device(list(records_in(eqn.params))))

    def on_device(self) -> "Interpreter":
        """Go on where we are now; inside a `shard_map`, each device by itself."""
        return jax.tree.map(sharding.varied, Interpreter(self.handler.on_device()))

    def only(self, keys: frozenset[str]) -> "Interpreter":
        """Collect no other keys."""
        return Interpreter(self.handler.only(keys))

    def quiet(self) -> "Interpreter":
        """Collect the same, and let nothing go on outward."""
        return Interpreter(self.handler.quiet())

    def forward(self, jaxpr: ClosedJaxpr, *args: Any) -> list:
        """Evaluate a program whose records belong to whoever listens here."""
        return Interpreter(Forward())(jaxpr, *args)[0]

    def forwarded(self, fun: Callable) -> Callable:
        return lambda *args: interpret(fun, Forward(), *args)[0]

    def trace(self, fun: Callable, *args: Any, **kwargs: Any) -> "Traced":
        """Trace a function so that its records are there for the handler."""
        with _context.captured() if self.handler.captures else contextlib.nullcontext():
            return trace(fun, *args, **kwargs)

    def collecting(self, capacity: int | None = None) -> "Interpreter":
        """Collect the same, and deliver nothing."""
        return Interpreter(self.handler.collecting(capacity))

    def deliver(self, logs: logdict, iterations: Any) -> logdict:
        """Deliver what has been collected in a chunk, and return what is left."""
        parts = self.handler.deliver([logs.rows()], iterations)
        return logdict.of({key: own for part in parts for key, own in part.items()})

    def _apply(self, eqn: JaxprEqn, args: list) -> tuple[list, dict[str, Entry]]:
        if eqn.primitive is emit_p:
            return self.handler.emit(args, eqn.params), {}
        rule = rules.get(equations.name_of(eqn))
        if rule is None:
            raise _unsupported(eqn)
        outs, logs = rule(self, eqn, *args)
        return outs, logs.rows()

    def _hand_over(self, eqns: list[JaxprEqn], read: Callable) -> list[dict[str, Entry]]:
        """Hand over the records of some equations, and deliver them together."""
        interpreter, parts = self, []
        for eqn in eqns:
            arrays = [
                tracing.constant(atom)
                if isinstance(atom, Literal)
                else tracing.array(read(atom))
                for atom in eqn.invars
            ]
            (record,) = jax.tree.unflatten(eqn.params["form"], arrays)
            with tracing.at(eqn):
                parts.append(interpreter.handler(record, Where(eqn)))
            interpreter = interpreter.after(parts[-1])
        return self.handler.deliver(parts, 0)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function traced with some arguments."""

    jaxpr: ClosedJaxpr
    args: list
    output: Callable[[list], Any]


def trace(fun: Callable, *args: Any, **kwargs: Any) -> Traced:
    """Trace `fun`. Arrays are traced as by `jit`, everything else stays what it is."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    at = [i for i, leaf in enumerate(leaves) if is_array(leaf)]
    result: list = []

    def flat(*arrays):
        merged = list(leaves)
        for i, array in zip(at, arrays, strict=True):
            merged[i] = array
        args, kwargs = jax.tree.unflatten(treedef, merged)
        outs, out_tree = jax.tree.flatten(fun(*args, **kwargs))
        traced = [isinstance(leaf, Tracer) for leaf in outs]
        # What does not depend on the trace is returned as the object that it is.
        result[:] = (
            [None if t else x for t, x in zip(traced, outs, strict=True)],
            traced,
            out_tree,
        )
        return [x for t, x in zip(traced, outs, strict=True) if t]

    arrays = [leaves[i] for i in at]
    jaxpr = jax.make_jaxpr(flat)(*arrays)
    others, traced, out_tree = result

    def output(values: list) -> Any:
        each = iter(values)
        merged = [next(each) if t else x for t, x in zip(traced, others, strict=True)]
        return jax.tree.unflatten(out_tree, merged)

    return Traced(jaxpr, arrays, output)


def interpret(
    fun: Callable, handler: Handler, *args: Any, **kwargs: Any
) -> tuple[Any, logdict]:
    """Call `fun`, its records in the hands of `handler`."""
    interpreter = Interpreter(handler)
    traced = interpreter.trace(fun, *args, **kwargs)
    outs, logs = interpreter(traced.jaxpr, *traced.args)
    return traced.output(outs), logs


def check(jaxpr: Any, seen: set[int] | None = None) -> None:
    """Raise if a record is in an equation that does not show it, and would be lost."""
    seen = set() if seen is None else seen
    for eqn in jaxpr.eqns:
        for inner in equations.jaxprs_in(eqn.params):
            hidden = log_effect in inner.effects and log_effect not in eqn.effects
            # What has a rule shows what it runs; what it may run later is not lost.
            if hidden and equations.name_of(eqn) not in rules:
                raise _unsupported(eqn)
            if id(inner) not in seen:
                seen.add(id(inner))
                check(inner, seen)


def _unsupported(eqn: JaxprEqn) -> NotImplementedError:
    keys = listed(key for record in records_in(eqn.params) for key in record.keys)
    return NotImplementedError(
        f"lox does not know how logs leave `{equations.name_of(eqn)}`, which holds {keys} "
        f"(at {tracing.where(eqn)}). Log outside of it, or wrap what is inside in "
        "`lox.nolog`."
    )


def records_in(params: Any, *, on_their_way: bool = True) -> Iterator[Record]:
    """The records in a program or the parameters of an equation, but for their values.

    Those on their way to the host already are among them, if they are asked for.
    """
    wanted = (log_p, emit_p) if on_their_way else (log_p,)
    for jaxpr in equations.jaxprs_in(params):
        for eqn in jaxpr.eqns:
            if eqn.primitive in wanted:
                leaves = eqn.invars[len(eqn.outvars) :]
                yield from jax.tree.unflatten(eqn.params["form"], leaves)
            elif not {log_effect, emit_effect}.isdisjoint(eqn.effects):
                inside = records_in(eqn.params, on_their_way=on_their_way)
                devices = sharding.device_count(eqn)
                for record in inside:
                    outer, inner = (
                        record.batch[: record.outer],
                        record.batch[record.outer :],
                    )
                    yield record.replace(batch=(*outer, *devices, *inner))


def _constant(x: Any) -> Any:
    """The same value without derivatives."""
    has_derivatives = isinstance(x, Tracer) and jax.dtypes.issubdtype(x.dtype, np.inexact)
    return jax.lax.stop_gradient(x) if has_derivatives else x


def _donates(jaxpr: Any) -> bool:
    """Whether a jitted function in the program takes over buffers."""
    return any(any(eqn.params.get("donated_invars", ())) for eqn in jaxpr.eqns)


def _lasting(x: Any) -> Any:
    """What is logged, also when its buffer is given away later."""
    return (
        jnp.array(x, copy=True)
        if isinstance(x, jax.Array) and not isinstance(x, Tracer)
        else x
    )


def _last_use(jaxpr: Any) -> dict[Any, float]:
    """For each variable, the number of the last equation that reads it."""
    uses: dict[Any, float] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        uses.update((atom, i) for atom in eqn.invars if not isinstance(atom, Literal))
    end = float("inf")
    uses.update((atom, end) for atom in jaxpr.outvars if not isinstance(atom, Literal))
    return uses
