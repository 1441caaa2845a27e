"""Turn logs into blocks of rows, for writers and the store.

The axes of logged arrays say where they were logged. A block has all rows along one axis,
run after run:

    (runs, *leading, time, *batch, ...)    as logged: `vmap` over runs, and perhaps others
    (rows, *leading, *batch, ...)          in a block, with rows = runs * time

Here two runs log `x` in a loop of three iterations. The second run skips the second one,
and there the first logs without a step:

    value  [[a b c] [d . f]]            runs [7]       value [a]        step [0]
    valid  [[1 1 1] [1 0 1]]     ->     runs [7]       value [b]
    step   [[0 . 2] [0 . 2]]            runs [7 9 9]   value [c d f]    step [2 0 2]

Rows that were not logged are left out. Where a step appears or disappears, a new block
begins, so all rows of a block have the same steps. Keys of one record share their steps, so
this is done once for all of them. Other keys with equal rows and steps join their block.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lox._jax import equations
from lox._logdict.logdict import logdict
from lox._rows.collected import grouped_rows, rows_by_key
from lox._rows.rows import Rows
from lox_host.rows import PACKET_STRIDE, Block, Form
from lox_host.tree import Tree

# By the number of a leaf that holds data of typed PRNG keys, their implementation.
Impls = tuple[tuple[int, str], ...]
K = TypeVar("K")
T = TypeVar("T")


def to_blocks(
    logs: Mapping[str, Rows],
    run: int | np.ndarray,
    impls: Mapping[str, Impls] = {},
    expected: Mapping[str, float] = {},
    order: np.ndarray | None = None,
    time: np.ndarray | None = None,
    example: np.ndarray | None = None,
) -> list[Block]:
    """Return the rows of a run as blocks, those of one key in order.

    With several runs, each array of the logs has an axis of them in front. Keys with the
    same rows and steps share a block. Of keys with axes from `vmap` all rows are there, and
    `valid` says which examples logged.

    Args:
        logs: The rows by key: NumPy arrays, typed PRNG keys as their data.
        run: The id of the run that logged them, or of each of the runs.
        impls: By key, which leaves of the value hold data of typed PRNG keys.
        expected: By key, how many rows the run will have. Infinity: that is not known.
        order: The number of the packet that the rows of each of the runs came with.
        time: When that arrived, in seconds since 1970. None: unknown.
        example: The index of the example of each of the runs, if several examples share a
            run: it becomes the step `example`, unless the user has a step of that name.
    """
    groups = grouped_rows(logs)
    if not np.ndim(run):
        groups = {k: rows.map(lambda x: np.asarray(x)[None]) for k, rows in groups.items()}
    runs = np.atleast_1d(np.asarray(run))
    packets = np.zeros_like(runs) if order is None else order
    times = np.full(runs.shape, np.nan) if time is None else time
    parts_of: dict[str, list[_KeyRows]] = {}
    for keys, rows in groups.items():
        if example is not None and "example" not in rows.steps:
            rows = _with_example(rows, example)
        parts = list(_parts_of_group(rows, runs, packets, times))
        for i, key in enumerate(keys):
            parts_of[key] = [_of_key(part, i, key, impls.get(key, ())) for part in parts]
    # Keys whose parts all have the same rows and steps share blocks.
    alike: dict[Hashable, list[list[_KeyRows]]] = {}
    for key in logs:
        steps_ids = tuple(part.group.steps_id for part in parts_of[key])
        alike.setdefault(steps_ids, []).append(parts_of[key])
    blocks: list[Block] = []
    for parts_of_keys in alike.values():
        for parts in zip(*parts_of_keys, strict=True):
            blocks.append(_block(parts, expected))
    return blocks


def flatten_examples(
    tree: Mapping[K, T], axes: int, valid: np.ndarray | None
) -> dict[K, T]:
    """Flatten the first axes of all arrays into one, and keep the valid examples.

    (*axes, ...) -> (valid examples, ...)
    """
    chosen = slice(None) if valid is None else np.reshape(valid, -1)

    def flatten(x: np.ndarray) -> np.ndarray:
        return x.reshape(math.prod(x.shape[:axes]), *x.shape[axes:])[chosen]

    # One value at a time: `jax.tree.map` of the whole mapping would sort its keys.
    return {key: jax.tree.map(flatten, value) for key, value in tree.items()}


def flatten_logs(logs: logdict, axes: int, valid: np.ndarray | None) -> dict[str, Rows]:
    """Flatten the examples of logs. Steps that keys share are flattened once."""
    groups = flatten_examples(grouped_rows(logs.rows()), axes, valid)
    return rows_by_key(groups, tuple(logs))


def impls_of(value: Tree) -> Impls:
    """Return which leaves of a value are typed PRNG keys, and of which implementation."""
    dtypes = [getattr(leaf, "aval", leaf).dtype for leaf in jax.tree.leaves(value)]
    return tuple(
        (i, equations.key_name(dtype))
        for i, dtype in enumerate(dtypes)
        if jnp.issubdtype(dtype, jax.dtypes.prng_key)
    )


class _GroupRows(NamedTuple):
    """Rows of keys that share their steps; arrays have the axis of rows in front.

    Attributes:
        rows: The rows, all with the same steps.
        leading: How many axes the arrays have between those of rows and of the batch.
        runs: The run of each row.
        order: See `Block`.
        time: See `Block`.
        steps_id: Identifies the rows and steps: keys with the same one share a block.
    """

    rows: Rows
    leading: int
    runs: np.ndarray
    order: np.ndarray
    time: np.ndarray
    steps_id: Hashable


class _KeyRows(NamedTuple):
    """The rows of one key of a group."""

    key: str
    value: Tree
    form: Form
    group: _GroupRows


def _of_key(part: _GroupRows, i: int, key: str, impls: Impls) -> _KeyRows:
    rows, leading = part.rows, part.leading
    form = Form(rows.tags, rows.time, leading, leading + len(rows.batch), impls)
    return _KeyRows(key, _plain_containers(rows.value[i]), form, part)


def _parts_of_group(
    rows: Rows, runs: np.ndarray, packets: np.ndarray, times: np.ndarray
) -> Iterator[_GroupRows]:
    """Cut the rows of a group where their steps change."""
    leading = rows.leading - 1

    def flatten(x: np.ndarray) -> np.ndarray:
        # (runs, *leading, [time,] *batch, ...) -> (rows, *leading, *batch, ...)
        if not rows.time:
            return x
        x = np.moveaxis(x, leading + 1, 1)
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    flat = rows.map(flatten)
    numbers = np.arange(len(jax.tree.leaves(flat.value)[0]))
    length = rows.length if rows.time else 1
    runs = runs.repeat(length).astype(np.int32)
    order = packets.repeat(length).astype(np.int64) * PACKET_STRIDE + numbers
    time = times.repeat(length)
    # With examples inside a row, some may have logged it and others not: nothing is left
    # out, and the mask goes along.
    if leading + len(rows.batch):
        yield _GroupRows(flat, leading, runs, order, time, _steps_id(flat, numbers))
        return
    logged = numbers if flat.valid is None else np.flatnonzero(flat.valid)
    if flat.valid is not None and not logged.size:
        return
    for some in _split_where_steps_change(logged, flat.masks):
        steps = {name: x for name, x in flat.steps.items() if _has_step(flat, name, some)}
        part = flat.replace(steps=steps, valid=None, masks={})
        if len(some) < len(numbers):
            part = part.map(lambda x, some=some: x[some])
        of_rows = runs[some], order[some], time[some]
        yield _GroupRows(part, leading, *of_rows, _steps_id(part, some))


def _with_example(rows: Rows, example: np.ndarray) -> Rows:
    """Return the rows with the index of their example as a step."""
    # (examples,) -> (examples, *leading, [time,] *batch)
    axes = rows.leading + rows.time + len(rows.batch)
    shape = np.shape(jax.tree.leaves(rows.value)[0])[:axes]
    step = example.reshape(-1, *(1 for _ in shape[1:]))
    return rows.replace(steps={**rows.steps, "example": np.broadcast_to(step, shape)})


def _split_where_steps_change(
    numbers: np.ndarray, masks: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    if not masks:
        return [numbers]
    # Row i and row i + 1 have different steps where any mask changes between them.
    changes = np.any([np.diff(mask[numbers]) for mask in masks.values()], axis=0)
    return np.split(numbers, np.flatnonzero(changes) + 1)


def _has_step(rows: Rows, name: str, numbers: np.ndarray) -> bool:
    """Return whether rows have this step: either all of them have it, or none."""
    return name not in rows.masks or bool(rows.masks[name][numbers[:1]].all())


def _steps_id(rows: Rows, numbers: np.ndarray) -> Hashable:
    """Return an id that is equal if and only if the numbers of rows and steps are."""
    arrays = [("", numbers), ("valid", rows.valid)]
    arrays += [*rows.steps.items(), *rows.masks.items()]
    return tuple(
        (name, None if x is None else (x.dtype, x.shape, x.tobytes())) for name, x in arrays
    )


def _block(parts: Sequence[_KeyRows], expected: Mapping[str, float]) -> Block:
    """Make a block from keys that have the same rows and steps."""
    first = parts[0].group
    # Keys that share a block are logged together, so any of them tells how many rows come.
    number = min(expected.get(part.key, math.inf) for part in parts)
    masks = {part.key: part.group.rows.valid for part in parts}
    return Block(
        runs=first.runs,
        steps=first.rows.steps,
        values={part.key: part.value for part in parts},
        forms={part.key: part.form for part in parts},
        valid={key: mask for key, mask in masks.items() if mask is not None},
        masks=first.rows.masks,
        expected=None if number == math.inf else int(number),
        order=first.order,
        time=first.time,
    )


def _plain_containers(tree: Tree) -> Tree:
    """Replace nodes of custom classes by dictionaries or tuples with the same children."""
    items = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    if tree is None or [path for path, _ in items] == [()]:
        return tree
    inner = {_name(path[0]): _plain_containers(child) for path, child in items}
    if type(tree) is list:
        return list(inner.values())
    is_numbered = list(inner) == list(range(len(inner))) and not isinstance(tree, dict)
    return tuple(inner.values()) if is_numbered else inner


def _name(part: Any) -> Any:
    """Return the key, attribute or index by which a node of a tree holds something."""
    names = (getattr(part, field, None) for field in ("key", "name", "idx"))
    return next(name for name in names if name is not None)
