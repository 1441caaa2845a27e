"""What `PlotLogger` keeps of its runs: curves of so many points, however many rows."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from lox_host.display.curves import BANDS, mean, on_common_steps
from lox_host.display.panels import Panel, Points
from lox_host.display.statistics import Places, reduced
from lox_host.rows import Block, Form
from lox_host.tree import leaves

FEW = 8  # runs that have a line each
FEWEST = 64  # points of a line, of very many runs
BUDGET = 2**17  # points of a name, of all runs together, unless there are very many runs


class Curves:
    """The curves of all runs.

    Args:
        keys: What to draw. None: everything that is a number.
        x: The step to draw it against. None: `step`, or else the first, or else the number
            of the row.
        points: How many points a line has at most; a power of two.
    """

    def __init__(self, keys: Sequence[str] | None, x: str | None, points: int):
        self._keys, self._x, self._points = keys, x, points
        self._slots: dict[int, int] = {}
        self._traces: dict[str, Trace] = {}
        self._seen: dict[str, None] = {}

    def add(self, block: Block) -> None:
        """Take the rows of a block."""
        if not len(block):
            return
        self._seen |= dict.fromkeys(block.values)
        for key in block.values:
            if self._keys is None or key in self._keys:
                for name, array in _scalars(block, key):
                    self._fill(name, block, key, array)

    def panels(self) -> list[Panel]:
        """What there is to draw, in the order that was asked for, or else of logging."""
        names = list(self._traces)
        if self._keys is not None:
            place = {key: i for i, key in enumerate(self._keys)}
            names.sort(key=lambda name: place[self._traces[name].key])
        return [self._traces[name].panel(name) for name in names]

    def missing(self) -> str:
        """What was asked for and is not there, in words. Empty if nothing is missing."""
        drawn = {trace.key for trace in self._traces.values()}
        lost = [key for key in self._keys or () if key not in drawn]
        if not lost:
            return ""
        behind = "" if self._x in (None, "row") else f" with the step {self._x!r}"
        return (
            f"There is no curve of {', '.join(map(repr, lost))}: a curve is a real number "
            f"that was logged{behind}. The keys that were logged are {list(self._seen)}."
        )

    def _fill(self, name: str, block: Block, key: str, array: np.ndarray) -> None:
        trace = self._traces.get(name) or Trace(key, self._step(block), self._points)
        step = block.steps.get(trace.step)
        if step is None and trace.step != "row":
            return
        valid = there = block.valid.get(key)
        if step is not None and (mask := block.masks.get(trace.step)) is not None:
            there = mask if valid is None else valid & mask
        rows = np.ones(len(block), bool)
        if there is not None:
            rows = there.reshape(len(there), -1).any(1)
        if not rows.any():
            return
        self._traces[name] = trace
        places = Places.of(block.runs[rows], self._slots)
        with np.errstate(all="ignore"):
            values = reduced(array[rows], _of(valid, rows))
            steps = None if step is None else reduced(step[rows], _of(there, rows))[0]
            trace.add(places, values, steps)

    def _step(self, block: Block) -> str:
        names = sorted(block.steps, key=lambda name: (name != "step", name))
        return self._x or next(iter(names), "row")


class Trace:
    """The curves of one name: for each run, means over spans of its rows.

    When there are too many points, each two become one.

    Args:
        key: The key that the name belongs to.
        step: What it is drawn against.
        points: How many points a line has at most; a power of two.
    """

    def __init__(self, key: str, step: str, points: int):
        self.key, self.step, self._most = key, step, points
        self._span = 1
        self._counts = np.zeros(1, np.int64)
        self._arrays: dict[str, np.ndarray] = {
            name: np.full((1, points), empty) for name, (_, empty) in _FIELDS.items()
        }

    def add(
        self,
        places: Places,
        values: tuple[np.ndarray, ...],
        steps: np.ndarray | None,
    ) -> None:
        """Take rows: their mean, smallest and largest elements, and where they are."""
        self._make_room(places.slots.max() + 1)
        times = places.times(self._counts)
        while times.max() >= self._span * self._arrays["rows"].shape[1]:
            self._halve()
        self._counts[places.slots] += places.counts
        means, lows, highs = (array[places.order] for array in values)
        good = np.isfinite(means)
        ones = np.ones(len(times))
        at = np.repeat(places.slots, places.counts), times // self._span
        self._combine("rows", at, ones)
        self._combine("steps", at, times if steps is None else steps[places.order])
        at = at[0][good], at[1][good]
        self._combine("good", at, ones[good])
        self._combine("values", at, means[good])
        self._combine("low", at, lows[good])
        self._combine("high", at, highs[good])

    def panel(self, name: str) -> Panel:
        """The lines to draw: of many runs, their mean and a band that most are in."""
        slots = np.flatnonzero(self._counts).tolist()
        points = [self._points(slot) for slot in slots]
        if len(points) == 1:
            return self._alone(name, slots[0], points[0])
        steps, values = on_common_steps(points)
        # Where few runs have come, their mean would look like a turn of all.
        reach = sum((x.min() <= steps) & (steps <= x.max()) for x, _ in points)
        steps, values = steps[2 * reach >= len(points)], values[:, 2 * reach >= len(points)]
        middle = steps, mean(values)
        if len(points) <= FEW:
            note = f"{len(points)} runs and their mean"
            return Panel(name, self.step, note, points, middle)
        band = steps, *BANDS["80%"](values)
        note = f"mean and 80% of {len(points)} runs"
        return Panel(name, self.step, note, middle=middle, band=band)

    def _alone(self, name: str, slot: int, points: Points) -> Panel:
        if self._span == 1:
            return Panel(name, self.step, middle=points)
        there = self._arrays["rows"][slot] > 0
        low, high = (
            np.where(np.isfinite(edge), edge, np.nan)
            for edge in (self._arrays[side][slot, there] for side in ("low", "high"))
        )
        note = f"mean and range of {self._span} rows each"
        return Panel(name, self.step, note, middle=points, band=(points[0], low, high))

    def _points(self, slot: int) -> Points:
        own = {name: array[slot] for name, array in self._arrays.items()}
        there = own["rows"] > 0
        with np.errstate(all="ignore"):  # spans without a number
            return (
                own["steps"][there] / own["rows"][there],
                own["values"][there] / own["good"][there],
            )

    def _combine(self, name: str, at: tuple, values: np.ndarray) -> None:
        _FIELDS[name][0].at(self._arrays[name], at, values)

    def _make_room(self, size: int) -> None:
        runs = len(self._counts)
        if size <= runs:
            return
        while runs < size:
            runs *= 2
        width = min(self._most, max(FEWEST, BUDGET // runs))
        while self._counts.max() > self._span * width:
            self._halve()
        self._counts = np.pad(self._counts, (0, runs - len(self._counts)))
        for name, (_, empty) in _FIELDS.items():
            old = self._arrays[name][:, :width]
            new = np.full((runs, width), empty)
            new[: len(old)] = old
            self._arrays[name] = new

    def _halve(self) -> None:
        self._span *= 2
        for name, (combine, empty) in _FIELDS.items():
            array = self._arrays[name]
            half = array.shape[1] // 2
            array[:, :half] = combine(array[:, ::2], array[:, 1::2])
            array[:, half:] = empty


# What is kept of a span of rows, how two become one, and what it is of none.
_FIELDS: dict[str, tuple[np.ufunc, float]] = {
    "rows": (np.add, 0.0),
    "steps": (np.add, 0.0),
    "good": (np.add, 0.0),
    "values": (np.add, 0.0),
    "low": (np.minimum, np.inf),
    "high": (np.maximum, -np.inf),
}


def _scalars(block: Block, key: str) -> Iterator[tuple[str, np.ndarray]]:
    """Names and arrays of a key that are a real number in each row, or for each example."""
    form = block.forms.get(key, Form())
    typed = dict(form.keys)
    for i, (name, array) in enumerate(leaves(block.values[key], key)):
        if i not in typed and array.ndim == 1 + form.batch and array.dtype.kind != "c":
            yield name, array


def _of(mask: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if mask is None else mask[rows]


def named(keys: str | Iterable[str] | None) -> list[str] | None:
    """The keys, of which one may be given alone."""
    if keys is None:
        return None
    names = [keys] if isinstance(keys, str) else list(keys)
    wrong = [key for key in names if not isinstance(key, str)]
    if wrong:
        raise TypeError(f"`keys` are strings, not {wrong[0]!r}.")
    return names
