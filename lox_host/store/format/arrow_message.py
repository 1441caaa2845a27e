"""The header of a record batch in an Arrow IPC stream, as a flatbuffer.

A message of a stream is a mark (4 bytes), the length of its header, the header, and the
body with the buffers of all arrays, each padded to 8 bytes. nanoarrow encodes whole
messages, which copies the arrays several times. With the header alone, a frame is written
straight from the arrays.

A flatbuffer consists of tables. In front of a table there is a list of where its fields
are, and fields that are not numbers are the distance to where they are. This is where
everything is, in bytes:

     0  where the message is                                 16
     4  the fields of the message, then itself               version, header, bodyLength
    40  the fields of the record batch, then itself          length, nodes, buffers
    76  how many nodes, then 16 bytes for each               length, nulls
     n  how many buffers, then 16 bytes for each             offset, length
     m  the fields of the compression, then itself           none

See https://arrow.apache.org/docs/format/Columnar.html and `format/Message.fbs` there.
"""

import struct
from collections.abc import Sequence

import numpy as np

# Everything before the nodes. The numbers that differ are filled in.
_HEAD = struct.Struct(
    "<I"  # where the message is
    "HHHHHH"  # its fields: their size, its size, version, kind, header, bodyLength
    "iIqhBx4x"  # where its fields are, header, bodyLength, version 5, kind 3
    "HHHHHH"  # the fields of the record batch
    "iqIII"  # where its fields are, length, nodes, buffers, compression
)
_MARK = b"\xff\xff\xff\xff"


def record_batch(
    rows: int,
    nodes: Sequence[tuple[int, int]],
    buffers: Sequence[int],
    *,
    is_compressed: bool = False,
) -> bytes:
    """Return what comes before the body of a record batch in a stream.

    Args:
        rows: The number of rows.
        nodes: The length of each array and how many nulls it has, parents first.
        buffers: The sizes of all buffers, without padding.
        is_compressed: Whether buffers are LZ4 frames. Each of them begins with the size of
            what is in there in 8 bytes, or with -1 if it is not compressed.
    """
    sizes = np.array(buffers, np.int64)
    padded = sizes + -sizes % 8
    ends = np.cumsum(padded)
    body = int(ends[-1]) if len(ends) else 0
    at_buffers = 84 + 16 * len(nodes)
    # A table that has no fields, as LZ4 for each buffer is the default of them.
    at_compression = at_buffers + 4 + 16 * len(buffers) + 4
    head = _HEAD.pack(
        *(16, 12, 20, 16, 18, 4, 8),
        *(12, 32, body, 4, 3),
        *(12, 24, 4, 12, 16, 20 if is_compressed else 0),
        # A distance counts from the field that holds it.
        *(12, rows, 76 - 64, at_buffers - 68, at_compression - 72),
    )
    all_buffers = np.stack([ends - padded, sizes], 1).astype("<i8")
    parts = [head, struct.pack("<I", len(nodes)), np.array(nodes, "<i8").tobytes()]
    parts += [bytes(4), struct.pack("<I", len(buffers)), all_buffers.tobytes()]
    parts += [struct.pack("<HHi", 4, 4, 4)]
    header = b"".join(parts)
    header += bytes(-len(header) % 8)
    return _MARK + struct.pack("<i", len(header)) + header
