"""What was logged, as back ends, the store and the command line know it: blocks of rows.

A *block* is a table. Its columns are the steps and the keys that were logged together, and
each of its arrays has an axis of rows in front. Rows of several runs share a block:

    lox.log({"loss": l, "grad": {"w": g}}, step=i)     in runs 7 and 9, under `vmap`

    runs      steps["step"]    values["loss"]    values["grad"]["w"]    order     time
    (rows,)   (rows,)          (rows,)           (rows, 3)              (rows,)   (rows,)
    7         0                0.5               [0.1 0.2 0.3]          0         1.79e9
    9         0                0.7               [0.4 0.1 0.2]          0         1.79e9
    7         1                0.4               [0.1 0.1 0.3]          1         1.79e9
    9         1                0.6               [0.3 0.1 0.2]          1         1.79e9

A *batch* is several blocks, whose rows `order` puts into one sequence. `Batch.rows()` has
them one by one, with what a run logged at one step in one row.
"""

import dataclasses
import functools as ft
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import NamedTuple, TypeVar, overload

import numpy as np

from lox_host.tree import Tree, leaves, map_arrays, row_structure

# The `order` of a row is PACKET_STRIDE times the number of the packet that it arrived in,
# and its own number in there.
PACKET_STRIDE = 2**32

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Form:
    """What is known about a key, besides its rows.

    Attributes:
        tags: Its tags.
        time: Whether it had a time axis. Without one, there is a single row.
        lead: How many leading axes it had, those that `vmap` put before the time axis.
        batch: How many axes of a row come from `vmap`, the leading ones among them.
        keys: The names of the implementations of typed PRNG keys, by the number of the leaf
            of the value that holds their data.
    """

    tags: tuple[str, ...] = ()
    time: bool = False
    lead: int = 0
    batch: int = 0
    keys: tuple[tuple[int, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Block:
    """Rows of keys that were logged together. Each array has an axis of rows in front.

    Attributes:
        runs: The id of the run of each row.
        steps: The steps of the rows by name.
        values: By key, the values: a tree of dictionaries, lists, tuples and arrays.
        forms: By key, what else is known.
        valid: By key, which examples logged, for those with axes from `vmap`.
        masks: By step, which examples have it, where only some do.
        expected: How many rows a run will have at the end of the program that sends this.
        order: Numbers that grow in the order of logging, even across blocks. Rows that were
            logged together, in several blocks, have the same number.
        time: When each row reached the host, in seconds since 1970. NaN: unknown.
    """

    runs: np.ndarray
    steps: dict[str, np.ndarray]
    values: dict[str, Tree]
    forms: dict[str, Form]
    valid: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    masks: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    expected: int | None = None
    order: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    time: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

    def __post_init__(self):
        if len(self.order) != len(self.runs):
            object.__setattr__(self, "order", np.arange(len(self.runs)))
        if len(self.time) != len(self.runs):
            object.__setattr__(self, "time", np.full(len(self.runs), np.nan))

    def __len__(self) -> int:
        return len(self.runs)

    @ft.cached_property
    def layout(self) -> Hashable:
        """What blocks must have in common to be joined."""
        trees = self.steps, self.values, self.valid, self.masks
        return *map(row_structure, trees), tuple(self.forms.items()), self.expected

    @property
    def nbytes(self) -> int:
        """The size of all arrays."""
        trees = self.steps, self.values, self.valid, self.masks
        return sum(array.nbytes for tree in trees for _, array in leaves(tree))

    def select(self, which: np.ndarray | slice) -> "Block":
        """Return these rows alone: their numbers, a mask, or a slice."""
        arrays = {
            name: map_arrays(lambda x: x[which], getattr(self, name)) for name in _ARRAYS
        }
        return dataclasses.replace(self, **arrays)

    def of_runs(self, ids: Collection[int]) -> "Block":
        """Return the rows of these runs alone."""
        is_theirs = np.isin(self.runs, list(ids))
        return self if is_theirs.all() else self.select(is_theirs)

    def renamed(self, ids: Mapping[int, int]) -> "Block":
        """Return the same rows with other ids for their runs."""
        runs = np.array([ids[id] for id in self.runs.tolist()], np.int32)
        return dataclasses.replace(self, runs=runs)


# The fields of a block that hold arrays with an axis of rows.
_ARRAYS = ("runs", "steps", "values", "order", "time", "valid", "masks")


@dataclasses.dataclass(frozen=True)
class FlatRows:
    """Rows of one key, with the arrays of its value by name, for curves and tables.

    Each array has an axis of rows in front, and then the axes of examples.

    Attributes:
        arrays: The arrays of the value by name, `key/path/in/the/tree`.
        steps: The steps by name.
        masks: For steps that only some rows or examples have, which.
        valid: Which examples logged. None: all of them.
        examples: The sizes of the axes that come from `vmap`.
        has_time: Whether there was an axis of time. Without one, there is a single row.
        time: When each row reached the host, in seconds since 1970. It may have the first
            axes of the examples, one per axis of runs. None: unknown.
    """

    arrays: dict[str, np.ndarray]
    steps: dict[str, np.ndarray]
    masks: dict[str, np.ndarray]
    valid: np.ndarray | None
    examples: tuple[int, ...]
    has_time: bool
    time: np.ndarray | None = None

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))


class Row(NamedTuple):
    """What one run logged at one step.

    Attributes:
        run: The id of the run.
        steps: The steps by name.
        values: The values by key.
        time: When the first of them reached the host, in seconds since 1970.
    """

    run: int
    steps: dict[str, np.ndarray]
    values: dict[str, Tree]
    time: float = float("nan")


class Batch(Sequence[Block]):
    """What a writer gets in one call: blocks, in the order of logging.

    `rows()` iterates over the same rows one by one.
    """

    def __init__(self, blocks: Sequence[Block]):
        self._blocks = list(blocks)

    @overload
    def __getitem__(self, i: int) -> Block: ...
    @overload
    def __getitem__(self, i: slice) -> list[Block]: ...
    def __getitem__(self, i: int | slice) -> Block | list[Block]:
        return self._blocks[i]

    def __len__(self) -> int:
        return len(self._blocks)

    # That of `Sequence` calls `__getitem__` for each block.
    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks)

    def rows(self) -> Iterator[Row]:
        """Iterate over all rows in the order of logging, one for each step of a run.

        A step gets another row if one of its keys is already in that row, or in a later
        one, so that each key keeps its order. Records without steps are separate rows. If
        only some examples of a `vmap` logged, the others are masked.
        """
        # Where the row of a run and its steps is, and in which row a key was seen last.
        rows: list[Row] = []
        open_rows: dict[Hashable, int] = {}
        last_row_of: dict[tuple[int, str], int] = {}
        for run, block, i in self._in_order():
            steps = {name: step[i] for name, step in block.steps.items()}
            values = dict(_logged_values(block, i))
            # By bytes: steps may be arrays, which are not hashable, and NaN, which is not
            # equal to itself.
            step_id = run, *((name, step.tobytes()) for name, step in steps.items())
            row = open_rows.get(step_id) if steps else None
            # A key must not appear twice in a row, nor move before its last row.
            if row is None or any(last_row_of.get((run, key), -1) >= row for key in values):
                row = open_rows[step_id] = len(rows)
                rows.append(Row(run, steps, {}, float(block.time[i])))
            rows[row].values.update(values)
            last_row_of.update(((run, key), row) for key in values)
        return iter(rows)

    def _in_order(self) -> Iterator[tuple[int, Block, int]]:
        """Iterate over the rows: the run, the block that holds it, and its number there."""
        # Stable: rows of several blocks with one number stay in the order of the blocks.
        places = [
            (run, block, i) for block in self for i, run in enumerate(block.runs.tolist())
        ]
        orders = [block.order for block in self]
        order = np.argsort(np.concatenate(orders), kind="stable") if orders else ()
        return (places[i] for i in order)


def merge_blocks(blocks: Sequence[Block]) -> list[Block]:
    """Join the blocks of one layout, with their rows in order."""
    alike: dict[Hashable, list[Block]] = {}
    for block in blocks:
        alike.setdefault(block.layout, []).append(block)
    return [_concatenate(group) for group in alike.values()]


def join_alike(blocks: Sequence[Block]) -> Block | None:
    """Join blocks one after the other, or return None if that takes a closer look.

    To look at each array of thousands of blocks takes longer than all the rest. So this
    compares whole columns: it joins blocks of arrays with the same names, dtypes and
    shapes, and leaves trees and everything else to others.
    """
    first = blocks[0]
    try:
        forms = [*_columns([block.forms for block in blocks]).values()]
        # The keys of a block often share one form, so their columns are the same.
        distinct = [forms[i] for i in range(len(forms)) if forms[i] not in forms[:i]]
        if any(len({*map(_facts_of, column)}) > 1 for column in distinct):
            return None
        trees = {
            name: {
                inner: _join_column(column)
                for inner, column in _columns([*map(attrgetter(name), blocks)]).items()
            }
            for name in ("steps", "values", "valid", "masks")
        }
        arrays = {
            name: _join_column([*map(attrgetter(name), blocks)])
            for name in ("runs", "order", "time")
        }
    except (KeyError, TypeError, ValueError):
        return None
    return dataclasses.replace(first, **trees, **arrays)


_facts_of = attrgetter(*(field.name for field in dataclasses.fields(Form)))


def _columns(rows: Sequence[Mapping[str, T]]) -> dict[str, list[T]]:
    """Return what mappings with the same names have under each of them."""
    first = rows[0]
    if {*map(len, rows)} != {len(first)}:
        raise KeyError("other names")
    return {name: [*map(itemgetter(name), rows)] for name in first}


def _join_column(parts: Sequence[Tree]) -> np.ndarray:
    """Concatenate arrays. Raise unless all are arrays of one dtype and shape of rows."""
    if {*map(type, parts)} != {np.ndarray}:
        raise TypeError("not arrays")
    return np.concatenate(parts, dtype=parts[0].dtype, casting="no")


def _concatenate(blocks: Sequence[Block]) -> Block:
    # A single block whose rows are in order needs no copy.
    order = np.argsort(np.concatenate([block.order for block in blocks]), kind="stable")
    if len(blocks) == 1 and (order[1:] > order[:-1]).all():
        return blocks[0]

    def join(*parts: np.ndarray) -> np.ndarray:
        return np.concatenate(parts)[order]

    arrays = {
        name: map_arrays(join, *(getattr(block, name) for block in blocks))
        for name in _ARRAYS
    }
    return dataclasses.replace(blocks[0], **arrays)


def _logged_values(block: Block, i: int) -> Iterator[tuple[str, Tree]]:
    """Yield the values of row `i`, masked where some examples did not log."""
    for key, tree in block.values.items():
        value, valid = map_arrays(lambda array: array[i], tree), block.valid.get(key)
        if valid is None or valid[i].all():
            yield key, value
        elif valid[i].any():
            yield key, map_arrays(ft.partial(_mask, valid=valid[i]), value)


def _mask(array: np.ndarray, valid: np.ndarray) -> "np.ma.MaskedArray":
    # The axes of examples come first: (*batch,) -> (*batch, 1, ..., 1)
    mask = ~valid.reshape(valid.shape + (1,) * (array.ndim - valid.ndim))
    return np.ma.masked_array(array, np.broadcast_to(mask, array.shape))
