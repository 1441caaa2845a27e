"""What text files of runs have in common."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from lox_host.writers._files import candidates

PROGRAM = """
import os, sys
import numpy as np
from support.blocks import block, run
from lox.loggers import Batch
from lox_host.writers.csv import CSVWriter
from lox_host.writers.json import JSONWriter

for writer in CSVWriter(sys.argv[1]), JSONWriter(sys.argv[1]):
    writer.open(run())
    for i in range(10):
        writer.write(Batch([block({"x": np.arange(100) + 100 * i})]))
        writer.flush()
    writer.write(Batch([block({"x": np.arange(100)})]))
os.kill(os.getpid(), 9)
"""


def test_what_was_flushed_survives(tmp_path):
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path], env={**os.environ, "PYTHONPATH": path}
    )
    assert process.returncode == -signal.SIGKILL
    lines = (tmp_path / "run-0.jsonl").read_text().splitlines()
    assert [json.loads(line)["x"] for line in lines] == list(range(1000))
    with (tmp_path / "run-0.csv").open(newline="") as file:
        assert [row["x"] for row in csv.DictReader(file)] == list(map(str, range(1000)))


def test_names_that_are_taken_are_followed_by_others():
    names = candidates("a")
    assert [next(names) for _ in range(3)] == ["a", "a-2", "a-3"]
