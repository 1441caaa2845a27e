"""The host side of a logger: what a back end is given. NumPy only, no JAX."""

import dataclasses
import functools as ft
import itertools as it
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

# How many rows may arrive together: their numbers in the order are less than that apart.
TOGETHER = 2**32


@dataclasses.dataclass(frozen=True)
class Run:
    """One experiment: one seed.

    Attributes:
        id: Its number on the device. Nothing else has it in this process.
        name: Short, and safe as the name of a file. Runs of other keys have other names.
        key: The data of the PRNG key that it was started with.
        config: What the logger was given as `config`.
        start: When it was started, in seconds since 1970.
        group: The same for all runs that were started by one call.
        process: The number of the process among those of `jax.distributed`.
        job: The same for all runs of these processes.
    """

    id: int
    name: str
    key: tuple[int, ...]
    config: Mapping[str, Any]
    start: float
    group: str
    process: int = 0
    job: str = ""


@dataclasses.dataclass(frozen=True)
class Form:
    """What is known of a key but for its rows.

    Attributes:
        tags: Its tags.
        time: Whether it had a time axis. Without one, a single row stands for itself.
        lead: How many axes of a row stood before the time axis, where `vmap` had put them.
        batch: How many axes of a row come from `vmap`, the `lead` ones among them.
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
        order: Numbers that grow in the order of logging, also from block to block. Rows of
            several keys that were logged together have the same.
    """

    runs: np.ndarray
    steps: dict[str, np.ndarray]
    values: dict[str, Any]
    forms: dict[str, Form]
    valid: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    masks: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    expected: int | None = None
    order: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))

    def __post_init__(self):
        if len(self.order) != len(self.runs):
            object.__setattr__(self, "order", np.arange(len(self.runs)))

    def __len__(self) -> int:
        return len(self.runs)

    @ft.cached_property
    def layout(self) -> tuple:
        """What blocks must have in common to be joined."""
        trees = self.steps, self.values, self.valid, self.masks
        return *map(_structure, trees), tuple(self.forms.items()), self.expected

    def later(self, number: int) -> "Block":
        """The same, behind so many others that arrived together."""
        return dataclasses.replace(self, order=self.order + number * TOGETHER)

    def of_runs(self, ids: Collection[int]) -> "Block":
        """The rows of these runs alone."""
        mine = np.isin(self.runs, list(ids))
        if mine.all():
            return self
        arrays = {name: mapped(lambda x: x[mine], getattr(self, name)) for name in _ARRAYS}
        return dataclasses.replace(self, **arrays)

    def renamed(self, ids: Mapping[int, int]) -> "Block":
        """The same with other ids for its runs."""
        runs = np.array([ids[id] for id in self.runs.tolist()], np.int32)
        return dataclasses.replace(self, runs=runs)

    @property
    def nbytes(self) -> int:
        trees = self.steps, self.values, self.valid, self.masks
        return sum(array.nbytes for tree in trees for _, array in leaves(tree))


class Row(NamedTuple):
    """What one run logged at one step."""

    run: int
    steps: dict[str, Any]
    values: dict[str, Any]


class Batch(Sequence[Block]):
    """What a writer is given at once: blocks, in the order they were logged.

    `rows()` has the same one by one.
    """

    def __init__(self, blocks: Sequence[Block]):
        self._blocks = list(blocks)

    def __getitem__(self, i):
        return self._blocks[i]

    def __len__(self) -> int:
        return len(self._blocks)

    def rows(self) -> Iterator[Row]:
        """All rows in the order of logging. One row holds what a run logged at one step.

        Another row begins where a key has been logged there already or at a later row, so
        that each key keeps its order, and for rows without steps. If only some examples of
        a `vmap` logged, the others are masked.
        """
        rows: list[Row] = []
        # By step and by key, the number of the row where something was last put.
        steps_at: dict[tuple, int] = {}
        keys_at: dict[int, dict[str, int]] = {}
        for block, i, run in self._in_order():
            steps = {name: step[i] for name, step in block.steps.items()}
            values = dict(_logged(block, i))
            place = run, *((name, step.tobytes()) for name, step in steps.items())
            at = steps_at.get(place, -1) if steps else -1
            latest = keys_at.setdefault(run, {})
            if at <= max(map(latest.get, values, it.repeat(-1)), default=-1):
                at = steps_at[place] = len(rows)
                rows.append(Row(run, steps, {}))
            rows[at].values.update(values)
            latest.update(dict.fromkeys(values, at))
        return iter(rows)

    def _in_order(self) -> Iterator[tuple[Block, int, int]]:
        """The block, the number in it, and the run of each row."""
        each = [
            (block, i, run) for block in self for i, run in enumerate(block.runs.tolist())
        ]
        orders = [block.order for block in self]
        order = np.argsort(np.concatenate(orders), kind="stable") if orders else ()
        return (each[i] for i in order)


class Writer(Protocol):
    """A back end. All of its methods are called on one and the same thread."""

    def open(self, run: Run) -> None:
        """Begin a run. What this raises, `logger.init` raises."""
        ...

    def write(self, batch: Batch) -> None:
        """Take what was logged by any of the open runs."""
        ...

    def flush(self) -> None:
        """Bring what was written to where it outlives the process."""
        ...

    def close(self, run: Run) -> None:
        """End a run: nothing more is written for it."""
        ...


def merged(blocks: Sequence[Block]) -> list[Block]:
    """The blocks with those of one layout joined, their rows in order."""
    groups: dict[tuple, list[Block]] = {}
    for block in blocks:
        groups.setdefault(block.layout, []).append(block)
    return [_joined(group) for group in groups.values()]


def _joined(blocks: Sequence[Block]) -> Block:
    order = np.concatenate([block.order for block in blocks])
    at = np.argsort(order, kind="stable")
    if len(blocks) == 1 and (at[1:] > at[:-1]).all():
        return blocks[0]
    arrays = {
        name: mapped(
            lambda *parts: np.concatenate(parts)[at],
            *(getattr(block, name) for block in blocks),
        )
        for name in _ARRAYS
    }
    return dataclasses.replace(blocks[0], **arrays)


# What a block has an axis of rows in.
_ARRAYS = ("runs", "steps", "values", "order", "valid", "masks")


def _structure(tree: Any) -> Any:
    """What trees have in common whose arrays can be joined."""
    if isinstance(tree, np.ndarray):
        return tree.dtype, tree.shape[1:]
    if isinstance(tree, dict):
        return dict, *((name, _structure(inner)) for name, inner in tree.items())
    return None if tree is None else (type(tree), *map(_structure, tree))


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of a tree with their names, `key/path/in/the/tree`."""
    if isinstance(tree, np.ndarray | np.generic):
        yield name, tree  # pyright: ignore[reportReturnType]
        return
    items = tree.items() if isinstance(tree, dict) else enumerate(tree or ())
    for part, inner in items:
        yield from leaves(inner, f"{name}/{part}" if name else str(part))


def _logged(block: Block, i: int) -> Iterator[tuple[str, Any]]:
    """The values of row `i`. Of some examples that did not log, they are masked."""
    for key, tree in block.values.items():
        value, valid = _at(tree, i), block.valid.get(key)
        if valid is None or valid[i].all():
            yield key, value
        elif valid[i].any():
            yield key, mapped(ft.partial(_masked, valid=valid[i]), value)


def _masked(array: np.ndarray, valid: np.ndarray) -> np.ma.MaskedArray:
    mask = ~valid.reshape(valid.shape + (1,) * (array.ndim - valid.ndim))
    return np.ma.masked_array(array, np.broadcast_to(mask, array.shape))


def _at(tree: Any, i: int) -> Any:
    """Row `i` of all arrays of a tree."""
    return mapped(lambda array: array[i], tree)


def mapped(fun: Callable[..., Any], *trees: Any) -> Any:
    """The tree with `fun` of each of the arrays, those of several trees taken together."""
    first = trees[0]
    if isinstance(first, dict):
        return {name: mapped(fun, *(tree[name] for tree in trees)) for name in first}
    if isinstance(first, list | tuple):
        return type(first)(mapped(fun, *inner) for inner in zip(*trees, strict=True))
    return None if first is None else fun(*trees)
