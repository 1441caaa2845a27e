"""Turn packets into the logs that the callback of `tap` is called with.

A packet holds deliveries: rows of some keys, for all examples of the `vmap`s around. The
callback is called for each example that logged, with its rows and its index:

    delivery   loss  float32[3]       ->   {"loss": 0.5}   example=0
               valid [1 0 1]               {"loss": 0.7}   example=2

Every record passes through here, so it has to be quick. A `Decoder` works out once per
layout how the logs are made from the arrays. Values are views of the packet, and steps are
only read when the callback uses them.
"""

import functools as ft
from collections.abc import Callable, Iterator, Sequence
from types import EllipsisType

import jax
import numpy as np

from lox._core.record import Delivery
from lox._jax.types import PyTreeDef
from lox._logdict.logdict import logdict
from lox._rows.rows import Rows
from lox._stream.packet import Layout, Slot
from lox_host.frozen import frozen


@frozen
class Decoder:
    """Makes the logs of one delivery from the arrays of a packet.

    It does what `jax.tree.unflatten` does, with everything that is known beforehand
    computed only once.

    Attributes:
        keys: The keys.
        values: The slots of all leaves of the values.
        slots: The slots of all leaves of the logs, those of the values first.
        tree: The structure of the list of values. None: each value is one array.
        columns: The keys with their slots, if each value is one array.
        form: The structure of the logs.
        valid: The slot of the mask that says which examples logged. None: all of them did.
        batch: The sizes of the axes of examples.
        examples: The slots of the numbers of the examples, if they are not counted from 0,
            see `Carried`.
        masks: For each key, the slot of the mask that says which of its rows were logged.
            None: all of them were.
        is_plain: Whether each value is one array, without batch axes inside the rows.
        is_single: Whether there are no examples, so that `decode` makes the logs.
    """

    keys: Sequence[str]
    values: Sequence[Slot]
    slots: Sequence[Slot]
    tree: PyTreeDef
    columns: Sequence[tuple[str, Slot]]
    form: PyTreeDef
    valid: Slot | None
    batch: tuple[int, ...]
    examples: Sequence[Slot | None]
    masks: Sequence[Slot | None]
    is_plain: bool
    is_single: bool

    @classmethod
    def of(cls, delivery: Delivery, prefix: str) -> "Decoder":
        """Return the decoder for a delivery with slots in place of arrays."""
        logs = delivery.logs.prefix(prefix)
        slots, form = jax.tree.flatten(logs)
        values, tree = jax.tree.flatten(list(logs.values()))
        # One leaf per key, and no node but the list itself: then no value is a pytree.
        is_flat = len(values) == len(logs) == tree.num_nodes - 1
        return cls(
            keys=tuple(logs),
            values=values,
            slots=slots,
            tree=None if is_flat else tree,
            columns=list(zip(logs, values, strict=True)) if is_flat else [],
            form=form,
            valid=delivery.valid,
            batch=delivery.batch,
            examples=delivery.examples,
            masks=[logs.valid.get(key) for key in logs],
            is_plain=is_flat and not any(rows.batch for rows in logs.rows().values()),
            is_single=delivery.valid is None and not delivery.batch,
        )

    def decode(self, arrays: Sequence[np.ndarray]) -> logdict:
        """Return the logs of a delivery without examples."""
        rows = lambda: self._read(arrays).rows()  # noqa: E731
        if self.tree is not None:
            return self._logs([slot.read(arrays) for slot in self.values], rows)
        # The usual case, and so the quickest way: without a list of the values.
        logs = logdict.later((), rows)
        for key, slot in self.columns:
            dict.__setitem__(logs, key, slot.read(arrays))
        return logs

    def decode_examples(self, arrays: Sequence[np.ndarray]) -> Iterator[logdict]:
        """Yield the logs of each example that logged."""
        valid = True if self.valid is None else self.valid.read(arrays)
        values = [slot.read(arrays) for slot in self.values]
        masks = [None if slot is None else slot.read(arrays) for slot in self.masks]
        complete = self._have_all_rows(masks)
        # (number of examples that logged, axes of examples)
        examples = np.argwhere(np.broadcast_to(valid, self.batch))
        # Three ways, the quickest first: views if nothing is masked; masks applied to the
        # values if these are plain arrays; or else all that `logdict.compact` does.
        for index in map(tuple, examples.tolist()):
            own_values = [x[(*index, ...)] for x in values]
            rows = lambda index=index: self._read_example(arrays, index).rows()  # noqa: E731
            if complete[index]:
                yield self._logs(own_values, rows)
            elif self.is_plain:
                own_masks = [x if x is None else x[(*index, ...)] for x in masks]
                yield logdict.later(_logged(self.keys, own_values, own_masks), rows)
            else:
                yield self._read_example(arrays, index)

    def _have_all_rows(self, masks: Sequence[np.ndarray | None]) -> np.ndarray:
        """Return for each example whether all of its rows have been logged."""
        complete = np.ones(self.batch, bool)
        for mask in masks:
            if mask is not None:
                # (*batch, [time], ...) -> (*batch)
                complete &= mask.all(tuple(range(len(self.batch), mask.ndim)))
        return complete

    def _read(
        self, arrays: Sequence[np.ndarray], index: EllipsisType | tuple = ...
    ) -> logdict:
        leaves = [slot.read(arrays)[index] for slot in self.slots]
        return jax.tree.unflatten(self.form, leaves)

    def _read_example(self, arrays: Sequence[np.ndarray], index: tuple) -> logdict:
        """Return what an example logged, with its index as the step `example`."""
        logs = self._read(arrays, (*index, ...)).compact()
        if not index:
            return logs
        # A number, or under several `vmap`s an array with one number for each of them.
        slots = self.examples or [None] * len(index)
        numbers = [
            i if slot is None else int(slot.read(arrays)[index])
            for i, slot in zip(index, slots, strict=True)
        ]
        example = np.array(numbers[0] if len(numbers) == 1 else numbers)
        rows = logs.rows().items()
        return logdict.of(
            {key: of_key.with_steps({"example": example}) for key, of_key in rows}
        )

    def _logs(self, leaves: list, rows: Callable[[], dict[str, Rows]]) -> logdict:
        values = leaves if self.tree is None else self.tree.unflatten(leaves)
        return logdict.later(zip(self.keys, values, strict=True), rows)


def _logged(
    keys: Sequence[str], values: list, masks: list
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the keys that have any valid rows, with these rows."""
    for key, value, mask in zip(keys, values, masks, strict=True):
        if mask is None:
            yield key, value
        elif mask.any():
            # A mask without axes is for a single row, which has no axis of time.
            yield key, value[mask] if mask.ndim else value


@ft.lru_cache(maxsize=1024)
def decoders(layout: Layout, prefix: str) -> list[Decoder]:
    """Return a decoder for each delivery of a packet. A layout is hashed by identity."""
    deliveries = jax.tree.unflatten(layout.form, layout.slots)
    return [Decoder.of(delivery, prefix) for delivery in deliveries]
