"""What is shown of the runs of a logger: statistics of each key, and how far they are."""

import collections
import math
from collections.abc import Hashable, Iterator

import numpy as np

from lox_host.display.statistics import Places, Series
from lox_host.rows import Block, Form
from lox_host.tree import leaves

SAMPLES = 64  # the rate is that since so many blocks


class Summary:
    """All that a console knows of its runs, in constant memory.

    Attributes:
        start: When the first run began, in seconds of any clock.
        series: The statistics by name; an array in a tree has the name `key/path`.
        steps: The last value of each step.
    """

    def __init__(self, start: float):
        self.start = start
        self.series: dict[str, Series] = {}
        self.steps: dict[str, float] = {}
        self._slots: dict[int, int] = {}
        self._progress: dict[Hashable, Progress] = {}

    @property
    def runs(self) -> int:
        return len(self._slots)

    @property
    def progress(self) -> "Progress":
        """That of the keys with most rows to come. Others are logged along with them."""
        every = self._progress.values()
        return max(
            every, key=lambda p: (p.expected or 0, p.rows), default=Progress(self.start)
        )

    def open(self, run: int) -> None:
        self._slots.setdefault(run, len(self._slots))

    def add(self, block: Block, now: float) -> None:
        """Take the rows of a block."""
        if not len(block):
            return
        places = Places.of(block.runs, self._slots)
        keys = tuple(block.values)
        progress = self._progress.setdefault(keys, Progress(self.start))
        progress.add(places, block.expected, now)
        self.steps |= {n: steps[-1].max() for n, steps in block.steps.items() if steps.size}
        for key in keys:
            valid = block.valid.get(key)
            for name, array, note in _described(block, key):
                series = self.series.setdefault(name, Series())
                series.note, series.kind = note or _shape(array), _kind(array)
                if not note and array.size:
                    self._fill(series, block.runs, places, array, valid)

    def _fill(self, series, runs, places, array, valid) -> None:
        if valid is None:
            series.add(places, array, None)
            return
        logged = valid.reshape(len(valid), -1).any(1)
        if logged.any():
            series.add(Places.of(runs[logged], self._slots), array[logged], valid[logged])


class Progress:
    """How many rows of some keys there are.

    Attributes:
        rows: All of them.
        expected: How many each run will have when the program ends. None: nobody knows.
    """

    def __init__(self, start: float):
        self.rows = 0
        self.expected: int | None = None
        self._done: dict[int, int] = {}
        self._samples = collections.deque([(start, 0)], SAMPLES)

    def add(self, places: Places, expected: int | None, now: float) -> None:
        for slot, count in zip(places.slots.tolist(), places.counts.tolist(), strict=True):
            done = self._done.get(slot, 0)
            # The program was called again, and starts anew.
            done = count if done == self.expected else done + count
            self._done[slot] = (done - 1) % expected + 1 if expected else done
        self.rows += len(places.order)
        self.expected = expected
        self._samples.append((now, self.rows))

    def done(self, runs: int) -> tuple[int, float]:
        """Rows, and how many there will be; infinity if nobody knows.

        Of a program that logs once in a call we cannot know how often it will be called.
        """
        if self.expected is None or self.expected < 2:
            return self.rows, math.inf
        return sum(self._done.values()), self.expected * runs

    def rate(self, now: float) -> float:
        """Rows in a second, of late."""
        then, rows = self._samples[0]
        return (self.rows - rows) / (now - then) if now > then else 0.0


def _described(block: Block, key: str) -> Iterator[tuple[str, np.ndarray, str]]:
    """Names and arrays of a key, and what they are if they are not numbers."""
    form = block.forms.get(key, Form())
    implementations = dict(form.keys)
    for i, (name, array) in enumerate(leaves(block.values[key], key)):
        implementation = implementations.get(i)
        yield name, array, f"{implementation} key" if implementation else ""


def _shape(array: np.ndarray) -> str:
    shape = "×".join(map(str, array.shape[1:]))
    return f"{shape} |z|".strip() if array.dtype.kind == "c" else shape


def _kind(array: np.ndarray) -> str:
    return array.dtype.kind if array.ndim == 1 else "f"
