"""`LookAtValues`: a handler that looks at the values of a program, and counts iterations.

There are three such handlers. What they have seen is threaded state, which the rules carry
through loops, calls and branches:

    FindRegion     did a NaN appear, and in which region and iteration first?
    LookAtRegion   in this iteration: which inputs and outputs of which equations hold NaNs
                   or infinities?
    KeepValues     in this iteration: what are the inputs and outputs of these equations?

Inside a `shard_map`, each device sees its own values, and so has its own state, on one more
axis. When the `shard_map` ends, the handler joins the states of all devices.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from typing import Self, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from lox._core.handler import Handler
from lox._core.record import RECORD_EFFECTS, Record
from lox._inside.nan.counted_examples import widened
from lox._inside.nan.program_map import LOOPS, REGIONS, EqnPath, ProgramMap, is_float
from lox._jax import equations, sharding
from lox._jax.extend import Jaxpr, JaxprEqn, Literal, Var
from lox._jax.sharding import Division
from lox._jax.types import AnyArray, Atom, Code, PyTree
from lox._rows.collected import Collected, Threaded
from lox._rows.rows import static

Read = Callable[[Atom], AnyArray]
# What a handler has seen: a pytree of arrays, which each subclass defines.
State: TypeAlias = PyTree


@dataclasses.dataclass(frozen=True)
class Moment:
    """When a region runs: in which iterations, and on which device.

    Attributes:
        region: The path of the region.
        iterations: The iterations of the loops around, the outermost first.
        device: The number of the device of a `shard_map`. None: there is no `shard_map`.
    """

    region: EqnPath
    iterations: tuple[int, ...]
    device: int | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LookAtValues(Handler):
    """Look at values, and count iterations.

    Attributes:
        state: What has been seen so far.
        counter: How many iterations of the innermost loop have ended.
        counters: The same for the loops around it, the outermost first.
        device: The number of this device in a `shard_map`. None: there is none.
        program_map: Where equations are.
        path: Where the current program is.
        region: Which region it belongs to.
        masked: Whether values count only for the examples that take the branch around.
    """

    state: State
    counter: jax.Array = dataclasses.field(kw_only=True)
    counters: tuple[jax.Array, ...] = dataclasses.field(default=(), kw_only=True)
    device: jax.Array | None = dataclasses.field(default=None, kw_only=True)
    program_map: ProgramMap = static()
    path: EqnPath = static(default=())
    region: EqnPath = static(default=())
    masked: bool = static(default=True)

    captures = True

    # Each subclass defines these.

    def inspects(self, program: Jaxpr) -> Collection[Var]:
        raise NotImplementedError

    def seen(self, program: Jaxpr, eqns: Sequence[JaxprEqn], read: Read) -> State:
        """Return the state after looking at equations."""
        raise NotImplementedError

    def at_end_of_region(self) -> State:
        """Return the state when a region, or an iteration of it, ends."""
        return self.state

    def joined(self, states: State) -> State:
        """Return one state, given those of all devices along the first axis."""
        raise NotImplementedError

    # All subclasses share these.

    def mask_variables(self, program: Jaxpr) -> set[Var]:
        """Return the variables that say which values of a program count."""
        if not self.masked or not self.program_map.has_masks:
            return set()
        masks = self.program_map.masks(program).values()
        return {mask.condition for own in masks for mask in own}

    def mask_of(
        self, program: Jaxpr, eqn: JaxprEqn, atom: Atom, read: Read
    ) -> jax.Array | None:
        """Return where a value of an equation counts, or None if it does everywhere.

        The mask is an array that broadcasts to the value. An input counts everywhere if the
        outputs do, as for the select that comes after all branches.
        """
        if not self.masked or not self.program_map.has_masks or isinstance(atom, Literal):
            return None
        masks, counts = self.program_map.masks(program), None
        known = {mask.condition for out in eqn.outvars for mask in masks.get(out, ())}
        for mask in masks.get(atom, ()):
            if mask.condition in known:
                own = widened(read(mask.condition), mask, jnp.ndim(read(atom)))
                counts = own if counts is None else counts & own
        return counts

    def concerns(self, program: Code) -> bool:
        if not RECORD_EFFECTS.isdisjoint(program.effects):
            return True
        if isinstance(program, JaxprEqn):
            return self.program_map.enters(program)
        return self.program_map.computes(program)

    def inspect(self, program: Jaxpr, eqns: Sequence[JaxprEqn], read: Read) -> Collected:
        return self._collected(self.seen(program, eqns, read), self.counter)

    def finish(self, program: Jaxpr) -> Collected:
        if self.path != self.region:
            return Collected()
        # After the body of a loop, one iteration has ended. The predicate that is asked
        # before the loop belongs to the first one.
        is_iteration = self._is_loop() and not self.program_map.is_predicate(program)
        counter = self.counter + 1 if is_iteration else self.counter
        return self._collected(self.at_end_of_region(), counter)

    def _is_loop(self) -> bool:
        return bool(self.path) and _name(self.program_map.eqn(self.path[-1])) in LOOPS

    def enter(self, eqn: JaxprEqn) -> Self:
        path, name = (*self.path, self.program_map.number(eqn)), _name(eqn)
        if name not in REGIONS:
            return self._replace(path=path)
        # Close the books of this region before the inner one sees anything, so that an
        # earlier NaN is found first.
        state = self.at_end_of_region()
        if name == "shard_map":
            # One state and one counter per device: (...) -> (devices, ...)
            number = math.prod(sharding.mapped_axes(eqn).values())
            states, counters = jax.tree.map(
                lambda x: jnp.broadcast_to(x, (number, *jnp.shape(x))),
                (state, self.counter),
            )
            return self._replace(state=states, counter=counters, path=path, region=path)
        return self._replace(
            state=state,
            counter=sharding.make_varying(jnp.zeros((), jnp.int32)),
            counters=(*self.counters, self.counter),
            path=path,
            region=path,
        )

    def leave(self, logs: Collected) -> Collected:
        if logs.threaded.seen is None:
            return logs
        state, counter = logs.threaded.seen
        if jnp.ndim(counter) > jnp.ndim(self.counter):  # out of a `shard_map`
            state = self.joined(state)
        # Back in this region, its own counter counts again.
        seen = dataclasses.replace(logs.threaded, seen=(state, self.counter))
        return logs.replace(threaded=seen)

    def iterations(self) -> list[jax.Array]:
        """Return the counters of all loops around, the outermost first."""
        # The first counter belongs to the whole program, which is not a loop.
        return [*self.counters, self.counter][1:]

    def carries(self) -> bool:
        return True

    def threaded(self) -> Threaded:
        return Threaded(seen=(self.state, self.counter))

    def after(self, state: Threaded) -> Self:
        if state.seen is None:
            return self
        return self._replace(state=state.seen[0], counter=state.seen[1])

    def per_device(self, records: Sequence[Record]) -> Self:
        shared = jax.tree.map(lambda _: Division(), self)
        spread = Division(spread=True)
        state = jax.tree.map(lambda _: spread, self.state)
        return shared._replace(state=state, counter=spread)

    def on_device(self) -> Self:
        axes = tuple(sharding.manual_axes())
        return self._replace(device=jax.lax.axis_index(axes)) if axes else self

    def _collected(self, state: State, counter: jax.Array) -> Collected:
        return Collected(threaded=Threaded(seen=(state, counter)))

    def _replace(self, **changes: object) -> Self:
        return dataclasses.replace(self, **changes)


# The bits of a flag.
NAN, INFINITE = 1, 2


def flag(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """Return whether an array holds NaNs, infinities or both, as a small number.

    With a mask, only where it is true.
    """
    where = True if mask is None else mask
    nan, infinite = (jnp.isnan(x) & where).any(), (jnp.isinf(x) & where).any()
    return NAN * nan.astype(jnp.int8) + INFINITE * infinite.astype(jnp.int8)


def floats(program: Jaxpr) -> Collection[Var]:
    """Return the variables of a program that may hold NaNs."""
    computed = [var for eqn in program.eqns for var in eqn.outvars]
    every = *program.constvars, *program.invars, *computed
    return {var for var in every if may_be_bad(var)}


def may_be_bad(atom: Atom) -> bool:
    """Return whether an input or output of an equation may hold a NaN."""
    has_any = is_float(atom) and bool(math.prod(cast(ShapedArray, atom.aval).shape))
    return has_any and not equations.is_dropped(atom)


def _name(eqn: JaxprEqn) -> str:
    return equations.primitive_name(eqn)
