"""What trackers are given: rows of plain numbers and arrays, each with its own name."""

import dataclasses
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from lox_host.rows import Batch, Block, Row
from lox_host.tree import leaves


class Flat(NamedTuple):
    """What one run logged at one step.

    Attributes:
        run: The id of the run.
        steps: The steps that are one number.
        numbers: The values that are one number.
        arrays: The others. Masked arrays, where only some examples logged.
    """

    run: int
    steps: dict[str, int | float]
    numbers: dict[str, int | float]
    arrays: dict[str, np.ndarray]

    @property
    def axis(self) -> str | None:
        """What the step to plot against is called among the values.

        That is the step called `step`, or the first.
        """
        names = dict(zip(self.steps, self.all_steps, strict=True))
        return names.get("step", next(iter(names.values()), None))

    @property
    def place(self) -> int | None:
        """For trackers that count: the step called `step`, or the first whole number."""
        whole = {name: x for name, x in self.steps.items() if isinstance(x, int)}
        return whole.get("step", next(iter(whole.values()), None))

    @property
    def beside(self) -> dict[str, int | float]:
        """The steps as values beside the others, without `step` where it is the place."""
        is_place = isinstance(self.steps.get("step"), int)
        skipped = "step" if is_place else None
        return self._named({k: x for k, x in self.steps.items() if k != skipped})

    @property
    def all_steps(self) -> dict[str, int | float]:
        """The steps as values beside the others."""
        return self._named(self.steps)

    def _named(self, steps: Mapping[str, int | float]) -> dict[str, int | float]:
        taken = {**self.numbers, **self.arrays}
        return {free(name, taken): step for name, step in steps.items()}


def flat(batch: Batch) -> Iterator[Flat]:
    """The rows of a batch in the form that all trackers share.

    - Trees: each leaf has a name of its own, `key/path/in/the/tree`.
    - Complex values: `key/real` and `key/imag`.
    - Typed PRNG keys: the words of their data, `key/0`, `key/1`, ...
    - Bools: 0 and 1.
    - Values with axes from `vmap`: arrays, with examples that did not log masked.
    - Steps that are arrays, one for each example: values under the name of the step.

    A name of a leaf or step that is taken already in the row gets an underscore.
    """
    rows = Batch([_flat_block(block) for block in batch]).rows()
    return (_sorted_out(row) for row in rows if row.values)


def free(name: str, taken: Container[str]) -> str:
    """The name, with underscores if it is taken."""
    while name in taken:
        name += "_"
    return name


def _flat_block(block: Block) -> Block:
    values: dict[str, np.ndarray] = {}
    valid: dict[str, np.ndarray] = {}

    def put(name: str, array: np.ndarray, mask: np.ndarray | None) -> None:
        name = free(name, values)
        values[name] = array
        valid.update({} if mask is None else {name: mask})

    # Keys that are not trees come first: they keep their names.
    is_tree = {key: not isinstance(tree, np.ndarray) for key, tree in block.values.items()}
    for key in sorted(block.values, key=is_tree.__getitem__):
        tree, typed = block.values[key], dict(block.forms[key].keys)
        for i, (name, array) in enumerate(leaves(tree, key)):
            parts = _words(name, array) if i in typed else _parts(name, array)
            for part, own in parts.items():
                put(part, own, block.valid.get(key))
    for name, step in block.steps.items():
        if step.ndim > 1:
            put(name, _plain(step), _mask_of_step(block, name))
    steps = {name: _plain(step) for name, step in block.steps.items() if step.ndim == 1}
    return dataclasses.replace(block, steps=steps, values=values, valid=valid)


def _mask_of_step(block: Block, name: str) -> np.ndarray | None:
    """Which examples logged with this step. All keys of a block have the same mask."""
    masks = [*list(block.valid.values())[:1], block.masks.get(name)]
    given = [mask for mask in masks if mask is not None]
    return np.logical_and.reduce(given) if given else None


def _sorted_out(row: Row) -> Flat:
    numbers = {key: x.item() for key, x in row.values.items() if not np.ndim(x)}
    arrays = {key: x for key, x in row.values.items() if np.ndim(x)}
    steps = {name: step.item() for name, step in row.steps.items()}
    return Flat(row.run, steps, numbers, arrays)


def _parts(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    if np.iscomplexobj(array):
        return {f"{name}/real": np.real(array), f"{name}/imag": np.imag(array)}
    return {name: _plain(array)}


def _words(name: str, data: np.ndarray) -> dict[str, np.ndarray]:
    # (rows, ..., words) -> (rows, ...) for each word
    return {f"{name}/{i}": data[..., i] for i in range(data.shape[-1])}


def _plain(array: np.ndarray) -> np.ndarray:
    """With a dtype that NumPy has, and numbers for bools."""
    if array.dtype.kind == "b":
        return array.astype(np.int32)
    return array.astype(np.float32) if array.dtype.kind == "V" else array
