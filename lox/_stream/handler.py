"""`Tap`: the handler that sends what it collects to the host."""

import dataclasses
import functools as ft
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from lox._core.collect import COUNT, Collect
from lox._core.handler import Handler
from lox._core.record import Record
from lox._jax import equations, sharding
from lox._logdict.logdict import logdict
from lox._rows.merge import Entry
from lox._rows.rows import Rows, Where, per_example, static, without_keys
from lox._stream.buffer import POOL, Pool, hands_on, is_bounded
from lox._stream.emit import emit
from lox._stream.packet import Parcel
from lox._stream.token import chained, follow


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tap(Handler):
    """Call the host with the selected keys; all records go on outward.

    Attributes:
        collect: Collects what is to be delivered.
        token: Comes from the last host call: the next one comes after it.
        run: What each record goes with: the number of the run that it belongs to.
        callback: What the host calls.
        batch: Every how many rows of a key a loop delivers them. None: each record.
        lanes: Sizes of the batch axes that come from `vmap`s around.
        pool: Where rows wait for others. None: they are delivered at once.
    """

    collect: Collect
    token: Any
    run: Any
    pool: Pool | None = dataclasses.field(default=None, kw_only=True)
    callback: Callable[[Parcel], None] = static()
    batch: int | None = static(default=None)
    lanes: tuple[int, ...] = static(default=())

    captures = True

    def concerns(self, program: Any) -> bool:
        return self.collect.concerns(program)

    def handle(self, record: Record, where: Where) -> dict[str, Entry]:
        return self.collect.handle(record, where)

    def carries(self) -> bool:
        return True

    def every(self) -> int:
        return self.collect.every()

    def chunk(
        self, body: Sequence[Any], rows: Callable[[], int], length: int | None
    ) -> int | None:
        if self.batch is None or self.pool or not all(map(is_bounded, body)):
            return None
        number = max(1, rows())
        size = max(1, self.batch // number)
        if length is None or number == 1:
            return size
        # As many calls with as many rows each, if that is possible: the last few iterations
        # are then no program of their own.
        calls = -(-length // size)
        return size if length % calls else length // calls

    def buffering(self, loop: Any, logs: Callable[[], logdict]) -> Self | None:
        if self.batch is None or self.pool or self.lanes or self.collect.coordinates:
            return None
        if all(map(is_bounded, equations.jaxprs_in(loop.params))) or not hands_on(loop):
            return None
        rows = _only_rows(logs().rows())
        pool = Pool.of(rows, self.batch) if rows else None
        return pool and dataclasses.replace(self, pool=pool)

    def threaded(self) -> dict[str, Any]:
        return {POOL: self.pool} if self.pool else {}

    def deliver(
        self, parts: Sequence[dict[str, Entry]], iterations: Any
    ) -> Sequence[dict[str, Entry]]:
        """Send the collected rows to the host. What is left are counts and the token."""
        counts = [{k: own for k, own in p.items() if k.startswith(COUNT)} for p in parts]
        each = [rows for rows in map(_only_rows, parts) if rows]
        if not each:
            return counts
        if self.pool:
            return [*counts, *self._pooled(self.pool, each)]
        records = [_one_record(rows, self.run, self.lanes) for rows in each]
        return [*counts, chained(emit(records, self.callback, self.token))]

    def _pooled(self, pool: Pool, parts: list[dict[str, Rows]]) -> list:
        """Let rows wait until there are enough of some key, and send all that wait."""
        token = self.token
        for part in parts:
            pool = pool.add(part)
            is_full = pool.is_full()
            send = ft.partial(self._send, pool, token)
            token = jax.lax.cond(is_full, send, lambda token=token: token)
            pool = pool.emptied(is_full)
        return [{POOL: pool}, chained(token)]

    def flush(self) -> dict[str, Entry]:
        """Send all that waits. What is left is the token."""
        return chained(self._send(self.pool, self.token)) if self.pool else {}

    def _send(self, pool: Pool, token: Any) -> jax.Array:
        record = _one_record(pool.rows(), self.run, self.lanes)
        return emit([record], self.callback, token)

    def after(self, entries: Mapping[str, Entry]) -> Self:
        return dataclasses.replace(
            self,
            collect=self.collect.after(entries),
            token=follow(self.token, entries),
            pool=entries.get(POOL, self.pool),
        )

    def batched(self, size: int) -> Self:
        lanes, collect = (size, *self.lanes), self.collect.batched(size)
        return dataclasses.replace(self, collect=collect, lanes=lanes)

    def unbatched(self, batched: Any) -> Self | None:
        token = self.token.max(0) if batched.token else self.token
        collect = self.collect.unbatched(batched.collect)
        return collect and dataclasses.replace(self, collect=collect, token=token)

    def per_device(self, records: Sequence[Record]) -> Self:
        collect = self.collect.per_device(records)
        shared = jax.tree.map(lambda _: -1, self)
        return dataclasses.replace(shared, collect=collect)

    def on_device(self) -> Self:
        collect = dataclasses.replace(self.collect, coordinates=sharding.coordinates())
        return dataclasses.replace(self, collect=collect)

    def only(self, keys: frozenset[str]) -> Self:
        return dataclasses.replace(self, collect=self.collect.only(keys))

    def quiet(self) -> Self:
        return dataclasses.replace(self, collect=self.collect.quiet())

    def collecting(self, capacity: int | None = None) -> Collect:
        return dataclasses.replace(self.collect, capacity=capacity)


def _only_rows(entries: Mapping[str, Entry]) -> dict[str, Rows]:
    """The rows of keys that have any, without what is counted."""
    every = entries.items()
    return {key: own for key, own in every if not key.startswith(COUNT) and own.bound}


def _one_record(entries: Mapping[str, Rows], run: Any, lanes: tuple[int, ...]) -> Record:
    """The rows of several keys, and their run, as one record: valid if any row is."""
    n = len(lanes)
    rows = {
        key: without_keys(
            own.replace(path=(), outer=0, sure=True, bound=1, count=None, where=Where())
        )
        for key, own in entries.items()
    }
    has_lanes = np.ndim(run) > 0 or any(own.batch[:n] == lanes for own in rows.values())
    batch = lanes if has_lanes else ()
    for _ in batch:
        rows = {key: per_example(own, lanes[0]) for key, own in rows.items()}
    # Without any mask, all of it is delivered as it is.
    masks = [own.valid for own in rows.values()]
    valid = None
    if any(mask is not None for mask in masks):
        each = [_any(mask, batch) for mask in masks]
        valid = jnp.stack(each).any(0)
    logs = logdict.of(rows)
    run = None if run is None else jnp.broadcast_to(run, batch)
    return Record((logs, run), steps={}, valid=valid, keys=tuple(rows), batch=batch)


def _any(mask: Any, batch: tuple[int, ...]) -> jax.Array:
    """Which examples have any row."""
    if mask is None:
        return jnp.ones(batch, bool)
    return mask.any(range(len(batch), mask.ndim))
