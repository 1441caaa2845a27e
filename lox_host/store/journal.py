"""The journal of a session: lines of JSON, each with a checksum in front."""

import json
import os
import zlib
from collections.abc import Iterable
from typing import Any


def lines(entries: Iterable[dict[str, Any]]) -> bytes:
    """The entries as they stand in the file."""
    texts = (json.dumps(entry, separators=(",", ":")).encode() for entry in entries)
    return b"".join(b"%08x %s\n" % (zlib.crc32(text), text) for text in texts)


def entries(data: bytes) -> tuple[list[dict[str, Any]], bool]:
    """The entries of a journal, and whether every line was as it had been written."""
    *whole, rest = data.split(b"\n")
    found = [_entry(line) for line in whole]
    good = [entry for entry in found if entry is not None]
    return good, len(good) == len(found) and not rest


def _entry(line: bytes) -> dict[str, Any] | None:
    checksum, _, text = line.partition(b" ")
    return json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None


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
