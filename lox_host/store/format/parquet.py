"""Segments of a store on object storage: rows in Parquet, one row group per layout.

An object cannot be appended to. So rows are collected and stored as one object:

    000012.parquet
        row group 0    rows of group 0    run  run_id  row  step  loss
        row group 1    rows of group 3    run  run_id  row  step  (null)  accuracy
        metadata       "lox": what the journal says of these rows, in its own lines

Any program that reads Parquet finds a table with one column per step and key, under the
names that were logged. The metadata has what lox needs to restore the blocks of rows:
shapes, dtypes that Parquet lacks, and which rows were logged together.
"""

import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lox_host.extras import import_extra
from lox_host.store.format.dtypes import dtype_named, from_stored, to_stored
from lox_host.store.format.layout import ROW, RUN, Column, Layout

if TYPE_CHECKING:
    import pyarrow as pa

# Reserved names: the column of the run, and the Hive partitions in the path.
_TAKEN = ("run", "session", "process")
METADATA = b"lox"


class Part(NamedTuple):
    """The rows of one group in a segment."""

    layout: Layout
    columns: Sequence[np.ndarray]


def parquet_names(layout: Layout) -> list[str]:
    """Return the names of the columns in Parquet, by their numbers in the layout.

    They are the names that the user gave: `step` for a step, `loss` for a key. A name that
    is taken gets a quote appended.
    """
    taken: dict[str, None] = dict.fromkeys(_TAKEN)
    names = []
    for number, column in enumerate(layout.columns):
        name = {RUN: "run_id", ROW: "row"}.get(number, column.name.removeprefix("@"))
        while name in taken:
            name += "'"
        taken[name] = None
        names.append(name)
    return names


def families(layouts: Mapping[int, Layout]) -> dict[int, int]:
    """Return by group which groups can share a segment: one name has one type there.

    Groups are looked at in their order, so that later ones change nothing.
    """
    types: list[dict[str, tuple[str, tuple[int, ...]]]] = []
    found = {}
    for group in sorted(layouts):
        layout = layouts[group]
        kinds = [(column.dtype, column.shape) for column in layout.columns]
        own = dict(zip(parquet_names(layout), kinds, strict=True))
        # A family takes a layout if the columns that both have are of the same type.
        fits = [all(known.get(n, own[n]) == own[n] for n in own) for known in types]
        if True not in fits:
            types.append({})
            fits.append(True)
        found[group] = fits.index(True)
        types[found[group]].update(own)
    return found


def encode_segment(
    parts: Sequence[Part], run_names: Mapping[int, str], lines: bytes
) -> bytes:
    """Return a segment: the rows of some groups, and what the journal says of them.

    Args:
        parts: The rows of each group. None at all is fine.
        run_names: The names of the runs by their ids.
        lines: Lines of a journal, for the metadata.
    """
    pa = pyarrow()
    import pyarrow.parquet as pq

    fields: dict[str, Any] = {"run": pa.string(), "run_id": pa.int32(), "row": pa.int64()}
    tables = []
    for part in parts:
        columns = {"run": _names_of(part.columns[RUN], run_names)}
        for name, array in zip(parquet_names(part.layout), part.columns, strict=True):
            if 0 not in array.shape[1:]:  # Parquet has no lists without elements
                columns[name] = _to_arrow(array)
        fields |= {name: array.type for name, array in columns.items()}
        tables.append(columns)
    schema = pa.schema(list(fields.items()))
    out = io.BytesIO()
    with pq.ParquetWriter(out, schema, **_options(schema)) as writer:
        for columns in tables:
            rows = len(columns["row"])
            # One row group per group of keys; columns of other groups are null.
            filled = [columns.get(n, pa.nulls(rows, kind)) for n, kind in fields.items()]
            writer.write_table(pa.table(filled, schema), row_group_size=max(rows, 1))
        writer.add_key_value_metadata({METADATA: lines})
    return out.getvalue()


def read_lines(data: bytes) -> bytes:
    """Return the lines of a journal in the metadata of a segment.

    Raises:
        ValueError: If it is no segment, or only a part of one.
    """
    pyarrow()
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(io.BytesIO(data)).metadata.metadata or {}
    if METADATA not in metadata:
        raise ValueError("not a segment that lox wrote")
    return metadata[METADATA]


class SegmentFile:
    """A segment that is open for reading.

    Raises:
        OSError: If it cannot be read, or is not whole.
    """

    def __init__(self, path: pathlib.Path):
        pyarrow()
        import pyarrow.parquet as pq

        try:
            self._file = pq.ParquetFile(path, page_checksum_verification=True)
        except ValueError as error:  # pyarrow's own errors are of this kind
            raise OSError(str(error)) from error

    def column(self, number: int, layout: Layout, group: int) -> np.ndarray | None:
        """Read a column of a row group. None if it is not what was written."""
        column = layout.columns[number]
        plain = to_stored(np.zeros((0, *column.shape), dtype_named(column.dtype)))
        name = parquet_names(layout)[number]
        try:
            rows = self._file.metadata.row_group(group).num_rows
            if 0 in plain.shape[1:]:
                return np.zeros((rows, *column.shape), dtype_named(column.dtype))
            table = self._file.read_row_group(group, columns=[name])
            return _from_arrow(table.column(name), rows, column)
        except (IndexError, KeyError, OSError, RuntimeError, ValueError):
            return None

    def close(self) -> None:
        self._file.close()


def pyarrow() -> Any:
    """Import what writes and reads Parquet."""
    return import_extra("pyarrow", "A store on object storage", "remote")


def _options(schema: "pa.Schema") -> dict[str, Any]:
    """Return how columns are encoded: numbers by their bytes or differences, then zstd."""
    pa = pyarrow()
    encodings = {}
    for field in schema:
        if pa.types.is_floating(field.type):
            encodings[field.name] = "BYTE_STREAM_SPLIT"
        elif field.type in (pa.int64(), pa.int32()) and field.name != "run_id":
            encodings[field.name] = "DELTA_BINARY_PACKED"
    return {
        "compression": "zstd",
        "column_encoding": encodings,
        "use_dictionary": ["run", "run_id"],
        # What engines skip segments by; those of each key would make footers larger.
        "write_statistics": ["run", "row", "step", "time"],
        "write_page_checksum": True,
        # Only lists need it, to be arrays of a fixed size in polars.
        "store_schema": any(pa.types.is_fixed_size_list(f.type) for f in schema),
    }


def _names_of(ids: np.ndarray, run_names: Mapping[int, str]) -> "pa.Array":
    pa = pyarrow()
    # Each name once, and then its number for each row: there may be millions of rows.
    unique, inverse = np.unique(ids, return_inverse=True)
    names = pa.array([run_names.get(id) for id in unique.tolist()], pa.string())
    return names.take(pa.array(inverse.reshape(-1)))


def _to_arrow(array: np.ndarray) -> "pa.Array":
    pa = pyarrow()
    plain = to_stored(array)
    if plain.dtype == np.float16:  # which few engines know
        plain = plain.astype(np.float32)
    values = pa.array(plain.reshape(-1))
    for size in reversed(plain.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, size)
    return values


def _from_arrow(chunks: "pa.ChunkedArray", rows: int, column: Column) -> np.ndarray | None:
    pa = pyarrow()
    values = chunks.combine_chunks() if chunks.num_chunks != 1 else chunks.chunk(0)
    while pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):
        values = values.flatten()
    dtype = dtype_named(column.dtype)
    plain = to_stored(np.zeros((0, *column.shape), dtype))
    # lox writes no nulls into the columns of a group: this is not what was written.
    if values.null_count:
        return None
    array = values.to_numpy(zero_copy_only=False).astype(plain.dtype, copy=False)
    return from_stored(np.ascontiguousarray(array.reshape(rows, *plain.shape[1:])), dtype)
