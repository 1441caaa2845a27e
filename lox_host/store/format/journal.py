"""The journal of a session: numbered lines of JSON, each with a checksum in front.

    5b1c33d0 {"n":0,"session":{"name":"20260131-235959-...","format":3}}
    3e0a91c4 {"n":1,"run":{"id":0,"name":"0-1","key":[0,1],...}}      a run was opened
    6d20be15 {"n":2,"environment":{"host":"...","python":"3.13.1",...}}
    90b1d2f7 {"n":3,"flush":{"layouts":[...],"frames":[...]}}         rows were written
    7c55e01a {"n":4,"removed":[0]}                                    a run was replaced
    11f0aa38 {"n":5,"end":1700000000}                                 the session has ended
    5d01ac3e {"n":6,"summary":{...}}                                  see `ended_session.py`

The invariant: data counts only once its line is here. Lines are only appended, each after
the data that it describes. One line holds all frames of a flush, so that a process that is
killed has written all of a flush or nothing. The numbers show a reader which lines are
missing or repeated.

Readers ignore fields that they do not know. In the second format, no column of a frame has
a pattern (see `column_pattern.py`). The lines of the first format had no numbers,
no `session`, and in place of a `flush` a line for each layout and frame:

    90b1d2f7 {"group":0,"layout":{"columns":[...],...}}
    7c55e01a {"frame":{"group":0,"file":"0000.arrows",...}}
"""

import dataclasses
import json
import os
import pathlib
import re
import time
import warnings
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lox_host.frozen import frozen
from lox_host.store.address import shown
from lox_host.store.format.files import file_size, read_file

NAME = "journal"
# The names of data files. A forged journal may name other files, which are never opened.
DATA_FILE = re.compile(r"\d{4,}\.arrows")
# The names of segments of a store on object storage, once they have been fetched.
SEGMENT_FILE = re.compile(r"\d{6,}(-\d+)?\.parquet")
# How many seconds a writer may take from writing a frame to writing its line.
PATIENCE = 0.1

# A decoded line, or one part of a flush. It has one of the keys `session`, `run`, `layout`
# (with `group`), `frame`, `environment`, `gap`, `removed` and `end`.
Entry = dict[str, Any]


@frozen
class Journal:
    """A decoded journal.

    Attributes:
        entries: The lines, with each part of a flush as a separate entry.
        problems: What is wrong with the journal, in words.
        next_number: The number of the next line.
        end: How many bytes the complete lines take.
    """

    entries: list[Entry]
    problems: tuple[str, ...] = ()
    next_number: int = 0
    end: int = 0


def encode(entries: Iterable[Entry]) -> bytes:
    """Encode entries as lines of a journal."""
    texts = (_ENCODER.encode(entry).encode() for entry in entries)
    return b"".join(b"%08x %s\n" % (zlib.crc32(text), text) for text in texts)


# `json.dumps` would create an encoder for each line.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def decode(data: bytes, first: int = 0) -> Journal:
    """Decode the lines of a journal, and sort them by number.

    Args:
        data: The lines.
        first: The number of the first line.
    """
    *lines, rest = data.split(b"\n")
    bare: list[Entry] = []
    numbered: dict[int, Entry] = {}
    damaged = repeated = 0
    for line in lines:
        entry = decode_line(line)
        if entry is None:
            damaged += 1
        elif "n" not in entry:
            bare.append(entry)
        elif entry["n"] in numbered:
            repeated += 1
        else:
            numbered[entry["n"]] = entry
    after = max(numbered, default=first - 1) + 1
    missing = after - first - len(numbered) - damaged
    problems = []
    if damaged:
        problems.append(f"lines of its journal are damaged: {damaged}")
    if missing > 0:
        problems.append(f"lines of its journal are missing: {missing}")
    if repeated:
        problems.append(f"lines of its journal are there twice, and count once: {repeated}")
    if rest:
        problems.append("the last line of its journal is cut short")
    in_order = [*bare, *(numbered[number] for number in sorted(numbered))]
    entries = [part for entry in in_order for part in _parts(entry)]
    return Journal(entries, tuple(problems), after, len(data) - len(rest))


def append(file: int, *parts: bytes | np.ndarray) -> None:
    """Append all parts, which are bytes, or leave the file as it was."""
    written = 0
    try:
        for part in parts:
            rest = memoryview(part)
            while rest:
                count = os.write(file, rest)
                rest, written = rest[count:], written + count
    except BaseException:
        os.ftruncate(file, os.fstat(file).st_size - written)
        raise


def read_journal(session: pathlib.Path) -> Journal:
    """Read the journal of a session, and report problems with the journal and its files.

    Raises:
        OSError: If there is no journal, or it cannot be read.
    """
    before = None
    while True:
        # Look at the files before the journal. The journal then describes at least as much
        # as the files held, even while a writer adds to both.
        sizes = data_files(session)
        data = read_file(session / NAME)
        journal = decode(data)
        problems = (*journal.problems, *_file_problems(journal.entries, sizes))
        if not problems or before == (sizes, data):
            return dataclasses.replace(journal, problems=problems)
        # A writer may be between a frame and its line, or may just have replaced both. Look
        # again until two looks agree.
        before = sizes, data
        time.sleep(PATIENCE)


def warn_left_out(session: pathlib.Path, what: str) -> None:
    """Warn that a part of a session is left out."""
    warnings.warn(
        f"{what} in the session {session.name} of {shown(session.parent)!r} was left out: "
        "the files are damaged, or the process was killed while it wrote them.",
        stacklevel=2,
    )


def warn_of_problems(session: pathlib.Path, problems: Sequence[str]) -> None:
    """Warn of all problems of a session in one warning."""
    if problems:
        warnings.warn(
            f"Parts of the session {session.name} of {shown(session.parent)!r} were left "
            "out: the files are damaged, or the process was killed while it wrote them "
            f"({'; '.join(problems)}). See `lox doctor`.",
            stacklevel=2,
        )


def decode_line(line: bytes) -> Entry | None:
    """Decode a line. Return None if it is damaged."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        entry = json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    number = entry.get("n", 0)
    return entry if type(number) is int and number >= 0 else None


def _parts(entry: Entry) -> list[Entry]:
    """Split a line into entries of one kind each."""
    if "flush" not in entry:
        return [entry]
    flush = entry["flush"]
    if not isinstance(flush, dict):
        return [{"frame": None}]  # the reader reports it as a bad frame
    layouts, frames = flush.get("layouts", []), flush.get("frames", [])
    if not isinstance(layouts, list) or not isinstance(frames, list):
        return [{"frame": None}]
    gap = [{"gap": flush["gap"]}] if "gap" in flush else []
    known = [layout if isinstance(layout, dict) else {"layout": None} for layout in layouts]
    return [*gap, *known, *({"frame": frame} for frame in frames)]


def data_files(session: pathlib.Path) -> dict[str, int]:
    """Return the sizes of the data files of a session. Links and folders do not count."""
    names = [name for name in os.listdir(session) if DATA_FILE.fullmatch(name)]
    sizes = {name: file_size(session / name) for name in sorted(names)}
    return {name: size for name, size in sizes.items() if size is not None}


def _file_problems(entries: Iterable[Entry], sizes: dict[str, int]) -> list[str]:
    """Compare the files of a session with its frames.

    The frames of a file follow each other without gaps. A process that was killed may leave
    a file without any frame. If that happened after the end of the session, while it joined
    frames, nothing is lost. Only numbered lines prove that, as none of them is missing.
    """
    ends: dict[str, int] = {}
    holes: dict[str, None] = {}
    entries = list(entries)
    is_joined = any("end" in entry and "n" in entry for entry in entries)
    for entry in entries:
        try:
            name, start, end = (entry["frame"][field] for field in ("file", "start", "end"))
            if not DATA_FILE.fullmatch(name):
                continue
            if start > ends.get(name, 0):
                holes[name] = None
            ends[name] = max(end, ends.get(name, 0))
        except (KeyError, TypeError):
            continue  # not a frame, or a bad one that the reader reports
    problems = []
    for name, end in ends.items():
        size = sizes.get(name)
        if size is None:
            problems.append(f"{name} is missing")
        elif size < end:
            problems.append(f"{name} is cut short")
        elif size > end or name in holes:
            problems.append(f"{name} has rows that the journal does not know")
    for name, size in sizes.items():
        if name not in ends and size and not is_joined:
            problems.append(f"{name} has rows that the journal does not know")
    return problems
