"""Handlers that leave records where they are in a program, but changed.

JAX runs some parts of a program more often, or for more examples, than the program says. A
record there is not removed or collected, since the transformation that wants it is further
out. It is rewritten:

    `Mask`      Under `vmap`, all branches of a `cond` run for all examples. The record gets
                a mask, and `path` says which branch it is in:

                    lox_log[a] x     ->    lox_log[a path=(cond 7, branch 0 of 2)] x valid=m

    `Anchor`    Under `grad`, JAX moves what is the same in all iterations out of a `scan`.
                The record gets an operand that the loop counts, so it has to stay:

                    lox_log[a] x     ->    lox_log[a] x anchors=i

The rules that use them are in `rules/exact_vmap.py` and `rules/exact_grad.py`.
"""

import abc
from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp

from lox._core.analysis import holds_writes, may_hold_records
from lox._core.handler import Handler
from lox._core.record import RECORD_EFFECTS, C, Delivery, Record, bind, log_p
from lox._jax.types import AnyArray, Code, Params
from lox._rows.collected import Collected
from lox._rows.rows import Branch, Where, static
from lox_host.frozen import frozen


class Rewrite(Handler, abc.ABC):
    """Leave records where they are, but changed."""

    effects = RECORD_EFFECTS

    @abc.abstractmethod
    def rewrite(self, record: C) -> C: ...

    def handle(self, record: Record, where: Where) -> Collected:
        bind(log_p, [self.rewrite(record)])
        return Collected()

    def emit(
        self, records: Sequence[Record | Delivery], token: AnyArray, params: Params
    ) -> AnyArray:
        return super().emit([self.rewrite(record) for record in records], token, params)


@jax.tree_util.register_dataclass
@frozen
class Mask(Rewrite):
    """Make records valid only where all conditions hold.

    Attributes:
        conditions: The conditions, that of the innermost loop or branch first.
        branches: For each condition, the branch of a `cond` that it selects. None: it is
            the predicate of a loop.
    """

    conditions: tuple[jax.Array, ...]
    branches: tuple[Branch | None, ...] = static()

    defers = True

    @classmethod
    def of(cls, condition: jax.Array, branch: Branch | None = None) -> Self:
        return cls((condition,), (branch,))

    def concerns(self, program: Code) -> bool:
        # What derivative rules will log must be masked, too.
        return may_hold_records(program) or holds_writes(program)

    def in_backward_rules(self) -> "Mask":
        return self

    def following(self, earlier: Handler) -> "Mask":
        # Only masks are deferred. `earlier` is the one around, so it comes last.
        assert isinstance(earlier, Mask)
        conditions = *self.conditions, *earlier.conditions
        return type(self)(conditions, (*self.branches, *earlier.branches))

    def rewrite(self, record: C) -> C:
        # From the outermost loop or branch to the innermost, as the program nests them: the
        # path of a record begins outside.
        pairs = list(zip(self.conditions, self.branches, strict=True))
        for condition, branch in reversed(pairs):
            # A condition may have the first batch axes of the record, or none:
            # (*first,) -> (*first, 1, ...) -> (*batch,)
            inner = range(condition.ndim, len(record.batch))
            wide = jnp.broadcast_to(jnp.expand_dims(condition, inner), record.batch)
            valid = wide if record.valid is None else record.valid & wide
            # An example leaves a loop when it likes: how many rows it logs is not known.
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
@frozen
class Anchor(Rewrite):
    """Tie records to `counter`, so that they stay in the loop that counts it."""

    counter: jax.Array

    def rewrite(self, record: C) -> C:
        return record.replace(anchors=(*record.anchors, self.counter))
