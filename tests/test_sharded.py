"""What needs eight devices: `tests/sharded` and a page, each in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
FILES = [
    *sorted((HERE / "sharded").glob("test_*.py")),
    HERE.parent / "docs/many-devices.md",
]


@pytest.mark.long
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_on_eight_devices(path):
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", path]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600
    )

    assert done.returncode == 0, done.stdout + done.stderr
