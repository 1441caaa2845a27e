"""Columns that follow a pattern, such as the runs, steps and times of a batch of runs.

Two runs, 7 and 9, log three steps each:

    run      7 7 7 9 9 9      Pattern(first=[7, 9], each=3, step=0, times=1)
    row      0 1 2 3 4 5      Pattern(first=[0], each=6, step=1, times=1)
    step     0 1 2 0 1 2      Pattern(first=[0], each=3, step=1, times=2)

So a column consists of pieces of equal length. A piece begins with its number in `first`
and grows by `step`, and all pieces together come several times. `first` may follow a
pattern itself: with batches of steps, the pieces of a batch begin with the same step.

The numbers are the bits of the elements, so every dtype works, and nothing is rounded.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lox_host.store.format.layout import bad_fields, check, is_count

# How many numbers a pattern may have. They are part of a line of the journal.
MOST = 4096
# How deep patterns may be nested.
DEPTH = 4

Numbers: TypeAlias = "Pattern | list[int]"


class Pattern(NamedTuple):
    """How to compute a column.

    Attributes:
        first: The first number of each piece.
        each: The length of a piece.
        step: By how much the numbers of a piece grow.
        times: How often all pieces come.
    """

    first: Numbers
    each: int
    step: int
    times: int

    @classmethod
    def of(cls, column: np.ndarray, depth: int = 0) -> "Pattern | None":
        """Return the pattern of a column that has one number per row, or None."""
        bits = column if depth else _bits(column)
        # Try pieces that grow by the first difference, such as steps, and if these would be
        # too short, pieces of equal numbers, such as runs.
        differences = np.diff(bits)
        step = int(differences[0])
        breaks = np.flatnonzero(differences != step) + 1
        if len(breaks) > len(bits) // 2:
            step, breaks = 0, np.flatnonzero(differences) + 1
        # The pieces end where the difference is another one, but two may fit seamlessly.
        is_single = len(breaks) > len(bits) // 2
        each = 1 if is_single else int(np.gcd.reduce(breaks, initial=len(bits)))
        pieces = bits[::each]
        period = _period(pieces)
        times, pieces = len(pieces) // period, pieces[:period]
        if len(pieces) == len(bits) or depth == DEPTH:
            return None
        # The first numbers of many pieces may follow a pattern, too.
        if len(pieces) > 16 and (inner := cls.of(pieces, depth + 1)) is not None:
            return cls(inner, each, step, times)
        if len(pieces) > MOST:
            return None
        return cls(pieces.tolist(), each, step, times)

    @classmethod
    def from_json(cls, fields: Any, depth: int = 0) -> "Pattern":
        """Return the pattern that a journal describes.

        Raises:
            ValueError: If there is no such pattern. A journal may be damaged or forged.
        """
        with bad_fields():
            first, each, step, times = fields
            check(is_count(each) and each and is_count(times) and times)
            check(type(step) is int and -(2**63) <= step < 2**63 and depth <= DEPTH)
            if isinstance(first[0], list):
                return cls(cls.from_json(first, depth + 1), each, step, times)
            check(isinstance(first, list) and 0 < len(first) <= MOST)
            check(all(type(x) is int and -(2**63) <= x < 2**63 for x in first))
            return cls(first, each, step, times)

    @property
    def is_increasing(self) -> bool:
        """Whether each number is greater than the one before, as those of rows are."""
        return self.each * self.times == self.rows == self.each and self.step > 0

    @property
    def rows(self) -> int:
        """How many rows a column with this pattern has."""
        first = self.first
        pieces = first.rows if isinstance(first, Pattern) else len(first)
        return pieces * self.each * self.times

    def column(self, dtype: np.dtype) -> np.ndarray:
        """Return the column, which has one number of this dtype per row."""
        pieces = self.expand(self.starts(dtype))
        return np.tile(pieces, self.times) if self.times > 1 else pieces

    def starts(self, dtype: np.dtype) -> np.ndarray:
        """Return the first number of each piece, in the order in which they first come."""
        if isinstance(self.first, Pattern):
            return self.first.column(dtype)
        return np.array(self.first, np.int64).astype(_integers(dtype)).view(dtype)

    def expand(self, starts: np.ndarray) -> np.ndarray:
        """Return the pieces that begin with some numbers, (..., n) -> (..., n * each)."""
        if not self.step:
            return np.repeat(starts, self.each, axis=-1)
        integers = _integers(starts.dtype)
        piece = (np.arange(self.each) * self.step).astype(integers)
        pieces = starts.view(integers)[..., None] + piece
        return pieces.reshape(*starts.shape[:-1], -1).view(starts.dtype)


def _integers(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the integers that have the bits of these numbers."""
    return np.dtype(f"i{dtype.itemsize}")


def _bits(column: np.ndarray) -> np.ndarray:
    return column.view(_integers(column.dtype)).astype(np.int64, copy=False)


def _period(numbers: np.ndarray) -> int:
    """Return after how many numbers they repeat. All of them, if they do not."""
    again = np.flatnonzero(numbers[1:] == numbers[0]) + 1
    if len(again):
        period = int(again[0])
        is_whole = len(numbers) % period == 0
        if is_whole and np.array_equal(numbers[period:], numbers[:-period]):
            return period
    return len(numbers)
