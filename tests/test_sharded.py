"""What needs eight devices: `tests/sharded` and a page, in two processes of their own."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
LARGEST = HERE / "sharded" / "test_shard_map.py"
OTHERS = {*(HERE / "sharded").glob("test_*.py"), HERE.parent / "docs/many-devices.md"}
PARTS = {"shard_map": [LARGEST], "others": sorted(OTHERS - {LARGEST})}


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_on_eight_devices(part):
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "8"}
    done = subprocess.run(
        [*command, *PARTS[part]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stdout + done.stderr
