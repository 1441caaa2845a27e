"""Select runs by words, which are the same in Python and on the command line.

    results                 all runs of a store, each in its newest session
    results/1               the run of that name, or whose name or key begins like this;
                            several, if runs with different configs have this name
    results/1@2             its second session
    results/#3              the fourth line of `lox ls results`: lines count from 0
    results/20260131-2359   all runs of a session
    multirun/*/results      all runs of several stores

`lox.load(path, run=...)` takes the part after the store.
"""

import dataclasses
import functools as ft
import os
import pathlib
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from lox_host.default_store import DEFAULT
from lox_host.display.text import clean
from lox_host.frozen import frozen
from lox_host.reading.find import HINT_FOLDERS, find_stores, stores_at, stores_below
from lox_host.reading.garbage_collector import paused_collector
from lox_host.reading.names import list_names, suggest
from lox_host.runs.run import Run
from lox_host.runs.run_id import run_name
from lox_host.store import Path, Reader, is_store, is_url, open_store

# The length of the date in the name of a session, to the second.
SECOND = len("20260131-235959")


@frozen
class SelectedRun:
    """One session of a run.

    Attributes:
        store: The folder of the store, as it was typed.
        reader: The session.
        id: The number of the run in it.
        number: The number of the session among those of the run, from 1.
        sessions: How many sessions the run has.
        session: Enough of the name of the session to tell it from others of the store.
        run: The run.
        index: The number of its line in `lox ls`, from 0.
    """

    store: str
    reader: Reader
    id: int
    number: int
    sessions: int
    session: str
    run: Run = dataclasses.field(compare=False, repr=False)
    index: int = 0

    @ft.cached_property
    def identity(self) -> tuple[str, str]:
        """The same for all sessions of the run in its store."""
        return self.store, self.run.identity

    @property
    def name(self) -> str:
        """Its name in the store."""
        which = f"@{self.number}" if self.sessions > 1 else ""
        return f"{self.run.name}{which}"

    @property
    def path(self) -> str:
        """What `select_runs` understands."""
        return os.path.join(self.store, self.name)

    def numbered(self, index: int) -> "SelectedRun":
        """Return the same run as another line of `lox ls`."""
        return dataclasses.replace(self, index=index)

    @property
    def address(self) -> str:
        """The path, quoted for a shell and without control characters."""
        return shlex.quote(clean(self.path))


@paused_collector()
def all_runs(paths: Path | Iterable[Path], session: str | None = None) -> list[SelectedRun]:
    """Return all sessions of all runs of some stores, the oldest of each store first.

    The sessions of a run that was resumed are one, but for the session with this name.
    """
    runs: list[SelectedRun] = []
    for store in find_stores(paths):
        by_reader: dict[Reader, list[Run]] = {}
        for reader in open_store(store):
            continued = () if reader.folder.name == session else reader.continued
            own = reader.runs.values()
            by_reader[reader] = [run for run in own if run.id not in continued]
        sessions = Counter([run.name for own in by_reader.values() for run in own])
        short_names = _shorten({of.folder.name for of, own in by_reader.items() if own})
        numbers = Counter[str]()
        for reader, own in by_reader.items():
            short = short_names.get(reader.folder.name, "")
            for run in own:
                numbers[run.name] += 1
                number, of = numbers[run.name], sessions[run.name]
                selected = store, reader, run.id, number, of, short, run, len(runs)
                runs.append(SelectedRun(*selected))
    return runs


def select_runs(text: str) -> list[SelectedRun]:
    """Return the runs that words mean, each in its newest session unless one is named."""
    stores, word = locate(text)
    runs = all_runs(stores)
    if not runs:
        raise no_runs(stores)
    return pick(runs, word) if word else newest(runs)


def select_all(texts: Iterable[str]) -> list[SelectedRun]:
    """Return all runs that words mean, each once."""
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


def locate(text: str) -> tuple[list[str], str]:
    """Split a word into the folders of stores, and the part that selects runs."""
    path = os.path.expanduser(text).rstrip("/") or "/"
    parent, word = os.path.split(path)
    if stores := stores_at(path):
        return stores, ""
    # A single word is a run of the store in the current folder, or of the default one.
    inside = parent or next(filter(is_store, (".", DEFAULT)), "")
    if inside and (stores := stores_at(inside, HINT_FOLDERS)):
        return stores, word
    if is_url(path):
        # Opening it says what is missing: the store, or the bucket as a whole.
        open_store(path)
        return [path], ""
    # The name of a run may hold a slash.
    for above in pathlib.PurePath(parent).parents:
        if is_store(above):
            return [str(above)], os.path.relpath(path, above)
    problem = f"No such folder: {text!r}."
    if os.path.exists(path):
        problem = f"There is no store in {text!r}: it has no file 'lox.json'."
    near = path if os.path.isdir(path) else "."
    stores = stores_below(near, HINT_FOLDERS)
    hint = "A store is the folder that `SaveLogger` or `lox.save` was given."
    if stores:
        hint = f"There are stores in {list_names(stores)}.{suggest(text, stores)}"
    elif os.path.isdir(path) and os.path.exists(os.path.join(path, "sessions")):
        hint = f"It used to be one: run `lox doctor {shlex.quote(text)}`."
    raise LookupError(f"{problem} {hint}")


def pick(runs: Sequence[SelectedRun], word: str) -> list[SelectedRun]:
    """Return the runs that a word means: an index, a name, a key or a session.

    Raises:
        LookupError: If it matches no run, or is ambiguous.
    """
    names, keys = _meanings(runs)
    name, at, number = word, "", ""
    # A name may look like an index, or have an @.
    if word not in names:
        if word.startswith("#"):
            return [_indexed(runs, word)]
        name, at, number = _split_number(word, names)
    found = names.get(name) or keys.get(name)
    if found is None:
        found = {}
        for text, meaning in (*names.items(), *keys.items()):
            if text.startswith(name):
                found = {**found, **meaning}
    if not found:
        raise _unknown_run(runs, name)
    if len(found) > 1:
        raise LookupError(
            f"{word!r} in {_list_stores(runs)} could be {list_names(found)}. Type more of "
            "the name."
        )
    ((meaning, sessions),) = found.items()
    if at:
        return [_numbered(sessions, number)]
    if os.path.basename(meaning) == sessions[0].reader.folder.name:
        return sessions
    # Runs with different configs may have the same name.
    return newest(sessions)


def newest(runs: Sequence[SelectedRun]) -> list[SelectedRun]:
    """Return the newest session of each run, in the order of these.

    A run is the same if its key and its config are. If several processes have written it
    together, all of theirs count as the newest.
    """
    if _have_own_keys(runs):
        return sorted(runs, key=lambda run: run.run.process)
    found: dict[tuple[str, str], dict[int, SelectedRun]] = {}
    launches: dict[tuple[str, str], str] = {}
    for run in runs:
        identity = run.identity
        # A run that appears again takes the position of its newest session.
        before = found.pop(identity, {})
        together = before if launches.get(identity) == run.run.launch else {}
        found[identity] = {**together, run.run.process: run}
        launches[identity] = run.run.launch
    # The runs of the first process, then those of the next one, and so on.
    by_process = [pair for processes in found.values() for pair in processes.items()]
    return [run for _, run in sorted(by_process, key=lambda pair: pair[0])]


def older_sessions(
    runs: Sequence[SelectedRun], selected: Sequence[SelectedRun]
) -> list[str]:
    """Return the names of older sessions that the selected runs have among all runs."""
    if _have_own_keys(runs):
        return []
    # By number and not by name: a clock may have gone back.
    shown = {_identity(run): run.index for run in selected}
    older = [run for run in runs if run.index < shown.get(_identity(run), 0)]
    return list(dict.fromkeys(run.reader.folder.name for run in older))


def _have_own_keys(runs: Sequence[SelectedRun]) -> bool:
    """Return whether each run has a key of its own, so that no two can be the same run."""
    return len({(run.store, run.run.key) for run in runs}) == len(runs)


def _identity(run: SelectedRun) -> tuple[str, str, int]:
    return *run.identity, run.run.process


def no_runs(stores: Sequence[str]) -> LookupError:
    """Return the error for stores without any run."""
    where = list_names(map(repr, stores))
    if len(stores) == 1:
        return LookupError(f"The store in {where} has no runs yet.")
    return LookupError(f"The stores in {where} have no runs yet.")


# What a word may mean: some sessions, by what they are called in an error.
Meaning = dict[str, list[SelectedRun]]


def _meanings(
    runs: Sequence[SelectedRun],
) -> tuple[dict[str, Meaning], dict[str, Meaning]]:
    """Return the possible meanings of a word, as a name or session, and as a key."""
    several = len({run.store for run in runs}) > 1
    names: dict[str, Meaning] = {}
    keys: dict[str, Meaning] = {}

    def add(texts: dict[str, Meaning], text: str, meaning: str, run: SelectedRun) -> None:
        label = os.path.join(run.store, meaning) if several else meaning
        texts.setdefault(text, {}).setdefault(label, []).append(run)

    for run in runs:
        name, session = run.run.name, run.reader.folder.name
        add(names, session, session, run)
        add(names, name, name, run)
        add(names, os.path.join(run.store, name), name, run)
        key = run_name(run.run.key)
        if key and key != name:
            add(keys, key, name, run)
    return names, keys


def _split_number(word: str, names: Collection[str]) -> tuple[str, str, str]:
    """Return a name, `@` and the number of a session; the last two may be empty."""
    name, at, number = word.rpartition("@")
    is_part_of_name = any(known.startswith(word) for known in names)
    return (name, at, number) if at and not is_part_of_name else (word, "", "")


def _indexed(runs: Sequence[SelectedRun], word: str) -> SelectedRun:
    number = word[1:]
    found = {run.index: run for run in runs}
    if number.isdecimal() and int(number) in found:
        return found[int(number)]
    where, verb = _stores_have(runs)
    raise LookupError(f"{where} {verb} no run {word!r}. Runs go up to #{max(found)}.")


def _unknown_run(runs: Sequence[SelectedRun], name: str) -> LookupError:
    where, verb = _stores_have(runs)
    names = list(dict.fromkeys(run.run.name for run in runs))
    stores = list(dict.fromkeys(run.store for run in runs))
    see = f": see `lox ls {shlex.quote(stores[0])}`" if len(stores) == 1 else ""
    has = "It has" if len(stores) == 1 else "They have"
    return LookupError(
        f"{where} {verb} no run {name!r}.{suggest(name, names)} {has} "
        f"{list_names(names)}{see}."
    )


def _numbered(sessions: list[SelectedRun], number: str) -> SelectedRun:
    if number.isdecimal() and 1 <= int(number) <= len(sessions):
        return sessions[int(number) - 1]
    known = "only one, which is @1"
    if len(sessions) > 1:
        known = f"those from @1 to @{len(sessions)}"
    name = sessions[0].run.name
    raise LookupError(f"The run {name!r} has no session @{number}. It has {known}.")


def _stores_have(runs: Sequence[SelectedRun]) -> tuple[str, str]:
    """Return the subject and verb of an error message about stores."""
    if len({run.store for run in runs}) == 1:
        return f"The store in {_list_stores(runs)}", "has"
    return f"The stores in {_list_stores(runs)}", "have"


def _list_stores(runs: Sequence[SelectedRun]) -> str:
    return list_names(repr(store) for store in dict.fromkeys(run.store for run in runs))


def _shorten(names: Collection[str]) -> dict[str, str]:
    """Shorten the names of sessions to the date, or until they are unique."""
    short: dict[str, str] = {}
    for length in range(SECOND, max(map(len, names), default=0) + 1):
        heads = Counter(name[:length] for name in names)
        for name in names:
            if heads[name[:length]] == 1:
                short.setdefault(name, name[:length])
        if len(short) == len(names):
            break
    return short
