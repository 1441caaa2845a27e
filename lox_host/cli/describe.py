"""Describe a run: when it ran, how far it is, and how it was configured."""

import datetime
from collections.abc import Mapping
from typing import Any

from lox_host.display.text import clean, duration
from lox_host.reading.run_fields import in_words
from lox_host.reading.select import SelectedRun
from lox_host.runs.run_config import flat_config
from lox_host.store import StoredRun


def time_taken(run: SelectedRun) -> str:
    """Return how long a run took until its end or its last row."""
    seconds = duration(max(0.0, run.reader.last_change - run.run.start))
    return seconds if run.reader.ended else f"{seconds} {run.reader.state}"


def full_date(seconds: float) -> str:
    """Format a time to the second, in the local time zone."""
    return datetime.datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def settings(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the entries of a configuration by name, `outer.inner`."""
    entries = flat_config(config, separator=".").items()
    return [(clean(name), clean(in_words(value))) for name, value in entries]


def environment(known: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of a session as a few lines of text, by name."""
    who = "@".join(str(known[name]) for name in ("user", "host") if known.get(name))
    dirty = " and changes" if known.get("dirty") else ""
    versions = [f"{x} {known[x]}" for x in ("python", "jax", "lox") if known.get(x)]
    devices = known.get("devices")
    kinds = devices.items() if isinstance(devices, Mapping) else ()
    lines = {
        "host": who,
        "command": str(known.get("command", "")),
        "commit": f"{known['commit']}{dirty}" if known.get("commit") else "",
        "versions": "  ".join(versions),
        "devices": "  ".join(f"{number} {kind}" for kind, number in kinds),
    }
    return {name: clean(str(text)) for name, text in lines.items() if text}


def describe(run: SelectedRun, stored: StoredRun) -> dict[str, Any]:
    """Return the whole description as JSON, for other programs."""
    return {
        "run": run.path,
        "index": run.index,
        "name": stored.name,
        "key": stored.key,
        "session": stored.session,
        "number": run.number,
        "sessions": run.sessions,
        "launch": stored.launch,
        "group": stored.group,
        "tags": stored.tags,
        "process": stored.process,
        "state": stored.state,
        "start": stored.start,
        "last": run.reader.last_change,
        "rows": stored.rows,
        "keys": stored.keys,
        "config": dict(stored.config),
    }
