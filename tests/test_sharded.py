"""What is in `tests/sharded`, on eight devices: each file in a process of its own."""

import os
import pathlib
import subprocess
import sys

import pytest

FILES = sorted((pathlib.Path(__file__).parent / "sharded").glob("test_*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_on_eight_devices(path):
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", path]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600
    )

    assert done.returncode == 0, done.stdout + done.stderr
