"""What the entries of a journal amount to: runs, layouts and frames.

A journal may be damaged, or made up. What is not as lox writes it is left out and reported;
nothing that gets past this file names a file outside of the session, or is larger than the
file that it is said to be in.
"""

import dataclasses
import datetime
import functools as ft
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from lox_host.store.frames import Frame
from lox_host.store.journal import Entry
from lox_host.store.layout import Layout, bad_fields, check, is_count
from lox_host.writer import Run


class Content(NamedTuple):
    """What is in a session.

    Attributes:
        name: The name that it began with. Empty in the first format.
        version: The format of its journal.
        runs: The runs by id, without those that were removed.
        saved_keys: By run, the keys that it was saved with, in their order.
        layouts: The layouts by the number of the group.
        frames: The frames of each group, in order.
        end: When it ended. True: nobody knows. None: it has not.
        problems: What is wrong, in words.
    """

    name: str
    version: int
    runs: dict[int, Run]
    saved_keys: dict[int, list[str]]
    layouts: dict[int, Layout]
    frames: dict[int, list[Frame]]
    end: Any
    problems: tuple[str, ...]


def read_content(entries: Sequence[Entry]) -> Content:
    """Return what the entries of a journal say."""
    name, version, end = "", 1, None
    runs: dict[int, Run] = {}
    saved_keys: dict[int, list[str]] = {}
    layouts: dict[int, Layout] = {}
    removed: set[int] = set()
    bad, gap = Counter[str](), 0
    # Frames come last: they are checked against their layouts.
    for entry in entries:
        kind = next((kind for kind in _KINDS if kind in entry), None)
        try:
            if kind == "session":
                name, version = _session(entry[kind])
            elif kind == "run":
                run, keys = _run(entry[kind])
                runs[run.id], saved_keys[run.id] = run, keys
            elif kind == "layout":
                check(is_count(entry.get("group")))
                layouts[entry["group"]] = _layout(json.dumps(entry[kind]))
            elif kind == "removed":
                removed.update(_ids(entry[kind]))
            elif kind == "gap":
                gap += _rows_of_gap(entry[kind])
            elif kind == "end":
                end = _time(entry[kind])
        except ValueError:
            bad[f"{kind}s" if kind in ("run", "layout") else "lines"] += 1
    frames, bad_frames = _read_frames(entries, layouts, runs)
    bad.update(bad_frames)
    problems = [f"{what} that cannot be read: {count}" for what, count in bad.items()]
    if gap:
        problems.append(f"rows that could not be written when they were logged: {gap}")
    known = {id: run for id, run in runs.items() if id not in removed}
    return Content(name, version, known, saved_keys, layouts, frames, end, tuple(problems))


# What an entry may be; frames are read on their own.
_KINDS = ("session", "run", "layout", "removed", "gap", "end")


def _read_frames(
    entries: Sequence[Entry], layouts: dict[int, Layout], runs: dict[int, Run]
) -> tuple[dict[int, list[Frame]], Counter[str]]:
    """Return the frames by group, and how many cannot be read or are there twice."""
    groups: dict[int, list[Frame]] = {number: [] for number in layouts}
    bad, seen = Counter[str](), set[tuple[str, int]]()
    for entry in entries:
        if "frame" not in entry:
            continue
        try:
            frame = Frame.of(entry["frame"], layouts)
        except ValueError:
            bad["frames"] += 1
            continue
        if (frame.file, frame.start) in seen:
            bad["frames that are there twice, the second"] += 1
            continue
        seen.add((frame.file, frame.start))
        groups[frame.group].append(frame)
        if not runs.keys() >= set(frame.runs):
            bad["frames of a run"] += 1
    for frames in groups.values():
        # In the order of writing, which lines without numbers may have lost.
        frames.sort(key=lambda frame: (len(frame.file), frame.file, frame.start))
    return groups, bad


@ft.lru_cache(256)
def _layout(text: str) -> Layout:
    """Return the layout that JSON describes. Thousands of sessions may have the same."""
    return Layout.from_json(json.loads(text))


def _session(fields: Any) -> tuple[str, int]:
    """Return the name and the format of a session."""
    with bad_fields():
        check(isinstance(fields["name"], str) and is_count(fields["format"]))
        return fields["name"], fields["format"]


def _run(fields: Any) -> tuple[Run, list[str]]:
    """Return a run and its keys. The line may be older than some fields."""
    with bad_fields():
        names = {field.name for field in dataclasses.fields(Run)}
        known = {name: value for name, value in fields.items() if name in names}
        run = Run(**{**known, "key": tuple(fields["key"])})
        keys = fields.get("keys", [])
        texts = (run.name, run.group, run.job, *keys)
        check(all(isinstance(text, str) for text in texts))
        check(type(run.id) is int and 0 <= run.id < 2**31 and is_count(run.process))
        check(all(type(word) is int for word in run.key) and isinstance(run.config, dict))
        _time(run.start)
    return run, list(keys)


def _time(seconds: Any) -> Any:
    """Return a time, or True: sessions of early versions do not say when they ended."""
    if seconds is True:
        return seconds
    with bad_fields():
        check(type(seconds) in (int, float) and math.isfinite(seconds))
        try:
            datetime.datetime.fromtimestamp(seconds)
        except OSError as error:
            raise ValueError("not a date") from error
    return seconds


def _ids(ids: Any) -> list[int]:
    check(isinstance(ids, list) and all(type(id) is int for id in ids))
    return ids


def _rows_of_gap(fields: Any) -> int:
    check(isinstance(fields, dict) and is_count(fields.get("rows")))
    return fields["rows"]
