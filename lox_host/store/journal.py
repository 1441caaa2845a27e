"""The journal of a session: numbered lines of JSON, each with a checksum in front.

    5b1c33d0 {"n":0,"session":{"name":"20260131-235959-...","format":2}}
    3e0a91c4 {"n":1,"run":{"id":0,"name":"0-1","key":[0,1],...}}      a run was opened
    90b1d2f7 {"n":2,"flush":{"layouts":[...],"frames":[...]}}         rows were written
    7c55e01a {"n":3,"removed":[0]}                                    a run was replaced
    11f0aa38 {"n":4,"end":1700000000}                                 the session has ended

Data counts once its line is here. A line is only ever added, after the data that it is
about. All frames of a flush are in one line, so that a process that is killed has written
all of a flush or nothing. The numbers tell a reader which lines are missing, and which are
there twice.

Readers ignore fields that they do not know. The lines of the first format had no numbers,
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

from lox_host.store.files import file_size, read_file

NAME = "journal"
# What data files are called. The journal of an attacker may name others.
DATA_FILE = re.compile(r"\d{4,}\.arrows")
# How long a writer may take from a frame to its line.
PATIENCE = 0.1

# What a line says, or a part of a flush: one of `session`, `run`, `layout` with its
# `group`, `frame`, `gap`, `removed` and `end`.
Entry = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Journal:
    """What a journal says.

    Attributes:
        entries: Its lines, with the parts of a flush as entries of their own.
        problems: What is wrong with it, in words.
        next_number: The number of the line that comes next.
        end: How many bytes its whole lines take.
    """

    entries: list[Entry]
    problems: tuple[str, ...] = ()
    next_number: int = 0
    end: int = 0


def encode(entries: Iterable[Entry]) -> bytes:
    """Return the lines of a journal."""
    texts = (json.dumps(entry, separators=(",", ":")).encode() for entry in entries)
    return b"".join(b"%08x %s\n" % (zlib.crc32(text), text) for text in texts)


def decode(data: bytes, first: int = 0) -> Journal:
    """Return what the lines of a journal say, in the order of their numbers.

    Args:
        data: The lines.
        first: The number of the first one.
    """
    *lines, rest = data.split(b"\n")
    bare: list[Entry] = []
    numbered: dict[int, Entry] = {}
    damaged = repeated = 0
    for line in lines:
        entry = _decode_line(line)
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


def append(file: int, data: bytes) -> None:
    """Write all of the data at the end, or leave the file as it was."""
    size = os.fstat(file).st_size
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except BaseException:
        os.ftruncate(file, size)
        raise


def read_journal(session: pathlib.Path) -> Journal:
    """Return what a session says now, with what is wrong with its journal and files.

    Raises:
        OSError: If there is no journal, or it cannot be read.
    """
    before = None
    while True:
        # The files first: what is written from here on is in the journal, or no file yet.
        sizes = _data_files(session)
        data = read_file(session / NAME)
        journal = decode(data)
        problems = (*journal.problems, *_file_problems(journal.entries, sizes))
        if not problems or before == (sizes, data):
            return dataclasses.replace(journal, problems=problems)
        # A writer may be between a frame and its line, or may have just replaced both:
        # look again.
        before = sizes, data
        time.sleep(PATIENCE)


def warn_left_out(session: pathlib.Path, what: str) -> None:
    """Warn that a part of a session is not read."""
    warnings.warn(
        f"{what} in the session {session.name} of {str(session.parent)!r} has been left "
        "out: the files are damaged, or their process was ended while it wrote.",
        stacklevel=2,
    )


def warn_of_problems(session: pathlib.Path, problems: Sequence[str]) -> None:
    """Warn of what is wrong with a session, in one warning."""
    if problems:
        warnings.warn(
            f"What is not whole in the session {session.name} of {str(session.parent)!r} "
            "has been left out: the files are damaged, or their process was ended while it "
            f"wrote ({'; '.join(problems)}). See `lox doctor`.",
            stacklevel=2,
        )


def _decode_line(line: bytes) -> Entry | None:
    """Return what a line says. None if it is not what was written."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    number = entry.get("n", 0)
    return entry if type(number) is int and number >= 0 else None


def _parts(entry: Entry) -> list[Entry]:
    """Return a line as entries of one kind each."""
    if "flush" not in entry:
        return [entry]
    flush = entry["flush"]
    if not isinstance(flush, dict):
        return [{"frame": None}]  # which is no frame, and reported as such
    layouts, frames = flush.get("layouts", []), flush.get("frames", [])
    if not isinstance(layouts, list) or not isinstance(frames, list):
        return [{"frame": None}]
    gap = [{"gap": flush["gap"]}] if "gap" in flush else []
    known = [layout if isinstance(layout, dict) else {"layout": None} for layout in layouts]
    return [*gap, *known, *({"frame": frame} for frame in frames)]


def _data_files(session: pathlib.Path) -> dict[str, int]:
    """Return the sizes of the data files of a session, but for what only looks like one."""
    names = [name for name in os.listdir(session) if DATA_FILE.fullmatch(name)]
    sizes = {name: file_size(session / name) for name in sorted(names)}
    return {name: size for name, size in sizes.items() if size is not None}


def _file_problems(entries: Iterable[Entry], sizes: dict[str, int]) -> list[str]:
    """Compare the files of a session with what its frames say of them.

    The frames of a file follow each other without gaps. A file without any frame is one
    that a process left that was killed. After the end of a session, when its frames were
    joined, that is no loss; but only the numbers of lines tell that none is missing.
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
            continue  # no frame, or one that the reader reports
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
