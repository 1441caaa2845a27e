"""`FindRegion`: find the region and the iteration in which a NaN appears first.

    scan                         counter     state
      y = log x                  0 1 2 ...   is_bad |= any(isnan(y))
      ...                                    at the end of an iteration: if is_bad and
                                             nothing is found yet, found = region, iteration

It adds one reduction for each shape that a region computes, and one small select per
iteration, so a program runs at nearly its full speed. When each equation has to be looked
at (`Births`), it takes longer.
"""

import dataclasses
import functools as ft
import operator
from collections.abc import Callable, Collection, Sequence

import jax
import jax.numpy as jnp

from lox._core.log import relog
from lox._core.record import Delivery, Record
from lox._inside.nan.look_at_values import (
    INFINITE,
    NAN,
    LookAtValues,
    Read,
    State,
    flag,
    floats,
    may_be_bad,
)
from lox._inside.nan.program_map import EqnPath, ProgramMap, is_float
from lox._inside.nan.source_lines import is_ignored
from lox._jax.extend import Jaxpr, JaxprEqn, Var
from lox._jax.types import AnyArray, Atom, Code, Params
from lox._rows.collected import Collected
from lox._rows.rows import Where, static


@dataclasses.dataclass(frozen=True)
class Births:
    """Tells whether a NaN appears in an equation whose inputs have none.

    Attributes:
        infinities: Whether infinities count, too.
        ignored: Lines of code in which nothing counts, as `file.py:12`.
    """

    infinities: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def bad(self) -> int:
        """The flags that count."""
        return NAN | INFINITE if self.infinities else NAN

    def counts(self, program_map: ProgramMap, path: EqnPath, eqn: JaxprEqn) -> bool:
        """Return whether a NaN that appears in this equation counts."""
        if not any(map(is_float, eqn.outvars)):
            return False
        return not self.ignored or not is_ignored(program_map, path, eqn, self.ignored)

    def appears(
        self, eqn: JaxprEqn, read: Read, mask_of: Callable[..., jax.Array | None]
    ) -> jax.Array:
        def flags(atoms: Sequence[Atom]) -> jax.Array:
            found = [
                flag(read(atom), mask_of(eqn, atom)) for atom in atoms if may_be_bad(atom)
            ]
            return ft.reduce(operator.or_, found, jnp.zeros((), jnp.int8))

        before, after = flags(eqn.invars), flags(eqn.outvars)
        return (after & self.bad > 0) & (before & self.bad == 0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FindRegion(LookAtValues):
    """Find the first region and iteration in which a NaN appears.

    Attributes:
        state: Whether this region has computed a NaN; what was found first, as a vector of
            the region's number, the device and the iterations, all -1 if nothing was found;
            and on several devices when it was found, and how often regions have ended.
        births: How to tell that a NaN appears in an equation, if each one is looked at.
            None: look at as few values as possible.
        is_first: Whether this is the first run of a search. What the program logs is
            dropped in the others.
    """

    births: Births | None = static(default=None)
    is_first: bool = static(default=True)

    @classmethod
    def of(
        cls,
        program_map: ProgramMap,
        births: Births | None,
        *,
        is_first: bool,
        masked: bool,
    ) -> "FindRegion":
        found = jnp.full(2 + program_map.depth, -1, jnp.int32)
        is_bad, clock = jnp.zeros((), bool), jnp.zeros(2, jnp.int32)
        zero = jnp.zeros((), jnp.int32)
        return cls(
            (is_bad, found, clock),
            counter=zero,
            program_map=program_map,
            births=births,
            is_first=is_first,
            masked=masked,
        )

    def handle(self, record: Record, where: Where) -> Collected:
        if self.is_first:
            relog(record)
        return Collected()

    def emit(
        self, records: Sequence[Record | Delivery], token: AnyArray, params: Params
    ) -> AnyArray:
        return super().emit(records, token, params) if self.is_first else token

    def concerns(self, program: Code) -> bool:
        is_closed = isinstance(program, JaxprEqn) and self.program_map.is_closed(program)
        return not is_closed and super().concerns(program)

    def inspects(self, program: Jaxpr) -> Collection[Var]:
        if self.births is not None:
            return {*floats(program), *self.mask_variables(program)}
        return self._checked(program) | self.mask_variables(program)

    def _checked(self, program: Jaxpr) -> frozenset[Var]:
        return self.program_map.checked(program, is_region=self.path == self.region)

    def seen(self, program: Jaxpr, eqns: Sequence[JaxprEqn], read: Read) -> State:
        is_bad, found, clock = self.state
        mask_of = ft.partial(self.mask_of, program, read=read)
        if self.births is not None:
            # An equation that is looked into shows its births inside.
            births = [
                self.births.appears(eqn, read, mask_of)
                for eqn in eqns
                if not self.concerns(eqn)
                and self.births.counts(self.program_map, self.path, eqn)
            ]
            return ft.reduce(operator.or_, births, is_bad), found, clock
        wanted = self._checked(program)
        values = [
            (read(var), mask_of(eqn, var))
            for eqn in eqns
            for var in eqn.outvars
            if var in wanted
        ]
        return is_bad | any_nan(values), found, clock

    def at_end_of_region(self) -> State:
        is_bad, found, clock = self.state
        # (2 + depth,): the region, the device, which is noted later, and the iterations
        numbers = [self.program_map.region_number(self.region), -1, *self.iterations()]
        numbers += [-1] * (found.shape[-1] - len(numbers))
        here = jnp.stack([jnp.asarray(x, jnp.int32) for x in numbers])
        # Only the first counts: once something is found, it stays.
        is_first = is_bad & (found[0] < 0)
        if self.program_map.has_devices:
            # When this device found something, and how often its regions have ended. Until
            # it finds something, the first follows the second.
            clock = jnp.stack([jnp.where(found[0] < 0, clock[1], clock[0]), clock[1] + 1])
        return jnp.zeros_like(is_bad), jnp.where(is_first, here, found), clock

    def joined(self, states: State) -> State:
        _, found, clock = states
        is_bad, before, _ = self.state
        # found (devices, 2 + depth), clock (devices, 2). clock[:, 0] is when a device found
        # something, or when it ended. Take the device that was first.
        device = jnp.argmin(jnp.where(found[:, 0] < 0, _NEVER, clock[:, 0]))
        first = found[device]
        # Note the device, unless nothing was found or an inner `shard_map` has noted it.
        has_device = (first[0] < 0) | (first[1] >= 0)
        first = first.at[1].set(jnp.where(has_device, first[1], device))
        return is_bad, jnp.where(before[0] < 0, first, before), clock.max(0)


_NEVER = jnp.iinfo(jnp.int32).max


def any_nan(values: Sequence[tuple[jax.Array, jax.Array | None]]) -> jax.Array:
    """Return whether any of these arrays holds a NaN where its mask is true."""
    # Combine arrays of one shape before the reduction. The compiler fuses that to one loop.
    by_shape: dict[tuple[int, ...], jax.Array] = {}
    for x, mask in values:
        is_nan = jnp.isnan(x) if mask is None else jnp.isnan(x) & mask
        known = by_shape.get(is_nan.shape)
        by_shape[is_nan.shape] = is_nan if known is None else known | is_nan
    return ft.reduce(
        operator.or_, (x.any() for x in by_shape.values()), jnp.zeros((), bool)
    )
