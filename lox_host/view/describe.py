"""Describe sessions, runs and their configs in JSON."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lox_host.view.data.session import ViewRun, ViewSession
from lox_host.view.panel_rows import Json
from lox_host.view.run_groups import is_number
from lox_host.view.summary import is_better_low


def brief(run: ViewRun) -> Json:
    """Return the short description of a run, which every page gets."""
    config = {name: plain(value) for name, value in run.config.items()}
    return {
        "uid": run.uid,
        "name": run.name,
        "session": run.session.uid,
        "config": config,
    }


def describe_session(session: ViewSession) -> Json:
    """Return the description of a session for the overview."""
    columns = session.columns
    started = min((run.start for run in columns.runs.values()), default=None)
    arrays = sum(
        any(layout.columns[i].shape for i in key.columns)
        for layout in columns.layouts.values()
        for key in layout.keys.values()
    )
    return {
        "uid": session.uid,
        "name": session.name,
        "store": session.store,
        "runs": len(columns.runs),
        "rows": columns.rows,
        "keys": len(columns.leaves()),
        "arrays": arrays,
        "started": started,
        "program": program_of(columns.environment),
        "command": plain(columns.environment.get("command")),
        "commit": commit_of(columns.environment),
        "changed": session.last_change,
        "state": session.state(),
        "now": time.time(),
    }


def differing(runs: Sequence[ViewRun]) -> list[Json]:
    """Return the config entries that differ between runs, and how many values they have."""
    found = []
    for name in dict.fromkeys(name for run in runs for name in run.config):
        values = {str(run.config.get(name)): run.config.get(name) for run in runs}
        if len(values) > 1:
            numeric = all(is_number(value) or value is None for value in values.values())
            found.append({"name": name, "values": len(values), "numeric": numeric})
    return found


def in_sections(keys: Sequence[str]) -> list[Json]:
    """Return keys in the order of their panels, with the section that each is in.

    A section has the keys with the same first part of their names. Prefixes with one or two
    keys stay together, since a line of panels for each would be mostly empty.
    """
    by_prefix: dict[str, list[str]] = {}
    for key in keys:
        prefix, slash, _ = key.partition("/")
        by_prefix.setdefault(prefix if slash else "", []).append(key)
    sections: dict[str, list[str]] = {}
    for prefix, some in by_prefix.items():
        sections.setdefault(prefix if len(some) > 2 else "", []).extend(some)
    return [
        {"name": key, "section": section, "low": is_better_low(key)}
        for section, some in sections.items()
        for key in some
    ]


def suggest_group(config: Sequence[Json], runs: Sequence[ViewRun]) -> str | None:
    """Return the config entry to group by: one with few values and several runs of each."""
    fits = [entry for entry in config if 2 * entry["values"] <= len(runs)]
    few = [entry["name"] for entry in fits if entry["values"] <= 10]
    return few[0] if few else None


def program_of(environment: Mapping[str, Any]) -> str:
    """Return the name of the program that wrote a session, from its command line."""
    words = str(environment.get("command", "")).split()
    files = [word for word in words if word.endswith(".py")]
    return os.path.basename(files[0]) if files else ""


def commit_of(environment: Mapping[str, Any]) -> str:
    """Return the commit of the program, and whether it had uncommitted changes."""
    commit = str(environment.get("commit", ""))[:8]
    return f"{commit} + changes" if commit and environment.get("dirty") else commit


def plain(value: Any) -> Any:
    """Convert a config value to a JSON type. Other values become text."""
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    return value if isinstance(value, str | int | None) else json.dumps(value, default=str)
