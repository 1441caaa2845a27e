"""What is asked of a picture in a file."""

import struct
import zlib
from pathlib import Path


def assert_picture(path: Path) -> None:
    """Check that a PNG file is complete, and not of a single colour."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, pixels, kinds = 8, b"", []
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert check == zlib.crc32(kind + body)
        kinds.append(kind)
        pixels += body if kind == b"IDAT" else b""
        at += 12 + size
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    assert len(set(zlib.decompress(pixels))) > 8
