"""What there is to say of a run: when it ran, how far it is, how it was configured."""

import datetime
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lox_host.cli.select_runs import SelectedRun, by_session
from lox_host.display.text import clean, duration
from lox_host.store import StoredRun, stored_runs

# A session that has been written to within so many seconds is said to be live.
LIVE = 60.0


def state(run: SelectedRun) -> str:
    """Return `ended`, `live`, or `unfinished`: killed, or silent for a while."""
    if run.reader.ended:
        return "ended"
    return "live" if time.time() - run.reader.last_change < LIVE else "unfinished"


def time_taken(run: SelectedRun) -> str:
    """Return how long a run took until it ended or was last heard of."""
    seconds = duration(max(0.0, run.reader.last_change - run.run.start))
    return seconds if run.reader.ended else f"{seconds} {state(run)}"


def full_date(seconds: float) -> str:
    """Return a time to the second, in the time zone of the reader."""
    return datetime.datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def short_date(seconds: float) -> str:
    """Return the same in few letters: of another year, the day alone."""
    then = datetime.datetime.fromtimestamp(seconds)
    is_this_year = then.year == datetime.datetime.now().year
    return f"{then:%b %d %H:%M}" if is_this_year else f"{then:%Y-%m-%d}"


def settings(config: Mapping[str, Any], outer: str = "") -> list[tuple[str, str]]:
    """Return the entries of a configuration by name, `outer.inner`."""
    found: list[tuple[str, str]] = []
    for name, value in config.items():
        full_name = clean(f"{outer}{name}")
        if isinstance(value, Mapping) and value:
            found += settings(value, f"{full_name}.")
        else:
            found.append((full_name, clean(str(value))))
    return found


def stored(runs: Sequence[SelectedRun]) -> list[StoredRun]:
    """Return what is in each of the runs. Their sessions are read once."""
    sessions = {reader: stored_runs(reader) for reader in by_session(runs)}
    return [sessions[run.reader][run.id] for run in runs]


def describe(run: SelectedRun, stored: StoredRun) -> dict[str, Any]:
    """Return all of it, for programs."""
    return {
        "run": run.path,
        "name": stored.name,
        "key": stored.key,
        "session": stored.session,
        "number": run.number,
        "sessions": run.sessions,
        "group": stored.group,
        "process": stored.process,
        "state": state(run),
        "start": stored.start,
        "last": run.reader.last_change,
        "rows": stored.rows,
        "keys": stored.keys,
        "config": dict(stored.config),
    }
