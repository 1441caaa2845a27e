"""`RecordLast`: the handler that keeps the last records in a black box.

A `Collect` inside it turns records into rows. If a box can be passed through an equation
(`jit`, loops and branches), each record goes into the box at once, and the box is sent as
soon as it has fired and waited long enough. Otherwise (custom rules, `checkpoint`,
`shard_map`), rows leave the equation as `spool` collects them, and then go into the box.

    scan { log a ; cond { log b } }        a and b go into the box in each iteration
    checkpoint { scan { log a } }          all rows of a go into the box at the end

The box, the token and the count of records are threaded state: the rules carry them through
loops and branches. The invariant: while no record fires, there is no host call.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp

from lox._core.analysis import lets_buffer_through
from lox._core.collect import Collect
from lox._core.handler import Handler
from lox._core.log import relog
from lox._core.record import Record
from lox._core.when import Condition, asked_of_record
from lox._inside.black_box.box import FIRES, NUMBER, Box
from lox._jax import sharding
from lox._jax.extend import JaxprEqn
from lox._rows.align import repeated
from lox._rows.collected import Collected, Keys, Threaded
from lox._rows.rows import Rows, Where, static
from lox._stream.buffer import any_example
from lox._stream.emit import emit
from lox._stream.handler import delivery_of
from lox._stream.packet import Packet

# The key of the count of records in the offsets of the threaded state.
_RECORDS = "\0records"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RecordLast(Handler):
    """Keep the last records in a box, and pass all of them on outwards.

    Attributes:
        collect: Selects records, and turns them into rows.
        token: The token of the last host call. The next call takes it, and so comes later.
        count: How many records there have been, `*examples`, or one number for all.
        box: The box of records. None: they leave the equation around them as rows.
        callback: What the host calls.
        when: Whether a record fires.
        outward: Whether anything is passed on outwards.
    """

    collect: Collect
    token: jax.Array
    count: Any
    box: Box | None
    callback: Callable[[Packet], None] = static()
    when: Condition = static()
    outward: bool = static(default=True)

    captures = True

    def concerns(self, program: Any) -> bool:
        return self.collect.concerns(program)

    def handle(self, record: Record, where: Where) -> Collected:
        if self.outward:
            relog(record.replace(passed_on=True))
        mine = self.collect.selected(record)
        if not mine:
            return Collected()
        asked = record.only(tuple(mine))
        fires = asked_of_record(self.when, asked, where)
        marked = asked.replace(steps={**asked.steps, FIRES: fires})
        logs = self.collect.handle(marked, where)
        ((keys, rows),) = logs.rows.items()
        rows, count = self._numbered(rows)
        return Collected({keys: rows}, logs.order, Threaded({_RECORDS: count}))

    def _numbered(self, rows: Rows) -> tuple[Rows, jax.Array]:
        """Return a row with its number, and the count of records after it."""
        examples = self.count.shape
        if rows.batch[: len(examples)] != examples:
            rows = repeated(rows, examples)
        # (*examples,) -> (*examples, *others)
        others = range(len(examples), len(rows.batch))
        number = jnp.broadcast_to(jnp.expand_dims(self.count + 1, others), rows.batch)
        rows = rows.replace(steps={**rows.steps, NUMBER: number})
        if rows.valid is None:
            return rows, self.count + 1
        return rows, self.count + rows.valid.any(tuple(others)).astype(jnp.int32)

    def deliver(self, parts: Sequence[Collected], iterations: Any) -> Sequence[Collected]:
        if self.box is None:
            return parts
        handler, left = self, []
        for i in range(0, len(parts), self.box.together):
            left.append(handler._added(parts[i : i + self.box.together]))
            handler = handler.after(left[-1].threaded)
        return left

    def enter(self, eqn: JaxprEqn) -> Self:
        is_open = self.box is None or lets_buffer_through(eqn)
        return self if is_open else self._replace(box=None)

    def leave(self, logs: Collected) -> Collected:
        if self.box is None or not logs.rows:
            return logs
        return self._added([logs])

    def _added(self, parts: Sequence[Collected]) -> Collected:
        """Put rows into the box, and send it if it has all records that it waits for.

        The question costs more than a row, so it is asked once for all parts.
        """
        later, state = self, Threaded()
        for part in parts:
            assert later.box is not None
            box = later.box.add(part) if part.rows else later.box
            later = later.after(part.threaded)._replace(box=box)
            state = state.then(part.threaded)
        assert later.box is not None
        sent = later.sent(later.box.is_due(later.count))
        return Collected(threaded=state.then(sent))

    def sent(self, condition: jax.Array) -> Threaded:
        """Send the boxes of the examples for which a condition holds."""
        assert self.box is not None
        send = ft.partial(self._send, condition)
        is_any = any_example(condition.any())
        token = jax.lax.cond(is_any, send, lambda: jnp.asarray(self.token))
        # The token is zero, so adding it changes nothing but the order: the next record is
        # numbered, and so written, after the box has been read here. Otherwise the compiler
        # would copy all rings each time.
        count = {_RECORDS: self.count + token}
        return Threaded(count, self.box.delivered(condition), token)

    def _send(self, condition: jax.Array) -> jax.Array:
        assert self.box is not None
        delivery = delivery_of(self.box.records(), None, condition.shape)
        return emit([delivery.replace(valid=condition)], self.callback, self.token)

    def carries(self) -> bool:
        return True

    def threaded(self) -> Threaded:
        return Threaded({_RECORDS: self.count}, self.box, self.token)

    def after(self, state: Threaded) -> Self:
        return self._replace(
            count=state.offsets.get(_RECORDS, self.count),
            box=self.box if state.buffer is None else state.buffer,
            token=self.token if state.token is None else state.token,
        )

    def capacities(self, logs: Collected, length: int | None) -> dict[Keys, int]:
        if length is not None or not logs.rows:
            return {}
        if self.collect.capacity is not None:
            return dict.fromkeys(logs.rows, self.collect.capacity)
        key, rows = next((keys[0], rows) for keys, rows in logs.rows.items())
        raise NotImplementedError(
            f"`lox.recorder` cannot keep {key!r}, logged at {rows.where} in a `while_loop` "
            "(or a `fori_loop` whose bounds are not static) that is inside a `shard_map`, "
            "a `checkpoint` or a function with a custom rule: at trace time, JAX does not "
            "know how many records there will be. Put `lox.recorder` inside, around the "
            "loop."
        )

    def collecting(self, capacity: int | None = None) -> Self:
        collect = self.collect.collecting(capacity)
        return self._replace(collect=collect, box=None)

    def only(self, keys: frozenset[str]) -> Self:
        return self._replace(collect=self.collect.only(keys))

    def quiet(self) -> Self:
        return self._replace(outward=False)

    def batched(self, size: int) -> Self:
        # (*examples,) -> (size, *examples)
        count = jnp.broadcast_to(self.count, (size, *self.count.shape))
        return self._replace(count=count)

    def unbatched(self, batched: Any) -> Self | None:
        # All tokens are zero, so the largest is as good as any, and depends on all of them.
        token = self.token.max(0) if batched.token else self.token
        return None if batched.count else self._replace(token=token)

    def on_device(self) -> Self:
        coordinates = sharding.coordinates()
        collect = dataclasses.replace(self.collect, coordinates=coordinates)
        return self._replace(collect=collect)

    def _replace(self, **changes: object) -> Self:
        return dataclasses.replace(self, **changes)
