"""Each example runs by itself, at small size, and writes what it says it does.

An example takes `--quick`, and writes only into the folder `--out`, the current one by
default. What is special to one of them is in `CHECKS`, under its name.
"""

import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lox

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# No window, and less of what takes XLA most of its time.
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "MPLBACKEND": "agg",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}


def ppo(out: Path, text: str) -> None:
    """Seeds in a store, which learn: the last returns are better than the first."""
    table = re.findall(r"^ +(\d+) +([\d.]+) +([\d.]+)$", text, re.MULTILINE)
    assert len(table) == len(lox.runs(out / "runs")) == 3
    first, last = np.array(table, float).T[1:]
    assert (last > 1.5 * first).all()
    assert lox.load(out / "runs", "loss/value", key=2)["loss/value"].shape == (40 * 16,)


CHECKS: dict[str, Callable[[Path, str], None]] = {"ppo": ppo}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path):
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    elsewhere.mkdir(), out.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), "--quick", "--out", str(out)],
        cwd=elsewhere,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert not list(elsewhere.iterdir())
    assert not re.search(r"\b(nan|inf)\b", done.stdout, re.IGNORECASE), done.stdout
    for picture in out.rglob("*.png"):
        assert_picture(picture)
    CHECKS.get(path.stem, lambda *_: None)(out, done.stdout)


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
