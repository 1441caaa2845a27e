"""Turn the entries of a journal into runs, layouts and frames.

A journal may be damaged or forged. Entries that lox would not write are left out and
reported. The invariant: nothing that passes this file names a file outside of the session,
or claims more bytes than the file has.
"""

import dataclasses
import datetime
import functools as ft
import itertools as it
import json
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lox_host.runs.run import Run
from lox_host.store.format.frames import Frame
from lox_host.store.format.journal import Entry
from lox_host.store.format.layout import Layout, bad_fields, check, is_count


class Content(NamedTuple):
    """The content of a session.

    Attributes:
        name: The name of the session when it began. Empty in the first format.
        version: The format of the journal.
        runs: The runs by id, without removed ones.
        saved_keys: The keys of each run in the order of saving, by run.
        layouts: The layouts by the number of the group.
        frames: The frames of each group, in order.
        environment: Host, user, command, versions and so on. Empty if unknown.
        end: When the session ended. True: at an unknown time. None: it has not ended.
        problems: What is wrong, in words.
    """

    name: str
    version: int
    runs: dict[int, Run]
    saved_keys: dict[int, list[str]]
    layouts: dict[int, Layout]
    frames: dict[int, list[Frame]]
    environment: dict[str, Any]
    end: Any
    problems: tuple[str, ...]


def read_content(
    entries: Sequence[Entry],
    known_runs: Mapping[int, Run] = {},
    known_keys: Mapping[int, list[str]] = {},
) -> Content:
    """Collect the content of a session from the entries of its journal.

    Args:
        entries: The entries.
        known_runs: Runs by id whose entries have been read, and left out.
        known_keys: The keys that these were saved with.
    """
    name, version, end = "", 1, None
    runs, saved_keys = dict(known_runs), dict(known_keys)
    layouts: dict[int, Layout] = {}
    environment: dict[str, Any] = {}
    removed: set[int] = set()
    run_lines: list[Any] = []
    bad, gap = Counter[str](), 0
    # Frames are read last, as they are checked against their layouts.
    for entry in entries:
        kind = next((kind for kind in _KINDS if kind in entry), None)
        try:
            if kind == "session":
                name, version = read_session_line(entry[kind])
            elif kind == "run":
                run_lines.append(entry[kind])
            elif kind == "layout":
                check(is_count(entry.get("group")))
                layouts[entry["group"]] = _layout(json.dumps(entry[kind]))
            elif kind == "environment":
                environment = _environment(entry[kind])
            elif kind == "removed":
                removed.update(_ids(entry[kind]))
            elif kind == "gap":
                gap += _rows_of_gap(entry[kind])
            elif kind == "end":
                end = read_time(entry[kind])
        except ValueError:
            bad["layouts" if kind == "layout" else "lines"] += 1
    read_runs, bad_runs = _read_runs(run_lines)
    bad.update(bad_runs)
    for run, keys in read_runs:
        runs[run.id], saved_keys[run.id] = run, keys
    frames, bad_frames = _read_frames(entries, layouts, runs)
    bad.update(bad_frames)
    problems = [f"{what} that cannot be read: {count}" for what, count in bad.items()]
    if gap:
        problems.append(f"rows that could not be written when they were logged: {gap}")
    known = {id: run for id, run in runs.items() if id not in removed}
    return Content(
        name=name,
        version=version,
        runs=known,
        saved_keys=saved_keys,
        layouts=layouts,
        frames=frames,
        environment=environment,
        end=end,
        problems=tuple(problems),
    )


# The kinds of entries. Frames are read by `_read_frames`.
_KINDS = ("session", "run", "layout", "environment", "removed", "gap", "end")


def _read_frames(
    entries: Sequence[Entry], layouts: dict[int, Layout], runs: dict[int, Run]
) -> tuple[dict[int, list[Frame]], Counter[str]]:
    """Return the frames by group, and how many are malformed or repeated."""
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
        # Restore the order of writing. Lines without numbers may be out of order.
        frames.sort(key=lambda frame: (len(frame.file), frame.file, frame.start))
    return groups, bad


@ft.lru_cache(256)
def _layout(text: str) -> Layout:
    """Decode a layout. The cache helps as thousands of sessions may have the same one."""
    return Layout.from_json(json.loads(text))


def read_session_line(fields: Any) -> tuple[str, int]:
    """Return the name and the format of a session."""
    with bad_fields():
        check(isinstance(fields["name"], str) and is_count(fields["format"]))
        return fields["name"], fields["format"]


def _read_runs(lines: Sequence[Any]) -> tuple[list[tuple[Run, list[str]]], Counter[str]]:
    """Return the runs and their keys, and how many are malformed."""
    found, bad = [], Counter[str]()
    try:
        with bad_fields():
            return runs_of(lines), bad
    except ValueError:
        pass  # find out which
    for line in lines:
        try:
            with bad_fields():
                found += runs_of([line])
        except ValueError:
            bad["runs"] += 1
    return found, bad


def runs_of(lines: Sequence[Any]) -> list[tuple[Run, list[str]]]:
    """Return runs and their keys, but raise any error if a field is malformed.

    There may be thousands of runs. So each field is checked in all of them at once.
    """
    if not lines:
        return []
    complete = [line if line.keys() >= _RUN_FIELDS else _completed(line) for line in lines]
    columns = [*zip(*map(_run_fields, complete), strict=True)]
    ids, names, keys, configs, starts, launches, *others, saved_keys = columns
    processes, jobs, groups, tags, indices, resumed = others
    keys, tags = [*map(tuple, keys)], [*map(tuple, tags)]
    texts = it.chain(names, launches, jobs, groups, *tags, *saved_keys)
    check({*map(type, texts)} == {str})
    check({*map(type, it.chain(*keys))} <= {int})
    check({*map(type, it.chain(ids, processes, indices))} == {int})
    check(min(ids) >= 0 and max(ids) < 2**31)
    check(min(processes) >= 0 and min(indices) >= 0)
    check({*map(type, resumed)} == {bool} and {*map(type, configs)} == {dict})
    for start in starts:
        # Most times are in this century, and need no closer look.
        if type(start) is not float or not 0 <= start < 2**32:
            read_time(start)
    runs = map(
        Run, ids, names, keys, configs, starts, launches, processes, jobs, groups, tags,
        indices, resumed,
    )  # fmt: skip
    return [*zip(runs, map(list, saved_keys), strict=True)]


def _completed(line: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a run that an earlier version has written, which lack some."""
    if "launch" not in line:
        # Earlier versions called the launch `group`, and had no groups.
        line = {**line, "launch": line["group"], "group": ""}
    return {**_ADDED_FIELDS, **line}


# Fields that the first versions did not have.
_ADDED_FIELDS = {
    "process": 0,
    "job": "",
    "group": "",
    "tags": [],
    "index": 0,
    "resumed": False,
    "keys": [],
}
_FIELDS_OF_RUN = (*(field.name for field in dataclasses.fields(Run)), "keys")
_RUN_FIELDS = frozenset(_FIELDS_OF_RUN)
_run_fields = operator.itemgetter(*_FIELDS_OF_RUN)


def read_time(seconds: Any) -> Any:
    """Check a time, and return it. True is an unknown time, from early versions."""
    if seconds is True:
        return seconds
    with bad_fields():
        check(type(seconds) in (int, float) and math.isfinite(seconds))
        try:
            datetime.datetime.fromtimestamp(seconds)
        except OSError as error:
            raise ValueError("not a date") from error
    return seconds


def _environment(fields: Any) -> dict[str, Any]:
    check(isinstance(fields, dict))
    return fields


def _ids(ids: Any) -> list[int]:
    check(isinstance(ids, list) and all(type(id) is int for id in ids))
    return ids


def _rows_of_gap(fields: Any) -> int:
    check(isinstance(fields, dict) and is_count(fields.get("rows")))
    return fields["rows"]
