"""Packets: what a host call brings, packed into few arrays.

Each array in a host call costs about as much as a whole small call. So all numbers of the
same width are packed into one array, and the host reads them from there without a copy:

    records               packet.arrays            layout.slots
    a    float32[3]       uint32[5]  = a b b       array 0, byte 0,  float32[3]
    b    int32[2]                                  array 0, byte 12, int32[2]
    key  uint8[4]         uint8[4]                 array 1, all of it
    img  float32[128,128] float32[128,128]         array 2, all of it: copying costs more

The structure of the records, and where in a packet their arrays are, is the same for all
packets of one host call. This is its `Layout`, made when the program is compiled.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lox._core.record import Delivery, Record
from lox._jax.types import AnyArray, Program, PyTreeDef
from lox_host.frozen import frozen

# How many bytes make an array large.
LARGE = 16 * 2**10

# Which arrays go into one array of a packet, by their indices.
ArrayGroups = Sequence[Sequence[int]]


@frozen
class Packet:
    """The arrays that one host call has brought, and how to read them."""

    arrays: Sequence[np.ndarray]
    layout: "Layout"

    def records(self) -> tuple[Record, ...]:
        """Return the records of a packet that holds records."""
        return self.layout.read(self.arrays)

    def deliveries(self) -> tuple[Delivery, ...]:
        """Return the deliveries of a packet that holds deliveries."""
        return self.layout.read(self.arrays)


class Listens(Protocol):
    """Takes packets on threads of JAX. It is hashable, as programs are cached by it."""

    def __call__(self, packet: Packet, /) -> None: ...

    def wait_for_room(self) -> None:
        """Wait while too many packets have not been dealt with."""
        ...

    def configured(self, jaxpr: Program, interval: int | None) -> "Listens":
        """Return what takes the packets of a program that sends every `interval`-th row."""
        ...


@frozen
class Slot:
    """Where in a packet an array is.

    Attributes:
        number: Which array of the packet holds it.
        start: The byte at which it starts. None: it is the whole array.
        shape: Its shape.
        packed: Its dtype in the packet, which has whole bytes.
        dtype: Its dtype.
    """

    number: int
    start: int | None
    shape: tuple[int, ...]
    packed: np.dtype
    dtype: np.dtype

    def read(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        array = arrays[self.number]
        if self.start is not None:
            array = np.ndarray(self.shape, self.packed, array, self.start)
        return array if self.packed is self.dtype else array.astype(self.dtype)

    def read_all(self, stacks: Sequence[np.ndarray]) -> np.ndarray:
        """Read the same slot of several packets, whose arrays are stacked."""
        stack = stacks[self.number]
        if self.start is not None:
            # A view with an axis of packets: (packets, width) -> (packets, *shape). From
            # one packet to the next, it skips a row of the stack.
            one = np.ndarray(self.shape, self.packed, stack, self.start)
            shape, strides = (len(stack), *self.shape), (stack.strides[0], *one.strides)
            stack = np.ndarray(shape, self.packed, stack, self.start, strides)
        return stack if self.packed is self.dtype else stack.astype(self.dtype)


@frozen
class Layout:
    """What is known about the packets of a host call before the first one arrives.

    Attributes:
        form: The structure of a tuple of records or deliveries.
        slots: Where their arrays are.
        nbytes: The size of a packet.
        stoppable: Whether the program stops if the callback raises.
    """

    form: PyTreeDef
    slots: Sequence[Slot]
    nbytes: int
    stoppable: bool = True

    # Each host call has a layout of its own, even if another one looks the same.
    __eq__, __hash__ = object.__eq__, object.__hash__

    @classmethod
    def of(
        cls,
        form: PyTreeDef,
        leaves: Sequence[AnyArray],
        groups: ArrayGroups,
        *,
        stoppable: bool = True,
    ) -> "Layout":
        # Arrays of a group lie one after the other; `end` is where the next one starts.
        slots: dict[int, Slot] = {}
        for number, group in enumerate(groups):
            end = 0
            for i in group:
                shape, dtype = leaves[i].shape, leaves[i].dtype
                packed, start = whole_bytes(dtype), None if len(group) == 1 else end
                slots[i] = Slot(number, start, shape, packed, dtype)
                end += leaves[i].size * packed.itemsize
        ordered = [slots[i] for i in range(len(leaves))]
        nbytes = sum(x.size * x.dtype.itemsize for x in leaves)
        return cls(form, ordered, nbytes, stoppable)

    def read(self, arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
        return jax.tree.unflatten(self.form, [slot.read(arrays) for slot in self.slots])


def stacked(packets: Sequence[Packet]) -> tuple[Delivery, ...]:
    """Return the deliveries of packets of one layout, with an axis of packets in front."""
    layout = packets[0].layout
    # The first array of all packets, then the second, and so on: (packets, ...) each.
    by_position = zip(*(packet.arrays for packet in packets), strict=True)
    stacks = [np.stack(arrays) for arrays in by_position]
    leaves = [slot.read_all(stacks) for slot in layout.slots]
    return jax.tree.unflatten(layout.form, leaves)


def by_width(leaves: Sequence[AnyArray]) -> ArrayGroups:
    """Group arrays by the width of their numbers; a large array is a group of its own."""
    groups: dict[int | np.dtype, list[int]] = {}
    for i, leaf in enumerate(leaves):
        is_large = leaf.size * leaf.dtype.itemsize >= LARGE
        groups.setdefault(i if is_large else _bits(leaf.dtype), []).append(i)
    return list(groups.values())


def pack(leaves: Sequence[jax.Array], groups: ArrayGroups) -> list[jax.Array]:
    """Return the arrays of a packet, one for each group."""
    return [_join([leaves[i] for i in group]) for group in groups]


def _join(leaves: list[jax.Array]) -> jax.Array:
    # Numbers of less than a byte, such as int4, travel as a larger type.
    wide = [x.astype(whole_bytes(x.dtype)) for x in leaves]
    if len(wide) == 1:
        return wide[0]
    # All of one width: reinterpret them as unsigned numbers, (...) -> (size,), and join.
    bits = _bits(wide[0].dtype)
    flat = [jax.lax.bitcast_convert_type(x.reshape(-1), bits) for x in wide]
    return jax.lax.concatenate(flat, 0)


def whole_bytes(dtype: np.dtype) -> np.dtype:
    """Return a dtype of whole bytes, for numbers of less than a byte such as int4."""
    if jnp.issubdtype(dtype, np.integer) and jnp.iinfo(dtype).bits < 8:
        return np.dtype(np.int8 if jnp.issubdtype(dtype, np.signedinteger) else np.uint8)
    if jnp.issubdtype(dtype, np.floating) and jnp.finfo(dtype).bits < 8:
        return np.dtype(np.float32)
    return dtype


def _bits(dtype: np.dtype) -> np.dtype:
    """Return the unsigned dtype in which numbers are packed, or the dtype itself."""
    is_number = jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)
    whole = whole_bytes(dtype)
    # JAX has uint64 only where 64 bits are enabled, so wider numbers are not packed.
    short = is_number and whole.itemsize <= 4
    return np.dtype(f"uint{8 * whole.itemsize}") if short else dtype
