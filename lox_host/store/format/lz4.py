"""Compress columns that repeat, in the LZ4 frame format, which readers of Arrow know.

Python has no LZ4. But a column with a pattern is easy: most numbers are the same as some
number of rows before. LZ4 describes data as sequences of literals and matches, and a match
copies what was there a certain number of bytes before:

    7 7 7 7 9 9 9 9       literal 7, match 3 from 1 before, literal 9, match 3 from 1 before
    0 1 2 0 1 2 0 1 2     literal 0 1 2, match 6 from 3 before

Row numbers, 0 1 2 3 ... in 8 bytes each, get a sequence for each of them: a literal for the
lowest bytes, and a match for the others. lox never decompresses this, as the journal has
the pattern. It is for other programs.

See https://github.com/lz4/lz4/tree/dev/doc for the format of frames and blocks.
"""

import struct

import numpy as np

from lox_host.store.format.column_pattern import Pattern

# The mark, the version with independent blocks, blocks of 4 MB, and the checksum of these.
_HEADER = b"\x04\x22\x4d\x18\x60\x70\x73"
_END = bytes(4)
_BLOCK = 4 << 20
# A match copies from at most so many bytes before, and has at least 4 bytes. The last match
# begins 12 bytes before the end of a block, and the last 5 bytes are literals.
_FAR, _LEAST, _REST = 65535, 4, 12
# With more sequences than this, Python takes longer than the disk.
_SEQUENCES = 20_000


def compress(column: np.ndarray, pattern: Pattern) -> bytes | None:
    """Return a column with a pattern as an LZ4 frame, or None if that is not worth it."""
    if pattern.step == 1 and pattern.each == len(column) and column.dtype.itemsize == 8:
        blocks = _count_up(column.view(np.int64))
    else:
        blocks = _repeat(column.view(f"u{column.itemsize}"), pattern)
    if blocks is None:
        return None
    framed = [struct.pack("<I", len(block)) + block for block in blocks]
    return b"".join([_HEADER, *framed, _END])


def _repeat(column: np.ndarray, pattern: Pattern) -> list[bytes] | None:
    """Return blocks in which all matches copy from the same number of rows before."""
    size = column.itemsize
    possible = (1, pattern.each, len(column) // pattern.times)
    distances = [d for d in possible if d * size <= _FAR and d < len(column)]
    if not distances:
        return None
    same = {d: column[d:] == column[:-d] for d in distances}
    distance = max(distances, key=lambda d: np.count_nonzero(same[d]))
    changes = len(column) - distance - np.count_nonzero(same[distance])
    if changes > _SEQUENCES or 4 * changes > len(column):
        return None
    length = _BLOCK // size
    return [
        _block(column[i : i + length], same[distance][i : i + length - distance], distance)
        for i in range(0, len(column), length)
    ]


def _block(column: np.ndarray, same: np.ndarray, distance: int) -> bytes:
    """Return a block of a column, where `same` says which rows are as those before."""
    size, data = column.itemsize, column.tobytes()
    offset = struct.pack("<H", distance * size)
    # Where matches begin and end, in rows.
    edges = np.flatnonzero(np.diff(same, prepend=False, append=False)) + distance
    out, done = [], 0
    for start, end in (edges.reshape(-1, 2) * size).tolist():
        end = min(end, len(data) - _REST)
        if end - start < _LEAST or start > len(data) - _REST:
            continue
        literal, match = start - done, end - start - _LEAST
        out.append(bytes([min(literal, 15) << 4 | min(match, 15)]))
        out += [_more(literal), data[done:start], offset, _more(match)]
        done = end
    rest = len(data) - done
    return b"".join([*out, bytes([min(rest, 15) << 4]), _more(rest), data[done:]])


def _more(length: int) -> bytes:
    """Return the bytes that follow a length in a token, which has room for 15."""
    if length < 15:
        return b""
    whole, rest = divmod(length - 15, 255)
    return b"\xff" * whole + bytes([rest])


def _count_up(numbers: np.ndarray) -> list[bytes] | None:
    """Return blocks of numbers that grow by one.

    Mostly only the lowest byte changes, and the other seven match those of the number
    before. So all groups of 256 numbers look alike: four bytes of the first one are
    literals, as several may change there, and then one byte of each of the others.
    """
    if numbers[0] >> 32 != numbers[-1] >> 32:
        return None  # the upper four bytes change
    parts = (numbers[i : i + _BLOCK // 8] for i in range(0, len(numbers), _BLOCK // 8))
    return [_count_up_block(part) for part in parts]


def _count_up_block(numbers: np.ndarray) -> bytes:
    # Whole groups begin at a multiple of 256. There is a number before the first of them,
    # and there are two after the last.
    start = 1 + int(-(numbers[0] + 1) % 256)
    count = (len(numbers) - 2 - start) // 256
    data = numbers.view(np.uint8).reshape(-1, 8)
    if count < 1:
        return _literals(data.tobytes())
    others = np.zeros((255, 4), np.uint8)
    others[:] = 0x13, 0, 8, 0
    others[:, 1] = np.arange(1, 256)
    group = np.concatenate([np.array([0x40, 0, 0, 0, 0, 8, 0], np.uint8), others.ravel()])
    groups = np.tile(group, (count, 1))
    groups[:, 1:5] = data[start : start + 256 * count : 256, :4]
    # The numbers before the first group are literals in its first sequence.
    front = data[: start + 1].tobytes()[:-4]
    first = _literals(front)
    rest = data[start + 256 * count :].tobytes()
    return first + groups.tobytes()[5:] + _literals(rest)


def _literals(data: bytes) -> bytes:
    return bytes([min(len(data), 15) << 4]) + _more(len(data)) + data
