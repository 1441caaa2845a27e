"""`Watch`: the handler that logs what enters and leaves scopes.

The interpreter stops in front of each scope and behind it, and shows the handler what the
scope reads and what leaves it. The handler logs statistics of it, and passes what leaves
the scope through `lox_log_grad`:

    { lambda ; w x. let                   { lambda ; w x. let
        h = dot w x     block/mlp             h = dot w x
        y = tanh h      block/mlp             y = tanh h
                                              lox_log[block/mlp/out/rms] (rms of y)
                                              y' = lox_log_grad[block/mlp/grad] y
        z = add y x     block         ->      z = add y' x
      in (z,) }                             in (z,) }

`lox_log_grad` is an identity whose transpose logs. Everything after the scope reads `y'`,
and nothing inside does. So exactly the cotangent of what leaves the scope flows back
through it.

A function that is differentiated inside the watched one has its own handler (`WatchInside`,
see `lox._core.derivative_hook`). This handler knows neither the scopes nor the loops around
the derivative, so its records are incomplete, and marked with the attribute `scope`. The
handler of the outer program adds what is missing when it meets them:

    def step(...):                      record inside             record around
      with named_scope("train"):
        jax.grad(loss)                  block/mlp/out/rms         train/block/mlp/out/rms
"""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import jax

from lox._core.analysis import last_uses
from lox._core.derivative_hook import not_looking
from lox._core.handler import Forward, Handler
from lox._core.interpreter import Interpreter
from lox._core.log import relog
from lox._core.log_grad import bind_grad
from lox._core.record import Record, log_effect
from lox._inside.watching.options import WatchOptions
from lox._inside.watching.watchable_places import (
    NOWHERE,
    Place,
    ScopesAround,
    entries_in,
    holds_entries,
    inputs_of,
    is_described,
    is_opaque,
    outputs_of,
)
from lox._jax import equations
from lox._jax.extend import Jaxpr, JaxprEqn
from lox._jax.name_scopes import mark_watched
from lox._jax.types import AnyArray, Code, PyTree
from lox._rows.collected import Collected
from lox._rows.rows import Where, static


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Watch(Handler):
    """Log what enters and leaves scopes, and pass on existing records.

    Attributes:
        options: What to watch.
        steps: Steps for all records.
        counters: The iterations of the loops around, innermost first.
        within: The scopes around the program.
        is_inside: Whether the program is about to be differentiated, see `WatchInside`.
    """

    options: WatchOptions = static()
    steps: dict[str, AnyArray] = dataclasses.field(default_factory=dict)
    counters: tuple[jax.Array, ...] = ()
    within: ScopesAround = static(default=NOWHERE)
    is_inside: bool = static(default=False)

    captures = True
    counts = True
    effects = frozenset({log_effect})

    def concerns(self, program: Code) -> bool:
        if super().concerns(program):
            return True
        # JAX moves equations out of a `scan` that it differentiates. So that these can be
        # recognised, a `scan` is always evaluated in here, where its body is marked.
        is_equation = isinstance(program, JaxprEqn)
        if self.is_inside and is_equation and equations.primitive_name(program) == "scan":
            return True
        return holds_entries(program, self.within, self.options.selection)

    def evaluating(self) -> contextlib.AbstractContextManager:
        return mark_watched() if self.is_inside else contextlib.nullcontext()

    def handle(self, record: Record, where: Where) -> Collected:
        if record.scope is not None:
            assert where.eqn is not None
            # The scopes around the derivative come before those inside, which are known.
            outside = self.within.inside(where.eqn).outside
            self._log("/".join((*outside, record.scope)), record)
        else:
            relog(record)
        return Collected()

    def _log(self, scope: str, record: Record) -> None:
        """Log a record of a scope; the scopes and loops around it are known here."""
        if not self.is_inside and not self._has(scope):
            return
        relog(self._completed(scope, record))

    def _has(self, scope: str) -> bool:
        # A predicate was asked about the equation itself. Names are complete only now.
        is_known = self.options.selection.predicate is not None
        return is_known or self.options.selection.has(scope)

    def _completed(self, scope: str, record: Record) -> Record:
        """Return a record with the names of all scopes and the counters of all loops."""
        assert record.scope is not None
        keys = tuple(scope + key.removeprefix(record.scope) for key in record.keys)
        # The names that the loops inside have left.
        loops = [name for name in self.options.loops if name not in record.steps]
        counted = dict(zip(loops, self.counters, strict=False))
        return record.with_default_steps(self.steps | counted).replace(
            keys=keys, scope=scope if self.is_inside else None
        )

    def enter(self, eqn: JaxprEqn) -> "Watch | Forward":
        if is_opaque(eqn):
            return Forward()
        return dataclasses.replace(self, within=self.within.inside(eqn))

    def at_iteration(self, index: jax.Array) -> Self:
        # The loops of what was differentiated have been counted before, see `WatchInside`.
        if self.within.is_derivative:
            return self
        return dataclasses.replace(self, counters=(index, *self.counters))

    def stops(self, program: Jaxpr) -> Mapping[int, Sequence[Place]]:
        uses, found = last_uses(program), {}
        for entry in entries_in(program, self.within, self.options.selection):
            if entry.is_derivative:
                raise _differentiated_already(entry.name)
            # Before the first equation for what is read, behind the last for what leaves.
            outs = outputs_of(program, entry, uses)
            for place in (
                Place(entry.start, entry.name, "in", inputs_of(program, entry)),
                Place(entry.end, entry.name, "out", outs),
            ):
                described = place.only(is_described)
                if described.variables and self._wants(place):
                    found.setdefault(place.index, []).append(described)
        return found

    def _wants(self, place: Place) -> bool:
        if place.kind == "in":
            return "in" in self.options.values
        return bool({"out", "grad"} & {*self.options.values})

    def visit(self, stop: Place, values: list) -> list:
        if stop.kind in self.options.values:
            logged: dict[str, PyTree] = {}
            keys = _numbered(f"{stop.name}/{stop.kind}", len(values))
            # Statistics must not add a path by which gradients could flow back.
            for key, x in zip(keys, values, strict=True):
                logged |= self.options.describe(key, jax.lax.stop_gradient(x))
            self._log(stop.name, self._record(stop, logged))
        # The rest of the program reads what is returned here in place of the values.
        if stop.kind == "in" or "grad" not in self.options.values:
            return values
        return self._with_logged_grads(stop, values)

    def _with_logged_grads(self, stop: Place, values: list) -> list:
        """Return values whose cotangents are logged."""
        describe, returned = DescribeGrad(self.options), []
        keys = _numbered(f"{stop.name}/grad", len(values))
        for key, x in zip(keys, values, strict=True):
            record = self._completed(stop.name, self._record(stop, {key: x}))
            returned += bind_grad(record, describe=describe)
        return returned

    def _record(self, stop: Place, logged: dict[str, PyTree]) -> Record:
        return Record(
            values=tuple(logged.values()),
            steps={},
            keys=tuple(logged),
            tags=self.options.tags,
            scope=stop.name,
        )


@dataclasses.dataclass(frozen=True)
class DescribeGrad:
    """Turns the record of a cotangent into one of its statistics."""

    options: WatchOptions

    def __call__(self, record: Record) -> Record:
        ((key,), (cotangent,)) = record.keys, record.values
        describe = ft.partial(self.options.describe, key)
        # Each example of a batch is described by itself: (*batch, ...) -> (*batch,)
        for _ in record.batch:
            describe = jax.vmap(describe)
        logged = describe(cotangent)
        return record.replace(keys=tuple(logged), values=tuple(logged.values()))


def _numbered(key: str, number: int) -> list[str]:
    return [key] if number == 1 else [f"{key}/{i}" for i in range(number)]


@dataclasses.dataclass(frozen=True)
class WatchInside:
    """Watch a function that is differentiated inside the watched one.

    The scopes and loops around it are not known yet. So this watches all scopes that may
    turn out to be selected, and the handler of the outer program completes the records.
    """

    options: WatchOptions

    def __call__(self, fun: Callable, *args: PyTree) -> PyTree:
        selection = self.options.selection.anywhere()
        options = dataclasses.replace(self.options, selection=selection)
        interpreter = Interpreter(Watch(options, is_inside=True))
        traced = interpreter.trace(fun, *args)
        with not_looking():
            outs, _ = interpreter.on_device()(traced.jaxpr, *traced.args)
        return traced.output(outs)


def _differentiated_already(name: str) -> ValueError:
    return ValueError(
        f"JAX differentiated the scope {name!r} before `lox.watch` could look at it. In a "
        "derivative, lox cannot tell the outputs of a scope from what the backward pass "
        "needs. Put `lox.watch` around the function that you differentiate: "
        "`jax.grad(lox.watch(loss))`."
    )
