"""Frames, the record batches of an Arrow IPC stream: written whole, read by the column."""

import io
import json
import math
import os
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lox_host.store.dtypes import named, restored, stored
from lox_host.store.layout import Column, Layout, to_json


class Place(NamedTuple):
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
    """

    group: int
    file: str
    start: int
    end: int
    rows: int
    runs: tuple[int, int]
    columns: tuple[Place, ...]

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "Frame":
        """The frame from a line of the journal."""
        columns = tuple(Place(*column) for column in fields["columns"])
        return cls(**{**fields, "columns": columns})


class Encoder:
    """Rows of one layout as parts of an Arrow IPC stream."""

    def __init__(self, layout: Layout):
        import nanoarrow as na

        self._types = [_types(column) for column in layout.columns]
        names = (column.name for column in layout.columns)
        fields = dict(zip(names, (types[-1][0] for types in self._types), strict=True))
        metadata = {"lox": json.dumps(to_json(layout))}
        self._schema = na.c_schema(na.Schema(na.struct(fields), metadata=metadata))

    def schema(self) -> bytes:
        """What a file begins with. The layout is in its metadata, under `lox`."""
        return self._written([], write_schema=True)

    def frame(self, columns: Sequence[np.ndarray]) -> tuple[bytes, list[Place]]:
        """The bytes of a frame, and where the columns are in them."""
        import nanoarrow as na

        rows = len(columns[0])
        buffers = [_buffer(column) for column in columns]
        each = zip(self._types, buffers, strict=True)
        children = [_array(types, rows, buffer) for types, buffer in each]
        batch = na.c_array_from_buffers(self._schema, rows, [None], children=children)
        data = self._written([batch], write_schema=False)
        # A message: a mark, the length of the header, the header, and a body in which each
        # buffer is filled up to 8 bytes. Those with the values are the only ones.
        at, places = 8 + int.from_bytes(data[4:8], "little"), []
        for buffer in buffers:
            places.append(Place(at, buffer.nbytes, zlib.crc32(buffer)))
            at += buffer.nbytes + -buffer.nbytes % 8
        return data, places

    def _written(self, batches: Sequence[Any], *, write_schema: bool) -> bytes:
        from nanoarrow.c_array_stream import CArrayStream
        from nanoarrow.ipc import StreamWriter

        out = io.BytesIO()
        writer = StreamWriter.from_writable(out)
        stream = CArrayStream.from_c_arrays(list(batches), self._schema)
        writer.write_stream(stream, write_schema=write_schema)
        writer.release()
        return out.getvalue()


def read(file: int, place: Place, column: Column, rows: int) -> np.ndarray | None:
    """One column of a frame. None if it is not what was written."""
    data = _bytes(file, place)
    if len(data) != place.size or zlib.crc32(data) != place.checksum:
        return None
    dtype = named(column.dtype)
    plain = stored(np.zeros((0, *column.shape), dtype))
    shape = rows, *plain.shape[1:]
    if plain.dtype == bool:
        bits = np.frombuffer(data, np.uint8)
        array = np.unpackbits(bits, count=math.prod(shape), bitorder="little").view(bool)
    else:
        array = np.frombuffer(data, plain.dtype)
    return restored(array.reshape(shape), dtype)


def _bytes(file: int, place: Place) -> bytes:
    # One call reads at most 2 GiB.
    starts, most = range(0, place.size, 1 << 30), 1 << 30
    return b"".join(
        os.pread(file, min(place.size - at, most), place.offset + at) for at in starts
    )


def _buffer(column: np.ndarray) -> np.ndarray:
    plain = stored(column).reshape(-1)
    return np.packbits(plain, bitorder="little") if plain.dtype == bool else plain


def _types(column: Column) -> list[tuple[Any, int]]:
    """The types of a column from the inside out, and how many of each a row has."""
    import nanoarrow as na

    plain = stored(np.zeros((1, *column.shape), named(column.dtype)))
    if not plain.size:
        return [(na.null(), 1)]
    name = plain.dtype.name
    types = [(na.Schema(na.Type[_TYPES.get(name, name.upper())]), plain.size)]
    for i, size in reversed(list(enumerate(plain.shape[1:], 1))):
        types.append((na.fixed_size_list(types[-1][0], size), math.prod(plain.shape[:i])))
    return types


# Where Arrow says it otherwise than NumPy.
_TYPES = {"float16": "HALF_FLOAT", "float32": "FLOAT", "float64": "DOUBLE"}


def _array(types: Sequence[tuple[Any, int]], rows: int, buffer: np.ndarray) -> Any:
    """The column in Arrow's form: the values, in a list for each axis of a row."""
    import nanoarrow as na

    (inner, size), *lists = types
    if not buffer.size:
        return na.c_array_from_buffers(inner, rows, [])
    array = na.c_array_from_buffers(inner, rows * size, [None, buffer])
    for kind, size in lists:
        array = na.c_array_from_buffers(kind, rows * size, [None], children=[array])
    return array
