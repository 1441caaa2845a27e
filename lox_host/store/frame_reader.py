"""Read single frames of a session: the rows of some runs, the columns of some keys."""

import os
import pathlib
from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np

from lox_host.rows import Block
from lox_host.store.files import open_file
from lox_host.store.frames import Frame, read_column
from lox_host.store.journal import Entry, read_journal, warn_left_out
from lox_host.store.layout import RUN, Layout


class StaleSession(Exception):
    """A session was rewritten or removed while it was read."""


class FrameReader:
    """Read frames of a session. One of its files is open; use it in a `with` statement.

    Args:
        session: The folder of the session.
        layouts: The layouts by the number of the group.
        journal: What the journal said when the session was opened. A file that is missing
            while it still says the same is damage. None: the session is stale then, too.
        runs: The ids of all runs that the session has had, in order. Rows of others have
            lost the line of their run.

    Attributes:
        lost: By key, how many rows could not be read so far.
    """

    def __init__(
        self,
        session: pathlib.Path,
        layouts: Mapping[int, Layout],
        journal: list[Entry] | None,
        runs: np.ndarray,
    ):
        self._session, self._layouts, self._journal = session, layouts, journal
        self._runs = runs
        self._name, self._file = "", -1
        self.lost = Counter[str]()

    def __enter__(self) -> "FrameReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._open("")

    def read(
        self, frame: Frame, runs: np.ndarray, keys: Collection[str] | None
    ) -> Block | None:
        """Read the rows of some runs, whose ids are in order. None if there are none."""
        layout, (low, high) = self._layouts[frame.group], frame.runs
        wanted = [key for key in layout.keys if keys is None or key in keys]
        first, after = np.searchsorted(runs, low), np.searchsorted(runs, high, "right")
        if not wanted or first == after:
            return None
        # The runs first: if there are none of these here, nothing else is read.
        ids, is_wanted = self.column(frame, RUN), None
        if ids is not None and low != high:
            is_wanted = np.isin(ids, runs[first:after])
            if lost := int((~np.isin(ids, self._runs)).sum()):
                self.lost.update(dict.fromkeys(wanted, lost))
            if not is_wanted.any():
                return None
        # Each column once, though keys share those of the steps.
        columns = {key: {*layout.shared, *layout.keys[key].columns} for key in wanted}
        read = {i: self.column(frame, i) for i in set().union(*columns.values()) - {RUN}}
        arrays = {i: array for i, array in {RUN: ids, **read}.items() if array is not None}
        whole = [key for key in wanted if columns[key] <= arrays.keys()]
        self.lost.update({key: frame.rows for key in wanted if key not in whole})
        if not whole:
            return None
        block = layout.block(arrays, whole)
        return block if is_wanted is None or is_wanted.all() else block.select(is_wanted)

    def column(self, frame: Frame, number: int) -> np.ndarray | None:
        """Read a column of a frame. None if it is not what was written."""
        try:
            self._open(frame.file)
        except FileNotFoundError:
            self._check_stale()
            return None
        except OSError:  # a link, or not a file
            return None
        column = self._layouts[frame.group].columns[number]
        array = read_column(self._file, frame.columns[number], column, frame.rows)
        if number == RUN and array is not None and len(array):
            # Readers rely on what the journal says of the runs.
            is_right = (int(array.min()), int(array.max())) == frame.runs
            return array if is_right else None
        return array

    def warn_of_damage(self) -> None:
        """Warn of the rows that have been left out so far."""
        for key, rows in self.lost.items():
            warn_left_out(self._session, f"A part of {key!r}, {rows} rows,")

    def _open(self, name: str) -> None:
        """Open another file in place of the one that is open, if it is another."""
        if name == self._name:
            return
        if self._name:
            os.close(self._file)
            self._name = ""
        if name:
            self._file, self._name = open_file(self._session / name), name

    def _check_stale(self) -> None:
        """Raise unless the journal still knows the file that is missing."""
        try:
            is_same = read_journal(self._session).entries == self._journal
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise StaleSession
