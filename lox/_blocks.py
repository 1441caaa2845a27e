"""Logs as blocks of rows, which is what writers and the store are given."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from ._rows import Rows
from .loggers._writer import Block, Form

Impls = tuple[tuple[int, str], ...]


def blocks(
    logs: Mapping[str, Rows],
    run: int,
    impls: Mapping[str, Impls] = {},
    expected: int | None = None,
) -> list[Block]:
    """The rows of a run as blocks, those of one key in order.

    Keys with the same rows and steps share a block. Rows that were not really logged are
    left out, but for keys with axes from `vmap`, where `valid` says which examples logged.
    Where a step is missing in some rows of a key, another block begins.

    Args:
        logs: The rows by key: NumPy arrays, typed PRNG keys as their data.
        run: The id of the run that logged them.
        impls: By key, which leaves of the value hold data of typed PRNG keys, and the names
            of the implementations.
        expected: How many rows the run will have.
    """
    alike: dict[Any, list[list[_Part]]] = {}
    for key, rows in logs.items():
        parts = list(_parts(key, rows, impls.get(key, ())))
        alike.setdefault(tuple(part.place for part in parts), []).append(parts)
    joined = (zip(*keys, strict=True) for keys in alike.values())
    return [_block(parts, run, expected) for each in joined for parts in each]


class _Part(NamedTuple):
    """Rows of one key that have the same steps; arrays have the axis of rows in front."""

    key: str
    place: tuple
    rows: Rows
    form: Form


def _parts(key: str, rows: Rows, impls: Impls) -> Iterator[_Part]:
    lead, size = rows.lead, len(rows.batch)
    form = Form(rows.tags, rows.time, lead, lead + size, impls)
    # (*lead, [time,] *batch, ...) -> (rows, *lead, *batch, ...)
    front = rows.map(
        lambda x: np.moveaxis(x, lead, 0) if form.time else np.asarray(x)[None]
    )
    front = front.replace(value=_plain(front.value))
    number = np.arange(len(jax.tree.leaves(front.value)[0]))
    if form.batch:
        yield _Part(key, _place(front, number), front, form)
        return
    if front.valid is not None:
        number = np.flatnonzero(front.valid)
        if not number.size:
            return
    for same in _alike(number, front.masks):
        steps = {name: x for name, x in front.steps.items() if _has(front, name, same)}
        part = _take(front.replace(steps=steps, valid=None, masks={}), same)
        yield _Part(key, _place(part, same), part, form)


def _block(parts: tuple[_Part, ...], run: int, expected: int | None) -> Block:
    steps, masks = parts[0].rows.steps, parts[0].rows.masks
    values = {part.key: part.rows.value for part in parts}
    length = len(jax.tree.leaves(values)[0])
    return Block(
        runs=np.full(length, run, np.int32),
        steps=steps,
        values=values,
        forms={part.key: part.form for part in parts},
        valid={p.key: p.rows.valid for p in parts if p.rows.valid is not None},
        expected=expected,
        masks=masks,
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
