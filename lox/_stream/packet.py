"""Parcels: records on their way to the host, packed into few arrays."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox._core.record import Record

# How many bytes make an array large.
LARGE = 16 * 2**10

# Which arrays go into one array of a parcel, by their indices.
Groups = Sequence[Sequence[int]]


class Parcel(NamedTuple):
    """Records that have arrived on the host."""

    arrays: Sequence[np.ndarray]
    contents: "Contents"

    @property
    def nbytes(self) -> int:
        return self.contents.nbytes

    def records(self) -> tuple[Record, ...]:
        return self.contents.records(self.arrays)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where in the arrays of a parcel an array is.

    Attributes:
        number: Which of the arrays holds it.
        start: The byte at which it starts. None: it is all of that array.
        shape: Its shape.
        packed: Its dtype there.
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
        """The same of several parcels, whose arrays are stacked."""
        stack = stacks[self.number]
        if self.start is not None:
            one = np.ndarray(self.shape, self.packed, stack, self.start)
            shape, strides = (len(stack), *self.shape), (stack.strides[0], *one.strides)
            stack = np.ndarray(shape, self.packed, stack, self.start, strides)
        return stack if self.packed is self.dtype else stack.astype(self.dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Contents:
    """What is known of the parcels of a host call before the first one arrives.

    Attributes:
        form: The structure of a tuple of records.
        places: Where the arrays of the records are.
        nbytes: The size of a parcel.
        stoppable: Whether the program stops if who gets it raises.
    """

    form: Any
    places: Sequence[Place]
    nbytes: int
    stoppable: bool = True

    @classmethod
    def of(
        cls, form: Any, leaves: Sequence[Any], groups: Groups, *, stoppable: bool = True
    ) -> "Contents":
        places: dict[int, Place] = {}
        for number, group in enumerate(groups):
            start = 0
            for i in group:
                shape, dtype = leaves[i].shape, leaves[i].dtype
                packed, at = _whole(dtype), None if len(group) == 1 else start
                places[i] = Place(number, at, shape, packed, dtype)
                start += leaves[i].size * packed.itemsize
        ordered = [places[i] for i in range(len(leaves))]
        nbytes = sum(x.size * x.dtype.itemsize for x in leaves)
        return cls(form, ordered, nbytes, stoppable)

    def records(self, arrays: Sequence[np.ndarray]) -> tuple[Record, ...]:
        return jax.tree.unflatten(self.form, [place.read(arrays) for place in self.places])


def stacked(parcels: Sequence[Parcel]) -> tuple[Record, ...]:
    """The records of parcels with the same contents, an axis of parcels in front."""
    contents = parcels[0].contents
    stacks = [np.stack(arrays) for arrays in zip(*(p.arrays for p in parcels), strict=True)]
    leaves = [place.read_all(stacks) for place in contents.places]
    return jax.tree.unflatten(contents.form, leaves)


def by_width(leaves: Sequence[Any]) -> Groups:
    """All numbers of a width in one array: each array that is handed over costs.

    A large one is handed over as it is: to copy it would cost more.
    """
    groups: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        is_large = leaf.size * leaf.dtype.itemsize >= LARGE
        groups.setdefault(i if is_large else _bits(leaf.dtype), []).append(i)
    return list(groups.values())


def pack(leaves: Sequence[Any], groups: Groups) -> list:
    return [_join([leaves[i] for i in group]) for group in groups]


def _join(leaves: list) -> Any:
    wide = [x.astype(_whole(x.dtype)) for x in leaves]
    if len(wide) == 1:
        return wide[0]
    bits = _bits(wide[0].dtype)
    flat = [jax.lax.bitcast_convert_type(x.reshape(-1), bits) for x in wide]
    return jax.lax.concatenate(flat, 0)


def _whole(dtype: np.dtype) -> np.dtype:
    """For numbers of less than a byte one that takes a byte each, as NumPy has them."""
    if jnp.issubdtype(dtype, np.integer) and jnp.iinfo(dtype).bits < 8:
        return np.dtype(np.int8 if jnp.issubdtype(dtype, np.signedinteger) else np.uint8)
    if jnp.issubdtype(dtype, np.floating) and jnp.finfo(dtype).bits < 8:
        return np.dtype(np.float32)
    return dtype


def _bits(dtype: np.dtype) -> np.dtype:
    """The dtype that holds the bits of numbers of another one."""
    is_number = jnp.issubdtype(dtype, np.integer) or jnp.issubdtype(dtype, np.floating)
    whole = _whole(dtype)
    # JAX has 64 bits only where they are enabled.
    short = is_number and whole.itemsize <= 4
    return np.dtype(f"uint{8 * whole.itemsize}") if short else dtype
