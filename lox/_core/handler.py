"""Handlers: what a transformation does with each record.

The interpreter evaluates a program and knows nothing about the transformation it serves.
Whenever it meets a record, enters a loop or leaves a branch, it asks a handler:

    jaxpr            interpreter              handler
    ---------------  -----------------------  ------------------------------------------
    lox_log a        read the operands        handle(record): collect it, or pass it on
    lox_log b        the same                 handle(record)
    mul ...          evaluate as it is        deliver([a, b]): send both in one host call
    scan { ... }     the rule for `scan`      after(...): the handler for what comes next

`Handler` is the contract, with defaults that do nothing. A handler is a pytree, so that it
can be passed through `jit` and into loops. It is immutable: methods return a new one. This
file also holds the small handlers, which pass records on or drop them. Those that rewrite
them are in `mask.py`, `Collect` is in `collect.py`, `Tap` and `Count` are in `lox._stream`.
"""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

import jax
from jax.typing import ArrayLike

from lox._core.analysis import holds_writes
from lox._core.log import relog
from lox._core.record import (
    RECORD_EFFECTS,
    C,
    Delivery,
    Record,
    bind,
    emit_p,
    log_effect,
)
from lox._jax.extend import Jaxpr, JaxprEqn, Var
from lox._jax.sharding import Division
from lox._jax.types import AnyArray, Atom, Code, Params, Program, PyTree
from lox._rows.collected import Collected, Keys, Threaded
from lox._rows.rows import Where
from lox_host.frozen import frozen


class Stop(Protocol):
    """A place between two equations where the interpreter shows values to a handler.

    Attributes:
        variables: The variables whose values it shows. All of them are read later.
    """

    @property
    def variables(self) -> Sequence[Var]: ...


class Handler:
    """What a transformation does with each record.

    Attributes:
        captures: Whether functions are traced with their logs captured for it.
        effects: The effects of the records that it wants to see.
        differentiable: Whether what it collects carries derivatives.
        defers: Whether it rewrites inner programs only when JAX evaluates the equation that
            holds them, see `rules/deferred.py`.
        counts: Whether it wants to know which iteration of a `scan` it is in.
    """

    captures: ClassVar[bool] = False
    differentiable: bool = False
    defers: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    effects: ClassVar[frozenset] = frozenset()

    # What it does with records.

    def concerns(self, program: Code) -> bool:
        """Return whether a program or an equation holds anything for this handler.

        If not, it is evaluated as it is.
        """
        return not self.effects.isdisjoint(program.effects)

    def handle(self, record: Record, where: Where) -> Collected:
        """Handle a record, and return what is to be collected of it."""
        return Collected()

    def emit(
        self, records: Sequence[Record | Delivery], token: AnyArray, params: Params
    ) -> jax.Array:
        """Handle records that are already on their way to the host, and return a token.

        Only called if `effects` holds their effect. `params` are the other parameters of
        the host call.
        """
        return bind(emit_p, records, [token], **params)[0]

    def rewrite(self, record: C) -> C:
        """Return the record that takes the place of this one in the program."""
        return record

    def emitted(self, token: AnyArray) -> Threaded:
        """Return the state after a host call that returned this token."""
        return Threaded()

    def narrow(self, condition: jax.Array) -> jax.Array | None:
        """Restrict a condition on the examples of a batch to those that log here.

        None: the condition is not needed.
        """
        return condition

    def deliver(
        self, parts: Sequence[Collected], iterations: ArrayLike
    ) -> Sequence[Collected]:
        """Handle what consecutive records have collected, and return what is left.

        At the end of a chunk of a loop, `iterations` is the number of iterations in it.
        Elsewhere it is 0.
        """
        return parts

    # How it looks at values that are not logged.

    def stops(self, program: Jaxpr) -> Mapping[int, Sequence[Stop]]:
        """Return where to stop in a program and show values to the handler.

        The stops under `i` come before the equation with this index, or at the end.
        """
        return {}

    def evaluating(self) -> contextlib.AbstractContextManager:
        """Return a context in which the interpreter evaluates programs."""
        return contextlib.nullcontext()

    def visit(self, stop: Any, values: list) -> list:
        """Look at the values at one of its stops.

        Returns what the rest of the program reads in their place.
        """
        return values

    def inspects(self, program: Jaxpr) -> Collection[Var] | None:
        """Return the variables of a program whose values it wants to see. None: none."""
        return None

    def inspect(
        self, program: Jaxpr, eqns: Sequence[JaxprEqn], read: Callable[[Atom], AnyArray]
    ) -> Collected:
        """Look at values of equations that have just been evaluated.

        Only called if `inspects` asked for it. `read` returns the inputs of the equations,
        and those of their outputs that `inspects` returned.
        """
        return Collected()

    def finish(self, program: Jaxpr) -> Collected:
        """Handle the end of a program that was inspected."""
        return Collected()

    # State that is threaded from one part of a program to the next.

    def carries(self) -> bool:
        """Return whether loops have to carry anything for it."""
        return False

    def threaded(self) -> Threaded:
        """Return the state that is threaded through a program, as it is now."""
        return Threaded()

    def after(self, state: Threaded) -> Self:
        """Return the handler for what comes next, with this threaded state."""
        return self

    # How it treats loops.

    def at_iteration(self, index: jax.Array) -> Self:
        """Return the handler for one iteration of a `scan`. Only called if it `counts`."""
        return self

    def chunk(
        self, body: Sequence[Program], rows: Callable[[], int], length: int | None
    ) -> int | None:
        """Return how many iterations a loop runs between deliveries. None: no chunks.

        Args:
            body: The programs that the loop runs in one iteration.
            rows: Returns how many rows of a key they log at most.
            length: How many iterations there are. None: the number is not known.
        """
        return None

    def buffering(self, loop: JaxprEqn, logs: Callable[[], Collected]) -> Self | None:
        """Return the handler for a loop whose rows wait in a buffer. None: they do not.

        `logs()` returns what one iteration logs.
        """
        return None

    def flush(self, logs: Collected) -> Collected:
        """Flush the buffer after such a loop, and return its logs."""
        return logs

    def enter(self, eqn: JaxprEqn) -> "Handler":
        """Return the handler for the programs that an equation holds."""
        return self

    def leave(self, logs: Collected) -> Collected:
        """Handle what an equation has logged, and return what is left."""
        return logs

    def capacities(self, logs: Collected, length: int | None) -> dict[Keys, int]:
        """Return how many rows a loop keeps, for each group of keys that needs a ring."""
        return {}

    def every(self) -> int:
        """Return the interval `n`: one of `n` rows of a key is collected."""
        return 1

    # Its variants.

    def collecting(self, capacity: int | None = None) -> "Handler":
        """Return the handler that collects the same but delivers nothing."""
        return self

    def only(self, keys: frozenset[str]) -> Self:
        """Return the handler that collects these keys only."""
        return self

    def quiet(self) -> Self:
        """Return the handler that collects the same but passes nothing on outwards."""
        return self

    def following(self, earlier: "Handler") -> "Handler":
        """Return a handler that does what `earlier` does and then what this one does.

        Only called when this handler meets an equation that `earlier` has deferred.
        """
        return self

    def in_backward_rules(self) -> "Handler":
        """Return the handler for backward rules, which run after the program has ended.

        Their records belong to the transformations around the derivative.
        """
        return Forward()

    # How it passes through `vmap` and `shard_map`.

    def batched(self, size: int) -> Self:
        """Return the handler that is used inside a `vmap` of this size."""
        return self

    def unbatched(self, batched: PyTree) -> Self | None:
        """Return one handler for all examples, given which of its arrays are batched.

        None: it differs between examples.
        """
        return None if any(jax.tree.leaves(batched)) else self

    def per_device(self, records: Sequence[Record]) -> Self:
        """Return a handler with, in place of each array, how it is divided among devices.

        `records` are those inside the `shard_map`.
        """
        return jax.tree.map(lambda _: Division(), self)

    def on_device(self) -> Self:
        """Return the handler for this place, which may be inside a `shard_map`."""
        return self


@jax.tree_util.register_dataclass
@frozen
class Idle(Handler):
    """Leave everything as it is."""


@jax.tree_util.register_dataclass
@frozen
class Forward(Handler):
    """Log each record again, for the transformations around."""

    captures = True
    effects = frozenset({log_effect})

    def handle(self, record: Record, where: Where) -> Collected:
        relog(record)
        return Collected()


@jax.tree_util.register_dataclass
@frozen
class Drop(Handler):
    """Drop all records."""

    effects = RECORD_EFFECTS

    def emit(
        self, records: Sequence[Record | Delivery], token: AnyArray, params: Params
    ) -> AnyArray:
        return token

    def narrow(self, condition: jax.Array) -> None:
        return None


@jax.tree_util.register_dataclass
@frozen
class Strip(Drop):
    """Drop all records, and what is written into rings."""

    def concerns(self, program: Code) -> bool:
        return super().concerns(program) or holds_writes(program)
