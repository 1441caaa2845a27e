"""`lox compact`: few large objects in place of many small ones.

    before    000000.parquet  000001.parquet  000002.parquet  ...  000999.parquet
    after     000000-1.parquet  000001-1.parquet

This only changes sessions that are over. It stores the new objects first, then the manifest
that names them, and deletes the old objects last.

The invariant: lox reads only the objects that the manifest names, so at any moment it finds
each row exactly once. A program that lists the objects itself may find rows twice while
this runs. If `lox compact` is interrupted, the next one deletes the leftovers.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from lox_host.remote.bucket import Bucket
from lox_host.remote.manifest import has_last_entry, put_manifest
from lox_host.remote.mirror import refresh_session
from lox_host.remote.remote_paths import rows_path
from lox_host.store import (
    Frame,
    Part,
    Reader,
    absolute,
    encode,
    encode_segment,
    families,
    open_store,
)

# The size of the new objects in bytes.
BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Compacted:
    """The result of `compact`.

    Attributes:
        sessions: How many sessions changed.
        before: How many objects with rows these sessions had.
        after: How many objects with rows they have now.
    """

    sessions: int
    before: int
    after: int


def compact(url: str) -> Compacted:
    """Join the small objects of all finished sessions of a store."""
    url = absolute(url)
    bucket = Bucket(url)
    sessions = before = after = 0
    for reader in open_store(url):
        refresh_session(reader.folder, at_once=True)
    for reader in open_store(url):
        # The manifest that was read has to say so itself. Another look at the bucket could
        # find that the session has ended by now, with objects that are new to this reader.
        if reader.problems or not has_last_entry(reader.entries):
            continue
        sizes = {
            found.path.rsplit("/", 1)[-1]: found.size
            for found in bucket.objects(rows_path(reader.folder.name))
        }
        _delete_orphans(bucket, reader, sizes)
        files = dict.fromkeys(f.file for of in reader.frames.values() for f in of)
        chunks = list(_chunks(sorted(files), sizes))
        if len(chunks) < len(files):
            sessions, before = sessions + 1, before + len(files)
            after += _join(bucket, reader, chunks)
            refresh_session(reader.folder, at_once=True)
    return Compacted(sessions, before, after)


def _join(bucket: Bucket, reader: Reader, chunks: Sequence[Sequence[str]]) -> int:
    """Rewrite each chunk of segments, and return the number of new objects.

    A chunk becomes one object per family of layouts, since the row groups of a Parquet file
    share their columns.
    """
    session = reader.folder.name
    old = dict.fromkeys(f.file for of in reader.frames.values() for f in of)
    # New names have a higher generation, `000000-2.parquet`, so they never replace an
    # object that the current manifest names.
    generations = (file.removesuffix(".parquet").partition("-")[2] for file in old)
    generation = 1 + max(int(number or 0) for number in generations)
    names = {id: run.name for id, run in reader.runs.items()}
    family = families(reader.layouts)
    flushes: list[dict] = []
    for files in chunks:
        frames = [f for of in reader.frames.values() for f in of if f.file in files]
        for number in sorted({family[frame.group] for frame in frames}):
            name = f"{len(flushes):06d}-{generation}.parquet"
            members = [frame for frame in frames if family[frame.group] == number]
            parts, fields = _merged(reader, members, name)
            line = {"flush": {"layouts": [], "frames": fields}}
            data = encode_segment(parts, names, encode([line]))
            bucket.put(rows_path(session, name), data)
            flushes.append(line)
    # From here on, readers find the new objects.
    put_manifest(bucket, session, _manifest(reader, flushes))
    bucket.delete(rows_path(session, name) for name in old)
    return len(flushes)


def _merged(
    reader: Reader, frames: Sequence[Frame], name: str
) -> tuple[list[Part], list[dict]]:
    """Return the rows of some frames, joined by group, and their fields in the manifest."""
    groups: dict[int, list[Frame]] = {}
    for frame in frames:
        groups.setdefault(frame.group, []).append(frame)
    parts, fields = [], []
    with reader.frame_reader() as files:
        files.prefetch(frames, np.array(sorted(reader.runs)), None)
        for place, (group, members) in enumerate(groups.items()):
            layout, columns = reader.layouts[group], []
            for number in range(len(layout.columns)):
                arrays = [files.column(frame, number) for frame in members]
                whole = [array for array in arrays if array is not None]
                if len(whole) < len(arrays):
                    raise OSError(
                        f"A part of the session {reader.folder.name} is damaged, so it is "
                        "left as it is."
                    )
                columns.append(np.concatenate(whole))
            parts.append(Part(layout, columns))
            fields.append(Frame.joined(members, name, place).to_json())
    return parts, fields


def _manifest(reader: Reader, flushes: Sequence[dict]) -> bytes:
    """Return the manifest of a session with its row groups replaced."""
    kept = [entry for entry in reader.entries if not entry.keys() & {"layout", "frame"}]
    layouts = [
        {"group": entry["group"], "layout": entry["layout"]}
        for entry in reader.entries
        if "layout" in entry
    ]
    last = [entry for entry in kept if "end" in entry or "pushed" in entry]
    first = [entry for entry in kept if entry not in last]
    known = {"flush": {"layouts": layouts, "frames": []}}
    lines = [*first, known, *flushes, *last[-1:]]
    return encode([{**entry, "n": number} for number, entry in enumerate(lines)])


def _chunks(files: Sequence[str], sizes: dict[str, int]) -> Iterator[list[str]]:
    """Yield the files in chunks of at most `BYTES` bytes."""
    chunk: list[str] = []
    for file in files:
        if chunk and sum(sizes.get(one, 0) for one in [*chunk, file]) > BYTES:
            yield chunk
            chunk = []
        chunk.append(file)
    if chunk:
        yield chunk


def _delete_orphans(bucket: Bucket, reader: Reader, sizes: dict[str, int]) -> None:
    """Delete objects that the manifest does not name. A killed process left them."""
    known = {frame.file for of in reader.frames.values() for frame in of}
    session = reader.folder.name
    bucket.delete(rows_path(session, name) for name in sizes if name not in known)
