"""What is in a parcel for the callback of `tap`: logs, those of each example apart."""

import dataclasses
import functools as ft
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from lox._core.record import Record
from lox._logdict.logdict import logdict
from lox._rows.rows import Rows
from lox._stream.packet import Contents, Parcel, Place


def unpacked(parcel: Parcel, prefix: str) -> Iterator[logdict]:
    """The logs of each record, and of each example that the `vmap`s around are over."""
    for packed in _packed(parcel.contents, prefix):
        if packed.is_single:
            yield packed.whole(parcel.arrays)
        else:
            yield from packed.examples(parcel.arrays)


@dataclasses.dataclass(frozen=True)
class Packed:
    """How the logs of one record are made of the arrays of a parcel.

    This is `jax.tree.unflatten`, with all that is known before taken out of it.

    Attributes:
        keys: The keys.
        values: Where the leaves of the values are.
        places: Where the leaves of the logs are, those of the values first.
        tree: The structure of a list of the values. None: each is an array.
        form: The structure of the logs.
        valid: Where it says which examples logged. None: all of them.
        batch: Sizes of the axes that the examples are along.
        masks: Where it says which rows of a key have been logged. None: all of them.
        is_plain: Whether each value is an array, and a row of it one record.
    """

    keys: Sequence[str]
    values: Sequence[Place]
    places: Sequence[Place]
    tree: Any
    form: Any
    valid: Place | None
    batch: tuple[int, ...]
    masks: Sequence[Place | None]
    is_plain: bool

    @classmethod
    def of(cls, record: Record, prefix: str) -> "Packed":
        """Of a record of places."""
        logs, _ = record.values
        logs = logs.prefix(prefix)
        places, form = jax.tree.flatten(logs)
        values, tree = jax.tree.flatten(list(logs.values()))
        is_flat = len(values) == len(logs) == tree.num_nodes - 1
        return cls(
            keys=tuple(logs),
            values=values,
            places=places,
            tree=None if is_flat else tree,
            form=form,
            valid=record.valid,
            batch=record.batch,
            masks=[logs.valid.get(key) for key in logs],
            is_plain=is_flat and not any(own.batch for own in logs.rows().values()),
        )

    @property
    def is_single(self) -> bool:
        return self.valid is None and not self.batch

    def whole(self, arrays: Sequence[np.ndarray]) -> logdict:
        """The logs of a record that has been logged once."""
        values = [place.read(arrays) for place in self.values]
        return self._logs(values, lambda: self._all(arrays).rows())

    def examples(self, arrays: Sequence[np.ndarray]) -> Iterator[logdict]:
        """The logs of each example that logged the record."""
        valid = True if self.valid is None else self.valid.read(arrays)
        valid = np.broadcast_to(valid, self.batch)
        values = [place.read(arrays) for place in self.values]
        masks = [None if place is None else place.read(arrays) for place in self.masks]
        complete = self._is_complete(masks)
        for index in map(tuple, np.argwhere(valid).tolist()):
            at = (*index, ...)
            own = [x[at] for x in values]
            rows = lambda index=index: self._own(arrays, index).rows()  # noqa: E731
            if complete[index]:
                yield self._logs(own, rows)
            elif self.is_plain:
                masked = [x if x is None else x[at] for x in masks]
                yield logdict.later(_logged(self.keys, own, masked), rows)
            else:
                yield self._own(arrays, index)

    def _is_complete(self, masks: Sequence[np.ndarray | None]) -> np.ndarray:
        """Whether all rows of an example have been logged."""
        complete = np.ones(self.batch, bool)
        for mask in masks:
            if mask is not None:
                complete &= mask.all(tuple(range(len(self.batch), mask.ndim)))
        return complete

    def _all(self, arrays: Sequence[np.ndarray], at: Any = ...) -> logdict:
        leaves = [place.read(arrays)[at] for place in self.places]
        return jax.tree.unflatten(self.form, leaves)

    def _own(self, arrays: Sequence[np.ndarray], index: tuple[int, ...]) -> logdict:
        """What an example logged, with its index as another step."""
        logs = self._all(arrays, (*index, ...)).compact()
        if not index:
            return logs
        # Or one for each `vmap`.
        example = np.array(index[0] if len(index) == 1 else index)
        rows = logs.rows().items()
        return logdict.of({key: own.at({"example": example}) for key, own in rows})

    def _logs(self, leaves: list, rows: Callable[[], dict[str, Rows]]) -> logdict:
        values = leaves if self.tree is None else self.tree.unflatten(leaves)
        return logdict.later(zip(self.keys, values, strict=True), rows)


def _logged(keys: Sequence[str], values: list, masks: list) -> Iterator[tuple[str, Any]]:
    """The rows of each key that its mask lets through, if there are any."""
    for key, value, mask in zip(keys, values, masks, strict=True):
        if mask is None:
            yield key, value
        elif mask.any():
            yield key, value[mask] if mask.ndim else value


@ft.lru_cache(maxsize=1024)
def _packed(contents: Contents, prefix: str) -> list[Packed]:
    records = jax.tree.unflatten(contents.form, contents.places)
    return [Packed.of(record, prefix) for record in records]
