"""The catalog of a viewer: all stores below some paths, with their sessions and runs.

    paths -> stores -> sessions -> runs, numbered 0 1 2 ...

The catalog polls the stores, and numbers all runs in the order in which it finds them. The
invariant: a run keeps its number as long as the viewer runs. So arrays can hold run
numbers, and new runs and sessions never change what is known already.
"""

import dataclasses
import os
import threading
import time
import warnings
from collections.abc import Sequence

import numpy as np

from lox_host.store import Path, find_stores, is_url, open_store
from lox_host.view.data.columns import ROWS, TIME, Leaf, SessionColumns
from lox_host.view.data.resumed import Piece, join
from lox_host.view.data.series import Part, make_parts
from lox_host.view.data.session import REMOTE, ViewRun, ViewSession, flat_config

# How many bytes the rows of all keys may take. Beyond that, the oldest ones are forgotten.
BUDGET = 400 << 20
SEARCH = 1.0  # seconds between two searches for stores and sessions


class Catalog:
    """All stores below some paths.

    Args:
        paths: Stores, or folders with stores.

    Attributes:
        runs: All runs, by number.
        sessions: All sessions, by store and name.
        problems: What cannot be read, in words.
        version: A number that grows with each change.
    """

    def __init__(self, paths: Sequence[Path]):
        self.paths = [os.path.expanduser(os.fspath(path)) for path in paths]
        self.runs: list[ViewRun] = []
        self.sessions: dict[tuple[str, str], ViewSession] = {}
        self.problems: dict[str, None] = {}
        self.version = 0
        self._same: dict[tuple[str, str, int], list[ViewRun]] = {}
        self._lists: dict[str, int] = {}
        self._searched = -SEARCH
        self._used: dict[tuple[ViewSession, str], float] = {}
        self._lock = threading.RLock()
        self.poll()

    def poll(self) -> bool:
        """Look for new sessions, runs and rows, and return whether there are any."""
        with self._lock, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            is_new = self._find_sessions()
            for session in self.sessions.values():
                if session.columns.ended or not session.has_changed():
                    continue
                try:
                    is_new = session.columns.refresh() or is_new
                except OSError as error:
                    self._note(f"The session {session.name} cannot be read: {error}")
                self._add_runs(session)
            for warning in caught:
                self._note(str(warning.message))
            if is_new:
                self.version += 1
        return is_new

    def _find_sessions(self) -> bool:
        """Look for new stores, and for new sessions in stores whose list has changed."""
        is_new = False
        now = time.monotonic()
        if now - self._searched < SEARCH:
            return False
        self._searched = now
        try:
            stores = dict.fromkeys(s for path in self.paths for s in _stores(path))
        except OSError as error:
            self._note(str(error))
            return False
        for store in stores:
            changed = _list_changed(store)
            if self._lists.get(store) == changed:
                continue
            self._lists[store] = changed
            try:
                readers = open_store(store)
            except (OSError, ValueError) as error:
                self._note(str(error))
                continue
            for reader in readers:
                place = store, reader.folder.name
                if place not in self.sessions:
                    self.sessions[place] = ViewSession(store, reader.folder)
                    is_new = True
        return is_new

    def _add_runs(self, session: ViewSession) -> None:
        for id, run in session.columns.runs.items():
            if id not in session.numbers:
                number = session.numbers[id] = len(self.runs)
                config = dict(flat_config(run.config))
                uid = f"{session.uid}.{id}"
                identity = session.store, run.identity, run.process
                earlier = self._earlier(session, identity) if run.resumed else None
                found = ViewRun(number, uid, session, run, config, earlier, identity)
                self.runs.append(found)
                self._same.setdefault(identity, []).append(found)

    def _earlier(self, session: ViewSession, identity: tuple[str, str, int]) -> int | None:
        """Return the number of the run that a resumed run continues, or None."""
        same = [r for r in self._same.get(identity, ()) if r.session.name < session.name]
        newest = max(same, key=lambda other: other.session.name, default=None)
        return None if newest is None else newest.number

    def _note(self, problem: str) -> None:
        self.problems[problem] = None

    def newest(self) -> np.ndarray:
        """Return the numbers of all runs, each only in its newest session."""
        newest: dict[tuple[str, str, int], int] = {}
        for run in self.runs:
            other = newest.get(run.identity)
            if other is None or self.runs[other].session.name < run.session.name:
                newest[run.identity] = run.number
        return np.array(sorted(newest.values()), np.int64)

    def key_names(self) -> list[str]:
        """Return the names of all real numbers, in the order of logging."""
        names: dict[str, None] = {}
        for session in self.sessions.values():
            names.update(dict.fromkeys(session.columns.leaves()))
        return list(names)

    def step_names(self) -> list[str]:
        """Return the names of all steps, `step` first."""
        names: dict[str, None] = {}
        for session in self.sessions.values():
            for leaves in session.columns.leaves().values():
                names.update(dict.fromkeys(session.columns.steps(leaves)))
        return sorted(names, key=lambda name: name != "step")

    def has_times(self) -> bool:
        """Return whether some session has the times at which rows reached the host."""
        layouts = (s.columns.layouts.values() for s in self.sessions.values())
        return any(layout.time is not None for some in layouts for layout in some)

    def parts(self, key: str, x: str, runs: np.ndarray) -> list[Part]:
        """Return the rows of a key for some runs, by number.

        Resumed runs include the rows of their earlier sessions.

        Args:
            key: The key.
            x: A step, `ROWS` or `TIME`. Sessions that do not have it are left out.
            runs: The numbers of the runs.
        """
        resumed = [n for n in runs.tolist() if self.runs[n].earlier is not None]
        if not resumed:
            return self._own_parts(key, x, runs)
        parts = self._own_parts(key, x, np.setdiff1d(runs, resumed))
        for run in resumed:
            parts += self._resumed_part(key, x, run)
        return parts

    def _resumed_part(self, key: str, x: str, run: int) -> list[Part]:
        """Return the rows of a resumed run and of its earlier sessions, as one curve."""
        own = self._own_parts(key, x, np.array([run]))
        if any(part.examples is not None for part in own):
            return own
        chain = [run]
        while (earlier := self.runs[chain[0]].earlier) is not None:
            chain.insert(0, earlier)
        pieces = []
        for number in chain:
            session, run_id = self.runs[number].session, self.runs[number].run.id
            leaves = session.columns.leaves().get(key, [])
            names = session.columns.steps(leaves) if leaves else []
            steps = self._line(key, names[0], number) if names else None
            line = self._line(key, x, number)
            if line is None:
                continue
            # Times count from the start of the first session.
            shift = self.runs[number].run.start - self.runs[chain[0]].run.start
            positions = line[0] + shift if x == TIME else line[0]
            own_steps = None if steps is None else steps[0]
            first = session.first_step(run_id, names[0]) if names else np.inf
            pieces.append(Piece(positions, line[1], own_steps, first))
        if not pieces:
            return []
        positions, values = join(pieces)
        numbers = np.full(len(values), run)
        return make_parts(numbers, None if x == ROWS else positions, values)

    def _line(self, key: str, x: str, run: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the positions and values of a run in its own session alone."""
        parts = self._own_parts(key, x, np.array([run]))
        return parts[0].line(0) if parts else None

    def _own_parts(self, key: str, x: str, runs: np.ndarray) -> list[Part]:
        found = []
        for session in list(self.sessions.values()):
            numbers = np.array(sorted(session.numbers.values()), np.int64)
            leaves = session.columns.leaves().get(key)
            if not leaves or not np.isin(numbers, runs).any():
                continue
            if not _has(session.columns, leaves, x):
                continue
            self._used[session, key] = time.monotonic()
            for part in session.columns.parts(key, x):
                known = [session.numbers.get(id, -1) for id in part.runs.tolist()]
                named = dataclasses.replace(part, runs=np.array(known, np.int64))
                selected = named.of_runs(runs)
                if selected.values.size:
                    found.append(selected)
        self._free_memory()
        return found

    def _free_memory(self) -> None:
        """Forget the least recently used keys if the rows take too much memory."""
        with self._lock:
            total = sum(session.columns.nbytes for session in self.sessions.values())
            for session, key in sorted(self._used, key=self._used.__getitem__)[:-1]:
                if total <= BUDGET:
                    break
                before = session.columns.nbytes
                session.columns.forget(key)
                total -= before - session.columns.nbytes
                del self._used[session, key]


def _has(columns: SessionColumns, leaves: list[Leaf], x: str) -> bool:
    """Return whether the rows of some leaves have a step, or the times."""
    if x == TIME:
        return columns.has_times(leaves)
    return x == ROWS or x in columns.steps(leaves)


def _stores(path: str) -> list[str]:
    # Resolve wildcards only. A wrong address raises a better error when it is opened.
    return find_stores(path) if not is_url(path) or "*" in path else [path]


def _list_changed(store: str) -> int:
    """Return when the list of sessions of a store last changed."""
    if is_url(store):  # only a request could tell, so return a new value every few seconds
        return int(time.monotonic() // REMOTE)
    times = []
    for name in ("sessions", "."):
        try:
            times.append(os.stat(os.path.join(store, name)).st_mtime_ns)
        except OSError:
            times.append(0)
    return max(times)
