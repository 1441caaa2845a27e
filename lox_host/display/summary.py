"""What a console knows of its runs: statistics of each key, and how far the runs are."""

import collections
import math

import numpy as np

from lox_host.display.progress_bar import progress_text
from lox_host.display.statistics import RowsByRun, Statistics, has_logged, named_arrays
from lox_host.display.text import clean, count, digits, diverged
from lox_host.rows import Block

SAMPLES = 64  # the rate is averaged over this many blocks


class Summary:
    """Everything that a console knows about its runs, in constant memory.

    Attributes:
        start: When the first run began, in seconds of any clock.
        statistics: The statistics by name; an array in a tree has the name `key/path`.
        steps: The last value of each step.
    """

    def __init__(self, start: float):
        self.start = start
        self.statistics: dict[str, Statistics] = {}
        self.steps: dict[str, float] = {}
        self._slots: dict[int, int] = {}
        self._progress: dict[str, Progress] = {}

    @property
    def runs(self) -> int:
        return len(self._slots)

    @property
    def progress(self) -> "Progress":
        """That of the key with most rows to come. Others are logged along with it."""
        return max(
            self._progress.values(),
            key=lambda progress: (progress.expected or 0, progress.rows),
            default=Progress(self.start),
        )

    def open(self, run: int) -> None:
        self._slots.setdefault(run, len(self._slots))

    def add(self, block: Block, now: float) -> None:
        """Take the rows of a block."""
        if not len(block):
            return
        rows = RowsByRun.of(block.runs, self._slots)
        self.steps |= {n: steps[-1].max() for n, steps in block.steps.items() if steps.size}
        for key in block.values:
            # By key, as keys share blocks only where they have the same rows.
            progress = self._progress.setdefault(key, Progress(self.start))
            progress.add(rows, block.expected, now)
            self._add_key(block, key, rows)

    def _add_key(self, block: Block, key: str, rows: RowsByRun) -> None:
        valid, is_logged = block.valid.get(key), slice(None)
        if valid is not None:
            is_logged = has_logged(valid)
            rows = RowsByRun.of(block.runs[is_logged], self._slots)
            valid = valid[is_logged]
        for name, array, prng_key in named_arrays(block, key):
            statistics = self.statistics.setdefault(name, Statistics())
            statistics.note = f"{prng_key} key" if prng_key else _shape(array)
            statistics.kind = array.dtype.kind if array.ndim == 1 else "f"
            if not prng_key:
                statistics.add(rows, array[is_logged], valid, _step(block, is_logged))

    def line(self, now: float, *, title: str, most: int) -> str:
        """Write everything in one line, with means over runs for at most this many keys.

        Such as `lox: 8 runs, step 40, 40%, 320/800 rows, 32/s, 0:15 left | loss 0.5123`.
        """
        progress = self.progress
        rate, seconds = progress.rate(now), now - self.start
        parts = [
            count(self.runs, "run"),
            *(f"{clean(name)} {digits(step, 'i')}" for name, step in self.steps.items()),
            progress_text(*progress.done(self.runs), rate, seconds, "rows"),
        ]
        values = []
        for name, statistics in self.statistics.items():
            if statistics:
                spread = statistics.spread()
                rest = diverged(spread.diverged, self.runs) if self.runs > 1 else ""
                values.append(f"{clean(name)} {digits(spread.mean)}{rest}")
        if len(values) > most:
            values = [*values[:most], f"{len(values) - most} more"]
        return f"{clean(title)}: {', '.join(parts)} | {', '.join(values)}"


class Progress:
    """How many rows of a key there are.

    Attributes:
        rows: All of them.
        expected: How many each run will have when the program ends. None: unknown.
    """

    def __init__(self, start: float):
        self.rows = 0
        self.expected: int | None = None
        self._done: dict[int, int] = {}
        self._samples = collections.deque([(start, 0)], SAMPLES)

    def add(self, rows: RowsByRun, expected: int | None, now: float) -> None:
        for slot, new in zip(rows.slots.tolist(), rows.counts.tolist(), strict=True):
            done = self._done.get(slot, 0)
            # The program was called again and starts over.
            done = new if done == self.expected else done + new
            # A run that has logged more than one program does is in the next call of it:
            # with 10 rows per call, row 23 is row 3 of the third call.
            self._done[slot] = (done - 1) % expected + 1 if expected else done
        self.rows += len(rows.order)
        self.expected = expected
        self._samples.append((now, self.rows))

    def done(self, runs: int) -> tuple[int, float]:
        """Return the rows so far, and how many there will be. Infinity means unknown.

        Of a program that logs once in a call we cannot know how often it will be called.
        """
        if self.expected is None or self.expected < 2:
            return self.rows, math.inf
        return sum(self._done.values()), self.expected * runs

    def rate(self, now: float) -> float:
        """Return the rows in a second, of late."""
        then, rows = self._samples[0]
        return (self.rows - rows) / (now - then) if now > then else 0.0


def _step(block: Block, is_logged: slice | np.ndarray) -> tuple[str, np.ndarray] | None:
    """Return the step to name rows by: `step`, or else the first."""
    names = sorted(block.steps, key=lambda name: name != "step")
    return (names[0], block.steps[names[0]][is_logged]) if names else None


def _shape(array: np.ndarray) -> str:
    shape = "×".join(map(str, array.shape[1:]))
    return f"{shape} |z|".strip() if array.dtype.kind == "c" else shape
