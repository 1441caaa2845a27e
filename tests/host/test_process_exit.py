"""The end of the process where the system is not POSIX."""

import subprocess
import sys

WITHOUT_FORK = """
import os, sys, jax
del os.fork, os.register_at_fork
import lox
with lox.loggers.SaveLogger(sys.argv[1]) as logger:
    state = logger.init(jax.random.key(0))
    logger.log(state, {"x": 1.5})
print(lox.load(sys.argv[1]))
"""


def test_lox_works_where_processes_cannot_fork(tmp_path):
    command = [sys.executable, "-c", WITHOUT_FORK, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "{'x': 1.5}\n", done.stderr
