"""Lines of any length in bounded memory: spans of rows, which become longer.

A line of four spans, while the rows 0, 1, 2, ... of a run arrive:

    length 1    | 0   | 1   | 2   | 3   |    Row 4 does not fit: each two spans become one.
    length 2    | 0 1 | 2 3 | 4   |     |

Each span keeps a few numbers of its rows, such as how many there are and their sum, which
can be combined: those of two spans give those of both together.
"""

import numpy as np

# What a span may keep: how to combine two of them, and what it is without rows.
FIELDS: dict[str, tuple[np.ufunc, float]] = {
    "rows": (np.add, 0.0),  # how many rows
    "steps": (np.add, 0.0),  # the sum of their steps
    "finite": (np.add, 0.0),  # how many values are finite numbers
    "values": (np.add, 0.0),  # the sum of these
    "low": (np.minimum, np.inf),
    "high": (np.maximum, -np.inf),
}


class Spans:
    """The spans of some runs, all of one length. Sums may overflow, and are then infinite.

    Args:
        points: How many spans a line has; a power of two.
        *fields: What each keeps, some of `FIELDS`.

    Attributes:
        length: How many rows a span holds.
        arrays: By field, an array `(runs, points)`.
    """

    def __init__(self, points: int, *fields: str):
        self.length = 1
        self.arrays: dict[str, np.ndarray] = {
            name: np.full((1, points), FIELDS[name][1]) for name in fields
        }

    @property
    def shape(self) -> tuple[int, int]:
        """The number of runs and of points."""
        runs, points = next(iter(self.arrays.values())).shape
        return runs, points

    def hold(self, rows: int, points: int | None = None) -> None:
        """Make the spans longer until this many rows of a run fit into the points."""
        points = points or self.shape[1]
        while rows > self.length * points:
            self._double()

    def add(
        self, runs: np.ndarray | int, numbers: np.ndarray, **values: np.ndarray | float
    ) -> None:
        """Add rows to their spans.

        Args:
            runs: The run of each row.
            numbers: The number of each row in its run.
            **values: By field, what each row brings.
        """
        # NumPy is ten times as fast with one index as with a pair of them.
        index = numbers // self.length + runs * self.shape[1]
        with np.errstate(all="ignore"):
            for name, added in values.items():
                FIELDS[name][0].at(self.arrays[name].reshape(-1), index, added)

    def resize(self, runs: int, points: int) -> None:
        """Make room for more runs, with fewer points; the others must be empty."""
        for name, array in self.arrays.items():
            resized = np.full((runs, points), FIELDS[name][1])
            resized[: len(array)] = array[:, :points]
            self.arrays[name] = resized

    def _double(self) -> None:
        self.length *= 2
        for name, array in self.arrays.items():
            combine, empty = FIELDS[name]
            # Spans 0 1, 2 3, ... become spans 0, 1, ..., and the second half is free again.
            half = array.shape[1] // 2
            with np.errstate(all="ignore"):
                array[:, :half] = combine(array[:, ::2], array[:, 1::2])
            array[:, half:] = empty
