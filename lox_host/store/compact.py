"""Compact a session at its end: join many small frames to a few large ones.

    before     journal      0000.arrows (100 frames)      0001.arrows (1 large frame)
    during     journal.new  0002.arrows.new (1 frame)     beside all of these
    after      journal      0002.arrows                   0001.arrows

The new frames count once the journal is replaced, which is one atomic step. A process that
is killed before it leaves the old session. A process that is killed after it leaves the new
session, and some files that no reader opens.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from lox_host.store.format import journal
from lox_host.store.format.frames import Encoder, Frame
from lox_host.store.format.segments import Segments, create_file, sync
from lox_host.store.reader import Reader, read_session

# The size of the new frames in bytes. Frames below a quarter of it are small.
BYTES = 8 << 20


def compact(folder: pathlib.Path, first: int, few: int = 1) -> None:
    """Join the small frames of a session that has ended.

    If the disk has no room for the old and the new frames, the session stays as it is.

    Args:
        folder: The folder of the session.
        first: The number of the first new file.
        few: How many small frames of a group may stay as they are.
    """
    old = read_session(folder)
    # A damaged session stays as it is, for `lox doctor` to examine.
    if old.problems:
        return
    small = [
        group
        for group, frames in old.frames.items()
        if len(frames) > few and _are_small(frames)
    ]
    if not small:
        return
    try:
        frames = _rewrite(old, small, Segments(folder, first, suffix=".new"))
        _commit(old, small, frames)
    except OSError:
        pass  # no room, or a damaged frame; readers can live with small frames
    finally:
        for rest in folder.glob("*.new"):
            rest.unlink()


def _rewrite(old: Reader, groups: list[int], new: Segments) -> list[Frame]:
    """Rewrite the frames of some groups as a few large ones."""
    frames = []
    with contextlib.closing(new):
        for group in groups:
            encoder = Encoder(old.layouts[group])
            for chunk in _chunks(old.frames[group]):
                frames.append(new.write(group, encoder, _columns(old, chunk)))
    return frames


def _commit(old: Reader, groups: list[int], frames: list[Frame]) -> None:
    """Replace the frames of some groups with new ones in the journal."""
    # The new journal is the old one with a single flush.
    written_anew = {"layout", "frame", "end", "summary"}
    head = [entry for entry in old.entries if not entry.keys() & written_anew]
    ends = [entry for entry in old.entries if "end" in entry]
    layouts = [
        {"group": entry["group"], "layout": entry["layout"]}
        for entry in old.entries
        if "layout" in entry
    ]
    stay = [
        frame
        for group, of_group in old.frames.items()
        if group not in groups
        for frame in of_group
    ]
    fields = [frame.to_json() for frame in (*stay, *frames)]
    flush = {"n": 0, "flush": {"layouts": layouts, "frames": fields}}
    numbered = enumerate((*head, flush, *ends[-1:]))
    entries = [{**entry, "n": number} for number, entry in numbered]
    file = create_file(old.folder / f"{journal.NAME}.new")
    journal.append(file, journal.encode(entries))
    os.close(file)
    names = [*dict.fromkeys(frame.file for frame in frames), journal.NAME]
    # Sync the data before renaming the files, and rename the journal last. So there is
    # always a journal, and all files that it names exist.
    for name in names:
        sync(old.folder / f"{name}.new")
    for name in names:
        os.replace(old.folder / f"{name}.new", old.folder / name)
    sync(old.folder)
    for name in {frame.file for group in groups for frame in old.frames[group]}:
        (old.folder / name).unlink()


def _chunks(frames: list[Frame]) -> Iterator[list[Frame]]:
    """Yield the frames in chunks of at most `BYTES` bytes."""
    chunk, size = [], 0
    for frame in frames:
        if chunk and size + _size(frame) > BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(frame)
        size += _size(frame)
    yield chunk


def _columns(old: Reader, frames: list[Frame]) -> list[list[np.ndarray]]:
    """Read all columns of several frames of a group."""
    columns = []
    with old.frame_reader() as files:
        for i in range(len(old.layouts[frames[0].group].columns)):
            parts = [files.column(frame, i) for frame in frames]
            whole = [part for part in parts if part is not None]
            if len(whole) < len(parts):
                raise OSError("A frame is damaged.")
            columns.append(whole)
    return columns


def _are_small(frames: list[Frame]) -> bool:
    return len(frames) > 1 and sum(map(_size, frames)) < len(frames) * BYTES / 4


def _size(frame: Frame) -> int:
    return frame.end - frame.start
