"""Frames: the record batches of an Arrow IPC stream, written whole and read by column.

    0000.arrows
    | schema | header | @run | @row | @step | loss | header | @run | @row | @step | loss |
             |---------- a frame ------------------|---------- the next one -------------|
                      |------|  an extent: offset, size and checksum of one column

The journal has the extents of each frame. So a reader can go straight to a column, read it
with one call, and verify its checksum. If a column follows a pattern, such as the numbers
of the rows, the journal has the pattern, and the column is compressed for other programs.
"""

import dataclasses
import io
import json
import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lox_host.store.format.arrow_message import record_batch
from lox_host.store.format.column_pattern import Pattern
from lox_host.store.format.dtypes import dtype_named, from_stored, to_stored
from lox_host.store.format.journal import DATA_FILE, SEGMENT_FILE
from lox_host.store.format.layout import Column, Layout, bad_fields, check, is_count
from lox_host.store.format.lz4 import compress

# Columns of fewer rows are stored as they are, without looking for a pattern.
FEW = 512
# Arrays of so many bytes are written one after the other, without joining them first.
LARGE = 64 << 10

# A column of a frame, in parts: arrays with an axis of rows in front.
ColumnParts: TypeAlias = Sequence[np.ndarray]


class Extent(NamedTuple):
    """The place of a column in its file, the checksum of its bytes, and its pattern.

    The bytes of a column with a pattern are compressed. Readers use the pattern.
    """

    offset: int
    size: int
    checksum: int
    pattern: Pattern | None = None

    @classmethod
    def of(cls, offset: int, size: int, checksum: int, pattern: Any = None) -> "Extent":
        """Return the extent that a line of the journal describes."""
        known = None if pattern is None else Pattern.from_json(pattern)
        return cls(offset, size, checksum, known)


class Frame(NamedTuple):
    """A frame, as the journal describes it.

    Attributes:
        group: The number of its layout.
        file: The name of its file.
        start: Where it begins in the file. The first frame includes the schema.
        end: Where it ends.
        rows: How many rows it has.
        runs: The lowest and the highest run id of these rows.
        columns: The extent of each column.
        nonfinite: The numbers of the columns with NaN or infinities. None: unknown, as in
            the first format.
    """

    group: int
    file: str
    start: int
    end: int
    rows: int
    runs: tuple[int, int]
    columns: tuple[Extent, ...]
    nonfinite: tuple[int, ...] | None = None

    @property
    def is_segment(self) -> bool:
        """Whether it is row group number `start` of a Parquet file."""
        return SEGMENT_FILE.fullmatch(self.file) is not None

    @classmethod
    def of(cls, fields: dict[str, Any], layouts: Mapping[int, Layout]) -> "Frame":
        """Return the frame that a line of the journal describes.

        Raises:
            ValueError: If such a frame is impossible, or its layout is unknown.
        """
        with bad_fields():
            low, high = fields["runs"]
            nonfinite = fields.get("nonfinite")
            frame = cls(
                *(fields[name] for name in ("group", "file", "start", "end", "rows")),
                runs=(low, high),
                columns=tuple([Extent.of(*column) for column in fields["columns"]]),
                nonfinite=None if nonfinite is None else tuple(nonfinite),
            )
            frame._check(layouts[frame.group])
        return frame

    @classmethod
    def joined(cls, frames: Sequence["Frame"], file: str, place: int) -> "Frame":
        """Return the row group of a segment that holds the rows of several frames."""
        # `nonfinite` is never None here: only the first format lacks it.
        return cls(
            group=frames[0].group,
            file=file,
            start=place,
            end=place + 1,
            rows=sum(frame.rows for frame in frames),
            runs=(min(f.runs[0] for f in frames), max(f.runs[1] for f in frames)),
            columns=(),
            nonfinite=tuple(sorted({i for f in frames for i in f.nonfinite or ()})),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields for a line of the journal."""
        columns = [x[:3] if x.pattern is None else x for x in self.columns]
        return {**self._asdict(), "columns": columns}

    def _check(self, layout: Layout) -> None:
        """Raise unless each column has the size of `rows` rows and lies in the frame.

        So a reader never reads more than the size of the file. It allocates at most 255
        times as much, as LZ4 cannot compress more than that.
        """
        check(DATA_FILE.fullmatch(self.file) or self.is_segment)
        check(is_count(self.start) and is_count(self.end) and is_count(self.rows))
        check(all(type(id) is int for id in self.runs))
        check(self.nonfinite is None or all(map(is_count, self.nonfinite)))
        if self.is_segment:  # Parquet has its own extents and checksums
            check(self.end == self.start + 1 and not self.columns)
            return
        columns = zip(self.columns, layout.bits, layout.columns, strict=True)
        for extent, bits, column in columns:
            check(is_count(extent.offset) and is_count(extent.size))
            if extent.pattern is None:
                # Booleans take one bit each, rounded up to whole bytes at the end.
                check(extent.size == -(-self.rows * bits // 8))
            else:
                check(may_have_pattern(dtype_named(column.dtype), column.shape))
                check(extent.pattern.rows == self.rows)
                check(self.rows * bits // 8 <= 255 * extent.size)
            check(self.start <= extent.offset and extent.offset + extent.size <= self.end)


class Encoder:
    """Turns rows of one layout into parts of an Arrow IPC stream."""

    def __init__(self, layout: Layout):
        self._layout = layout
        # The number of arrays in a row of each column, from the outside in: a row of the
        # shape (2, 3) is 1 list of 2 lists, which hold 6 numbers.
        self._counts = [_counts(column) for column in layout.columns]

    def schema(self) -> bytes:
        """Return the first bytes of a file. Its metadata has the layout, under `lox`."""
        import nanoarrow as na
        from nanoarrow.c_array_stream import CArrayStream
        from nanoarrow.ipc import StreamWriter

        fields = {column.name: _arrow_type(column) for column in self._layout.columns}
        metadata = {"lox": json.dumps(dataclasses.asdict(self._layout))}
        schema = na.c_schema(na.Schema(na.struct(fields), metadata=metadata))
        out = io.BytesIO()
        writer = StreamWriter.from_writable(out)
        writer.write_stream(CArrayStream.from_c_arrays([], schema), write_schema=True)
        writer.release()
        return out.getvalue()

    def frame(self, columns: Sequence[ColumnParts]) -> "EncodedFrame":
        """Encode a frame. The large parts are the columns themselves, without a copy."""
        rows = sum(map(len, columns[0]))
        buffers = [_Buffer.of(column) for column in columns]
        is_compressed = any(buffer.pattern is not None for buffer in buffers)
        nodes: list[tuple[int, int]] = []
        sizes: list[int] = []
        for counts, buffer in zip(self._counts, buffers, strict=True):
            # An array without elements has the type null, which has no buffers.
            is_null = not buffer.size
            nodes += [(rows * count, rows if is_null else 0) for count in counts]
            # Each array has a buffer for nulls, which is empty as there are none.
            sizes += (
                [] if is_null else [0] * len(counts) + [buffer.size + 8 * is_compressed]
            )
        header = record_batch(rows, nodes, sizes, is_compressed=is_compressed)
        parts: list[bytes | np.ndarray] = [header]
        offset, offsets = len(header), []
        for buffer in buffers:
            prefix = buffer.prefix if is_compressed and buffer.size else b""
            padding = bytes(-buffer.size % 8)
            offsets.append(offset + len(prefix))
            parts += [prefix, *buffer.parts, padding]
            offset = offsets[-1] + buffer.size + len(padding)
        return EncodedFrame(parts, buffers, offsets, offset)


class EncodedFrame(NamedTuple):
    """The bytes of a frame, before anybody has read them.

    Attributes:
        parts: All bytes, in parts.
        buffers: The columns among them.
        offsets: Where each column begins.
        size: How many bytes there are.
    """

    parts: list[bytes | np.ndarray]
    buffers: "list[_Buffer]"
    offsets: list[int]
    size: int

    def extents(self) -> list[Extent]:
        """Return the extents of the columns. Their checksums take as long as writing."""
        pairs = zip(self.offsets, self.buffers, strict=True)
        return [Extent(at, of.size, of.checksum(), of.pattern) for at, of in pairs]


class _Buffer(NamedTuple):
    """The bytes of a column, which may be compressed.

    Attributes:
        parts: The bytes, in parts.
        size: How many bytes there are.
        pattern: The pattern of the column, if it is compressed.
        prefix: What is in front of it in a frame with compressed columns.
    """

    parts: list[np.ndarray]
    size: int
    pattern: Pattern | None = None
    prefix: bytes = b"\xff" * 8

    @classmethod
    def of(cls, column: ColumnParts) -> "_Buffer":
        first = column[0]
        can_have_pattern = may_have_pattern(first.dtype, first.shape[1:])
        # Only large arrays are worth several calls to write them.
        is_small = sum([part.nbytes for part in column]) < LARGE * len(column)
        if can_have_pattern or first.dtype == bool or is_small:
            column = [concatenate(column)]
        plain = [to_stored(part) for part in column]
        if can_have_pattern and len(plain[0]) >= FEW:
            (numbers,) = plain
            pattern = Pattern.of(numbers)
            packed = None if pattern is None else compress(numbers, pattern)
            if packed is not None and len(packed) < numbers.nbytes:
                prefix = struct.pack("<q", numbers.nbytes)
                return cls([np.frombuffer(packed, np.uint8)], len(packed), pattern, prefix)
        if plain[0].dtype == bool:
            parts = [np.packbits(part.reshape(-1), bitorder="little") for part in plain]
        else:
            parts = [part.reshape(-1).view(np.uint8) for part in plain]
        return cls(parts, sum([part.nbytes for part in parts]))

    def checksum(self) -> int:
        checksum = 0
        for part in self.parts:
            checksum = zlib.crc32(part, checksum)
        return checksum


def may_have_pattern(dtype: np.dtype, shape: tuple[int, ...]) -> bool:
    """Return whether rows of this dtype and shape may have a pattern: plain numbers."""
    return shape == () and dtype.isbuiltin == 1 and dtype.kind in "iuf"


def read_column(file: int, extent: Extent, column: Column, rows: int) -> np.ndarray | None:
    """Read one column of a frame. Return None if it is damaged."""
    if not is_inside(file, extent):
        return None
    if extent.pattern is not None:
        return extent.pattern.column(dtype_named(column.dtype))
    data = _read_bytes(file, extent)
    if len(data) != extent.size or zlib.crc32(data) != extent.checksum:
        return None
    dtype = dtype_named(column.dtype)
    # Stored, a dtype may be another one, with more axes: an empty array shows which.
    plain = to_stored(np.zeros((0, *column.shape), dtype))
    shape = rows, *plain.shape[1:]
    if plain.dtype == bool:
        bits = np.frombuffer(data, np.uint8)
        array = np.unpackbits(bits, count=math.prod(shape), bitorder="little").view(bool)
    else:
        array = np.frombuffer(data, plain.dtype)
    return from_stored(array.reshape(shape), dtype)


def is_inside(file: int, extent: Extent) -> bool:
    """Return whether a file, which may have been cut short, is long enough for a column."""
    return extent.offset + extent.size <= os.fstat(file).st_size


def is_whole(file: int, extent: Extent) -> bool:
    """Return whether the bytes of a column are what was written."""
    data = _read_bytes(file, extent)
    return len(data) == extent.size and zlib.crc32(data) == extent.checksum


def nonfinite_columns(columns: Sequence[ColumnParts]) -> tuple[int, ...]:
    """Return the numbers of the columns that hold NaN or infinities."""
    may_be = ((i, x) for i, x in enumerate(columns) if x[0].dtype.kind not in "biu")
    return tuple(i for i, x in may_be if not all(is_finite(part).all() for part in x))


def concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate arrays. A single one is returned as it is."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def is_finite(array: np.ndarray) -> np.ndarray:
    """Return which elements of an array of any dtype are finite."""
    if array.dtype.kind in "biu":
        return np.broadcast_to(True, array.shape)
    wide = array if array.dtype.isbuiltin == 1 else array.astype(np.float32)
    return np.isfinite(wide)


def _read_bytes(file: int, extent: Extent) -> bytes:
    # One call of `pread` reads at most 2 GiB.
    most = 1 << 30
    starts = range(0, extent.size, most)
    return b"".join(
        os.pread(file, min(extent.size - start, most), extent.offset + start)
        for start in starts
    )


def _counts(column: Column) -> list[int]:
    shape = _stored_row(column).shape
    if 0 in shape:
        return [1]
    return [math.prod(shape[:i]) for i in range(1, len(shape) + 1)]


def _arrow_type(column: Column) -> Any:
    """Return the type of a column. Rows of the shape (2, 3) are lists of lists."""
    import nanoarrow as na

    plain = _stored_row(column)
    if not plain.size:
        return na.null()
    name = plain.dtype.name
    kind = na.Schema(na.Type[_ARROW_NAMES.get(name, name.upper())])
    for size in reversed(plain.shape[1:]):
        kind = na.fixed_size_list(kind, size)
    return kind


def _stored_row(column: Column) -> np.ndarray:
    """Return one row of a column, as it is stored: an axis of 1, and its shape."""
    return to_stored(np.zeros((1, *column.shape), dtype_named(column.dtype)))


# The dtypes whose names in Arrow differ from those in NumPy.
_ARROW_NAMES = {"float16": "HALF_FLOAT", "float32": "FLOAT", "float64": "DOUBLE"}
