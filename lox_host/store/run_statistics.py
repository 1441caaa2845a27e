"""Numbers about the runs of a session: rows, last values, values that are not finite.

`lox ls` asks for these of thousands of runs, so each reads as little as it can:

    row_counts     the column of run ids, and not even that for frames of one run
    last_values    from the end of each group, until all runs have been found there
    nonfinite      the columns that the journal says have such values
    lost_rows      everything: it looks for damage

A session that has ended has its summary in the journal (`ended_session.py`), and needs none
of this. Runs that were resumed have rows in earlier sessions (`history.py`), which count.
"""

import itertools as it
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from lox_host.rows import Block
from lox_host.store.format.dtypes import dtype_named
from lox_host.store.format.frame_reader import FrameReader
from lox_host.store.format.frames import Frame, is_finite
from lox_host.store.format.layout import RUN, Layout
from lox_host.store.reader import Reader
from lox_host.tree import leaves


class NonFinite(NamedTuple):
    """How many rows of a key are NaN or infinite, and the step of the first of them.

    Rows without steps have an empty name for the step, and `first` is their number in the
    session.
    """

    rows: int
    step: str
    first: float


def row_counts(reader: Reader) -> dict[str, Counter[int]]:
    """Return how many rows each run has, by key."""
    counts = {key: Counter[int]() for key in reader.keys}
    if reader.history is not None:
        counts.update(reader.history.row_counts())
    with reader.frame_reader() as frames:
        for number, layout in reader.layouts.items():
            rows = Counter[int]()
            for frame in reader.frames[number]:
                rows.update(_rows_by_run(frames, frame))
            for key in layout.keys:
                counts[key] += rows
    return counts


def last_values(reader: Reader) -> dict[int, dict[str, np.generic]]:
    """Return by run the last value of each key that is a real number.

    Each group is read from its end until all runs have been found there, so that this
    takes as few frames as it can.
    """
    # The same key may be in several groups: the row with the highest number counts.
    newest: dict[tuple[int, str], tuple[int, np.generic]] = {}
    with reader.frame_reader() as frames:
        for number, layout in reader.layouts.items():
            keys = [key for key in layout.keys if layout.is_number(key)]
            # A run that logs other keys is never found, and its frames are skipped by
            # the ids in the journal.
            missing = reader.run_ids
            for frame in reversed(reader.frames[number]):
                if not missing.size:
                    break
                block = frames.read(frame, missing, keys)
                if block is None:
                    continue
                rows = _last_row_of_each_run(block)
                missing = np.setdiff1d(missing, block.runs[rows], assume_unique=True)
                found = block.runs[rows].tolist(), block.order[rows].tolist()
                for key, array in block.values.items():
                    for run, order, value in zip(*found, array[rows], strict=True):
                        if order > newest.get((run, key), (-1,))[0]:
                            newest[run, key] = order, value
        frames.warn_of_damage()
    if reader.history is not None:
        for pair, value in _last_of(reader.history.blocks(None, None)).items():
            newest.setdefault(pair, value)
    values: dict[int, dict[str, np.generic]] = {run: {} for run in reader.runs}
    for key in reader.keys:
        for run, its_values in values.items():
            if (run, key) in newest:
                its_values[key] = newest[run, key][1]
    return values


def nonfinite(reader: Reader) -> dict[int, dict[str, NonFinite]]:
    """Return how many rows are not finite, and the first of them, by run and key.

    The journal says which columns to look at. In the first format it does not, so this
    only looks at keys that are numbers.
    """
    found: dict[int, dict[str, NonFinite]] = {}
    with reader.frame_reader() as frames:
        for frame in it.chain.from_iterable(reader.frames.values()):
            layout = reader.layouts[frame.group]
            keys = [key for key in layout.keys if _may_be_nonfinite(layout, key, frame)]
            block = frames.read(frame, reader.run_ids, keys) if keys else None
            if block is not None:
                for key in block.values:
                    _count_nonfinite(found, block, key)
    if reader.history is not None:
        for block in reader.history.blocks(None, None):
            for key in block.values:
                _count_nonfinite(found, block, key)
    return found


def lost_rows(reader: Reader) -> Counter[str]:
    """Read everything, and return how many rows are damaged, by key."""
    with reader.frame_reader() as frames:
        frames.is_thorough = True
        for frame in it.chain.from_iterable(reader.frames.values()):
            frames.read(frame, reader.run_ids, None)
        return frames.lost


def _rows_by_run(frames: FrameReader, frame: Frame) -> dict[int, int]:
    low, high = frame.runs
    # If all rows are of one run, the journal is enough.
    if low == high:
        return {low: frame.rows}
    ids = frames.column(frame, RUN)
    if ids is None:
        frames.leave_out(f"A frame of {frame.rows} rows")
        return {}
    runs, rows = np.unique(ids, return_counts=True)
    return dict(zip(runs.tolist(), rows.tolist(), strict=True))


def _last_of(
    blocks: Iterable[Block],
) -> dict[tuple[int, str], tuple[int, np.generic]]:
    """Return the row number and value of the last scalar, by run and key."""
    last: dict[tuple[int, str], tuple[int, np.generic]] = {}
    for block in blocks:
        rows = _last_row_of_each_run(block)
        for key, array in block.values.items():
            is_number = isinstance(array, np.ndarray) and array.ndim == 1
            if not is_number or array.dtype.kind == "c" or block.forms[key].keys:
                continue
            found = block.runs[rows].tolist(), block.order[rows].tolist()
            for run, order, value in zip(*found, array[rows], strict=True):
                if order > last.get((run, key), (-1,))[0]:
                    last[run, key] = order, value
    return last


def _may_be_nonfinite(layout: Layout, key: str, frame: Frame) -> bool:
    if frame.nonfinite is not None:
        return not set(layout.keys[key].columns).isdisjoint(frame.nonfinite)
    if not layout.is_number(key):
        return False
    (number,) = layout.keys[key].columns[-1:]
    return dtype_named(layout.columns[number].dtype).kind not in "biu"


def _count_nonfinite(
    found: dict[int, dict[str, NonFinite]], block: Block, key: str
) -> None:
    """Add the rows of a key in which some example that logged is not finite."""
    is_bad = np.zeros(len(block), bool)
    for _, array in leaves(block.values[key]):
        bad = ~is_finite(array)
        valid = block.valid.get(key)
        if valid is not None:
            bad = bad & valid.reshape(valid.shape + (1,) * (bad.ndim - valid.ndim))
        is_bad |= bad.reshape(len(block), -1).any(1)
    rows = np.flatnonzero(is_bad)
    names = sorted(block.steps, key=lambda name: name != "step")
    steps = block.steps[names[0]] if names else block.order
    runs, firsts, counts = np.unique(
        block.runs[rows], return_index=True, return_counts=True
    )
    # Once per run: its first bad row in this block, and how many there are.
    for run, row, number in zip(runs.tolist(), rows[firsts], counts.tolist(), strict=True):
        first = NonFinite(number, names[0] if names else "", float(np.max(steps[row])))
        before = found.setdefault(run, {}).get(key)
        if before is not None:
            number += before.rows
            first = before if before.first <= first.first else first
        found[run][key] = first._replace(rows=number)


def _last_row_of_each_run(block: Block) -> np.ndarray:
    _, from_end = np.unique(block.runs[::-1], return_index=True)
    return len(block) - 1 - from_end
