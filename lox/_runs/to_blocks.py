"""Logs as blocks of rows, which is what writers and the store are given."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox._jax import equations
from lox._rows.rows import Rows
from lox_host.rows import PACKET_STRIDE, Block, Form

Impls = tuple[tuple[int, str], ...]


def blocks(
    logs: Mapping[str, Rows],
    run: int | np.ndarray,
    impls: Mapping[str, Impls] = {},
    expected: int | None = None,
    order: np.ndarray | None = None,
) -> list[Block]:
    """The rows of a run as blocks, those of one key in order.

    With several runs, each array of the logs has an axis of them in front.

    Keys with the same rows and steps share a block. Rows that were not really logged are
    left out, but for keys with axes from `vmap`, where `valid` says which examples logged.
    Where a step is missing in some rows of a key, another block begins.

    Args:
        logs: The rows by key: NumPy arrays, typed PRNG keys as their data.
        run: The id of the run that logged them, or of each of the runs.
        impls: By key, which leaves of the value hold data of typed PRNG keys, and the names
            of the implementations.
        expected: How many rows the run will have.
        order: What the rows of each of the runs come after, see `Block`.
    """
    alike: dict[Any, list[list[_Part]]] = {}
    if not np.ndim(run):
        logs = {key: rows.map(lambda x: np.asarray(x)[None]) for key, rows in logs.items()}
    runs = np.atleast_1d(np.asarray(run))
    lanes = np.stack([runs, np.zeros_like(runs) if order is None else order], axis=1)
    for key, rows in logs.items():
        parts = list(_parts(key, rows, impls.get(key, ()), lanes))
        alike.setdefault(tuple(part.place for part in parts), []).append(parts)
    joined = (zip(*keys, strict=True) for keys in alike.values())
    return [_block(parts, expected) for each in joined for parts in each]


def by_lane(tree: Mapping[str, Any], axes: int, valid: np.ndarray | None) -> dict[str, Any]:
    """The arrays with one axis in place of the first ones, along it what is valid."""
    chosen = slice(None) if valid is None else np.reshape(valid, -1)

    def line_up(x: np.ndarray) -> np.ndarray:
        return x.reshape(math.prod(x.shape[:axes]), *x.shape[axes:])[chosen]

    # JAX would sort the keys.
    return {key: jax.tree.map(line_up, own) for key, own in tree.items()}


def impls_of(value: Any) -> Impls:
    """Which leaves of a value are typed PRNG keys, and of which implementation."""
    dtypes = [getattr(leaf, "aval", leaf).dtype for leaf in jax.tree.leaves(value)]
    return tuple(
        (i, equations.key_name(dtype))
        for i, dtype in enumerate(dtypes)
        if jnp.issubdtype(dtype, jax.dtypes.prng_key)
    )


class _Part(NamedTuple):
    """Rows of one key that have the same steps; arrays have the axis of rows in front."""

    key: str
    place: tuple
    rows: Rows
    form: Form
    lanes: np.ndarray  # (rows, 2): the run, and the number in the order


def _parts(key: str, rows: Rows, impls: Impls, lanes: np.ndarray) -> Iterator[_Part]:
    lead = rows.lead - 1
    form = Form(rows.tags, rows.time, lead, lead + len(rows.batch), impls)

    def flat(x: np.ndarray) -> np.ndarray:
        # (runs, *lead, [time,] *batch, ...) -> (rows, *lead, *batch, ...)
        if not form.time:
            return x
        x = np.moveaxis(x, lead + 1, 1)
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    front = rows.map(flat)
    front = front.replace(value=_plain(front.value))
    number = np.arange(len(jax.tree.leaves(front.value)[0]))
    lanes = lanes.astype(np.int64).repeat(rows.length if form.time else 1, axis=0)
    lanes[:, 1] = lanes[:, 1] * PACKET_STRIDE + number
    if form.batch:
        yield _Part(key, _place(front, number), front, form, lanes)
        return
    if front.valid is not None:
        number = np.flatnonzero(front.valid)
        if not number.size:
            return
    for same in _alike(number, front.masks):
        steps = {name: x for name, x in front.steps.items() if _has(front, name, same)}
        part = _take(front.replace(steps=steps, valid=None, masks={}), same)
        yield _Part(key, _place(part, same), part, form, lanes[same])


def _block(parts: tuple[_Part, ...], expected: int | None) -> Block:
    rows, lanes = parts[0].rows, parts[0].lanes
    return Block(
        runs=lanes[:, 0].astype(np.int32),
        steps=rows.steps,
        values={part.key: part.rows.value for part in parts},
        forms={part.key: part.form for part in parts},
        valid={p.key: p.rows.valid for p in parts if p.rows.valid is not None},
        expected=expected,
        masks=rows.masks,
        order=lanes[:, 1],
    )


def _alike(number: np.ndarray, masks: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The numbers of rows, cut where one has other steps than the one before."""
    changes = [np.diff(mask[number]) for mask in masks.values()]
    return (
        np.split(number, np.flatnonzero(np.any(changes, axis=0)) + 1) if masks else [number]
    )


def _has(rows: Rows, name: str, number: np.ndarray) -> bool:
    return name not in rows.masks or bool(rows.masks[name][number[:1]].all())


def _take(rows: Rows, number: np.ndarray) -> Rows:
    length = len(jax.tree.leaves(rows.value)[0])
    return rows if len(number) == length else rows.map(lambda x: x[number])


def _place(rows: Rows, number: np.ndarray) -> tuple:
    """What keys have in common that share a block."""
    arrays = {"": number, "valid": rows.valid}
    every = [arrays, rows.steps, rows.masks]
    return tuple(
        (name, None if x is None else (x.dtype, x.shape, x.tobytes()))
        for tree in every
        for name, x in tree.items()
    )


def _plain(tree: Any) -> Any:
    """The tree with nodes of other classes as dictionaries or tuples of what they hold."""
    items = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    if tree is None or [path for path, _ in items] == [()]:
        return tree
    inner = {_name(path[0]): _plain(child) for path, child in items}
    if type(tree) is list:
        return list(inner.values())
    numbered = list(inner) == list(range(len(inner))) and not isinstance(tree, dict)
    return tuple(inner.values()) if numbered else inner


def _name(part: Any) -> Any:
    """The key, attribute or index by which a node of a tree holds something."""
    names = (getattr(part, field, None) for field in ("key", "name", "idx"))
    return next(name for name in names if name is not None)
