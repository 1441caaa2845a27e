"""Mirror a store on object storage in a local folder, as far as readers need it.

    ~/.cache/lox/s3%3A%2F%2Fbucket%2Fexp1/
        20260131-235959-.../
            journal            the lines of the manifest, then those of later segments
            state              which manifest that was, and which segment comes next
            000003.parquet     segments that a reader has asked for

The mirrored journal has the format of an ordinary session, so all code that reads stores
can read the mirror. A segment never changes, so it is downloaded at most once.

An upload does not rewrite the manifest for each segment, so it may lack the latest ones.
To refresh a session, lox gets the manifest if it has changed, and then asks for the
segments with the next numbers until one does not exist:

    manifest     lines of segments 0 1 2 3
    probe                                  4 5 6?    6 does not exist: stop, next = 6

The invariant: `state.size` bytes of the journal describe the segments before `state.next`.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from lox_host.remote.bucket import PARALLEL, Bucket, Object
from lox_host.remote.manifest import get_manifest, has_last_line
from lox_host.remote.remote_paths import (
    MANIFESTS,
    MARKER,
    mirror_folder,
    rows_path,
    session_of,
)
from lox_host.store import (
    NAME as JOURNAL,
    absolute,
    decode_line,
    is_session_name,
    lock_folder,
    read_lines,
    segment_name,
    url_of,
)

# Refresh a session that is being followed at most once in this many seconds.
PAUSE = 1.0


@dataclasses.dataclass(frozen=True)
class _State:
    """How far a session is mirrored.

    Attributes:
        etag: The version of the manifest.
        next: The number of the segment to ask for next.
        size: How many bytes of the journal describe the segments before `next`.
        ended: Whether no more segments will come.
    """

    etag: str | None = None
    next: int = 0
    size: int = 0
    ended: bool = False


def is_store(url: str) -> bool:
    """Return whether an address holds a store."""
    return Bucket(url).exists(MARKER)


def refresh_store(url: str) -> tuple[list[pathlib.Path], list[str]]:
    """Refresh all sessions of a store, and return their folders, oldest first.

    Raises:
        FileNotFoundError: If there is no store.
        BucketError: If the store cannot be reached.
    """
    url = absolute(url)
    bucket = Bucket(url)
    manifests = {session_of(found.path): found for found in bucket.objects(MANIFESTS)}
    manifests = {name: m for name, m in manifests.items() if is_session_name(name)}
    if not manifests and not bucket.exists(MARKER):
        raise FileNotFoundError(
            f"There is no store in {url!r}: it has no object {MARKER!r}. Give the address "
            "that `lox.save` or `SaveLogger` was given."
        )
    store = mirror_folder(url)
    with lock_folder(store), ThreadPoolExecutor(PARALLEL) as threads:
        for folder in store.iterdir():
            if is_session_name(folder.name) and folder.name not in manifests:
                shutil.rmtree(folder)  # the session has been removed from the store
        # Side by side: each session takes one or two requests.
        folders = [store / name for name in sorted(manifests)]
        list(threads.map(lambda f: _refresh(bucket, f, manifests[f.name]), folders))
    return folders, []


def refresh_session(folder: pathlib.Path, *, at_once: bool = False) -> None:
    """Refresh one session, unless that happened less than `PAUSE` seconds ago.

    Args:
        folder: The local folder of the session.
        at_once: Refresh it in any case.

    Raises:
        FileNotFoundError: If the session has been removed.
    """
    url = url_of(folder.parent)
    assert url is not None
    with contextlib.suppress(FileNotFoundError):
        age = time.time() - (folder / "state").stat().st_mtime
        if age < PAUSE and not at_once:
            return
    bucket = Bucket(url)
    with lock_folder(folder.parent):
        try:
            data, found = get_manifest(bucket, folder.name)
        except FileNotFoundError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _refresh(bucket, folder, found, data)


def fetch_segments(folder: pathlib.Path, names: Sequence[str]) -> None:
    """Download segments of a session, several at a time.

    Raises:
        FileNotFoundError: If you ask for a single segment, and it does not exist.
    """
    url = url_of(folder.parent)
    if url is None:
        raise FileNotFoundError(f"{names[0]!r} is missing in {str(folder)!r}")
    paths = [rows_path(folder.name, name) for name in names]
    found = Bucket(url).get_all(paths)
    for name, answer in zip(names, found, strict=True):
        if answer is not None:
            _replace(folder / name, answer[0])
        elif len(names) == 1:
            raise FileNotFoundError(f"{name!r} is missing in the session {folder.name}")


def _refresh(
    bucket: Bucket, folder: pathlib.Path, found: Object, data: bytes | None = None
) -> None:
    """Refresh a session from its manifest, and from the segments after the manifest.

    Args:
        bucket: The store.
        folder: The local folder of the session.
        found: The listing entry of the manifest.
        data: The lines of the manifest. None: download them if they have changed.
    """
    state, before = _read_state(folder)
    # Lines behind `state.size` are of segments that the next probe asks for again.
    lines, changed = before[: state.size], found.modified
    if state.etag != found.etag or not before:
        with contextlib.suppress(FileNotFoundError):
            data = get_manifest(bucket, folder.name)[0] if data is None else data
        if data is None:
            return
        # Keep the journal if it starts with the new manifest. It then has lines of later
        # segments besides.
        if not before.startswith(data):
            lines = data
            ended, size = has_last_line(lines), len(lines)
            state = _State(found.etag, _next_segment(lines), size, ended)
        state = dataclasses.replace(state, etag=found.etag)
    elif state.ended:
        return  # nothing can have changed
    folder.mkdir(exist_ok=True)
    if not state.ended:
        state, lines, latest = _probe(bucket, folder, state, lines)
        changed = max(changed, latest)
    _write_journal(folder, before, lines, changed)
    (folder / "state").write_text(json.dumps(dataclasses.asdict(state)))


def _probe(
    bucket: Bucket, folder: pathlib.Path, state: _State, lines: bytes
) -> tuple[_State, bytes, float]:
    """Ask for the segments with the next numbers, and append their lines.

    Return the new state, all lines, and when the latest segment was stored.
    """
    # Ask for 1, 2, 4, ... segments at a time: most probes find nothing new.
    number, latest, many = state.next, 0.0, 1
    # The state before the first damaged segment, from where the next refresh starts.
    damaged: _State | None = None
    while True:
        names = [segment_name(number + i) for i in range(many)]
        answers = list(_get_segments(bucket, folder, names))
        for name, answer in zip(names, answers, strict=True):
            if answer is None:
                break
            data, modified = answer
            latest = max(latest, modified)
            try:
                new_lines = read_lines(data)
            except (OSError, ValueError):
                # The segment is incomplete. Leave out its lines: readers notice the gap in
                # the line numbers. The next refresh asks for it again.
                before_it = dataclasses.replace(state, next=number, size=len(lines))
                damaged = damaged or before_it
                (folder / name).unlink(missing_ok=True)
            else:
                lines += new_lines
            number += 1
        if None in answers:
            break
        many = min(2 * many, PARALLEL)
    known = dataclasses.replace(state, next=number, size=len(lines))
    return damaged or known, lines, latest


def _get_segments(
    bucket: Bucket, folder: pathlib.Path, names: Sequence[str]
) -> Iterator[tuple[bytes, float] | None]:
    """Yield segments and their dates, from the mirror or else from the store.

    A segment that does not exist is None.
    """
    missing = [name for name in names if not (folder / name).exists()]
    paths = [rows_path(folder.name, name) for name in missing]
    found = dict(zip(missing, bucket.get_all(paths) if paths else (), strict=True))
    for name in names:
        answer = found.get(name)
        if name not in found:
            path = folder / name
            yield path.read_bytes(), path.stat().st_mtime
        elif answer is None:
            yield None
        else:
            data, meta = answer
            _replace(folder / name, data)
            os.utime(folder / name, (meta.modified, meta.modified))
            yield data, meta.modified


def _write_journal(
    folder: pathlib.Path, before: bytes, lines: bytes, changed: float
) -> None:
    """Append to the journal, or replace it if its old lines have changed."""
    path = folder / JOURNAL
    if before and lines.startswith(before):
        with open(path, "ab") as file:
            file.write(lines[len(before) :])
    else:
        _replace(path, lines)
    # Readers take the date of the journal for the last change of the session.
    os.utime(path, (changed, changed))


def _read_state(folder: pathlib.Path) -> tuple[_State, bytes]:
    try:
        state = _State(**json.loads((folder / "state").read_text()))
        return state, (folder / JOURNAL).read_bytes()
    except (OSError, ValueError, TypeError):
        return _State(), b""


def _next_segment(lines: bytes) -> int:
    numbers = [entry["flush"].get("segment", -1) for entry in _flushes(lines)]
    return max(numbers, default=-1) + 1


def _flushes(lines: bytes) -> Iterator[dict]:
    for line in lines.split(b"\n"):
        entry = decode_line(line) or {}
        if isinstance(entry.get("flush"), dict):
            yield entry


def _replace(path: pathlib.Path, data: bytes) -> None:
    """Write a file atomically: other processes see the old file or the new one."""
    new = path.with_name(f"{path.name}.{threading.get_ident()}-{secrets.token_hex(4)}.new")
    new.write_bytes(data)
    os.replace(new, path)
