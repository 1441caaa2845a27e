"""Follow a session: its last rows, and then what comes, while it is written."""

import os
import pathlib
from collections.abc import Callable, Collection, Iterable

from lox_host.rows import Block
from lox_host.store import journal
from lox_host.store.files import open_file
from lox_host.store.journal import Entry
from lox_host.store.reader import Reader, StaleSession


class Follower:
    """Read what is new in a session, again and again.

    It continues to read the journal where it ended before, so each look costs only as much
    as has been added:

        journal   | run, layout, frame, frame, layout, frame | frame, frame, end |
                  |-- read: runs and layouts are kept -------|-- read now -------|

    When the session ends, its journal is replaced and everything is read anew. Rows that
    were delivered before are then known by their numbers.

    Args:
        session: The folder of the session.
        runs: The ids of the runs to follow.
        is_wanted: Says of a key whether its rows are wanted.
    """

    def __init__(
        self, session: pathlib.Path, runs: Collection[int], is_wanted: Callable[[str], bool]
    ):
        self._session, self._runs, self._is_wanted = session, runs, is_wanted
        self._delivered: dict[int, int] = {}
        self._restart()

    @property
    def keys(self) -> list[str]:
        """All keys that the session has by now."""
        return Reader(self._session, self._known).keys

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return Reader(self._session, self._known).ended

    def last(self, rows: int) -> list[Block]:
        """Return rows from the end, at least so many of each group where there are."""
        return self._read(lambda new, keys: new.last_blocks(rows, self._runs, keys))

    def new(self) -> list[Block]:
        """Return all rows that have come since."""
        return self._read(lambda new, keys: new.blocks(self._runs, keys, self._delivered))

    def _read(self, select: Callable[[Reader, list[str]], Iterable[Block]]) -> list[Block]:
        while True:
            try:
                new = self._poll()
                # All of it, before what has been delivered is noted: a file may be gone.
                blocks = list(
                    select(new, [key for key in new.keys if self._is_wanted(key)])
                )
                self._delivered = {**self._delivered, **new.last_rows()}
                return blocks
            except StaleSession:
                self._check_replaced()
                self._restart()
            except FileNotFoundError:
                # Somebody has removed the session.
                self._known.append({"end": True})
                return []

    def _poll(self) -> Reader:
        """Return a reader of what the journal has told of since it was last read."""
        with open(open_file(self._session / journal.NAME), "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                self._restart()
                self._inode = inode
            file.seek(self._offset)
            data = file.read()
        # The last line may be half written.
        lines = data[: data.rfind(b"\n") + 1]
        self._offset += len(lines)
        new = journal.decode(lines, self._next_number)
        journal.warn_of_problems(self._session, new.problems)
        self._next_number = new.next_number
        self._known += [entry for entry in new.entries if "frame" not in entry]
        frames = [entry for entry in new.entries if "frame" in entry]
        return Reader(self._session, [*self._known, *frames], is_whole=False)

    def _restart(self) -> None:
        """Read the journal from its beginning the next time."""
        self._known: list[Entry] = []
        self._offset, self._next_number, self._inode = 0, 0, -1

    def _check_replaced(self) -> None:
        """Raise if a file is missing that the journal still knows."""
        if (self._session / journal.NAME).stat().st_ino == self._inode:
            raise OSError(f"A file of the session in {str(self._session)!r} is missing.")
