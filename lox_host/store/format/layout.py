"""The layout of a group: its columns, and which part of a block each of them holds.

A block of rows holds trees of arrays, and a file of the store is a flat table. The layout
maps one to the other:

    block of rows                              columns of the file
    runs                                       0  @run
    order                                      1  @row     number of the row in the session
    time                                       2  @time    when it reached the host
    steps["step"]                              3  @step
    values["net"] = {"w": ..., "b": [...]}     4  net/w    5  net/b/0
    valid["net"]                               6  net@valid
    masks["step"]                              7  @step@valid

Here the tree of the key `net` is `["dict", [["w", 4], ["b", ["list", [5]]]]]`. Layouts of
earlier versions have no column `@time`.

A layout that comes from a journal may be damaged or forged. `Layout.from_json` checks it,
so code that has a `Layout` can trust it.
"""

import functools as ft
import itertools as it
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from lox_host.frozen import frozen
from lox_host.rows import Block, Form
from lox_host.store.format.dtypes import dtype_named, is_storable, to_stored
from lox_host.tree import Tree, leaves

# The first columns of every file: the run, the number of the row in the session, and the
# time. Files of earlier versions have no times.
RUN, ROW, TIME = 0, 1, 2

# The tree of a value as JSON, with the numbers of columns in place of arrays: `3`,
# `["list", [3, 4]]`, `["dict", [["a", 3], ["b", None]]]`.
NumberTree: TypeAlias = "int | list[Any] | None"


@frozen
class Column:
    """One array: its name in the file, its original dtype, and the shape of one row."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@frozen
class Key:
    """The layout of a key.

    Attributes:
        tree: The tree of its value, with the numbers of columns in place of arrays.
        form: Facts about the key that its arrays do not show.
        valid: The number of the column that says which examples logged. None: all did.
    """

    tree: NumberTree
    form: Form
    valid: int | None

    @property
    def columns(self) -> list[int]:
        """The numbers of all its columns."""
        numbers = [] if self.valid is None else [self.valid]
        fill_tree(self.tree, numbers.append)
        return numbers


@frozen
class Layout:
    """The layout of a group, which all of its files share.

    Attributes:
        columns: All columns. The run and the number of the row come first.
        steps: The number of each step's column, by name.
        masks: The number of the column that says which examples have a step, by name.
        keys: The layout of each key.
        time: The number of the column that says when rows reached the host. None in files
            of earlier versions.
    """

    columns: tuple[Column, ...]
    steps: dict[str, int]
    masks: dict[str, int]
    keys: dict[str, Key]
    time: int | None = None

    @classmethod
    def of(cls, block: Block) -> "Layout":
        """Return the layout of a block."""
        number = it.count(3)  # after the run, the number of the row and the time
        steps = {name: next(number) for name in block.steps}
        trees = {key: _number_tree(tree, number) for key, tree in block.values.items()}
        valid = {key: next(number) for key in block.valid}
        masks = {name: next(number) for name in block.masks}
        names = [
            *("@run", "@row", "@time"),
            *(f"@{name}" for name in steps),
            *(name for name, _ in _named_arrays(block)),
            *(f"{key}@valid" for key in valid),
            *(f"@{name}@valid" for name in masks),
        ]
        # `flatten` leaves out the row numbers, which only the session knows.
        _, (runs, *others) = flatten(block)
        arrays = [runs, np.zeros(0, np.int64), *others]
        columns = (
            Column(name, array.dtype.name, array.shape[1:])
            for name, array in zip(_unique_names(names), arrays, strict=True)
        )
        keys = {
            key: Key(tree, block.forms[key], valid.get(key)) for key, tree in trees.items()
        }
        return cls(tuple(columns), steps, masks, keys, TIME)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Layout":
        """Return the layout that `dataclasses.asdict` has turned into these fields.

        Raises:
            ValueError: If they are not a layout. A journal may be damaged or forged.
        """
        with bad_fields():
            columns = tuple(
                Column(column["name"], column["dtype"], tuple(column["shape"]))
                for column in fields["columns"]
            )
            keys = {}
            for name, key in fields["keys"].items():
                form = {**key["form"], "tags": tuple(key["form"]["tags"])}
                form["keys"] = tuple((i, impl) for i, impl in form["keys"])
                keys[name] = Key(key["tree"], Form(**form), key["valid"])
            steps, masks, time = fields["steps"], fields["masks"], fields.get("time")
            layout = cls(columns, dict(steps), dict(masks), keys, time)
            layout._check()
        return layout

    def _check(self) -> None:
        """Raise unless the columns can be those of a block."""
        for column in self.columns:
            check(isinstance(column.name, str) and isinstance(column.dtype, str))
            dtype = dtype_named(column.dtype)
            check(is_storable(dtype) and all(is_count(size) for size in column.shape))
            # A row is no larger than a file can be, and has no more axes than NumPy allows.
            check(math.prod(column.shape) * dtype.itemsize < 2**62)
            check(len(column.shape) < 32 and max(column.shape, default=0) < 2**62)
        # The run and the number of the row.
        first = [(column.dtype, column.shape) for column in self.columns[:2]]
        check(first == [("int32", ()), ("int64", ())])
        for number in self.steps.values():
            self._column(number)
        for number in self.masks.values():
            check(self._column(number).dtype == "bool")
        check(self.masks.keys() <= self.steps.keys())
        if self.time is not None:
            time = self._column(self.time)
            check((time.dtype, time.shape) == ("float64", ()))
        for key in self.keys.values():
            self._check_key(key)

    def _check_key(self, key: Key) -> None:
        form, leaves = key.form, list[Column]()
        fill_tree(key.tree, lambda number: leaves.append(self._column(number)))
        check(all(isinstance(tag, str) for tag in form.tags) and type(form.time) is bool)
        check(is_count(form.lead) and is_count(form.batch) and form.lead <= form.batch)
        check(leaves and all(len(leaf.shape) >= form.batch for leaf in leaves))
        for number, impl in form.keys:
            check(is_count(number) and number < len(leaves) and isinstance(impl, str))
        # All arrays of a value have the same axes of examples in front.
        examples = leaves[0].shape[: form.batch]
        check(all(leaf.shape[: form.batch] == examples for leaf in leaves))
        if key.valid is not None:
            valid = self._column(key.valid)
            check(valid.dtype == "bool" and valid.shape == examples)

    def _column(self, number: int) -> Column:
        check(is_count(number) and number < len(self.columns))
        return self.columns[number]

    @property
    def shared(self) -> list[int]:
        """The numbers of the columns that all keys need. Times are optional."""
        return [RUN, ROW, *self.steps.values(), *self.masks.values()]

    @ft.cached_property
    def bits(self) -> list[int]:
        """How many bits a row of each column takes in a file."""
        plain = [
            to_stored(np.zeros((0, *column.shape), dtype_named(column.dtype)))
            for column in self.columns
        ]
        return [
            math.prod(x.shape[1:]) * (1 if x.dtype == bool else 8 * x.itemsize)
            for x in plain
        ]

    def is_number(self, key: str) -> bool:
        """Return whether a key has one real number per row."""
        tree, form = self.keys[key].tree, self.keys[key].form
        if not isinstance(tree, int) or form.keys:
            return False
        column = self.columns[tree]
        return column.shape == () and dtype_named(column.dtype).kind != "c"

    def block(self, arrays: Mapping[int, np.ndarray], keys: Iterable[str]) -> Block:
        """Return a block with some keys, given the arrays by column number."""
        known, no_times = {key: self.keys[key] for key in keys}, np.zeros(0)
        return Block(
            runs=arrays[RUN],
            steps={name: arrays[i] for name, i in self.steps.items()},
            values={k: fill_tree(key.tree, arrays.__getitem__) for k, key in known.items()},
            forms={k: key.form for k, key in known.items()},
            valid={
                k: arrays[key.valid] for k, key in known.items() if key.valid is not None
            },
            masks={name: arrays[i] for name, i in self.masks.items()},
            order=arrays[ROW],
            time=no_times if self.time is None else arrays.get(self.time, no_times),
        )

    def empty_block(self) -> Block:
        """Return a block without rows."""
        arrays = {
            i: np.zeros((0, *column.shape), dtype_named(column.dtype))
            for i, column in enumerate(self.columns)
        }
        return self.block(arrays, self.keys)


def flatten(block: Block) -> tuple[Hashable, list[np.ndarray]]:
    """Return a key that all blocks of one layout share, and the columns without `@row`.

    This runs for every block that is written, so it avoids making a `Layout`.
    """
    # The key has names, dtypes and shapes in the order of the columns. It also has the
    # lengths of containers. Without these, `[a, [b]]` would be the same as `[a, b]`.
    arrays = [block.runs, block.time]
    kinds: list[Hashable] = [*block.forms.values()]
    for tree in (block.steps, block.values, block.valid, block.masks):
        kinds.append(len(tree))
        for name, node in tree.items():
            _flatten(name, node, kinds, arrays)
    return tuple(kinds), arrays


def _flatten(
    name: Hashable, node: Tree, kinds: list[Hashable], arrays: list[np.ndarray]
) -> None:
    """Add a node to the key and to the columns of `flatten`, and then its children."""
    if isinstance(node, np.ndarray):
        arrays.append(node)
        kinds += name, node.dtype.num, node.shape[1:]
        return
    kinds += name, type(node), None if node is None else len(node)
    for inner, child in node.items() if isinstance(node, dict) else enumerate(node or ()):
        _flatten(inner, child, kinds, arrays)


class bad_fields:
    """Turn any error that malformed fields of a journal cause into a `ValueError`.

    A class, as this is entered for each of thousands of runs, and `contextmanager` takes
    longer than what is in it.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, _BAD_FIELDS):
            raise ValueError("not what lox writes") from error


_BAD_FIELDS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


def check(is_right: object) -> None:
    """Raise a `ValueError` unless a field of a journal is valid."""
    if not is_right:
        raise ValueError("not what lox writes")


def is_count(value: object) -> bool:
    """Return whether a value from JSON is a natural number or zero."""
    return type(value) is int and value >= 0


def fill_tree(tree: NumberTree, column: Callable[[int], object]) -> Tree:
    """Return the value of a key: its tree with `column(number)` for each number."""
    if tree is None or isinstance(tree, int):
        return None if tree is None else column(tree)
    kind, children = tree
    check(kind in ("dict", "list", "tuple"))
    if kind == "dict":
        return {name: fill_tree(child, column) for name, child in children}
    filled = [fill_tree(child, column) for child in children]
    return filled if kind == "list" else tuple(filled)


def _named_arrays(block: Block) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of the values by name. Raise if one cannot be stored."""
    for key, tree in block.values.items():
        for name, array in leaves(tree):
            if not is_storable(array.dtype):
                raise TypeError(
                    f"The value of {key!r} has the dtype `{array.dtype}`, which a store "
                    "cannot hold. Log numbers, bools or typed PRNG keys."
                )
            yield f"{key}/{name}" if name else key, array


def _number_tree(tree: Tree, number: Iterator[int]) -> NumberTree:
    if tree is None or isinstance(tree, np.ndarray):
        return None if tree is None else next(number)
    if isinstance(tree, dict):
        items = []
        for name, child in tree.items():
            plain = name if isinstance(name, str | int) else str(name)
            items.append([plain, _number_tree(child, number)])
        return ["dict", items]
    return [type(tree).__name__, [_number_tree(child, number) for child in tree]]


def _unique_names(names: list[str]) -> list[str]:
    """Return the names as Arrow allows them, with quotes appended to repeated ones."""
    taken: dict[str, None] = {}
    for name in names:
        name = name.replace("\0", "\\0").encode(errors="replace").decode()
        while name in taken:
            name += "'"
        taken[name] = None
    return list(taken)
