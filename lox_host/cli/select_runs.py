"""Which runs are meant: `STORE`, `STORE/NAME`, `STORE/NAME@2` or `STORE/SESSION`."""

import dataclasses
import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterable

from lox_host.cli.errors import CLIError, list_names, suggest
from lox_host.display.text import clean
from lox_host.store import Reader, find_stores, is_store, open_store
from lox_host.writer import Run

# Where the runs are if nobody says otherwise.
DEFAULT = ".lox"
# How much of the name of a session says when it began, to the second.
SECOND = len("20260131-235959")


@dataclasses.dataclass(frozen=True)
class SelectedRun:
    """One session of a run.

    Attributes:
        store: The folder of the store, as it was typed.
        reader: The session.
        id: The number of the run in it.
        number: The number of the session among those of the run, from 1.
        sessions: How many sessions the run has.
        session: Enough of the name of the session to tell it from others of the store.
    """

    store: str
    reader: Reader
    id: int
    number: int
    sessions: int
    session: str

    @property
    def run(self) -> Run:
        return self.reader.runs[self.id]

    @property
    def name(self) -> str:
        """Its name in the store."""
        which = f"@{self.number}" if self.sessions > 1 else ""
        return f"{self.run.name}{which}"

    @property
    def path(self) -> str:
        """What `select_runs` understands."""
        return os.path.join(self.store, self.name)

    @property
    def address(self) -> str:
        """The same for a shell, and for the eyes: without what moves the cursor."""
        return shlex.quote(clean(self.path))


def all_runs(store: str) -> list[SelectedRun]:
    """Return all sessions of all runs of a store, the oldest first."""
    found = [(reader, run) for reader in open_store(store) for run in reader.runs.values()]
    sessions = Counter(run.name for _, run in found)
    short_names = _shorten({reader.folder.name for reader, _ in found})
    runs, numbers = [], Counter[str]()
    for reader, run in found:
        numbers[run.name] += 1
        number, of = numbers[run.name], sessions[run.name]
        session = short_names[reader.folder.name]
        runs.append(SelectedRun(store, reader, run.id, number, of, session))
    return runs


def select_runs(text: str) -> list[SelectedRun]:
    """Return the runs that are meant, each in its newest session unless that is said."""
    store, name = locate(text)
    runs = all_runs(store)
    if not runs:
        raise CLIError(f"The store in {store!r} has no runs yet.")
    return _select(store, name, runs) if name else _newest(runs)


def select_all(texts: Iterable[str]) -> list[SelectedRun]:
    """Return all runs that are meant, each once."""
    found = {}
    for text in texts:
        for run in select_runs(text):
            # The same store may have been typed in several ways.
            found[run.reader.folder.resolve(), run.id] = run
    return list(found.values())


def by_session(runs: Iterable[SelectedRun]) -> dict[Reader, list[SelectedRun]]:
    """Return the runs by their session, so that each is read once."""
    sessions: dict[Reader, list[SelectedRun]] = {}
    for run in runs:
        sessions.setdefault(run.reader, []).append(run)
    return sessions


def locate(text: str) -> tuple[str, str]:
    """Return the folder of the store, and what is meant in there."""
    path = os.path.expanduser(text).rstrip("/") or "/"
    parent, name = os.path.split(path)
    if is_store(path):
        return path, ""
    if is_store(parent or "."):
        return parent or ".", name
    if not parent and is_store(DEFAULT):
        return DEFAULT, name
    problem = f"No such folder: {text!r}."
    if os.path.exists(path):
        problem = f"There is no store in {text!r}: it has no file 'lox.json'."
    stores = find_stores(path) if os.path.isdir(path) else find_stores(".")
    hint = "A store is the folder that `SaveLogger` or `lox.save` was given."
    if stores:
        hint = f"There are stores in {list_names(stores)}.{suggest(text, stores)}"
    elif os.path.isdir(path) and os.path.exists(os.path.join(path, "sessions")):
        hint = f"It has been one: see `lox doctor {shlex.quote(text)}`."
    raise CLIError(f"{problem} {hint}")


def _select(store: str, text: str, runs: list[SelectedRun]) -> list[SelectedRun]:
    """Return the runs with a name, or in a session, that begins like the text."""
    name, at, number = text.partition("@")
    by_name: dict[str, list[SelectedRun]] = {}
    by_session: dict[str, list[SelectedRun]] = {}
    for run in runs:
        by_name.setdefault(run.run.name, []).append(run)
        by_session.setdefault(run.reader.folder.name, []).append(run)
    # Sessions and runs do not have the same names: those of sessions begin with a date.
    names = [*by_session, *by_name]
    found = [name] if name in names else [full for full in names if full.startswith(name)]
    if len(found) > 1:
        raise CLIError(
            f"{text!r} in {store!r} may be {list_names(found)}. Type as much as is needed "
            "to tell them apart."
        )
    if not found:
        raise CLIError(
            f"The store in {store!r} has no run {name!r}.{suggest(name, by_name)} It has "
            f"{list_names(by_name)}: see `lox ls {shlex.quote(store)}`."
        )
    if found[0] in by_session:
        return by_session[found[0]]
    sessions = by_name[found[0]]
    return [_numbered(sessions, number) if at else sessions[-1]]


def _numbered(sessions: list[SelectedRun], number: str) -> SelectedRun:
    if number.isdecimal() and 1 <= int(number) <= len(sessions):
        return sessions[int(number) - 1]
    known = "only one, which is @1"
    if len(sessions) > 1:
        known = f"those from @1 to @{len(sessions)}"
    name = sessions[0].run.name
    raise CLIError(f"The run {name!r} has no session @{number}. It has {known}.")


def _shorten(names: Collection[str]) -> dict[str, str]:
    """Cut the names of sessions behind the second, or as soon as they differ."""
    short: dict[str, str] = {}
    for length in range(SECOND, max(map(len, names), default=0) + 1):
        heads = Counter(name[:length] for name in names)
        for name in names:
            if heads[name[:length]] == 1:
                short.setdefault(name, name[:length])
        if len(short) == len(names):
            break
    return short


def _newest(runs: list[SelectedRun]) -> list[SelectedRun]:
    newest: dict[str, SelectedRun] = {}
    for run in runs:
        # A run that is there again has the place of its newest session.
        newest.pop(run.run.name, None)
        newest[run.run.name] = run
    return list(newest.values())
