"""Frames, the record batches of an Arrow IPC stream: written whole, read by the column.

    0000.arrows
    | schema | header | @run | @row | @step | loss | header | @run | @row | @step | loss |
             |---------- a frame ------------------|---------- the next one -------------|
                      |------|  an extent: offset, size and checksum of one column

The journal has the extents of each frame, so that a reader goes straight to a column, reads
it with one call, and knows whether it is what was written.
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

from lox_host.store.dtypes import dtype_named, from_stored, to_stored
from lox_host.store.journal import DATA_FILE
from lox_host.store.layout import Column, Layout, bad_fields, check, is_count


class Extent(NamedTuple):
    """Where a column of a frame is in its file, and the checksum of its bytes."""

    offset: int
    size: int
    checksum: int


class Frame(NamedTuple):
    """What the journal says of a frame.

    Attributes:
        group: The number of its layout.
        file: The name of its file.
        start: Where it begins in the file, with the schema if it is the first.
        end: Where it ends.
        rows: How many rows it has.
        runs: The lowest and the highest id of their runs.
        columns: Where its columns are.
        nonfinite: The numbers of the columns with NaN or infinities. None: not known, as in
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

    @classmethod
    def of(cls, fields: dict[str, Any], layouts: Mapping[int, Layout]) -> "Frame":
        """Return the frame that a line of the journal tells of.

        Raises:
            ValueError: If there can be no such frame, or its layout is not known.
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

    def _check(self, layout: Layout) -> None:
        """Raise unless the columns have the sizes of so many rows, within the frame.

        So nothing is ever read or allocated that is larger than the file.
        """
        check(DATA_FILE.fullmatch(self.file))
        check(is_count(self.start) and is_count(self.end) and is_count(self.rows))
        check(all(type(id) is int for id in self.runs))
        check(self.nonfinite is None or all(map(is_count, self.nonfinite)))
        for extent, bits in zip(self.columns, layout.bits, strict=True):
            check(is_count(extent.offset) and is_count(extent.size))
            check(extent.size == -(-self.rows * bits // 8))
            check(self.start <= extent.offset and extent.offset + extent.size <= self.end)


class Encoder:
    """Turn rows of one layout into parts of an Arrow IPC stream."""

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
        """Return what a file begins with. The layout is in its metadata, under `lox`."""
        return self._encode([], write_schema=True)

    def frame(self, columns: Sequence[np.ndarray]) -> tuple[bytes, list[Extent]]:
        """Return the bytes of a frame, and where the columns are in them."""
        import nanoarrow as na

        rows = len(columns[0])
        buffers = [_to_buffer(column) for column in columns]
        children = [
            _arrow_array(types, rows, buffer)
            for types, buffer in zip(self._types, buffers, strict=True)
        ]
        batch = na.c_array_from_buffers(self._schema, rows, [None], children=children)
        data = self._encode([batch], write_schema=False)
        # A message: a mark, the length of the header, the header, and a body in which each
        # buffer is filled up to 8 bytes. Those with the values are the only ones.
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
    """Read one column of a frame. None if it is not what was written."""
    # A file that was cut short: nothing is allocated for what it does not have.
    if extent.offset + extent.size > os.fstat(file).st_size:
        return None
    data = _read_bytes(file, extent)
    if len(data) != extent.size or zlib.crc32(data) != extent.checksum:
        return None
    dtype = dtype_named(column.dtype)
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
    """Return which elements are finite, of any dtype."""
    if array.dtype.kind in "biu":
        return np.broadcast_to(True, array.shape)
    wide = array if array.dtype.isbuiltin == 1 else array.astype(np.float32)
    return np.isfinite(wide)


def _read_bytes(file: int, extent: Extent) -> bytes:
    # One call reads at most 2 GiB.
    most = 1 << 30
    starts = range(0, extent.size, most)
    return b"".join(
        os.pread(file, min(extent.size - at, most), extent.offset + at) for at in starts
    )


def _to_buffer(column: np.ndarray) -> np.ndarray:
    plain = to_stored(column).reshape(-1)
    return np.packbits(plain, bitorder="little") if plain.dtype == bool else plain


def _arrow_types(column: Column) -> list[tuple[Any, int]]:
    """Return the types of a column from the inside out, and how many of each a row has.

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


# The dtypes that have other names in Arrow than in NumPy.
_ARROW_NAMES = {"float16": "HALF_FLOAT", "float32": "FLOAT", "float64": "DOUBLE"}


def _arrow_array(types: Sequence[tuple[Any, int]], rows: int, buffer: np.ndarray) -> Any:
    """Return a column in Arrow's form: the values, in a list for each axis of a row."""
    import nanoarrow as na

    (inner, size), *lists = types
    if not buffer.size:
        return na.c_array_from_buffers(inner, rows, [])
    array = na.c_array_from_buffers(inner, rows * size, [None, buffer])
    for kind, size in lists:
        array = na.c_array_from_buffers(kind, rows * size, [None], children=[array])
    return array
