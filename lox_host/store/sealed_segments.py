"""Seal the rows of a session into segments, while the session is still being written.

Object storage cannot append, so a live session is uploaded in pieces that never change. A
process that is killed in the middle must be able to make the same piece again. The lines of
the journal are numbered, and a segment holds the rows of a range of lines. So lox only has
to remember the ends of the range:

    journal       0 session   1 run   2 flush   3 flush   4 run   5 flush   6 end
    segments      |---- 000000 ----------------|---- 000001 -------------|  ...

Each segment carries its own lines for readers of the store. They are the lines of the
journal, with one flush in place of many, and row groups in place of frames.

The invariant: a range of lines always gives the same segments, and each row is in exactly
one of them.
"""

import itertools as it
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lox_host.frozen import frozen
from lox_host.store.format import journal
from lox_host.store.format.dtypes import dtype_named
from lox_host.store.format.files import open_file
from lox_host.store.format.frame_reader import FrameReader
from lox_host.store.format.frames import Frame
from lox_host.store.format.journal import Entry, warn_left_out
from lox_host.store.format.layout import Layout
from lox_host.store.format.parquet import Part, encode_segment, families


@frozen
class Segment:
    """Rows that become one object. Lines without rows become a segment without an object.

    Attributes:
        number: The number in the session. Without rows, the number of the next segment.
        lines: The encoded lines for the manifest of the store.
        line_count: The number of these lines.
        runs: The runs that begin in this segment.
        frames: The frames of the session that it holds, by group.
    """

    number: int
    lines: bytes
    line_count: int
    runs: tuple[dict[str, Any], ...]
    frames: dict[int, list[Frame]]

    @property
    def name(self) -> str:
        return segment_name(self.number)

    @property
    def rows(self) -> int:
        return sum(frame.rows for frames in self.frames.values() for frame in frames)


def segment_name(number: int) -> str:
    """Return the name of the file of a segment."""
    return f"{number:06d}.parquet"


class Sealer:
    """Follows the journal of a session and turns its lines into segments.

    Attributes:
        last_line: The number of the last line read so far.
        ended: Whether a line says that the session has ended.
        run_names: The names of the runs by id.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._offset = 0
        self._lines: dict[int, Entry] = {}
        self._layouts: dict[int, Layout] = {}
        # The data files of each group, and the last line with a frame of each file.
        self._files: dict[int, list[str]] = {}
        self._last_line_of: dict[str, int] = {}
        self.last_line = -1
        self.ended = False
        self.run_names: dict[int, str] = {}

    def poll(self) -> None:
        """Read new lines of the journal."""
        with open(open_file(self._folder / journal.NAME), "rb") as file:
            file.seek(self._offset)
            data = file.read()
        # The last line may be half written. It is read next time.
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.split(b"\n")[:-1]:
            entry = journal.decode_line(line)
            if entry is None or "n" not in entry:
                warn_left_out(self._folder, "A line of the journal")
                continue
            self._lines[entry["n"]] = entry
            self.last_line = max(self.last_line, entry["n"])
            self.ended |= "end" in entry
            if "run" in entry:
                self.run_names[entry["run"]["id"]] = entry["run"]["name"]
            for layout in entry.get("flush", {}).get("layouts", ()):
                self._layouts[layout["group"]] = Layout.from_json(layout["layout"])
            for frame in entry.get("flush", {}).get("frames", ()):
                self._last_line_of[frame["file"]] = entry["n"]
                files = self._files.setdefault(frame["group"], [])
                files += [] if frame["file"] in files[-1:] else [frame["file"]]

    def cut(self, after: int, most: int) -> int:
        """Return the last line of the next segment: at most `most` bytes, or one line."""
        size = 0
        for number in range(after + 1, self.last_line + 1):
            frames = self._lines.get(number, {}).get("flush", {}).get("frames", ())
            size += sum(frame["end"] - frame["start"] for frame in frames)
            # A line is never divided, however large it is.
            if size > most and number > after + 1:
                return number - 1
        return self.last_line

    def waiting(self, after: int) -> tuple[int, int]:
        """Return how many rows and bytes there are in the lines after `after`."""
        rows = size = 0
        for number in range(after + 1, self.last_line + 1):
            for frame in self._lines.get(number, {}).get("flush", {}).get("frames", ()):
                rows += frame["rows"]
                size += frame["end"] - frame["start"]
        return rows, size

    def has_rows(self, after: int, upto: int) -> bool:
        """Return whether the lines after `after` up to `upto` have rows."""
        lines = (self._lines.get(number) for number in range(after + 1, upto + 1))
        return next(iter(_files(lines)), None) is not None

    def segments(
        self, after: int, upto: int, *, number: int, line: int
    ) -> tuple[Segment, ...]:
        """Return the segments of a range of lines, one per family of layouts.

        Most often this is one segment. Lines without rows give one without frames.

        Args:
            after: The number of the last line before the range.
            upto: The number of the last line of the range.
            number: The number of the first segment.
            line: The number of its first line in the manifest.
        """
        entries = [self._lines[n] for n in range(after + 1, upto + 1) if n in self._lines]
        others = [entry for entry in entries if "flush" not in entry]
        flushes = [entry["flush"] for entry in entries if "flush" in entry]
        fields = list(it.chain.from_iterable(flush["frames"] for flush in flushes))
        frames = [Frame.of(frame, self._layouts) for frame in fields]
        family = families(self._layouts)
        shared = sorted({family[frame.group] for frame in frames}) or [-1]
        # Layouts of one family have columns that fit into one Parquet file.
        found = []
        for i, one in enumerate(shared):
            by_group: dict[int, list[Frame]] = {}
            for frame in frames:
                if family[frame.group] == one:
                    by_group.setdefault(frame.group, []).append(frame)
            # The first segment gets all lines that are not about rows.
            head = [] if i else others
            flush = _flush(number + i, [] if i else flushes, by_group)
            numbered = [{**entry, "n": line + k} for k, entry in enumerate([*head, *flush])]
            line += len(numbered)
            runs = tuple(entry["run"] for entry in head if "run" in entry)
            data = journal.encode(numbered)
            found.append(Segment(number + i, data, len(numbered), runs, by_group))
        return tuple(found)

    def encode(self, segment: Segment) -> bytes:
        """Return the bytes of a segment as an object."""
        parts = []
        with FrameReader(self._folder, self._layouts, None, np.zeros(0, int)) as reader:
            for group, frames in segment.frames.items():
                layout = self._layouts[group]
                columns = _joined(reader, layout, frames)
                # Damaged rows are left out with a warning. The segment must exist in any
                # case, or readers would wait for its number.
                if columns is None:
                    warn_left_out(self._folder, f"A segment of {segment.rows} rows")
                    columns = _joined(reader, layout, [])
                assert columns is not None
                parts.append(Part(layout, columns))
        return encode_segment(parts, self.run_names, segment.lines)

    def forget(self, upto: int) -> list[str]:
        """Forget lines, and return the data files that are no longer needed.

        The last file of each group stays, as the writer may still append to it.
        """
        for number in [number for number in self._lines if number <= upto]:
            del self._lines[number]
        last = {group: files[-1] for group, files in self._files.items()}
        done = [
            name
            for name, line in self._last_line_of.items()
            if line <= upto and name not in last.values()
        ]
        for name in done:
            del self._last_line_of[name]
        return done


def _files(entries: Iterable[Entry | None]) -> Iterable[str]:
    for entry in entries:
        for frame in (entry or {}).get("flush", {}).get("frames", ()):
            yield frame["file"]


def _flush(
    number: int, flushes: Sequence[Entry], frames: dict[int, list[Frame]]
) -> list[Entry]:
    """Return the flush line of a segment, or no line if it would be empty."""
    gap = sum(flush["gap"]["rows"] for flush in flushes if "gap" in flush)
    name = segment_name(number)
    # In the segment, all frames of a group are one row group, at this place.
    fields = [
        Frame.joined(of_group, name, place).to_json()
        for place, of_group in enumerate(frames.values())
    ]
    layouts = [layout for flush in flushes for layout in flush["layouts"]]
    flush: Entry = {"segment": number} if fields else {}
    flush |= {"gap": {"rows": gap}} if gap else {}
    if not flush and not layouts:
        return []
    return [{"flush": {**flush, "layouts": layouts, "frames": fields}}]


def _joined(
    reader: FrameReader, layout: Layout, frames: Sequence[Frame]
) -> list[np.ndarray] | None:
    """Read all columns of several frames of a group. Return None if one is damaged."""
    if not frames:
        return [np.zeros((0, *c.shape), dtype_named(c.dtype)) for c in layout.columns]
    columns = []
    for i in range(len(layout.columns)):
        parts = [reader.column(frame, i) for frame in frames]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            return None
        columns.append(np.concatenate(whole) if len(whole) > 1 else whole[0])
    return columns
