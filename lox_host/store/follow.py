"""Follow a session while it is being written: its last rows, and then each new one."""

import os
import pathlib
from collections.abc import Callable, Collection, Iterable

from lox_host.rows import Block
from lox_host.store.address import remote, url_of
from lox_host.store.format import journal
from lox_host.store.format.files import open_file
from lox_host.store.format.journal import Entry
from lox_host.store.reader import Reader, StaleSession


class JournalTail:
    """Reads a journal again and again, and each time only the new lines.

        journal   | run, layout, frame, frame, layout, frame | frame, frame, end |
                  |-- read: runs and layouts are kept -------|-- read now -------|

    Args:
        session: The folder of the session.

    Attributes:
        restarts: How often the journal has been replaced, which happens at the end of a
            session. After that, frames that were read before no longer count.
    """

    def __init__(self, session: pathlib.Path):
        self._session, self.restarts = session, -1
        self.restart()

    def poll(self) -> Reader:
        """Return a reader of the lines since the last call.

        The reader has all runs and layouts, but only new frames.
        """
        if url_of(self._session.parent) is not None:
            remote().refresh_session(self._session)
        with open(open_file(self._session / journal.NAME), "rb") as file:
            # A journal that is replaced, not appended to, is another file.
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._inode:
                self.restart()
                self._inode = inode
            file.seek(self._offset)
            data = file.read()
        # The last line may be half written.
        lines = data[: data.rfind(b"\n") + 1]
        self._offset += len(lines)
        new = journal.decode(lines, self._next_number)
        journal.warn_of_problems(self._session, new.problems)
        self._next_number = new.next_number
        self.known += [entry for entry in new.entries if "frame" not in entry]
        frames = [entry for entry in new.entries if "frame" in entry]
        return Reader(self._session, [*self.known, *frames], is_whole=False)

    def restart(self) -> None:
        """Start from the beginning of the journal at the next call of `poll`."""
        self.restarts += 1
        self.known: list[Entry] = []
        self._offset, self._next_number, self._inode = 0, 0, -1

    def check_replaced(self) -> None:
        """Raise if the journal has not been replaced, so that a missing file is damage."""
        if (self._session / journal.NAME).stat().st_ino == self._inode:
            raise OSError(f"A file of the session in {str(self._session)!r} is missing.")


class Follower:
    """Reads the new rows of a session, again and again.

    Each call continues in the journal where the last one stopped, so it costs only as much
    as has been added. When the session ends, its journal is replaced, and everything is
    read again. Row numbers tell which rows have been delivered before.

    Args:
        session: The folder of the session.
        runs: The ids of the runs to follow.
        select: Takes all keys of the session, and returns the wanted ones.
    """

    def __init__(
        self,
        session: pathlib.Path,
        runs: Collection[int],
        select: Callable[[list[str]], list[str]],
    ):
        self._session, self._runs, self._select = session, runs, select
        self._delivered: dict[int, int] = {}
        self._tail = JournalTail(session)

    @property
    def keys(self) -> list[str]:
        """All keys that the session has so far."""
        return Reader(self._session, self._tail.known).keys

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return Reader(self._session, self._tail.known).ended

    def last(self, rows: int) -> list[Block]:
        """Return at least `rows` rows from the end of each group, if it has as many."""
        return self._read(lambda new, keys: new.last_blocks(rows, self._runs, keys))

    def new(self) -> list[Block]:
        """Return all rows since the last call."""
        return self._read(lambda new, keys: new.blocks(self._runs, keys, self._delivered))

    def _read(self, select: Callable[[Reader, list[str]], Iterable[Block]]) -> list[Block]:
        while True:
            try:
                new = self._tail.poll()
                # Read all blocks before noting them as delivered: a file may be gone.
                blocks = list(select(new, self._select(new.keys)))
                self._delivered = {**self._delivered, **new.last_rows()}
                return blocks
            except StaleSession:
                self._tail.check_replaced()
                self._tail.restart()
            except FileNotFoundError:
                # The session has been removed.
                self._tail.known.append({"end": True})
                return []
