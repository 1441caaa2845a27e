"""What is in a parcel for the callback of `tap`: logs, those of each example apart."""

import dataclasses
import functools as ft
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ._logdict import logdict
from ._parcel import Contents, Parcel, Place
from ._record import Record
from ._rows import Rows


def unpacked(parcel: Parcel, prefix: str) -> Iterator[logdict]:
    """The logs of each record, and of each example that the `vmap`s around are over."""
    for packed in _packed(parcel.contents, prefix):
        yield from packed.logs(parcel.arrays)


@dataclasses.dataclass(frozen=True)
class Packed:
    """How the logs of one record are made of the arrays of a parcel.

    This is `jax.tree.unflatten`, with all that is known before taken out of it.

    Attributes:
        places: Where the leaves of the logs are, those of the values first.
        form: The structure of the logs.
        keys: The keys.
        values: The structure of a list of the values.
        valid: Where it says which examples logged. None: all of them.
        examples: The indices of all examples along the batch axes.
        is_partial: Whether some of the rows may not have been logged.
    """

    places: Sequence[Place]
    form: Any
    keys: Sequence[str]
    values: Any
    valid: Place | None
    examples: Sequence[tuple[int, ...]]
    is_partial: bool

    @classmethod
    def of(cls, record: Record, prefix: str) -> "Packed":
        """Of a record of places."""
        (logs,) = record.values
        logs = logs.prefix(prefix)
        places, form = jax.tree.flatten(logs)
        return cls(
            places=places,
            form=form,
            keys=tuple(logs),
            values=jax.tree.structure(list(logs.values())),
            valid=record.valid,
            examples=list(np.ndindex(record.batch)),
            is_partial=bool(logs.valid),
        )

    def logs(self, arrays: Sequence[np.ndarray]) -> Iterator[logdict]:
        leaves = [place.read(arrays) for place in self.places]
        for index in self._logging(arrays):
            at = (*index, ...)
            own = [leaf[at] for leaf in leaves] if index else leaves
            values = self.values.unflatten(own[: self.values.num_leaves])
            rows = ft.partial(self._rows, own, index)
            logs = logdict.later(zip(self.keys, values, strict=True), rows)
            yield logs.compact() if self.is_partial else logs

    def _logging(self, arrays: Sequence[np.ndarray]) -> Iterable[tuple[int, ...]]:
        if self.valid is None:
            return self.examples
        return map(tuple, np.argwhere(self.valid.read(arrays)))

    def _rows(self, leaves: list, index: tuple[int, ...]) -> dict[str, Rows]:
        rows = jax.tree.unflatten(self.form, leaves).rows()
        if not index:
            return rows
        return {key: _with_example(own, index) for key, own in rows.items()}


@ft.lru_cache(maxsize=1024)
def _packed(contents: Contents, prefix: str) -> list[Packed]:
    records = jax.tree.unflatten(contents.form, contents.places)
    return [Packed.of(record, prefix) for record in records]


def _with_example(rows: Rows, index: tuple[int, ...]) -> Rows:
    """The rows with another step, the index of the example, or one for each `vmap`."""
    example = np.array(index[0] if len(index) == 1 else index)
    # As all steps, it has the axes of the rows.
    front = (rows.length,) * rows.time + rows.batch
    wide = np.broadcast_to(example, front + example.shape)
    return rows.replace(steps={**rows.steps, "example": wide})
