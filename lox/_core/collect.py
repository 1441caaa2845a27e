"""Collect records: the handler of `spool`, and of whatever delivers rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp

from lox._core.handler import Handler
from lox._core.log import relog
from lox._core.record import Record, log_effect
from lox._logdict.logdict import logdict
from lox._rows.accumulator import Accumulator, finished, reduced
from lox._rows.loop_carry import shortened
from lox._rows.merge import Entry, without_ghosts
from lox._rows.reductions import reduction_named
from lox._rows.rows import Rows, Where, check_batch, static, widened
from lox._rows.side_by_side import Apart, entry_key

COUNT = "\0"
"""What the keys begin with under which the rows of other keys are counted."""

_counting: Any = reduction_named("count")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Collect(Handler):
    """Collect the selected keys; what is not selected goes on outward.

    Attributes:
        keys: The keys to collect. None: all.
        tags: The tags to collect. None: all.
        entries: Of what is selected, the entries to collect. None: all.
        keep: Whether what is collected goes on outward, too.
        outward: Whether anything goes on outward.
        apart: Whether every reduction of a key stands apart, not only an `Apart`.
        reduce: The reduction of each key, or of all keys (None). Without one, a record's
            own.
        interval: Every how many rows of a key one is kept.
        capacity: How many rows of a loop of unknown length are kept.
        gathers: Whether a loop has anything to carry.
        offsets: How many rows of each key there have been, if that decides what is kept.
        coordinates: Steps of all that is collected: which device of a mesh this is.
    """

    keys: frozenset[str] | None = static(default=None)
    tags: frozenset[str] | None = static(default=None)
    entries: frozenset[str] | None = static(default=None)
    keep: bool = static(default=False)
    outward: bool = static(default=True)
    apart: bool = static(default=False)
    reduce: tuple[tuple[str | None, Any], ...] = static(default=())
    interval: int | None = static(default=None)
    capacity: int | None = static(default=None)
    gathers: bool = static(default=False)
    offsets: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    coordinates: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    captures = True
    effects = frozenset({log_effect})

    def handle(self, record: Record, where: Where) -> dict[str, Entry]:
        tagged = self.tags is None or not self.tags.isdisjoint(record.tags)
        mine = [key for key in record.keys if tagged and self._wants(key, record)]
        outward = [key for key in record.keys if self.keep or key not in mine]
        if outward and self.outward:
            relog(record.only(tuple(outward)).replace(heard=(*record.heard, *mine)))
        entries: dict[str, Entry] = {}
        collected = record.only(tuple(mine)).located(self.coordinates)
        for key, rows in collected.rows(where).items():
            entry = self._entry(key, record)
            if self.interval is not None:
                entries[COUNT + entry], rows = self._thinned(entry, rows)
            reduction = reduction_named(self._asked(key, record))
            entries[entry] = rows if reduction is None else reduced(entry, rows, reduction)
        return entries

    def _asked(self, key: str, record: Record) -> Any:
        asked = dict(self.reduce)
        return asked.get(key, asked.get(None, record.reduce))

    def _entry(self, key: str, record: Record) -> str:
        """What the rows of a key are collected under."""
        asked = self._asked(key, record)
        stands_apart = self.apart or isinstance(asked, Apart)
        return entry_key(key, asked) if stands_apart else key

    def _thinned(self, key: str, rows: Rows) -> tuple[Accumulator, Rows]:
        """Count a row, and keep it if it is one of every `interval` rows."""
        offset = self.offsets.get(key, jnp.zeros(rows.batch, jnp.int32))
        check_batch(key, rows, rows.replace(batch=offset.shape))
        rows = widened(rows, offset.shape)
        count = reduced(key, rows, _counting)
        keep = offset % self.interval == 0
        valid = keep if rows.valid is None else rows.valid & keep
        return count, rows.replace(valid=valid, altered="thinned")

    def carries(self) -> bool:
        return self.gathers

    def every(self) -> int:
        return self.interval or 1

    def after(self, entries: Mapping[str, Entry]) -> Self:
        if self.interval is None:
            return self
        offsets = dict(self.offsets)
        for key in offsets:
            if COUNT + key in entries:
                count, *_ = entries[COUNT + key].value
                offsets[key] = offsets[key] + jnp.broadcast_to(count, offsets[key].shape)
        return dataclasses.replace(self, offsets=offsets)

    def batched(self, size: int) -> Self:
        offsets = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (size, *x.shape)), self.offsets
        )
        return dataclasses.replace(self, offsets=offsets)

    def per_device(self, records: Sequence[Record]) -> Self:
        at: dict[str, int] = {}
        for record in records:
            for entry in (self._entry(key, record) for key in record.keys):
                at[entry] = max(at.get(entry, 0), record.outer)
        shared = jax.tree.map(lambda _: -1, self)
        offsets = {key: at.get(key, -1) for key in self.offsets}
        return dataclasses.replace(shared, offsets=offsets)

    def capacities(self, logs: logdict, length: int | None) -> dict[str, int]:
        rows = {key: own for key, own in logs.rows().items() if isinstance(own, Rows)}
        if length is None:
            return {key: self._capacity(key, own) for key, own in rows.items()}
        if self.interval is None or length == 0:
            return {}
        kept = {k: -(-own.bound * length // self.interval) for k, own in rows.items()}
        return {key: number for key, number in kept.items() if number}

    def _capacity(self, key: str, rows: Rows) -> int:
        if self.capacity is None:
            raise ValueError(
                f"Cannot keep the rows of {key!r}, logged at {rows.where}, in a "
                "`while_loop` (or a `fori_loop` whose bounds are not static): how many "
                "there will be is not known at trace time. Reduce them while the program "
                "runs with `reduce=`, keep the last n with `capacity=n`, or stream them "
                "with `lox.tap`."
            )
        return self.capacity

    def prepared(self, records: Sequence[Record]) -> Self:
        """The handler for a program that holds these records."""
        asked = [*(own for _, own in self.reduce), *(record.reduce for record in records)]
        gathers = self.interval or any(map(reduction_named, asked))
        batches: dict[str, list[tuple[int, ...]]] = {}
        for record in records if self.interval else ():
            for entry in (self._entry(key, record) for key in record.keys):
                batches.setdefault(entry, []).append(record.batch)
        offsets = {
            key: jnp.zeros(_widest(key, each), jnp.int32) for key, each in batches.items()
        }
        return dataclasses.replace(self, gathers=bool(gathers), offsets=offsets)

    def finished(self, logs: logdict) -> dict[str, Rows]:
        """The rows that are left in the end."""
        entries = logs.rows()
        return {
            key: self._finished(key, own)
            for key, own in entries.items()
            if not key.startswith(COUNT)
        }

    def _finished(self, key: str, rows: Entry) -> Rows:
        if isinstance(rows, Accumulator):
            return finished(rows)
        if self.interval is not None:
            rows = shortened(key, rows, -(-rows.bound // self.interval))
            if rows.sure and not rows.path:
                rows = rows.replace(valid=None)
        rows = without_ghosts(rows)
        return rows.replace(path=(), outer=0, sure=True, bound=1, where=Where())

    def _wants(self, key: str, record: Record) -> bool:
        if self.keys is not None and key not in self.keys:
            return False
        return self.entries is None or self._entry(key, record) in self.entries

    def only(self, keys: frozenset[str]) -> Self:
        return dataclasses.replace(self, entries=keys)

    def quiet(self) -> Self:
        return dataclasses.replace(self, outward=False)


def _widest(key: str, batches: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The batch axes of rows that are counted together."""
    widest = max(batches, key=len)
    for batch in batches:
        rest = iter(widest)
        if not all(size in rest for size in batch):  # in this order
            raise ValueError(
                f"{key!r} is logged with axes (of `vmap`s and devices) of sizes {batch} "
                f"and {widest}, and `interval` cannot count its rows together. Use another "
                "key for one of them, or no `interval`."
            )
    return widest
