"""Read single frames of a session: the rows of some runs, the columns of some keys.

A session on object storage has a local folder with its journal and with the segments that
were needed before. The reader fetches the other segments when it needs them.
"""

import os
import pathlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from lox_host.rows import Block
from lox_host.store.address import remote, url_of
from lox_host.store.format.column_pattern import Pattern
from lox_host.store.format.files import is_file, open_file
from lox_host.store.format.frames import Frame, is_inside, is_whole, read_column
from lox_host.store.format.journal import SEGMENT_FILE, Entry, read_journal, warn_left_out
from lox_host.store.format.layout import RUN, Layout
from lox_host.store.format.parquet import SegmentFile


class StaleSession(Exception):
    """A session was rewritten or removed while it was read."""


class FrameReader:
    """Reads frames of a session. It keeps one file open, so use it in a `with` statement.

    Args:
        session: The folder of the session.
        layouts: The layouts by the number of the group.
        journal: Returns the entries of the journal when the session was opened. If a file
            is missing and the journal is still the same, the session is damaged. Otherwise,
            or if this is None, it is stale.
        runs: The ids of all runs that the session has had, sorted. Rows with another id
            have lost the line of their run.

    Attributes:
        lost: How many rows could not be read so far, by key.
        is_strict: Whether to raise an `OSError` for damaged data.
        is_thorough: Whether to look even at bytes that only other programs read: those of
            columns with a pattern.
    """

    def __init__(
        self,
        session: pathlib.Path,
        layouts: Mapping[int, Layout],
        journal: Callable[[], list[Entry]] | None,
        runs: np.ndarray,
    ):
        self._session, self._layouts, self._journal = session, layouts, journal
        self._runs = runs
        self._name, self._file = "", -1
        self._segment: SegmentFile | None = None
        self.lost = Counter[str]()
        self.is_strict = self.is_thorough = False

    def __enter__(self) -> "FrameReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._open("")

    def prefetch(
        self, frames: Iterable[Frame], runs: np.ndarray, keys: Collection[str] | None
    ) -> None:
        """Fetch the segments that `read` will need for some frames, several at a time."""
        names = {}
        for frame in frames:
            if not frame.is_segment or is_file(self._session / frame.file):
                continue
            # Whether any of the wanted runs is between the lowest and the highest id.
            first, after = np.searchsorted(runs, [frame.runs[0], frame.runs[1] + 1])
            own = self._layouts[frame.group].keys
            if first < after and (keys is None or not own.keys().isdisjoint(keys)):
                names[frame.file] = None
        if names:
            remote().fetch_segments(self._session, list(names))

    def read(
        self, frame: Frame, runs: np.ndarray, keys: Collection[str] | None
    ) -> Block | None:
        """Read the rows of some runs, given their sorted ids. None if there are none."""
        layout, (low, high) = self._layouts[frame.group], frame.runs
        wanted = [key for key in layout.keys if keys is None or key in keys]
        first, after = np.searchsorted(runs, low), np.searchsorted(runs, high, "right")
        if not wanted or first == after:
            return None
        # Read the column of the runs first. If none of them is wanted, stop here.
        ids, is_wanted = self.column(frame, RUN), None
        if ids is not None and low != high:
            is_wanted = _are_among(ids, runs[first:after])
            if lost := int((~_are_among(ids, self._runs)).sum()):
                self.lost.update(dict.fromkeys(wanted, lost))
            if not is_wanted.any():
                return None
        # Read each column once, although keys share the columns of the steps.
        columns = {key: {*layout.shared, *layout.keys[key].columns} for key in wanted}
        read = {i: self.column(frame, i) for i in set().union(*columns.values()) - {RUN}}
        arrays = {i: array for i, array in {RUN: ids, **read}.items() if array is not None}
        # A key is whole if none of its columns, nor those of the steps, is damaged.
        whole = [key for key in wanted if columns[key] <= arrays.keys()]
        self.lost.update({key: frame.rows for key in wanted if key not in whole})
        if not whole:
            return None
        if layout.time is not None:
            arrays.update(self._times(frame, layout.time))
        block = layout.block(arrays, whole)
        return block if is_wanted is None or is_wanted.all() else block.select(is_wanted)

    def _times(self, frame: Frame, number: int) -> dict[int, np.ndarray]:
        """Read the times, by the number of their column. Values count without them, too."""
        times = self.column(frame, number)
        if times is None:
            self.lost["@time"] += frame.rows
            return {}
        return {number: times}

    def pattern(self, frame: Frame, number: int) -> Pattern | None:
        """Return the pattern of a column. Return None if the column has to be read."""
        if frame.is_segment or self.is_thorough or not self._is_there(frame):
            return None
        extent = frame.columns[number]
        return extent.pattern if is_inside(self._file, extent) else None

    def column(self, frame: Frame, number: int) -> np.ndarray | None:
        """Read a column of a frame. Return None if it is damaged."""
        if not self._is_there(frame):
            return None
        layout = self._layouts[frame.group]
        if self._segment is not None:
            array = self._segment.column(number, layout, frame.start)
            if array is not None and len(array) != frame.rows:
                return None
        else:
            column, extent = layout.columns[number], frame.columns[number]
            if self.is_thorough and not is_whole(self._file, extent):
                return None
            array = read_column(self._file, extent, column, frame.rows)
        if number == RUN and array is not None and len(array):
            # Readers skip frames by the run ids in the journal, so these must be right.
            is_right = (int(array.min()), int(array.max())) == frame.runs
            return array if is_right else None
        return array

    def _is_there(self, frame: Frame) -> bool:
        """Open the file of a frame, and return whether there is one."""
        try:
            self._open(frame.file)
        except FileNotFoundError:
            self._check_stale()
            return False
        except ConnectionError:
            raise
        except OSError:  # a link, or not a file
            return False
        return True

    def knows(self, runs: np.ndarray) -> bool:
        """Return whether the session has had all of these runs."""
        return bool(np.isin(runs, self._runs).all())

    def warn_of_damage(self) -> None:
        """Warn of the rows that have been left out so far."""
        for key, rows in self.lost.items():
            self.leave_out(f"A part of {key!r}, {rows} rows,")

    def leave_out(self, what: str) -> None:
        """Warn that something is damaged, or raise if `is_strict`."""
        if self.is_strict:
            raise OSError(f"{what} in {str(self._session)!r} is damaged.")
        warn_left_out(self._session, what)

    def _open(self, name: str) -> None:
        """Close the open file and open the named one, unless it is the same."""
        if name == self._name:
            return
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        elif self._name:
            os.close(self._file)
        self._name = ""
        if SEGMENT_FILE.fullmatch(name):
            if not is_file(self._session / name):
                remote().fetch_segments(self._session, [name])
            self._segment, self._name = SegmentFile(self._session / name), name
        elif name:
            self._file, self._name = open_file(self._session / name), name

    def _check_stale(self) -> None:
        """Raise `StaleSession` unless the journal is unchanged, so a file got lost."""
        try:
            if url_of(self._session.parent) is not None:
                remote().refresh_session(self._session, at_once=True)
            known = None if self._journal is None else self._journal()
            is_same = read_journal(self._session).entries == known
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise StaleSession


def _are_among(ids: np.ndarray, runs: np.ndarray) -> np.ndarray:
    """Return for each row whether its run is one of these."""
    starts = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    if 4 * len(starts) > len(ids):
        return np.isin(ids, runs)
    # Often the rows of a run come one after the other. Then look at the first of them.
    starts = np.concatenate([[0], starts])
    return np.repeat(np.isin(ids[starts], runs), np.diff(starts, append=len(ids)))
