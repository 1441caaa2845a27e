"""The rows of one key of one run, joined from all frames.

A key may change while a program runs: it gets another step, other tags or a wider dtype.
The store keeps each variant in its own group of files. Loading joins the variants again:

    group 0:  row 0 2      step 0 2                  x  1.0 3.0         float32
    group 1:  row 1        step 1    epoch 0         x  2               int32

    KeyRows:  row 0 1 2    step 0 1 2                x  1.0 2.0 3.0     float64
                           epoch . 0 .               masks["epoch"] = [False, True, False]

The invariant: rows come in the order of logging, and every array has one entry per row.
NumPy promotes dtypes. Values of different shapes do not fit into one array, which raises.
"""

import contextlib
import dataclasses
import itertools as it
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from lox_host.frozen import frozen
from lox_host.rows import Block, FlatRows, Form, merge_blocks
from lox_host.store.reader import Reader
from lox_host.tree import Tree, leaves, map_arrays


@frozen
class KeyRows:
    """Rows of one key of one run. The first axis of each array is the rows.

    Attributes:
        order: The number of each row in the session.
        steps: The steps by name.
        masks: Which rows or examples have a step, by its name, if some do not have it.
        valid: Which examples logged. None: all of them.
        value: The value, a tree of arrays.
        form: Facts about the key that its arrays do not show.
        time: When each row reached the host, in seconds since 1970. NaN: unknown.
    """

    order: np.ndarray
    steps: dict[str, np.ndarray]
    masks: dict[str, np.ndarray]
    valid: np.ndarray | None
    value: Tree
    form: Form
    time: np.ndarray

    def __len__(self) -> int:
        return len(self.order)

    @property
    def examples(self) -> tuple[int, ...]:
        """The sizes of the axes of a row that come from `vmap`."""
        leaf = next(array for _, array in leaves(self.value))
        return leaf.shape[1 : 1 + self.form.batch]

    @property
    def has_time(self) -> bool:
        """Whether the rows form a time axis. A single row may be just a value."""
        return self.form.time or len(self) != 1

    def flat(self, key: str) -> FlatRows:
        """Return the rows with the arrays of the value by name, `key/path`."""
        arrays = dict(leaves(self.value, key))
        others = self.steps, self.masks, self.valid, self.examples, self.has_time
        return FlatRows(arrays, *others, time=self.time)


# The fields that hold arrays with an axis of rows.
_ARRAYS = ("order", "steps", "masks", "valid", "value", "time")


def read_key_rows(
    reader: Reader, runs: Collection[int], keys: Collection[str] | None = None
) -> dict[int, dict[str, KeyRows]]:
    """Return the rows of a session by run and key, in the order of logging.

    Args:
        reader: The session.
        runs: The ids of the runs.
        keys: The keys. None: all.
    """
    wanted = reader.keys if keys is None else [key for key in keys if key in reader.keys]
    variants: dict[tuple[int, str], list[KeyRows]] = {}
    # Join blocks of one layout before splitting them by run. With a thousand runs this
    # makes two copies instead of a thousand per frame.
    for block in merge_blocks(list(reader.blocks(runs, wanted))):
        for run, rows in _by_run(block):
            for key in block.values:
                variants.setdefault((run, key), []).append(_key_rows(rows, key))
    # A loop without iterations has a layout and no rows. Its keys are returned, too.
    for run in runs:
        for key in reader.keys_without_rows(run).intersection(wanted):
            layouts = (layout for layout in reader.layouts.values() if key in layout.keys)
            blocks = (layout.empty_block() for layout in layouts)
            variants[run, key] = [_key_rows(block, key) for block in blocks]
    return {
        run: {k: _join(k, variants[run, k]) for k in wanted if (run, k) in variants}
        for run in runs
    }


def align(parts: Sequence[KeyRows]) -> list[KeyRows]:
    """Give all parts the same steps and tags. Steps that a part lacks are masked."""
    steps = {name: step for part in parts for name, step in part.steps.items()}
    masked = [
        name for name in steps if any(name in p.masks or name not in p.steps for p in parts)
    ]
    is_partial = any(part.valid is not None for part in parts)
    tags = tuple(dict.fromkeys(tag for part in parts for tag in part.form.tags))
    time = any(part.form.time for part in parts)
    aligned = []
    for part in parts:
        front = len(part), *part.examples
        missing = {
            n: np.zeros((len(part), *x.shape[1:]), x.dtype) for n, x in steps.items()
        }
        masks = {name: np.full(front, name in part.steps) for name in masked}
        valid = np.full(front, True) if is_partial else None
        aligned.append(
            dataclasses.replace(
                part,
                steps={name: part.steps.get(name, missing[name]) for name in steps},
                masks={name: part.masks.get(name, masks[name]) for name in masked},
                valid=valid if part.valid is None else part.valid,
                form=dataclasses.replace(part.form, tags=tags, time=time),
            )
        )
    return aligned


def pad(parts: Sequence[KeyRows | None]) -> list[KeyRows]:
    """Give all parts the same number of rows. `valid` marks the real ones.

    Short parts get rows of zeros at their end. None becomes a part of such rows only.

        rows 1 2 3      rows 1 2 3    valid T T T
        rows 4          rows 4 0 0    valid T F F
    """
    known = next(part for part in parts if part is not None)
    empty = _first_rows(known, 0)
    aligned = align([empty if part is None else part for part in parts])
    length = max(map(len, aligned))
    if all(len(part) == length for part in aligned):
        return aligned
    return [_padded(part, length) for part in aligned]


def _first_rows(part: KeyRows, rows: int) -> KeyRows:
    arrays = {name: map_arrays(lambda x: x[:rows], getattr(part, name)) for name in _ARRAYS}
    return dataclasses.replace(part, **arrays)


def _padded(part: KeyRows, length: int) -> KeyRows:
    missing = length - len(part)

    def lengthen(array: np.ndarray) -> np.ndarray:
        rest = np.zeros((missing, *array.shape[1:]), array.dtype)
        return np.concatenate([array, rest])

    valid = np.ones((len(part), *part.examples), bool) if part.valid is None else part.valid
    with_valid = dataclasses.replace(part, valid=valid)
    arrays = {name: map_arrays(lengthen, getattr(with_valid, name)) for name in _ARRAYS}
    return dataclasses.replace(part, **arrays)


def _by_run(block: Block) -> Iterator[tuple[int, Block]]:
    """Yield the rows of each run, in the order of the block."""
    if (block.runs == block.runs[0]).all():
        yield int(block.runs[0]), block
        return
    grouped = block.select(np.argsort(block.runs, kind="stable"))
    runs, starts = np.unique(grouped.runs, return_index=True)
    for run, start, end in zip(runs, starts, [*starts[1:], len(block)], strict=True):
        yield int(run), grouped.select(slice(start, end))


def _key_rows(block: Block, key: str) -> KeyRows:
    return KeyRows(
        order=block.order,
        steps=block.steps,
        masks=block.masks,
        valid=block.valid.get(key),
        value=block.values[key],
        form=block.forms[key],
        time=block.time,
    )


def _join(key: str, parts: Sequence[KeyRows]) -> KeyRows:
    """Join the rows of several groups, in the order of logging."""
    if len(parts) == 1:
        return parts[0]
    _check_forms(key, parts)
    # Groups are files of their own. The row numbers say how their rows follow each other.
    order = np.argsort(np.concatenate([part.order for part in parts]), kind="stable")

    def concatenate(*arrays: np.ndarray) -> np.ndarray:
        return np.concatenate(arrays)[order]

    first, *_ = aligned = align(parts)
    joined = {
        name: map_arrays(concatenate, *(getattr(part, name) for part in aligned))
        for name in _ARRAYS
    }
    return dataclasses.replace(first, **joined)


class _Variant(NamedTuple):
    """One form of the rows of a key.

    Attributes:
        text: The form in words.
        shapes: The same without dtypes.
        example: A value of this form.
    """

    text: str
    shapes: str
    example: Tree


def _check_forms(key: str, parts: Sequence[KeyRows]) -> None:
    """Raise unless one array can hold all rows. Only steps and dtypes may differ."""
    _check_variants(f"The rows of {key!r}", [_variant(part) for part in parts])
    for name in dict.fromkeys(name for part in parts for name in part.steps):
        steps = [part.steps[name] for part in parts if name in part.steps]
        variants = [_Variant(_dtype_and_shape(step), _shape(step), step) for step in steps]
        _check_variants(f"The rows of the step {name!r} of {key!r}", variants)


def _check_variants(what: str, variants: Sequence[_Variant]) -> None:
    distinct = {variant.text: variant for variant in variants}.values()
    for one, other in it.combinations(distinct, 2):
        if one.shapes == other.shapes:
            with contextlib.suppress(TypeError):  # these dtypes cannot be promoted
                map_arrays(np.result_type, one.example, other.example)
                continue
        raise ValueError(
            f"{what} do not fit into one array: some are {one.text} and some are "
            f"{other.text}. Load the other keys with `argnames`, and log values of "
            "different shapes or dtypes under different keys."
        )


def _variant(part: KeyRows) -> _Variant:
    batch = f" in batches of {part.form.batch} axes" if part.form.batch else ""
    impls = ", ".join(impl for _, impl in part.form.keys)
    rest = f"{batch}{impls and f' as a PRNG key, {impls}'}"
    text, shapes = (
        f"{map_arrays(describe, part.value)}{rest}".replace("'", "")
        for describe in (_dtype_and_shape, _shape)
    )
    return _Variant(text, shapes, part.value)


def _dtype_and_shape(array: np.ndarray) -> str:
    return f"{array.dtype}{_shape(array)}"


def _shape(array: np.ndarray) -> str:
    return f"[{','.join(map(str, array.shape[1:]))}]"
