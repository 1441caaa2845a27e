"""The black box: the last records of a program, until one of them fires.

The problem: keep the last `keep` records of all keys together, on the device, in arrays of
a fixed size, although records of different keys differ in form. The idea: each group of
keys has its own ring (see `lox._rows.ring`), all rings have the same size, and all records
are numbered. The number of a record decides its place in its ring. So nothing has to be
counted but records. For `keep=3, after=1`, rings have four places:

    log a, b, a, a, b      number   1   2   3   4   5
                           fires    .   .   .   1   .
                           place    1   2   3   0   1

                place     0   1   2   3
    ring of a             a4  a1  .   a3        fired: 4
    ring of b             .   b5  b2  .         delivered: 2, 3, 4, and then 5

A place may hold an older record: here that of a1, which is not delivered. The number that
is stored with each row tells. Consecutive records are added together, before the question
whether to deliver the box, so rings have some more places: one for each record but the
first. Both the number and the answer of the condition `when` travel with a record as steps,
the answer only as far as the box.

    examples    the axes of the examples that have their own boxes: the `vmap` axes inside
                `fun` that all records share
    last        (*examples)    the number of the last record to wait for

Invariant: until a box is delivered, no record that belongs to it is overwritten. Rows that
leave an equation all at once are cut off at the last record to wait for.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._inside.black_box.packed_rows import Packing
from lox._rows.align import align
from lox._rows.collected import Collected
from lox._rows.loop_carry import RingForm
from lox._rows.ring import Ring, empty_ring, push
from lox._rows.rows import Rows, static, without_keys
from lox._rows.types import Keys, Shape

# Internal steps: the number of a record, whether it fires, and the number that fired.
NUMBER, FIRES, FIRED = "\0number", "\0fires", "\0fired"
# The value of `last` before a record fires, and after the box has been delivered.
NEVER, DONE = np.iinfo(np.int32).max, -1


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Box:
    """The last records, and whether one of them has fired.

    Attributes:
        columns: The arrays of each ring, with packed rows.
        last: The number of the last record to wait for, `NEVER` or `DONE`.
        groups: The keys of each ring.
        packings: How the rows of each ring are packed.
        order: The keys, in the order in which they are first logged.
        keep: How many records to deliver, up to the one that fired.
        after: How many more to wait for.
        together: How many records may be added before the box is delivered if it is due.
        is_shared: Whether all examples have the same records, so that one number will do.
    """

    columns: list[Any]
    last: jax.Array
    groups: tuple[Keys, ...] = static()
    packings: tuple[Packing, ...] = static()
    order: Keys = static()
    keep: int = static()
    after: int = static()
    together: int = static()
    is_shared: bool = static()

    @classmethod
    def of(
        cls,
        logs: Collected,
        masked: frozenset[str],
        examples: Shape,
        *,
        keep: int,
        after: int,
        together: int,
    ) -> "Box":
        """Return an empty box for logs of this form.

        Args:
            logs: The logs of the program, as abstract arrays.
            masked: The keys whose rows may be masked when they are added.
            examples: The axes of the examples that have their own boxes.
            keep: How many records to deliver, up to the one that fired.
            after: How many more to wait for.
            together: How many records may be added at once.
        """
        places = keep + after + together - 1
        packings, columns = {}, []
        for keys, rows in logs.rows.items():
            plain = without_keys(rows).replace(valid=None, count=None)
            packings[keys] = packing = Packing.of(keys, _without_answer(plain))
            row = jax.eval_shape(packing.pack, packing.form.row())
            form = RingForm.of(keys, row).row()
            columns.append(empty_ring(form, places).columns)
        return cls(
            columns,
            jnp.full(examples, NEVER),
            groups=tuple(packings),
            packings=tuple(packings.values()),
            order=logs.order,
            keep=keep,
            after=after,
            together=together,
            is_shared=not masked,
        )

    def continuing(self, earlier: "Box") -> "Box":
        """Return this box with the records of an earlier one, where the forms match."""
        before = dict(zip(earlier._forms(), earlier.columns, strict=True))
        pairs = zip(self._forms(), self.columns, strict=True)
        columns = [before.get(form, empty) for form, empty in pairs]
        return self._replace(columns=columns, last=earlier.last)

    def add(self, logs: Collected) -> "Box":
        """Return the box with more records, one of which may fire."""
        first = jnp.stack([self._first_to_fire(rows) for rows in logs.rows.values()]).min(0)
        is_first = (self.last == NEVER) & (first < NEVER)
        box = self._replace(last=jnp.where(is_first, first + self.after, self.last))
        columns = []
        for old, (keys, packing) in zip(box.columns, box._forms(), strict=True):
            rows = logs.get(keys)
            columns.append(box._written(old, packing, rows) if rows else old)
        return box._replace(columns=columns)

    def _first_to_fire(self, rows: Rows) -> jax.Array:
        """Return the number of the first row that fires, `*examples`."""
        fires = rows.steps[FIRES]
        if rows.valid is not None:
            fires &= rows.valid
        # ([time,] *examples, *others) -> (*examples,)
        start = rows.time + self.last.ndim
        axes = (*range(rows.time), *range(start, fires.ndim))
        return jnp.where(fires, rows.steps[NUMBER], NEVER).min(axes)

    def _written(self, columns: Any, packing: Packing, rows: Any) -> Any:
        """Return the arrays of a ring with more rows."""
        plain, valid = _without_answer(without_keys(rows)), rows.valid
        plain = align(plain.replace(valid=None), packing.form.row(), rows.length)
        number, packed = plain.steps[NUMBER], packing.pack(plain)
        if rows.length == 1:
            valid = valid if valid is None or rows.time else valid[None]
            return self._put(columns, packed, number, valid)
        # Write the rows one by one. Other records may have come in between, so the places
        # need not be consecutive.
        valid = self._in_time(number) & (True if valid is None else valid)

        def put(columns: Any, row: tuple) -> tuple[Any, None]:
            one = jax.tree.map(lambda x: x[None], row)
            return self._put(columns, *one), None

        return jax.lax.scan(put, columns, (packed, number, valid))[0]

    def _put(
        self, columns: Any, row: Rows, number: jax.Array, valid: jax.Array | None
    ) -> Any:
        """Write one row at the place for its number, `1, *batch`."""
        place = number[(0,) * number.ndim] if self.is_shared else number[0]
        return push(Ring(columns, place, None), row.replace(valid=valid)).columns

    def _in_time(self, number: jax.Array) -> jax.Array:
        """Return which records are not too late, `time, *batch`."""
        # (*examples,) -> (1, *examples, 1, ...)
        others = range(1 + self.last.ndim, number.ndim)
        last = jnp.where(self.last == DONE, NEVER, self.last)
        return number <= jnp.expand_dims(last, (0, *others))

    def is_due(self, count: jax.Array) -> jax.Array:
        """Return which boxes have all records that they wait for, given the count."""
        return (self.last <= count) & (self.last != DONE)

    def is_pending(self) -> jax.Array:
        """Return which boxes have fired and have not been delivered."""
        return (self.last != NEVER) & (self.last != DONE)

    def delivered(self, condition: jax.Array) -> "Box":
        return self._replace(last=jnp.where(condition, DONE, self.last))

    def records(self) -> Collected:
        """Return all rows at their places, with the number of the record that fired."""
        groups = {}
        for columns, (keys, packing) in zip(self.columns, self._forms(), strict=True):
            row = packing.form.row()
            axis = len(row.batch)
            # (*batch, places, ...) -> (places, *batch, ...)
            value = [jnp.moveaxis(x, axis, 0) for x in columns[0]]
            rows = packing.unpack(row.replace(value=value))
            others = range(1 + self.last.ndim, 1 + len(rows.batch))
            fired = jnp.expand_dims(self.last - self.after, (0, *others))
            wide = jnp.broadcast_to(fired, rows.steps[NUMBER].shape)
            groups[keys] = rows.replace(steps={**rows.steps, FIRED: wide})
        return Collected(groups, self.order)

    def _forms(self) -> list[tuple[Keys, Packing]]:
        return list(zip(self.groups, self.packings, strict=True))

    def _replace(self, **changes: object) -> "Box":
        return dataclasses.replace(self, **changes)


def common_batch(logs: Collected) -> Shape:
    """Return the batch axes that all rows share, beginning with the outermost."""
    batches = [rows.batch for rows in logs.rows.values()]
    common = 0
    for sizes in zip(*batches, strict=False):
        if len({*sizes}) > 1:
            break
        common += 1
    return batches[0][:common]


def _without_answer(rows: Rows) -> Rows:
    steps = {name: step for name, step in rows.steps.items() if name != FIRES}
    return rows.replace(steps=steps)
