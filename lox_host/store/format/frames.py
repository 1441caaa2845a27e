"""Frames: the record batches of an Arrow IPC stream, written whole and read by column.

    0000.arrows
    | schema | header | @run | @row | @step | loss | header | @run | @row | @step | loss |
             |---------- a frame ------------------|---------- the next one -------------|
                      |------|  an extent: offset, size and checksum of one column

The journal has the extents of each frame. So a reader can go straight to a column, read it
with one call, and verify its checksum.
"""

import dataclasses
import io
import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lox_host.store.format.dtypes import dtype_named, from_stored, to_stored
from lox_host.store.format.journal import DATA_FILE, SEGMENT_FILE
from lox_host.store.format.layout import Column, Layout, bad_fields, check, is_count


class Extent(NamedTuple):
    """The place of a column in its file, and the checksum of its bytes."""

    offset: int
    size: int
    checksum: int


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
                columns=tuple([Extent(*column) for column in fields["columns"]]),
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

    def _check(self, layout: Layout) -> None:
        """Raise unless each column has the size of `rows` rows and lies in the frame.

        So a reader never reads or allocates more than the size of the file.
        """
        check(DATA_FILE.fullmatch(self.file) or self.is_segment)
        check(is_count(self.start) and is_count(self.end) and is_count(self.rows))
        check(all(type(id) is int for id in self.runs))
        check(self.nonfinite is None or all(map(is_count, self.nonfinite)))
        if self.is_segment:  # Parquet has its own extents and checksums
            check(self.end == self.start + 1 and not self.columns)
            return
        for extent, bits in zip(self.columns, layout.bits, strict=True):
            check(is_count(extent.offset) and is_count(extent.size))
            # Booleans take one bit each, rounded up to whole bytes at the end.
            check(extent.size == -(-self.rows * bits // 8))
            check(self.start <= extent.offset and extent.offset + extent.size <= self.end)


class Encoder:
    """Turns rows of one layout into parts of an Arrow IPC stream."""

    def __init__(self, layout: Layout):
        import nanoarrow as na

        self._types = [_arrow_types(column) for column in layout.columns]
        fields = {
            column.name: types[-1][0]
            for column, types in zip(layout.columns, self._types, strict=True)
        }
        metadata = {"lox": json.dumps(dataclasses.asdict(layout))}
        self._schema = na.c_schema(na.Schema(na.struct(fields), metadata=metadata))

    def schema(self) -> bytes:
        """Return the first bytes of a file. Its metadata has the layout, under `lox`."""
        return self._encode([], write_schema=True)

    def frame(self, columns: Sequence[np.ndarray]) -> tuple[bytes, list[Extent]]:
        """Return the bytes of a frame, and the extents of its columns in these bytes."""
        import nanoarrow as na

        rows = len(columns[0])
        buffers = [_to_buffer(column) for column in columns]
        children = [
            _arrow_array(types, rows, buffer)
            for types, buffer in zip(self._types, buffers, strict=True)
        ]
        batch = na.c_array_from_buffers(self._schema, rows, [None], children=children)
        data = self._encode([batch], write_schema=False)
        # An IPC message is a mark (4 bytes), the length of the header (4 bytes), the header
        # and a body. The body holds one buffer per column, each padded to 8 bytes.
        offset, extents = 8 + int.from_bytes(data[4:8], "little"), []
        for buffer in buffers:
            extents.append(Extent(offset, buffer.nbytes, zlib.crc32(buffer)))
            offset += buffer.nbytes + -buffer.nbytes % 8
        return data, extents

    def _encode(self, batches: Sequence[Any], *, write_schema: bool) -> bytes:
        from nanoarrow.c_array_stream import CArrayStream
        from nanoarrow.ipc import StreamWriter

        out = io.BytesIO()
        writer = StreamWriter.from_writable(out)
        stream = CArrayStream.from_c_arrays(list(batches), self._schema)
        writer.write_stream(stream, write_schema=write_schema)
        writer.release()
        return out.getvalue()


def read_column(file: int, extent: Extent, column: Column, rows: int) -> np.ndarray | None:
    """Read one column of a frame. Return None if it is damaged."""
    # The file may have been cut short. Do not allocate memory for missing bytes.
    if extent.offset + extent.size > os.fstat(file).st_size:
        return None
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


def nonfinite_columns(columns: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Return the numbers of the columns that hold NaN or infinities."""
    may_be = ((i, x) for i, x in enumerate(columns) if x.dtype.kind not in "biu")
    return tuple(i for i, column in may_be if not is_finite(column).all())


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


def _to_buffer(column: np.ndarray) -> np.ndarray:
    plain = to_stored(column).reshape(-1)
    return np.packbits(plain, bitorder="little") if plain.dtype == bool else plain


def _arrow_types(column: Column) -> list[tuple[Any, int]]:
    """Return the types of a column from the inside out, with their number per row.

    For example, rows of the shape (2, 3) are lists of 2 lists of 3 numbers:
    `[(float, 6), (list of 3, 2), (list of 2, 1)]`.
    """
    import nanoarrow as na

    plain = to_stored(np.zeros((1, *column.shape), dtype_named(column.dtype)))
    if not plain.size:
        return [(na.null(), 1)]
    name = plain.dtype.name
    types = [(na.Schema(na.Type[_ARROW_NAMES.get(name, name.upper())]), plain.size)]
    for i, size in reversed(list(enumerate(plain.shape[1:], 1))):
        types.append((na.fixed_size_list(types[-1][0], size), math.prod(plain.shape[:i])))
    return types


# The dtypes whose names in Arrow differ from those in NumPy.
_ARROW_NAMES = {"float16": "HALF_FLOAT", "float32": "FLOAT", "float64": "DOUBLE"}


def _arrow_array(types: Sequence[tuple[Any, int]], rows: int, buffer: np.ndarray) -> Any:
    """Return a column as an Arrow array: the values, in a list per axis of a row."""
    import nanoarrow as na

    (inner, size), *lists = types
    if not buffer.size:
        return na.c_array_from_buffers(inner, rows, [])
    # No mask of nulls (None), then the numbers; each axis wraps them in lists once more.
    array = na.c_array_from_buffers(inner, rows * size, [None, buffer])
    for kind, size in lists:
        array = na.c_array_from_buffers(kind, rows * size, [None], children=[array])
    return array
