"""The manifest of a session: the lines of its segments, in the format of a journal.

A reader gets all lines of a session with one request, instead of one per segment. The
manifest is stored compressed, and may lack the latest segments.
"""

import gzip
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from lox_host.remote.bucket import Bucket, Object
from lox_host.remote.remote_paths import manifest_path
from lox_host.store import decode_line

# The largest manifest to decompress, in bytes, as anyone may have written it. Its lines
# have about 200 bytes each.
MOST = 1 << 30


def put_manifest(bucket: Bucket, session: str, lines: bytes) -> int:
    """Store the manifest of a session, and return its compressed size."""
    data = gzip.compress(lines, 6, mtime=0)
    bucket.put(manifest_path(session), data)
    return len(data)


def get_manifest(bucket: Bucket, session: str) -> tuple[bytes, Object]:
    """Return the lines of a manifest, and the listing entry of the object.

    Raises:
        FileNotFoundError: If there is no manifest.
    """
    data, found = bucket.get(manifest_path(session))
    try:
        return zlib.decompressobj(wbits=31).decompress(data, MOST), found
    except zlib.error:
        return b"", found  # it is damaged, but the segments have the same lines


def is_over(bucket: Bucket, session: str) -> bool:
    """Return whether a session gets no more rows, or does not exist."""
    try:
        lines, _ = get_manifest(bucket, session)
    except FileNotFoundError:
        return True
    return has_last_line(lines)


def has_last_line(lines: bytes) -> bool:
    """Return whether the lines of a manifest say that no more rows come."""
    return has_last_entry(decode_line(line) or {} for line in lines.split(b"\n"))


def has_last_entry(entries: Iterable[Mapping[str, Any]]) -> bool:
    """Do the same for the entries in these lines.

    `end` comes from a session that has ended. `pushed` comes from the process that uploaded
    everything a killed session had left.
    """
    return any("end" in entry or "pushed" in entry for entry in entries)
