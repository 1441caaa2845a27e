"""What a loop carries along: accumulators of reduced keys, rings of rows, threaded state.

A loop that runs its body n times logs n times what the body logs. Where that cannot simply
be stacked, because keys are reduced or n is not known, it is gathered in the carry:

    state = threaded state, accumulators, rings

    before the loop    what the program has handed us, no rows at all, empty rings
    each iteration     the last state; combine(accumulator, rows); push(ring, rows)
    after the loop     the last state; accumulators; the rows of the rings, oldest first

A ring (see `ring.py`) is written at the end of each iteration. That is too late if a loop
inside is of unknown length, too: its rows would have to come out of it first, all that it
has room for at each iteration of the loop around. So a nest of such loops has one `Buffer`,
a ring for each group of keys. It is threaded state: it goes into the inner loops, and
every row is written into it when it is logged.

    while {                         buffer                  a             b
      log a                         after a0                [a0 __ __]    [__ __ __]
      while { log b }               after b0 b1             [a0 __ __]    [b0 b1 __]
      log a                         after a1                [a0 a1 __]    [b0 b1 __]
    }                               next iteration: a2      [a0 a1 a2]    [b0 b1 __]
                                    b2 b3                   [a0 a1 a2]    [b3 b1 b2]

Invariants: the state has the same form before and after each iteration, so everything in it
is brought into a form that is known before the loop runs. And nothing but `push` touches a
ring, so that it is written in place.
"""

import dataclasses
import functools as ft
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from lox._jax import sharding
from lox._jax.types import PyTreeDef
from lox._rows.accumulator import Accumulator, Entry, empty
from lox._rows.align import align, common_form, masked, nothing
from lox._rows.collected import Collected, Threaded
from lox._rows.merge import combine
from lox._rows.ring import Ring, count_of, empty_ring, in_ring, ordered, push
from lox._rows.rows import Rows, static
from lox._rows.types import Keys
from lox_host.frozen import frozen

CarriedState = tuple[Threaded, dict[Keys, Accumulator], dict[Keys, Ring]]


@frozen
class Gathering:
    """How the logs of a loop are gathered.

    Args:
        logs: What one iteration logs, as abstract arrays.
        capacities: For keys whose rows go into a ring, how many of them are kept. 0: none,
            since only the form of a row is asked for.
        every: Of how many rows one is kept.
        differentiable: Whether rows carry derivatives.
    """

    logs: Collected
    capacities: Mapping[Keys, int]
    every: int = 1
    differentiable: bool = False

    def start(self, given: Threaded) -> CarriedState:
        """Return the state before the first iteration, given what the loop was handed."""
        threaded = given.limited_to(self.logs.threaded)
        totals = {keys: empty(form) for keys, form in self._totals().items()}
        rings = {k: empty_ring(self._row(k), n) for k, n in self.capacities.items() if n}
        return _for_each_device((threaded, totals, rings))

    def threaded(self, state: CarriedState) -> Threaded:
        """Return what an iteration is handed."""
        return state[0]

    def add(self, state: CarriedState, logs: Collected) -> tuple[CarriedState, Collected]:
        """Add what an iteration has logged. What is left of it leaves the loop as rows."""
        _, totals, rings = state
        rows, new, forms = logs.rows, logs.accumulators, self._totals()
        totals = {
            keys: align(combine(keys, [total, new[keys]]), forms[keys])
            for keys, total in totals.items()
        }
        write = ft.partial(push, differentiable=self.differentiable)
        rings = {
            keys: write(ring, align(rows.pop(keys), self._row(keys)))
            for keys, ring in rings.items()
        }
        # `rows.pop` above has left what needs no ring, to be stacked by a `scan`.
        left = {key for keys in rows for key in keys}
        rest = Collected(rows, tuple(key for key in logs.order if key in left))
        return _for_each_device((logs.threaded, totals, rings)), rest

    def choose(
        self, condition: jax.Array, new: CarriedState, old: CarriedState
    ) -> CarriedState:
        """Return the new state of the examples for which a condition holds.

        What an example that has finished logs does not exist. So rings and what else is
        threaded are as they were, and accumulators but for the last bit.
        """
        threaded, totals, rings = new
        totals = jax.tree.map(lambda x, y: choose(condition, x, y), totals, old[1])
        return threaded, totals, rings

    def finish(self, state: CarriedState, rows: Collected, length: int | None) -> Collected:
        """Return what the loop has logged in `length` iterations. None: it is not known.

        `rows` are those that have left the loop already.
        """
        threaded, totals, rings = state
        gathered: dict[Keys, Entry] = dict(rows.groups)
        for keys, of_one in self.logs.accumulators.items():
            total = totals[keys]
            # A loop that surely runs logs what each of its iterations surely logs.
            gathered[keys] = total.replace(
                valid=None if length and of_one.valid is None else total.valid,
                paths=of_one.paths if length else (),
            )
        for keys, capacity in self.capacities.items():
            row = self._row(keys)
            if not capacity:
                gathered[keys] = nothing(row, 1)
                continue
            ring = rings[keys]
            if length is None:
                gathered[keys] = kept_rows(ring, row, capacity * self.every)
            else:
                # Of a known number of rows, the ring has room for all that an interval
                # leaves. So none has been overwritten, and they are in order.
                count = None if row.count is None else count_of(ring, row)
                kept = in_ring(ring, row)
                gathered[keys] = kept.replace(count=count, bound=row.bound * length)
        return Collected(
            {keys: gathered[keys] for keys in self.logs.groups or gathered},
            self.logs.order or rows.order,
            threaded,
        )

    def _totals(self) -> dict[Keys, Accumulator]:
        """Return the forms of the accumulators."""
        # Masked, since before the first iteration there is no row.
        totals = self.logs.accumulators.items()
        return {keys: masked(common_form(keys, [total])) for keys, total in totals}

    def _row(self, keys: Keys) -> Rows:
        """Return the form of the rows of one iteration."""
        return common_form(keys, [self.logs.rows[keys]], time=True)


def kept_rows(ring: Ring, row: Rows, bound: int) -> Rows:
    """Return the rows that a ring has kept of a loop of unknown length."""
    count = count_of(ring, row)
    return ordered(ring, row).replace(count=count, exact=False, bound=bound)


def choose(condition: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Choose by a condition that has the first axes of the arrays."""
    # (*first) -> (*first, 1, ...)
    inner = range(condition.ndim, new.ndim)
    return jnp.where(jnp.expand_dims(condition, inner), new, old)


def _for_each_device(state: CarriedState) -> CarriedState:
    """Give the carry one type in all iterations of a loop inside a `shard_map`."""
    return jax.tree.map(sharding.make_varying, state)


@frozen
class RingForm:
    """The form of one row: its structure, and the forms of its arrays."""

    tree: PyTreeDef
    leaves: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, keys: Keys, rows: Rows) -> "RingForm":
        """Return the form of one of some rows."""

        def one(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            # (n, *batch, ...) -> (1, *batch, ...)
            return jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype)

        row = common_form(keys, [rows], time=True).map(one)
        leaves, tree = jax.tree.flatten(row.replace(path=(), exact=False))
        return cls(tree, tuple(leaves))

    def row(self) -> Rows:
        return jax.tree.unflatten(self.tree, self.leaves)


@jax.tree_util.register_dataclass
@frozen
class Buffer:
    """A ring of rows for each group of keys.

    Attributes:
        rings: The rings.
        groups: The keys of each ring.
        forms: The form of a row of each ring.
        order: The keys, in the order in which they are logged first.
        capacity: How many rows there is room for in each.
        differentiable: Whether rows carry derivatives.
    """

    rings: list[Ring]
    groups: tuple[Keys, ...] = static()
    forms: tuple[RingForm, ...] = static()
    order: Keys = static()
    capacity: int = static()
    differentiable: bool = static(default=False)

    @classmethod
    def of(
        cls, logs: Collected, capacity: int, *, differentiable: bool = False
    ) -> "Buffer":
        """Return an empty buffer for such rows."""
        forms = {keys: RingForm.of(keys, rows) for keys, rows in logs.rows.items()}
        rings = [empty_ring(form.row(), capacity) for form in forms.values()]
        groups, order = tuple(forms), logs.order
        return cls(rings, groups, tuple(forms.values()), order, capacity, differentiable)

    def add(self, logs: Collected) -> "Buffer":
        """Return the buffer with more rows of some keys."""
        assert set(logs.order) <= set(self.order)
        rings = []
        for ring, keys, form in zip(self.rings, self.groups, self.forms, strict=True):
            rows = logs.get(keys)
            # Rings of other keys are passed through untouched.
            if isinstance(rows, Rows):
                aligned = align(rows, form.row(), rows.length)
                ring = push(ring, aligned, differentiable=self.differentiable)
            rings.append(ring)
        return dataclasses.replace(self, rings=rings)

    def is_full(self) -> jax.Array:
        """Return whether a ring has no room for another row, for any example."""
        full = [(ring.count >= self.capacity).any() for ring in self.rings]
        return jnp.stack(full).any()

    def has_rows(self) -> jax.Array:
        """Return whether there is any row, of any example."""
        return jnp.stack([(ring.count > 0).any() for ring in self.rings]).any()

    def emptied(self, condition: jax.Array) -> "Buffer":
        """Return the buffer without any row, if the condition holds."""
        rings = [
            ring.replace(count=jnp.where(condition, 0, ring.count)) for ring in self.rings
        ]
        return dataclasses.replace(self, rings=rings)

    def waiting(self) -> Collected:
        """Return all rows that are there, if none has been overwritten."""
        groups = {}
        for keys, ring, form in zip(self.groups, self.rings, self.forms, strict=True):
            groups[keys] = in_ring(ring, form.row())
        return Collected(groups, self.order)

    def kept(self, every: int) -> dict[Keys, Rows]:
        """Return the last rows of each ring, one of `every` that were logged."""
        bound = self.capacity * every
        kept = {}
        for keys, ring, form in zip(self.groups, self.rings, self.forms, strict=True):
            kept[keys] = kept_rows(ring, form.row(), bound)
        return kept


def shortened(keys: Keys, rows: Rows, capacity: int) -> Rows:
    """Move the valid rows to the front, in as many rows as there can be valid ones."""
    if not rows.time or rows.length <= capacity:
        return rows
    target = common_form(keys, [rows], time=True)
    # Where logs carry no derivatives, these rows have none by now.
    ring = push(empty_ring(target, capacity), align(rows, target), differentiable=True)
    return ordered(ring, target).replace(count=rows.count)
