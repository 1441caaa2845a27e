"""`Collect`: the handler that collects records, for `spool` and inside `tap`.

One record at a time, it decides what to keep, and in which form:

    lox_log[keys=(loss, acc, norm), reduce="mean" for norm]

    selected by `keys`, `tags`      no: log it again, for the transformations around
    by `when`                       no: its row gets a mask that is false
    by `interval`                   no: the same; a count of rows is threaded state
    grouped by reduction            (loss, acc) -> Rows, which share their steps
                                    (norm,)     -> Accumulator

How rows and accumulators leave loops, branches and devices is up to the rules; the handler
only says how much of them is kept (`capacities`), and whether loops of unknown length share
a buffer (`buffering`, `enter`, `leave`, `flush`). At the end, `finished` turns what was
collected into the rows of each key.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Self

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from lox._core.analysis import is_bounded, lets_buffer_through
from lox._core.handler import Handler
from lox._core.log import relog
from lox._core.record import Record, log_effect
from lox._core.when import Condition, only_when
from lox._jax import equations
from lox._jax.extend import JaxprEqn
from lox._jax.sharding import Division
from lox._jax.types import AnyArray
from lox._rows.accumulator import Accumulator, Entry, finished, reduced
from lox._rows.align import check_batch, repeated
from lox._rows.collected import Collected, Keys, Threaded, rows_by_key
from lox._rows.loop_carry import Buffer, shortened
from lox._rows.merge import zero_masked_rows
from lox._rows.reductions import ReductionLike, reduction_named
from lox._rows.rows import Rows, Where, static
from lox._rows.several_reductions import SideBySide, entry_key
from lox._rows.types import Splits
from lox_host.frozen import frozen


@jax.tree_util.register_dataclass
@frozen
class Collect(Handler):
    """Collect the selected keys, and pass other keys on outwards.

    Attributes:
        keys: The keys to collect. None: all.
        tags: The tags to collect. None: all.
        entries: Of the selected entries, those to collect. None: all.
        keep: Whether collected keys are passed on outwards, too.
        outward: Whether anything is passed on outwards.
        side_by_side: Whether each reduction of a key is an entry of its own, even if it is
            not a `SideBySide`.
        reduce: The reduction of each key, or of all keys (None). It overrides the one that
            a record asks for.
        when: Which records are collected, by their values. None: all.
        differentiable: Whether what is collected carries derivatives.
        interval: Keep one of this many rows of each key. None: keep all.
        capacity: How many rows of a loop of unknown length are kept.
        gathers: Whether a loop has anything to carry.
        buffers: Whether nested loops of unknown length share a buffer.
        buffer: The buffer of the loops around. None: there is none.
        offsets: How many rows there have been, by counter, if that decides which are kept.
        counters: The counter of each entry: entries that are always logged together share
            one. An entry that is missing here has a counter of its own.
        coordinates: Steps for all records: which device of a mesh logs them.
    """

    keys: frozenset[str] | None = static(default=None)
    tags: frozenset[str] | None = static(default=None)
    entries: frozenset[str] | None = static(default=None)
    keep: bool = static(default=False)
    outward: bool = static(default=True)
    side_by_side: bool = static(default=False)
    reduce: tuple[tuple[str | None, ReductionLike], ...] = static(default=())
    when: Condition | None = static(default=None)
    differentiable: bool = static(default=False)
    interval: int | None = static(default=None)
    capacity: int | None = static(default=None)
    gathers: bool = static(default=False)
    buffers: bool = static(default=False)
    counters: tuple[tuple[str, str], ...] = static(default=())
    buffer: Buffer | None = None
    offsets: dict[str, AnyArray] = dataclasses.field(default_factory=dict, hash=False)
    coordinates: dict[str, AnyArray] = dataclasses.field(default_factory=dict, hash=False)

    captures = True
    effects = frozenset({log_effect})

    def handle(self, record: Record, where: Where) -> Collected:
        selected = self.selected(record)
        outward = [key for key in record.keys if self.keep or key not in selected]
        if outward and self.outward:
            relog(record.only(tuple(outward)).replace(passed_on=True))
        # After relogging: what others get does not depend on our condition.
        if selected and self.when is not None:
            record = only_when(self.when, record, where)
        # One group for all keys that are reduced in the same way: they share their steps.
        located = record.with_default_steps(self.coordinates)
        groups: dict[Keys, Entry] = {}
        offsets: dict[str, AnyArray] = {}
        for keys in self._together(selected, record):
            names = tuple(self._entry(key, record) for key in keys)
            rows = located.only(keys).rows(where)
            if self.interval is not None:
                counter = self._counter(names[0])
                rows, offset = self._thinned(counter, rows)
                if counter in self.offsets:
                    offsets[counter] = offset
            reduction = reduction_named(self._asked(keys[0], record))
            groups[names] = rows if reduction is None else reduced(names, rows, reduction)
        order = tuple(self._entry(key, record) for key in selected)
        return Collected(groups, order, Threaded(offsets))

    def selected(self, record: Record) -> list[str]:
        """Return the keys of a record that are collected."""
        tagged = self.tags is None or not self.tags.isdisjoint(record.tags)
        return [key for key in record.keys if tagged and self._wants(key, record)]

    def _together(self, keys: Sequence[str], record: Record) -> list[Keys]:
        """Return the keys of a record in groups that are collected as one.

        A group has one reduction, and with an `interval` one counter.
        """
        groups: dict[tuple[ReductionLike, str | None], list[str]] = {}
        for key in keys:
            counter = self._counter(self._entry(key, record)) if self.interval else None
            groups.setdefault((self._asked(key, record), counter), []).append(key)
        return [tuple(group) for group in groups.values()]

    def _counter(self, entry: str) -> str:
        """Return the name of the counter of an entry's rows."""
        return dict(self.counters).get(entry, entry)

    def _asked(self, key: str, record: Record) -> ReductionLike:
        """Return the reduction of a key: that of the handler, or else of the record."""
        asked = dict(self.reduce)
        return asked.get(key, asked.get(None, record.reduce))

    def _entry(self, key: str, record: Record) -> str:
        """Return the name under which the rows of a key are collected."""
        asked = self._asked(key, record)
        is_side_by_side = self.side_by_side or isinstance(asked, SideBySide)
        return entry_key(key, asked) if is_side_by_side else key

    def _thinned(self, counter: str, rows: Rows) -> tuple[Rows, jax.Array]:
        """Mask all but one of every `interval` rows, and return the new offset.

            interval 3, offset [2 3] (two examples)    keep [0 1]    new offset [3 4]

        Under `vmap`, each example counts its own rows: the offset has the batch axes. If
        no row is masked, all have the same number, and the offset has no axes.
        """
        # Rows 0, k, 2k, ... are kept. Masked rows do not count: `offset` is the number of
        # rows that the example has really logged.
        offset = self.offsets.get(counter, jnp.zeros(rows.batch, jnp.int32))
        alike = offset.ndim == 0
        if not alike:
            check_batch(counter, rows, rows.replace(batch=offset.shape))
            rows = repeated(rows, offset.shape)
        keep = lax.rem(offset, jnp.int32(self.interval)) == 0
        valid, count = jnp.broadcast_to(keep, rows.batch), 1
        if rows.valid is not None:
            valid, count = rows.valid & keep, rows.valid.astype(jnp.int32)
        rows = rows.replace(valid=valid, altered="thinned", alike=alike)
        return rows, offset + count

    def deliver(
        self, parts: Sequence[Collected], iterations: ArrayLike
    ) -> Sequence[Collected]:
        # Rows go into the buffer in order, so each part sees the buffer after the last one.
        handler, left = self, []
        for part in parts:
            left.append(handler.leave(part))
            handler = handler.after(left[-1].threaded)
        return left

    def carries(self) -> bool:
        return self.gathers or self.buffer is not None

    def every(self) -> int:
        return self.interval or 1

    def threaded(self) -> Threaded:
        return Threaded(self.offsets, self.buffer)

    def after(self, state: Threaded) -> Self:
        if not state.offsets and state.buffer is None:
            return self
        buffer = self.buffer if state.buffer is None else state.buffer
        offsets = {**self.offsets, **state.offsets}
        return dataclasses.replace(self, offsets=offsets, buffer=buffer)

    def buffering(self, loop: JaxprEqn, logs: Callable[[], Collected]) -> Self | None:
        can = self.buffers and self.buffer is None
        if not can or self.capacity is None or equations.primitive_name(loop) != "while":
            return None
        if all(map(is_bounded, equations.jaxprs_in(loop.params))):
            return None  # a ring for each key is enough
        inside = logs()
        if not inside.rows:
            return None
        buffer = Buffer.of(inside, self.capacity, differentiable=self.differentiable)
        return dataclasses.replace(self, buffer=buffer)

    def enter(self, eqn: JaxprEqn) -> Self:
        """Pass the buffer into an equation only if it logs an unknown number of rows.

        A bounded number of rows leaves the equation as its outputs do, and is then added to
        the buffer, all at once.
        """
        if self.buffer is None:
            return self
        if lets_buffer_through(eqn) and not is_bounded(eqn):
            return self
        return dataclasses.replace(self, buffer=None)

    def leave(self, logs: Collected) -> Collected:
        """Put the rows that an equation has logged into the buffer, if there is one."""
        if self.buffer is None or not logs.rows:
            return logs
        left = {keys: entry for keys, entry in logs.groups.items() if keys not in logs.rows}
        threaded = dataclasses.replace(logs.threaded, buffer=self.buffer.add(logs))
        return Collected(left, tuple(key for keys in left for key in keys), threaded)

    def flush(self, logs: Collected) -> Collected:
        """Return the logs of a loop, with the rows that are in the buffer."""
        assert self.buffer is not None
        groups = {**logs.groups, **self.buffer.kept(self.every())}
        threaded = dataclasses.replace(logs.threaded, buffer=None)
        return Collected(groups, self.buffer.order, threaded)

    def collecting(self, capacity: int | None = None) -> Self:
        capacity = self.capacity if capacity is None else capacity
        return dataclasses.replace(self, capacity=capacity, buffers=False, buffer=None)

    def batched(self, size: int) -> Self:
        # (*batch,) -> (size, *batch)
        offsets = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (size, *x.shape)), self.offsets
        )
        return dataclasses.replace(self, offsets=offsets)

    def per_device(self, records: Sequence[Record]) -> Self:
        # Offsets have their axis of devices where the rows of the entry have it: after the
        # axes of the `vmap`s around the `shard_map`. All other arrays are shared.
        outer: dict[str, Splits] = {}
        for record in records:
            for entry in (self._entry(key, record) for key in record.keys):
                outer[entry] = max(outer.get(entry, ()), record.outer, key=len)
        shared = jax.tree.map(lambda _: Division(), self)
        offsets = {
            key: Division(outer[key], spread=True) if key in outer else Division()
            for key in self.offsets
        }
        return dataclasses.replace(shared, offsets=offsets)

    def capacities(self, logs: Collected, length: int | None) -> dict[Keys, int]:
        groups = logs.rows.items()
        if length is None:
            return {keys: self._capacity(keys[0], rows) for keys, rows in groups}
        if self.interval is None or length == 0:
            return {}
        # Of `bound * length` rows, one in `interval` is kept: a ring of this size will do.
        kept = {keys: -(-rows.bound * length // self.interval) for keys, rows in groups}
        return {keys: number for keys, number in kept.items() if number}

    def _capacity(self, key: str, rows: Rows) -> int:
        if self.capacity is None:
            raise ValueError(
                f"Cannot keep the rows of {key!r}, logged at {rows.where}, in a "
                "`while_loop` (or a `fori_loop` whose bounds are not static): at trace "
                "time, JAX does not know how many there will be. Reduce them while the "
                "program runs with `reduce=`, keep the last n with `capacity=n`, or stream "
                "them with `lox.tap`."
            )
        return self.capacity

    def prepared(self, records: Sequence[Record], *, whole: bool) -> Self:
        """Return the handler for a program that holds these records.

        `whole` says that no other record will be met, nor one in parts. A function with a
        custom rule may do both.
        """
        # A loop has something to carry if any key is reduced, or if rows are counted.
        asked = [name for _, name in self.reduce]
        asked += [record.reduce for record in records]
        gathers = self.interval or any(map(reduction_named, asked))
        if self.interval is None:
            return dataclasses.replace(self, gathers=bool(gathers))
        found: dict[str, list[int]] = {}
        for i, record in enumerate(records):
            for key in record.keys:
                found.setdefault(self._entry(key, record), []).append(i)
        # Entries that are in the same records have the same number of rows.
        counter_of: dict[tuple, str] = {}
        counters, offsets = {}, {}
        for entry, numbers in found.items():
            counter = counter_of.setdefault(tuple(numbers) if whole else (entry,), entry)
            counters[entry] = counter
            if counter == entry:
                # It starts at 0, for each example that any record is batched over. If no
                # record is masked, all examples have the same rows.
                batch = _widest(entry, [records[i].batch for i in numbers])
                masks = [records[i].valid for i in numbers]
                is_masked = self.when or any(mask is not None for mask in masks)
                is_shared = whole and not is_masked and 0 not in batch
                offsets[counter] = jnp.zeros(() if is_shared else batch, jnp.int32)
        return dataclasses.replace(
            self, gathers=True, offsets=offsets, counters=tuple(counters.items())
        )

    def finished(self, logs: Collected) -> dict[str, Rows]:
        """Return the final rows of each key. Keys of one record share their steps."""
        groups = {k: self._finished(k, entry) for k, entry in logs.groups.items()}
        return rows_by_key(groups, logs.order)

    def _finished(self, keys: Keys, rows: Entry) -> Rows:
        if isinstance(rows, Accumulator):
            return finished(rows)
        if self.interval is not None:
            rows = shortened(keys, rows, -(-rows.bound // self.interval))
            # Every row that is left was kept, unless something else masks it.
            if rows.exact and not rows.path:
                rows = rows.replace(valid=None)
        return zero_masked_rows(rows).without_origin()

    def _wants(self, key: str, record: Record) -> bool:
        if self.keys is not None and key not in self.keys:
            return False
        return self.entries is None or self._entry(key, record) in self.entries

    def only(self, keys: frozenset[str]) -> Self:
        return dataclasses.replace(self, entries=keys)

    def quiet(self) -> Self:
        return dataclasses.replace(self, outward=False)


def _widest(key: str, batches: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the batch axes of rows that are counted together."""
    widest = max(batches, key=len)
    for batch in batches:
        rest = iter(widest)
        if not all(size in rest for size in batch):  # a subsequence, in the same order
            raise ValueError(
                f"{key!r} is logged with axes (of `vmap`s and devices) of sizes {batch} "
                f"and {widest}, so `interval` cannot count its rows together. Use two "
                "different keys, or leave out `interval`."
            )
    return widest
