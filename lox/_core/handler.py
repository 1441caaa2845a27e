"""Handlers: what a transformation does with each record.

The interpreter walks through a program and knows nothing of the transformation it serves.
Whenever it meets a record, enters a loop or leaves a branch, it asks a handler:

    jaxpr            interpreter              handler
    ---------------  -----------------------  ------------------------------------------
    lox_log a        read the operands        handle(record): collect it, or pass it on
    lox_log b        the same                 handle(record)
    mul ...          evaluate as it is        deliver([a, b]): send both in one host call
    scan { ... }     the rule for `scan`      after(...): the handler for what comes next

`Handler` is the contract, with defaults that do nothing. A handler is a pytree, so that it
passes through `jit` and into loops; it is never changed, but gives a new one back. This
file also holds the small handlers: those that pass records on, drop them or rewrite them.
`Collect` is in `collect.py`, `Tap` and `Count` are in `lox._stream`.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from lox._core.analysis import holds_writes, may_hold_records
from lox._core.log import relog
from lox._core.record import (
    RECORD_EFFECTS,
    C,
    Delivery,
    Record,
    bind,
    emit_p,
    log_effect,
    log_p,
)
from lox._rows.collected import Collected, Keys, Threaded
from lox._rows.rows import Branch, Where, static


class Handler:
    """What a transformation does with each record.

    Attributes:
        captures: Whether functions are traced anew for it, so that their logs are captured.
        effects: The effects of the records that it wants to see.
        differentiable: Whether what it collects carries derivatives.
        defers: Whether it rewrites what an equation holds only when JAX takes it up, see
            `deferred.py`.
    """

    captures: ClassVar[bool] = False
    differentiable: bool = False
    defers: ClassVar[bool] = False
    effects: ClassVar[frozenset] = frozenset()

    # What it does with records.

    def concerns(self, program: Any) -> bool:
        """Return whether there is anything for it in a program or an equation.

        All else is evaluated as it is.
        """
        return not self.effects.isdisjoint(program.effects)

    def handle(self, record: Record, where: Where) -> Collected:
        """Do something with a record, and return what is to be collected of it."""
        return Collected()

    def emit(
        self, records: Sequence[Record | Delivery], token: Any, params: dict[str, Any]
    ) -> Any:
        """Do something with records that are on their way to the host.

        Only asked if `effects` holds theirs. `params` are the other parameters of the host
        call. Returns the token that comes out of it.
        """
        return bind(emit_p, records, [token], **params)[0]

    def rewrite(self, record: C) -> C:
        """Return what becomes of a record, or of one to come, that stays where it is."""
        return record

    def emitted(self, token: Any) -> Threaded:
        """Return the state after a host call that returned this token."""
        return Threaded()

    def narrow(self, condition: jax.Array) -> jax.Array | None:
        """Let a question about the examples of a batch be about those that log here.

        None: nobody asks.
        """
        return condition

    def deliver(self, parts: Sequence[Collected], iterations: Any) -> Sequence[Collected]:
        """Do something with what was collected in a row, and return what is left.

        `iterations` says of how many iterations of a loop it is, 0 outside of a chunk.
        """
        return parts

    # What it hands on from one part of a program to the next.

    def carries(self) -> bool:
        """Return whether loops have to carry anything for it."""
        return False

    def threaded(self) -> Threaded:
        """Return the state that each part of a program hands to the next."""
        return Threaded()

    def after(self, state: Threaded) -> Self:
        """Return the handler for what comes next, given what was handed on."""
        return self

    # How it treats loops.

    def chunk(
        self, body: Sequence[Any], rows: Callable[[], int], length: int | None
    ) -> int | None:
        """Return after how many iterations a loop delivers. None: it doesn't.

        Args:
            body: The programs that the loop runs in one iteration.
            rows: Returns how many rows of a key they log.
            length: How many iterations there are. None: that is not known.
        """
        return None

    def buffering(self, loop: JaxprEqn, logs: Callable[[], Collected]) -> Self | None:
        """Return the handler for a loop in which rows wait for others. None: they don't.

        `logs()` is what is logged in one iteration.
        """
        return None

    def flush(self, logs: Collected) -> Collected:
        """Return the logs of such a loop when nothing waits any more."""
        return logs

    def enter(self, eqn: JaxprEqn) -> "Handler":
        """Return the handler for what an equation holds."""
        return self

    def leave(self, logs: Collected) -> Collected:
        """Do something with what an equation has logged, and return what is left."""
        return logs

    def capacities(self, logs: Collected, length: int | None) -> dict[Keys, int]:
        """Return how many rows a loop keeps, for keys whose rows it keeps in a ring."""
        return {}

    def every(self) -> int:
        """Return of how many rows of a key one is collected."""
        return 1

    # Its variants.

    def collecting(self, capacity: int | None = None) -> "Handler":
        """Return the handler that collects the same, and delivers nothing."""
        return self

    def only(self, keys: frozenset[str]) -> Self:
        """Return the handler that collects no other keys."""
        return self

    def quiet(self) -> Self:
        """Return the handler that collects the same, and does nothing else."""
        return self

    def following(self, earlier: "Handler") -> "Handler":
        """Return the handler that does to a record what `earlier` does, then what it does.

        Only asked of the handlers that meet one that `defers`.
        """
        return self

    def in_backward_rules(self) -> "Handler":
        """Return the handler for backward rules, which run when the program is over.

        What they log belongs to the transformations around the derivative.
        """
        return Forward()

    # How it goes through `vmap` and `shard_map`.

    def batched(self, size: int) -> Self:
        """Return the handler for the inside of a `vmap` of this size."""
        return self

    def unbatched(self, batched: Any) -> Self | None:
        """Return the handler for all examples, given which of its arrays are batched.

        None: it is not the same for all of them.
        """
        return None if any(jax.tree.leaves(batched)) else self

    def per_device(self, records: Sequence[Record]) -> Self:
        """Return which axis of each array is that of the devices of a `shard_map`.

        -1: it has none. `records` are those that are logged in there.
        """
        return jax.tree.map(lambda _: -1, self)

    def on_device(self) -> Self:
        """Return the handler for this place, which may be inside a `shard_map`."""
        return self


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Idle(Handler):
    """Leave everything as it is."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Forward(Handler):
    """Log each record anew, for the transformations around this place."""

    captures = True
    effects = frozenset({log_effect})

    def handle(self, record: Record, where: Where) -> Collected:
        relog(record)
        return Collected()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Drop(Handler):
    """Leave records out."""

    effects = RECORD_EFFECTS

    def emit(
        self, records: Sequence[Record | Delivery], token: Any, params: dict[str, Any]
    ) -> Any:
        return token

    def narrow(self, condition: jax.Array) -> None:
        return None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Strip(Drop):
    """Leave records out, and what is written into rings, too."""

    def concerns(self, program: Any) -> bool:
        return super().concerns(program) or holds_writes(program)


class _Rewrite(Handler, abc.ABC):
    """Leave records where they are, but changed."""

    effects = RECORD_EFFECTS

    @abc.abstractmethod
    def rewrite(self, record: C) -> C: ...

    def handle(self, record: Record, where: Where) -> Collected:
        bind(log_p, [self.rewrite(record)])
        return Collected()

    def emit(
        self, records: Sequence[Record | Delivery], token: Any, params: dict[str, Any]
    ) -> Any:
        return super().emit([self.rewrite(record) for record in records], token, params)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask(_Rewrite):
    """Let records be valid only where all conditions hold.

    Attributes:
        conditions: The conditions, that of the innermost loop or branch first.
        branches: For each of them, the branch of a `cond` that it is about.
    """

    conditions: tuple[jax.Array, ...]
    branches: tuple[Branch | None, ...] = static()

    defers = True

    @classmethod
    def of(cls, condition: jax.Array, branch: Branch | None = None) -> "Mask":
        return cls((condition,), (branch,))

    def concerns(self, program: Any) -> bool:
        # What rules log once the program is differentiated must be masked, too.
        return may_hold_records(program) or holds_writes(program)

    def in_backward_rules(self) -> "Mask":
        return self

    def following(self, earlier: Handler) -> "Mask":
        assert isinstance(earlier, Mask)
        conditions = *self.conditions, *earlier.conditions
        return Mask(conditions, (*self.branches, *earlier.branches))

    def rewrite(self, record: C) -> C:
        each = zip(self.conditions, self.branches, strict=True)
        for condition, branch in reversed(list(each)):
            # A condition may have the first batch axes of the record, or none.
            inner = range(condition.ndim, len(record.batch))
            wide = jnp.broadcast_to(jnp.expand_dims(condition, inner), record.batch)
            valid = wide if record.valid is None else record.valid & wide
            if branch is None:
                record = record.replace(valid=valid, exact=False)
            else:
                record = record.replace(valid=valid, path=(*record.path, branch))
        return record

    def narrow(self, condition: jax.Array) -> jax.Array:
        for mask in reversed(self.conditions):
            condition = condition & mask
        return condition


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Anchor(_Rewrite):
    """Tie records to `counter`, so that they stay in the loop that counts it."""

    counter: jax.Array

    def rewrite(self, record: C) -> C:
        return record.replace(anchors=(*record.anchors, self.counter))
