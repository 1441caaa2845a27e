"""The journal of a session: lines of JSON, each with a checksum in front.

    3e0a91c4 {"run":{"id":0,"name":"0-1","key":[0,1],...}}    a run was opened
    90b1d2f7 {"group":0,"layout":{"columns":[...],...}}       rows of a group look like this
    7c55e01a {"frame":{"group":0,"file":"0000.arrows",...}}   rows were written
    11f0aa38 {"end":1700000000}                               the session has ended

Data counts once its line is here. A line is only ever added, after the data that it is
about; a reader who finds the two apart has come in between, or the writer was killed there.
"""

import json
import os
import pathlib
import time
import warnings
import zlib
from collections.abc import Iterable
from typing import Any

NAME = "journal"
# How long a writer may take from a frame to its line.
PATIENCE = 0.1

# One line, which is of one of the four kinds above.
Entry = dict[str, Any]


def encode(entries: Iterable[Entry]) -> bytes:
    """Return the lines of a journal."""
    texts = (json.dumps(entry, separators=(",", ":")).encode() for entry in entries)
    return b"".join(b"%08x %s\n" % (zlib.crc32(text), text) for text in texts)


def decode(data: bytes) -> tuple[list[Entry], bool]:
    """Return the entries of a journal, and whether every line is as it was written."""
    *lines, rest = data.split(b"\n")
    entries = []
    for line in lines:
        checksum, _, text = line.partition(b" ")
        if checksum == b"%08x" % zlib.crc32(text):
            entries.append(json.loads(text))
    return entries, len(entries) == len(lines) and not rest


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


def read_journal(session: pathlib.Path) -> list[Entry]:
    """Return what counts in a session now; warn of data that the journal does not know."""
    before = None
    while True:
        # The files first: what is written from here on is in the journal, or no file yet.
        sizes = {path.name: _size(path) for path in session.glob("*.arrows")}
        data = (session / NAME).read_bytes()
        entries, is_whole = decode(data)
        has_ended = any("end" in entry for entry in entries)
        if is_whole and (has_ended or not _has_more(entries, sizes)):
            return entries
        if before == (sizes, data):
            break
        # A writer may be between a frame and its line: look again.
        before = sizes, data
        time.sleep(PATIENCE)
    warn_left_out(session, "What is not whole")
    return entries


def warn_left_out(session: pathlib.Path, what: str) -> None:
    """Warn that a part of a session is not read."""
    warnings.warn(
        f"{what} in the session {session.name} of {str(session.parent)!r} has been left "
        "out: the files are damaged, or their process was ended while it wrote.",
        stacklevel=2,
    )


def _has_more(entries: Iterable[Entry], sizes: dict[str, int]) -> bool:
    """Return whether files have bytes that no frame in the journal accounts for."""
    frames = (entry["frame"] for entry in entries if "frame" in entry)
    known = {frame["file"]: frame["end"] for frame in frames}
    return any(size > known.get(name, 0) for name, size in sizes.items())


def _size(path: pathlib.Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
