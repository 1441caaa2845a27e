"""What the rows of a group of keys look like: the columns, and where each thing stands."""

import dataclasses
import itertools as it
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lox_host.rows import Block, Form
from lox_host.store.dtypes import storable
from lox_host.tree import leaves

# The first columns of every file: the run, and the number of the row in the session.
RUN, ROW = 0, 1


@dataclasses.dataclass(frozen=True)
class Column:
    """One array: its name in the file, its true dtype, the shape of one row."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Key:
    """What is known of a key.

    Attributes:
        tree: Its value, with the numbers of columns: `3`, `["list", [3, 4]]`,
            `["dict", [["a", 3], ["b", None]]]`.
        form: What the writer was told of it.
        valid: The number of the column that says which examples logged.
    """

    tree: Any
    form: Form
    valid: int | None


@dataclasses.dataclass(frozen=True)
class Layout:
    """What files with the same columns have in common.

    Attributes:
        columns: All columns; the run and the number of the row come first.
        steps: By name of a step, the number of its column.
        masks: By name of a step, the number of the column that says which examples have it.
        keys: What is known of each key.
    """

    columns: tuple[Column, ...]
    steps: dict[str, int]
    masks: dict[str, int]
    keys: dict[str, Key]


def layout(block: Block) -> Layout:
    """The layout of a block."""
    number = it.count(2)
    steps = {name: next(number) for name in block.steps}
    trees = {key: _numbered(tree, number) for key, tree in block.values.items()}
    valid = {key: next(number) for key in block.valid}
    masks = {name: next(number) for name in block.masks}
    names = [
        *("@run", "@row"),
        *(f"@{name}" for name in steps),
        *(name for name, _ in _leaves(block)),
        *(f"{key}@valid" for key in valid),
        *(f"@{name}@valid" for name in masks),
    ]
    runs, *others = flat(block)[1]
    each = zip(_unique(names), [runs, np.zeros(0, np.int64), *others], strict=True)
    columns = tuple(_column(name, array) for name, array in each)
    keys = {key: Key(tree, block.forms[key], valid.get(key)) for key, tree in trees.items()}
    return Layout(columns, steps, masks, keys)


def flat(block: Block) -> tuple[tuple, list[np.ndarray]]:
    """What blocks of one layout have in common, and the columns without `@row`."""
    trees = block.steps, block.values, block.valid, block.masks
    arrays, kinds = [block.runs], [*map(len, trees), *block.forms.values()]
    for name, node in it.chain.from_iterable(map(_walk, filter(None, trees))):
        if isinstance(node, np.ndarray):
            arrays.append(node)
            kinds += name, node.dtype.num, node.shape[1:]
        else:
            kinds += name, type(node), None if node is None else len(node)
    return tuple(kinds), arrays


def to_json(layout: Layout) -> dict[str, Any]:
    """The layout in what JSON has."""
    return dataclasses.asdict(layout)


def from_json(fields: dict[str, Any]) -> Layout:
    """The layout that was turned into `fields`."""
    columns = (Column(c["name"], c["dtype"], tuple(c["shape"])) for c in fields["columns"])
    keys = {name: _key(**key) for name, key in fields["keys"].items()}
    return Layout(tuple(columns), fields["steps"], fields["masks"], keys)


def numbers(tree: Any) -> list[int]:
    """The numbers of the columns in the tree of a key, in order."""
    found: list[int] = []
    filled(tree, found.append)
    return found


def filled(tree: Any, column: Callable[[int], Any]) -> Any:
    """The value of a key, from its tree and the columns by their numbers."""
    if tree is None or isinstance(tree, int):
        return None if tree is None else column(tree)
    kind, children = tree
    if kind == "dict":
        return {name: filled(child, column) for name, child in children}
    each = [filled(child, column) for child in children]
    return each if kind == "list" else tuple(each)


def _walk(tree: Any) -> Iterator[tuple[Any, Any]]:
    """All that is in a tree, with the names that it has there."""
    for name, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield name, child
        if child is not None and not isinstance(child, np.ndarray):
            yield from _walk(child)


def _leaves(block: Block) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of the values by name. One that cannot be stored is an error."""
    for key, tree in block.values.items():
        for name, array in leaves(tree):
            if not storable(array.dtype):
                raise TypeError(
                    f"The value of {key!r} has the dtype `{array.dtype}`, which the store "
                    "has no column for. Log numbers, bools and typed PRNG keys."
                )
            yield f"{key}/{name}" if name else key, array


def _numbered(tree: Any, number: Iterator[int]) -> Any:
    if tree is None or isinstance(tree, np.ndarray):
        return None if tree is None else next(number)
    if isinstance(tree, dict):
        items = ((_json(name), _numbered(child, number)) for name, child in tree.items())
        return ["dict", [*map(list, items)]]
    return [type(tree).__name__, [_numbered(child, number) for child in tree]]


def _json(name: Any) -> str | int:
    return name if isinstance(name, str | int) else str(name)


def _unique(names: list[str]) -> list[str]:
    """The names in what Arrow has, and with quotes behind those that were there already."""
    taken: dict[str, None] = {}
    for name in names:
        name = name.replace("\0", "\\0").encode(errors="replace").decode()
        while name in taken:
            name += "'"
        taken[name] = None
    return list(taken)


def _column(name: str, array: np.ndarray) -> Column:
    return Column(name, array.dtype.name, array.shape[1:])


def _key(tree: Any, form: dict[str, Any], valid: int | None) -> Key:
    tags, keys = tuple(form["tags"]), tuple((i, impl) for i, impl in form["keys"])
    return Key(tree, Form(**{**form, "tags": tags, "keys": keys}), valid)
