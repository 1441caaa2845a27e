"""The end of a session: many small frames become few large ones, all at once."""

import contextlib
import itertools as it
import os
import pathlib
from collections.abc import Iterator

import numpy as np

from lox_host.store.frames import Encoder, Frame
from lox_host.store.journal import append, lines
from lox_host.store.reader import Reader, Snapshot, snapshot
from lox_host.store.segments import Segments, created, synced

# How large frames become; smaller than a quarter of it is small.
BYTES = 8 << 20


def compact(folder: pathlib.Path, first: int) -> None:
    """Join the small frames of a session that has ended.

    The new files come beside the old ones. Replacing the journal makes them count, and then
    the old ones go. Where there is no room for both, all stays as it is.

    Args:
        folder: The folder of the session.
        first: The number of the first new file.
    """
    old = snapshot(folder)
    small = [number for number in old.layouts if _is_small(old.frames[number])]
    if not small:
        return
    try:
        frames = _rewritten(old, small, Segments(folder, first, suffix=".new"))
        _commit(old, small, frames)
    except OSError:
        pass
    finally:
        for rest in folder.glob("*.new"):
            rest.unlink()


def _rewritten(old: Snapshot, small: list[int], new: Segments) -> list[Frame]:
    encoders = {number: Encoder(old.layouts[number]) for number in small}
    with contextlib.closing(new):
        return [
            new.write(number, encoders[number], _joined(old, chunk))
            for number in small
            for chunk in _chunks(old.frames[number])
        ]


def _commit(old: Snapshot, small: list[int], frames: list[Frame]) -> None:
    """Make the new frames count instead of the small ones."""
    *kept, end = (
        entry for entry in old.entries if entry.get("frame", {}).get("group") not in small
    )
    journal = created(old.folder / "journal.new")
    append(journal, lines([*kept, *({"frame": f._asdict()} for f in frames), end]))
    os.close(journal)
    names = [*dict.fromkeys(frame.file for frame in frames), "journal"]
    for name in names:
        synced(old.folder / f"{name}.new")
    for name in names:
        os.replace(old.folder / f"{name}.new", old.folder / name)
    synced(old.folder)
    for name in {frame.file for number in small for frame in old.frames[number]}:
        (old.folder / name).unlink()


def _joined(old: Snapshot, frames: list[Frame]) -> list[np.ndarray]:
    """The columns of several frames of a group."""
    with Reader(old) as reader:
        columns = range(len(old.layouts[frames[0].group].columns))
        parts = [[reader.column(frame, i) for frame in frames] for i in columns]
    if any(part is None for column in parts for part in column):
        raise OSError("A frame is damaged.")
    return [np.concatenate(column) for column in parts]


def _chunks(frames: list[Frame]) -> Iterator[list[Frame]]:
    """The frames in groups of about the size that they are to have."""
    sizes = it.accumulate(_size([frame]) for frame in frames)
    pairs = zip(sizes, frames, strict=True)
    for _, chunk in it.groupby(pairs, key=lambda pair: (pair[0] - 1) // BYTES):
        yield [frame for _, frame in chunk]


def _is_small(frames: list[Frame]) -> bool:
    return len(frames) > 1 and _size(frames) < len(frames) * BYTES / 4


def _size(frames: list[Frame]) -> int:
    return sum(frame.end - frame.start for frame in frames)
