"""Keep the curves of many runs in a few matrices, which the viewer aggregates and draws.

A program that trains a thousand seeds logs the same key at the same steps in each of them.
So the rows of a key form a matrix, with an axis of positions that all runs share:

    x (rows,)    values (rows, runs)          runs that are shorter end in NaN, and
    0            0.9  0.8  0.7                `lengths` says where
    10           0.5  0.6  NaN
    20           0.3  NaN  NaN                lengths = [3, 2, 1]

If runs logged at different steps, `x` is `(rows, runs)`, too. Runs of very different
lengths are in several parts, so that no matrix is mostly empty.
"""

import dataclasses

import numpy as np

# These dtypes fit into float32, which takes half the memory of float64.
_NARROW = ("float16", "bfloat16", "float32", "int8", "int16", "uint8", "uint16", "bool")


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows of one key for runs of about the same length.

    Attributes:
        runs: The numbers of the runs, in the order of the columns.
        x: The positions: `(rows,)` if all runs share them, or `(rows, runs)`.
        values: The values, `(rows, runs)`.
        lengths: How many rows each run has.
        examples: Which element of the `vmap` axis each column is. A run has several columns
            then. None: the key has no such axis, and a run has one column.
    """

    runs: np.ndarray
    x: np.ndarray
    values: np.ndarray
    lengths: np.ndarray
    examples: np.ndarray | None = None

    @property
    def is_shared(self) -> bool:
        """Whether all runs have the same positions."""
        return self.x.ndim == 1

    def of_runs(self, runs: np.ndarray) -> "Part":
        """Return the part with only some of the runs."""
        which = np.flatnonzero(np.isin(self.runs, runs))
        if len(which) == len(self.runs):
            return self
        x = self.x if self.is_shared else self.x[:, which]
        lengths = self.lengths[which]
        rows = int(lengths.max(initial=0))
        examples = None if self.examples is None else self.examples[which]
        values = self.values[:rows, which]
        return Part(self.runs[which], x[:rows], values, lengths, examples)

    def rows(self, first: int, after: int) -> "Part":
        """Return the part with only some of the rows, without a copy."""
        lengths = np.clip(self.lengths - first, 0, max(0, after - first))
        return dataclasses.replace(
            self, x=self.x[first:after], values=self.values[first:after], lengths=lengths
        )

    def line(self, column: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions and the values of one run."""
        rows = self.lengths[column]
        x = self.x[:rows] if self.is_shared else self.x[:rows, column]
        return x, self.values[:rows, column]


def float_type(dtype: np.dtype) -> np.dtype:
    """Return float32 for a dtype, or float64 if float32 would lose digits."""
    return np.dtype(np.float32 if dtype.name in _NARROW else np.float64)


def to_float(array: np.ndarray) -> np.ndarray:
    """Return numbers of any dtype as float32 or float64."""
    return array.astype(float_type(array.dtype))


def make_parts(runs: np.ndarray, x: np.ndarray | None, values: np.ndarray) -> list[Part]:
    """Arrange rows in matrices.

    Args:
        runs: The number of each row's run, in increasing order.
        x: The positions of the rows. None: their numbers in the run.
        values: Their values.
    """
    if not len(runs):
        return []
    # The first row of each run, its number of rows, and the number of each row in its run.
    starts = np.flatnonzero(np.append(True, runs[1:] != runs[:-1]))
    lengths = np.diff(np.append(starts, len(runs)))
    numbers = np.arange(len(runs)) - np.repeat(starts, lengths)
    # Put runs into one matrix if their lengths have the same number of bits. Then at most
    # half of each matrix is padding.
    classes = np.frexp(lengths)[1]
    parts = []
    for size in np.unique(classes):
        columns = np.flatnonzero(classes == size)
        of_row = np.repeat(classes == size, lengths)
        slot = np.repeat(np.cumsum(classes == size) - 1, lengths)[of_row]
        shape = int(lengths[columns].max()), len(columns)
        matrix = np.full(shape, np.nan, values.dtype)
        matrix[numbers[of_row], slot] = values[of_row]
        positions = np.arange(shape[0], dtype=np.float64)
        if x is not None:
            own = np.full(shape, np.nan)
            own[numbers[of_row], slot] = x[of_row]
            positions = _shared_positions(own)
        parts.append(Part(runs[starts[columns]], positions, matrix, lengths[columns]))
    return parts


def _shared_positions(own: np.ndarray) -> np.ndarray:
    """Return the positions that all runs share up to their ends, or else all of them."""
    longest = own[:, np.argmin(np.isnan(own).sum(0))]
    is_shared = ((own == longest[:, None]) | np.isnan(own)).all()
    return longest.copy() if is_shared else own


def tile_of(runs: np.ndarray) -> np.ndarray | None:
    """Return the order of runs that repeats, as a vmapped program logs them.

    For example, `[4, 2, 7, 4, 2, 7, 4]` repeats `[4, 2, 7]`. None if no order repeats.
    """
    (again,) = np.nonzero(runs[1:] == runs[0])
    tile = runs[: again[0] + 1] if len(again) else runs
    if len(np.unique(tile)) < len(tile):
        return None
    return tile if follows(runs, tile, 0) else None


def follows(runs: np.ndarray, tile: np.ndarray, offset: int) -> bool:
    """Return whether `runs` continues to repeat a tile after `offset` rows."""
    # The rest of a tile that began before, whole tiles, and the beginning of another one.
    head = -offset % len(tile)
    if not np.array_equal(runs[:head], tile[len(tile) - head :][: len(runs)]):
        return False
    rest = runs[head:]
    whole = len(rest) // len(tile) * len(tile)
    matrix = rest[:whole].reshape(-1, len(tile))
    return bool((matrix == tile).all()) and np.array_equal(
        rest[whole:], tile[: len(rest) - whole]
    )
