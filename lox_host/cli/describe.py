"""What there is to say of a run: when it ran, how far it is, how it was configured."""

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lox_host.cli.select_runs import Choice
from lox_host.display.text import clean, duration
from lox_host.store.runs import StoredRun, of_session

# A session that has been written to within so many seconds is said to be live.
LIVE = 60.0


def state(choice: Choice) -> str:
    """`ended`, `live`, or `unfinished`: killed, or silent for a while."""
    if choice.now.ended:
        return "ended"
    return "live" if time.time() - choice.now.last < LIVE else "unfinished"


def took(choice: Choice) -> str:
    """How long it ran until it ended or was last heard of."""
    seconds = duration(max(0.0, choice.now.last - choice.run["start"]))
    now = state(choice)
    return seconds if now == "ended" else f"{seconds} {now}"


def moment(seconds: float) -> str:
    """A time to the second, in the time zone of the reader."""
    return datetime.datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def date(seconds: float) -> str:
    """The same in few letters: of another year, the day alone."""
    then = datetime.datetime.fromtimestamp(seconds)
    this_year = then.year == datetime.datetime.now().year
    return f"{then:%b %d %H:%M}" if this_year else f"{then:%Y-%m-%d}"


def settings(config: Mapping[str, Any], outer: str = "") -> list[tuple[str, str]]:
    """The entries of a configuration by name, `outer.inner`."""
    found: list[tuple[str, str]] = []
    for name, value in config.items():
        whole = clean(f"{outer}{name}")
        if isinstance(value, Mapping) and value:
            found += settings(value, f"{whole}.")
        else:
            found.append((whole, clean(str(value))))
    return found


def stored_runs(choices: Sequence[Choice]) -> list[StoredRun]:
    """What is in each of them. Their sessions are read once."""
    sessions = {choice.now.folder: choice.now for choice in choices}
    runs = {
        folder: dict(zip(now.runs, of_session(now), strict=True))
        for folder, now in sessions.items()
    }
    return [runs[choice.now.folder][choice.id] for choice in choices]


def described(choice: Choice, stored: StoredRun) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "run": choice.path,
        "name": stored.name,
        "key": stored.key,
        "session": stored.session,
        "number": choice.number,
        "sessions": choice.sessions,
        "group": stored.group,
        "process": stored.process,
        "state": state(choice),
        "start": stored.start,
        "last": choice.now.last,
        "rows": stored.rows,
        "keys": stored.keys,
        "config": dict(stored.config),
    }
