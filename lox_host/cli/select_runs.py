"""Which runs are meant: `STORE`, `STORE/NAME`, `STORE/NAME@2` or `STORE/SESSION`."""

import dataclasses
import os
import pathlib
import shlex
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

from lox_host.cli.errors import Trouble, listed, meant
from lox_host.store.folder import MARKER, existing
from lox_host.store.reader import Snapshot, snapshots

# Where the runs are if nobody says otherwise.
DEFAULT = ".lox"
# How much of the name of a session says when it began, to the second.
SECOND = len("20260131-235959")


@dataclasses.dataclass(frozen=True)
class Choice:
    """One session of a run.

    Attributes:
        store: The folder of the store, as it was typed.
        now: What is known of the session.
        id: The number of the run in it.
        number: The number of the session among those of the run, from 1.
        sessions: How many sessions the run has.
        session: Enough of the name of the session to tell it from others of the store.
    """

    store: str
    now: Snapshot
    id: int
    number: int
    sessions: int
    session: str

    @property
    def run(self) -> dict[str, Any]:
        return self.now.runs[self.id]

    @property
    def name(self) -> str:
        """Its name in the store."""
        which = f"@{self.number}" if self.sessions > 1 else ""
        return f"{self.run['name']}{which}"

    @property
    def path(self) -> str:
        """What `chosen` understands."""
        return os.path.join(self.store, self.name)

    @property
    def address(self) -> str:
        """The same for a shell."""
        return shlex.quote(self.path)


def every(store: str) -> list[Choice]:
    """All sessions of all runs, the oldest first."""
    pairs = [(now, id) for now in snapshots(existing(store)) for id in now.runs]
    names = [now.runs[id]["name"] for now, id in pairs]
    short = _shortened({now.folder.name for now, _ in pairs})
    sessions, number = Counter(names), Counter[str]()
    found = []
    for (now, id), name in zip(pairs, names, strict=True):
        number[name] += 1
        session = short[now.folder.name]
        found.append(Choice(store, now, id, number[name], sessions[name], session))
    return found


def chosen(text: str) -> list[Choice]:
    """The runs that are meant, each in its newest session unless that is said."""
    store, name = located(text)
    runs = every(store)
    if not runs:
        raise Trouble(f"The store in {store!r} has no runs yet.")
    return _matching(store, name, runs) if name else _newest(runs)


def several(texts: Iterable[str]) -> list[Choice]:
    """All runs that are meant, each once."""
    found = [choice for text in texts for choice in chosen(text)]
    places = [(choice.now.folder.resolve(), choice.id) for choice in found]
    return list(dict(zip(places, found, strict=True)).values())


def located(text: str) -> tuple[str, str]:
    """The folder of the store, and what is meant in there."""
    path = os.path.expanduser(text).rstrip("/") or "/"
    parent, name = os.path.split(path)
    if _is_store(path):
        return path, ""
    if _is_store(parent or "."):
        return parent or ".", name
    if not parent and _is_store(DEFAULT):
        return DEFAULT, name
    raise Trouble(_no_store(text, path))


def stores(folder: str) -> list[str]:
    """Stores in a folder, and in the folders of it."""
    here = pathlib.Path(folder)
    found = (here.glob(f"{depth}{MARKER}") for depth in ("", "*/", "*/*/"))
    return [str(path.parent) for paths in found for path in sorted(paths)]


def _matching(store: str, text: str, runs: list[Choice]) -> list[Choice]:
    name, at, number = text.partition("@")
    by_name: dict[str, list[Choice]] = {}
    by_session: dict[str, list[Choice]] = {}
    for choice in runs:
        by_name.setdefault(choice.run["name"], []).append(choice)
        by_session.setdefault(choice.now.folder.name, []).append(choice)
    groups = {**by_session, **by_name}
    found = [name] if name in groups else [own for own in groups if own.startswith(name)]
    if len(found) > 1:
        raise Trouble(
            f"{text!r} in {store!r} may be {listed(found)}. Type as much as is needed to "
            "tell them apart."
        )
    if not found:
        raise Trouble(
            f"The store in {store!r} has no run {name!r}.{meant(name, by_name)} It has "
            f"{listed(by_name)}: see `lox ls {shlex.quote(store)}`."
        )
    if found[0] in by_session:
        return by_session[found[0]]
    own = by_name[found[0]]
    return [_numbered(own, number) if at else own[-1]]


def _numbered(runs: list[Choice], number: str) -> Choice:
    if number.isdecimal() and 1 <= int(number) <= len(runs):
        return runs[int(number) - 1]
    name = runs[0].run["name"]
    there = f"those from @1 to @{len(runs)}" if len(runs) > 1 else "only one, which is @1"
    raise Trouble(f"The run {name!r} has no session @{number}. It has {there}.")


def _shortened(names: Collection[str]) -> dict[str, str]:
    """The names of sessions, cut behind the second, or as soon as they differ."""
    lengths = range(SECOND, max(map(len, names), default=0) + 1)
    heads = [Counter(name[:length] for name in names) for length in lengths]
    cuts = {name: [name[:length] for length in lengths] for name in names}
    return {
        name: next(cut for cut, of in zip(own, heads, strict=True) if of[cut] == 1)
        for name, own in cuts.items()
    }


def _newest(runs: list[Choice]) -> list[Choice]:
    newest: dict[str, Choice] = {}
    for choice in runs:
        # A run that is there again has the place of its newest session.
        newest.pop(choice.run["name"], None)
        newest[choice.run["name"]] = choice
    return list(newest.values())


def _is_store(path: str) -> bool:
    return os.path.isfile(os.path.join(path, MARKER))


def _no_store(text: str, path: str) -> str:
    what = f"has no file {MARKER!r}" if os.path.exists(path) else "is not there"
    there = stores(path) if os.path.isdir(path) else stores(".")
    hint = (
        f"There are stores in {listed(there)}.{meant(text, there)}"
        if there
        else "A store is the folder that `SaveLogger` or `lox.save` was given."
    )
    return f"There is no store in {text!r}: it {what}. {hint}"
