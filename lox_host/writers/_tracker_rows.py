"""What experiment trackers are given: rows of numbers and arrays, each with its own name.

Trackers know names and numbers, and some of them histograms. So each row is flattened:

    step=3, {"loss": 0.5, "grad": {"w": [1 2 3]}, "z": 1+2j, "key": a typed PRNG key,
             "h": lox.histogram(...), "frame": an image}

    steps    {"step": 3}
    numbers  {"loss": 0.5, "z/real": 1.0, "z/imag": 2.0, "key/0": 0, "key/1": 7}
    arrays   {"grad/w": [1 2 3]}
    counted  {"h": counts and edges}
    media    {"frame": pixels}             for trackers that show images and videos
"""

import dataclasses
import math
import time
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from lox_host.histogram import Histogram, named_histograms, packed, unpacked
from lox_host.rows import Batch, Block, Row
from lox_host.tree import leaves
from lox_host.writers._media import Kind, Media, kind_of, media_in

Number = int | float
# A value that is not a number: counts and edges of a histogram, an image or a video.
_COUNTED = "counted"


class TrackerRow(NamedTuple):
    """What one run logged at one step.

    Attributes:
        run: The id of the run.
        steps: The steps that are one number.
        numbers: The values that are one number.
        arrays: The others. Masked arrays, where only some examples logged.
        time: When it reached the host, in seconds since 1970.
        counted: Histograms that were counted on the device.
        media: Images and videos, for trackers that ask for them.
    """

    run: int
    steps: dict[str, Number]
    numbers: dict[str, Number]
    arrays: dict[str, np.ndarray]
    time: float
    counted: dict[str, Histogram]
    media: dict[str, Media]

    @property
    def names(self) -> list[str]:
        """The names of all values."""
        return [*self.numbers, *self.arrays, *self.counted, *self.media]

    @property
    def histograms(self) -> dict[str, Histogram]:
        """All histograms: those computed from arrays, and those that were logged."""
        return {**histograms(self.arrays), **self.counted}

    @property
    def integer_step(self) -> int | None:
        """For trackers that count: the step called `step`, or the first whole number."""
        whole = {name: x for name, x in self.steps.items() if isinstance(x, int)}
        return whole.get("step", next(iter(whole.values()), None))

    @property
    def step_values(self) -> dict[str, Number]:
        """The steps as values beside the others."""
        return self._as_values(self.steps)

    @property
    def other_step_values(self) -> dict[str, Number]:
        """The same, without `step` where that is the integer step."""
        skipped = "step" if isinstance(self.steps.get("step"), int) else None
        return self._as_values({k: x for k, x in self.steps.items() if k != skipped})

    @property
    def plot_against(self) -> str | None:
        """The name among the values of the step called `step`, or of the first."""
        names = dict(zip(self.steps, self.step_values, strict=True))
        return names.get("step", next(iter(names.values()), None))

    def _as_values(self, steps: Mapping[str, Number]) -> dict[str, Number]:
        taken = self.names
        return {free_name(name, taken): step for name, step in steps.items()}


def tracker_rows(
    batch: Batch, kinds: Mapping[str, Kind] | None = None
) -> Iterator[TrackerRow]:
    """Iterate over the rows of a batch in the form that all trackers share.

    `kinds` says which keys are images or videos, of those that do not look like it. None:
    the tracker shows neither.

    - Trees: each leaf has a name of its own, `key/path/in/the/tree`.
    - Complex values: `key/real` and `key/imag`.
    - Typed PRNG keys: the words of their data, `key/0`, `key/1`, ...
    - Bools: 0 and 1.
    - Histograms: counts and edges; `key/nonfinite` is a number, where there are any.
    - Values with axes from `vmap`: arrays, with examples that did not log masked.
    - Steps that are arrays, one for each example: values under the name of the step.

    A name of a leaf or step that is taken already in the row gets an underscore.
    """
    # What names stand for that are no numbers.
    known: dict[str, str] = {}
    rows = Batch([_flatten(block, kinds, known) for block in batch]).rows()
    return (_tracker_row(row, known) for row in rows if row.values)


def free_name(name: str, taken: Container[str]) -> str:
    """Return the name, with underscores if it is taken."""
    while name in taken:
        name += "_"
    return name


def histograms(arrays: Mapping[str, np.ndarray]) -> dict[str, Histogram]:
    """Return histograms of the finite elements of arrays."""
    return {key: _histogram(finite_elements(array)) for key, array in arrays.items()}


def nonfinite_counts(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Count the elements that no histogram has, `key/nonfinite`, where there are any."""
    counts = {
        f"{key}/nonfinite": int(np.ma.count(array)) - finite_elements(array).size
        for key, array in arrays.items()
    }
    return {name: count for name, count in counts.items() if count}


def finite_elements(array: np.ndarray) -> np.ndarray:
    """Return the elements that are finite and not masked."""
    elements = np.ma.compressed(array).astype(np.float64)
    return elements[np.isfinite(elements)]


def _histogram(x: np.ndarray) -> Histogram:
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return Histogram(*np.histogram(x, bins=min(64, x.size or 1)))
    except ValueError:
        # The numbers are too close for bins between them, or too far apart.
        return Histogram(np.array([x.size]), np.array([x.min(), x.max()]))


def _flatten(
    block: Block, kinds: Mapping[str, Kind] | None, known: dict[str, str]
) -> Block:
    """Return the block with one array of numbers for each name."""
    values: dict[str, np.ndarray] = {}
    valid: dict[str, np.ndarray] = {}

    def put(name: str, array: np.ndarray, mask: np.ndarray | None, kind: str = "") -> None:
        name = free_name(name, values)
        values[name] = array
        valid.update({} if mask is None else {name: mask})
        known.update({name: kind} if kind else {})

    # Keys that are not trees come first: they keep their names.
    is_tree = {key: not isinstance(tree, np.ndarray) for key, tree in block.values.items()}
    for key in sorted(block.values, key=is_tree.__getitem__):
        mask, axes = block.valid.get(key), 1 + block.forms[key].batch
        holds_prng_key = dict(block.forms[key].keys)
        # A histogram is one value, of which the tree has three arrays.
        counted = dict(named_histograms(block.values[key], key))
        for name, tree in counted.items():
            put(name, packed(tree), mask, _COUNTED)
            if np.any(tree["nonfinite"]):
                put(f"{name}/nonfinite", tree["nonfinite"], mask)
        for i, (name, array) in enumerate(leaves(block.values[key], key)):
            if name.rpartition("/")[0] in counted:
                continue
            kind = "" if kinds is None else kind_of(name, array, axes, kinds)
            parts = _words(name, array) if i in holds_prng_key else _parts(name, array)
            for part_name, part in parts.items():
                put(part_name, part, mask, kind)
    for name, step in block.steps.items():
        if step.ndim > 1:
            put(name, _numeric(step), _mask_of_step(block, name))
    steps = {name: _numeric(step) for name, step in block.steps.items() if step.ndim == 1}
    return dataclasses.replace(block, steps=steps, values=values, valid=valid)


def _mask_of_step(block: Block, name: str) -> np.ndarray | None:
    """Return which examples logged with this step. All keys of a block have one mask."""
    masks = [*list(block.valid.values())[:1], block.masks.get(name)]
    given = [mask for mask in masks if mask is not None]
    return np.logical_and.reduce(given) if given else None


def _tracker_row(row: Row, known: Mapping[str, str]) -> TrackerRow:
    numbers, arrays = {}, {}
    counted, media = {}, {}
    for name, x in row.values.items():
        kind = known.get(name)
        if kind == _COUNTED:
            counted.update(unpacked(name, x))
        elif kind:
            media.update(media_in(name, kind, x))
        elif np.ndim(x):
            arrays[name] = x
        else:
            numbers[name] = x.item()
    steps = {name: step.item() for name, step in row.steps.items()}
    # Rows of stores that older versions wrote have no time.
    when = time.time() if math.isnan(row.time) else row.time
    return TrackerRow(row.run, steps, numbers, arrays, when, counted, media)


def _parts(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    if np.iscomplexobj(array):
        return {f"{name}/real": np.real(array), f"{name}/imag": np.imag(array)}
    return {name: _numeric(array)}


def _words(name: str, data: np.ndarray) -> dict[str, np.ndarray]:
    # (rows, ..., words) -> (rows, ...) for each word
    return {f"{name}/{i}": data[..., i] for i in range(data.shape[-1])}


def _numeric(array: np.ndarray) -> np.ndarray:
    """Return the array with a dtype that NumPy has, and numbers for bools."""
    if array.dtype.kind == "b":
        return array.astype(np.int32)
    return array.astype(np.float32) if array.dtype.kind == "V" else array
