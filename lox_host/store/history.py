"""The history of resumed runs: join what several sessions logged into one run.

A program that is killed and resumed from a checkpoint repeats some steps. Each session
stores the rows it logged. A reader wants one curve without repeated steps, so lox reads a
session that resumes runs as if it had logged all of their rows:

    session 1    step 0 1 2 3 4                killed
    session 2    step       3 4 5 6 7          logger.init(key, resume=True), killed
    session 3    step             6 7 8        logger.init(key, resume=True)

    read from session 3:  step 0 1 2 | 3 4 5 | 6 7 8

The rule: rows of an earlier session at or after the first step of a later session are
*superseded*. They stay in the store, and `lox.load(path, session=...)` reads them. All
other rows *count*.

If a row has several steps, `step` decides, or else the first one. Some rows have no such
step in common with the later session. They are superseded if they were logged after the
first superseded row of their session: in the example, rows that session 1 logged without a
step after its step 3. `EarlierPart._cuts` holds the number of that first row.
"""

import dataclasses
import functools as ft
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lox_host.rows import Block
from lox_host.store.format.layout import ROW, RUN, Layout

if TYPE_CHECKING:
    from lox_host.store.format.frame_reader import FrameReader
    from lox_host.store.format.frames import Frame
    from lox_host.store.reader import Reader

# The first value of each step in a session, by the name of the step.
Limits = dict[str, float]


class RunOf(NamedTuple):
    """A run in one session: the session, and the id of the run in that session."""

    reader: "Reader"
    id: int


class DecidingSteps(NamedTuple):
    """The columns of some rows that decide whether these are superseded.

    Attributes:
        runs: The id of each row's run, `(rows,)`.
        order: The number of each row in the session, `(rows,)`.
        name: The name of the step that decides. None: the rows have no steps.
        values: The value of this step, `(rows,)`: the smallest if a row has several
            examples, NaN if it has no step.
    """

    runs: np.ndarray
    order: np.ndarray
    name: str | None
    values: np.ndarray


class History:
    """The earlier sessions of the runs of one session.

    Args:
        earlier: The earlier sessions of each run, by its id. The oldest comes first.
        current: The session that resumes the runs.
    """

    def __init__(self, earlier: Mapping[int, tuple[RunOf, ...]], current: "Reader"):
        self._earlier, self._current = earlier, current

    @property
    def runs(self) -> Collection[int]:
        """The ids of the resumed runs."""
        return self._earlier.keys()

    @property
    def keys(self) -> list[str]:
        """All keys of the earlier sessions."""
        keys = (key for part in self.parts for key in part.reader.own_keys)
        return list(dict.fromkeys(keys))

    @ft.cached_property
    def parts(self) -> list["EarlierPart"]:
        """The earlier sessions, the oldest first."""
        limits: dict[RunOf, Limits] = {}
        ids: dict[Reader, dict[int, int]] = {}
        for id, chain in self._earlier.items():
            # Go from the newest session to the oldest. `limit` is the lowest first step of
            # all newer sessions, which is where the current one is cut.
            limit: Limits = {}
            for run in (RunOf(self._current, id), *reversed(chain)):
                limits[run] = limit
                #     sessions    1: steps 0-4    2: steps 3-7    3: steps 6-8
                #     limit       1: 3            2: 6            3: none
                first = run.reader.first_steps.get(run.id, {})
                limit = {
                    name: min(limit.get(name, math.inf), first.get(name, math.inf))
                    for name in {**limit, **first}
                }
            for run in chain:
                ids.setdefault(run.reader, {})[run.id] = id
        # Each part's row numbers follow those of the part before. The names of sessions
        # begin with their date, so they sort by age.
        parts, offset = [], 0
        for reader in sorted(ids, key=lambda reader: reader.folder.name):
            its_limits = {id: limits[RunOf(reader, id)] for id in ids[reader]}
            parts.append(EarlierPart(reader, ids[reader], its_limits, offset))
            offset += 1 + max(reader.last_rows().values(), default=-1)
        return parts

    @property
    def rows(self) -> int:
        """How many row numbers the earlier sessions take. The current one starts here."""
        ends = (1 + max(p.reader.last_rows().values(), default=-1) for p in self.parts)
        return sum(ends)

    def blocks(
        self, runs: Collection[int] | None, keys: Collection[str] | None
    ) -> Iterator[Block]:
        """Yield the rows of earlier sessions that count, with the current run ids."""
        for part in self.parts:
            yield from part.blocks(runs, keys)

    def row_counts(self) -> dict[str, Counter[int]]:
        """Return how many rows of each run count, by key."""
        counts: dict[str, Counter[int]] = {}
        for part in self.parts:
            part.count_rows(counts)
        return counts


@dataclasses.dataclass
class Links:
    """The links of a session to other sessions of its store. See `link_sessions`.

    Attributes:
        history: The earlier sessions of its runs. None: there are none.
        continued: The ids of runs that a later session resumes.
    """

    history: History | None = None
    continued: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True, eq=False)
class EarlierPart:
    """The rows of resumed runs in one earlier session.

    Attributes:
        reader: The earlier session.
        ids: The current id of each run, by its id in the earlier session.
        limits: Where later sessions of each run begin, by its id in the earlier session.
        offset: How many row numbers older sessions take. Added to each row's number.
    """

    reader: "Reader"
    ids: dict[int, int]
    limits: dict[int, Limits]
    offset: int

    def blocks(
        self, runs: Collection[int] | None, keys: Collection[str] | None
    ) -> Iterator[Block]:
        """Yield the rows that count, with the current run ids."""
        wanted = [id for id, later in self.ids.items() if runs is None or later in runs]
        for block in self.reader.own_blocks(wanted, keys):
            rows = block.select(self._count(_steps_of_block(block)))
            if len(rows):
                order = rows.order + self.offset
                yield dataclasses.replace(rows.renamed(self.ids), order=order)

    def count_rows(self, counts: dict[str, Counter[int]]) -> None:
        """Add to `counts` how many rows of each run count, by key."""
        for layout, steps in self._steps():
            counting = self._count(steps) & np.isin(steps.runs, list(self.ids))
            ids, rows = np.unique(steps.runs[counting], return_counts=True)
            found = zip(ids.tolist(), rows.tolist(), strict=True)
            number = {self.ids[id]: count for id, count in found}
            for key in layout.keys:
                counts.setdefault(key, Counter()).update(number)

    @ft.cached_property
    def _cuts(self) -> dict[int, int]:
        """The number of the first row of each run whose step supersedes it, by run."""
        cuts: dict[int, int] = {}
        for _, steps in self._steps():
            limit = self._limit(steps)
            # Comparisons with NaN, an unknown step or limit, are False.
            with np.errstate(invalid="ignore"):
                superseded = steps.values >= limit
            for id in np.unique(steps.runs[superseded]).tolist():
                first = int(steps.order[superseded & (steps.runs == id)].min())
                cuts[id] = min(first, cuts.get(id, first))
        return cuts

    def _steps(self) -> Iterator[tuple[Layout, DecidingSteps]]:
        reader = self.reader
        with reader.frame_reader() as frames:
            for number, layout in reader.layouts.items():
                for frame in reader.frames[number]:
                    steps = _steps_of_frame(frames, frame, layout)
                    if steps is not None:
                        yield layout, steps

    def _count(self, steps: DecidingSteps) -> np.ndarray:
        """Return which rows count, as booleans: by their step, or else by their number."""
        limit = self._limit(steps)
        cut = _by_run(steps.runs, self._cuts, math.inf)
        with np.errstate(invalid="ignore"):
            is_before = ~(steps.values >= limit)
        # Rows whose step no later session has are cut by their number in the session.
        return np.where(np.isnan(limit), steps.order < cut, is_before)

    def _limit(self, steps: DecidingSteps) -> np.ndarray:
        """Return the step at which later sessions of each row's run begin, or NaN."""
        limits = self.limits.items()
        known = {id: of[steps.name] for id, of in limits if steps.name in of}
        return _by_run(steps.runs, known, math.nan)


def first_steps(reader: "Reader") -> dict[int, Limits]:
    """Return the first value of each step in a session, by run and name."""
    found: dict[int, Limits] = {}
    with reader.frame_reader() as frames:
        for number, layout in reader.layouts.items():
            for frame in reader.frames[number]:
                steps = _steps_of_frame(frames, frame, layout)
                if steps is None or steps.name is None:
                    continue
                # The lowest step of each run in this frame. `fmin` ignores NaN, which is a
                # row without a step.
                runs, inverse = np.unique(steps.runs, return_inverse=True)
                lowest = np.full(len(runs), np.inf)
                np.fmin.at(lowest, inverse, steps.values)
                for run, low in zip(runs.tolist(), lowest.tolist(), strict=True):
                    limits = found.setdefault(run, {})
                    limits[steps.name] = min(low, limits.get(steps.name, math.inf))
    return found


def link_sessions(readers: "Iterable[Reader]") -> "list[Reader]":
    """Give the sessions of a store, sorted by age, their histories, and return them."""
    # The sessions of each run since it was last begun without `resume`, by its identity
    # and process.
    chains: dict[tuple[str, int], tuple[RunOf, ...]] = {}
    linked = list(readers)
    # Most stores have no resumed run, and then the first steps need not be read.
    if not any(run.resumed for reader in linked for run in reader.runs.values()):
        return linked
    for reader in linked:
        earlier: dict[int, tuple[RunOf, ...]] = {}
        for run in reader.runs.values():
            identity = run.identity, run.process
            # A run that is not resumed begins a chain of its own.
            chain = chains.get(identity, ()) if run.resumed else ()
            if chain:
                earlier[run.id] = chain
                chain[-1].reader.links.continued.add(chain[-1].id)
            chains[identity] = (*chain, RunOf(reader, run.id))
        if earlier:
            reader.links.history = History(earlier, reader)
    return linked


def _steps_of_frame(
    frames: "FrameReader", frame: "Frame", layout: Layout
) -> DecidingSteps | None:
    """Read the columns of a frame that decide what is superseded. None if damaged."""
    runs, order = frames.column(frame, RUN), frames.column(frame, ROW)
    name = _name(layout.steps)
    step = None if name is None else frames.column(frame, layout.steps[name])
    if runs is None or order is None or (name is not None and step is None):
        return None
    mask = None
    if name in layout.masks:
        mask = frames.column(frame, layout.masks[name])
    return DecidingSteps(runs, order, name, _values(len(runs), step, mask))


def _steps_of_block(block: Block) -> DecidingSteps:
    name = _name(block.steps)
    step = None if name is None else block.steps[name]
    mask = None if name is None else block.masks.get(name)
    return DecidingSteps(block.runs, block.order, name, _values(len(block), step, mask))


def _name(steps: Iterable[str]) -> str | None:
    """Return the name of the step that decides: `step`, or else the user's first one."""
    names = [name for name in steps if name != "example"]
    return "step" if "step" in names else next(iter(names), None)


def _values(rows: int, step: np.ndarray | None, mask: np.ndarray | None) -> np.ndarray:
    """Return the value of a step for each row: the lowest of its examples, or NaN."""
    if step is None:
        return np.full(rows, np.nan)
    values = step.astype(np.float64)
    if mask is not None:
        # The mask may have fewer axes: (rows, *examples) -> (rows, *examples, 1, ...).
        mask = mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
        values = np.where(mask, values, np.nan)
    return np.fmin.reduce(values.reshape(rows, -1), axis=1, initial=np.nan)


def _by_run(runs: np.ndarray, known: Mapping[int, float], other: float) -> np.ndarray:
    """Return `known[run]` for each row, or `other` where the run is not in `known`."""
    ids, inverse = np.unique(runs, return_inverse=True)
    return np.array([known.get(id, other) for id in ids.tolist()], float)[inverse]
