"""Arrays that grow at their end, like a session that is being written."""

import dataclasses

import numpy as np


class GrowingArray:
    """An array to which you can append, without a copy each time."""

    def __init__(self, dtype: np.dtype):
        self._array, self._size = np.zeros(0, dtype), 0

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        return self._array.nbytes

    def reserve(self, size: int) -> None:
        """Make room for `size` numbers in all."""
        if size > len(self._array):
            # Spare only an eighth, not half: the viewer is short of memory.
            room = size if not self._size else size + size // 8
            grown = np.empty(room, self._array.dtype)
            grown[: self._size] = self._array[: self._size]
            self._array = grown

    def append(self, new: np.ndarray) -> None:
        size = self._size + len(new)
        self.reserve(size)
        self._array[self._size : size] = new
        self._size = size

    @property
    def array(self) -> np.ndarray:
        return self._array[: self._size]


@dataclasses.dataclass
class SharedColumn:
    """A column that is the same for all runs of a tile, stored once. See `columns.py`.

    Attributes:
        positions: The value of each row, `(rows,)`.
        rows: How many rows of all runs have been added.
        frames: How many frames have been added.
        is_shared: Whether the column is still the same for all runs.
    """

    positions: GrowingArray = dataclasses.field(
        default_factory=lambda: GrowingArray(np.dtype(np.float64))
    )
    rows: int = 0
    frames: int = 0
    is_shared: bool = True

    def add(self, new: np.ndarray, runs: int) -> bool:
        """Add the column of the next frame, and return whether all runs still share it."""
        # Take the rows of the tile's first run, and compare all others with them.
        first = -self.rows % runs
        before = self.positions.array[-1:]
        self.positions.append(new[first::runs])
        self.rows += len(new)
        self.frames += 1
        # The rest of a tile that began before, whole tiles, and a part of the next one.
        whole = (len(new) - first) // runs * runs
        head, tiles, tail = np.split(new, [first, max(first, first + whole)])
        matrix = tiles.reshape(-1, runs)
        return bool(
            (head == before).all()
            and (matrix == matrix[:, :1]).all()
            and (tail == tail[:1]).all()
        )
