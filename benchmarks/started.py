"""What starting costs: the processor time of `import lox` and of commands ÷ without lox.

Processes take turns, each with bytecode. `import jax` and `import numpy` are the floors:
lox needs JAX, and every command that reads numbers needs NumPy.
"""

import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

from _measure import Figure, quartiles, table

import lox

ROUNDS = 20
COMMAND = "import sys; from lox_host.cli.main import main; sys.exit(main(sys.argv[1:]))"


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        store = pathlib.Path(folder) / "store"
        lox.save(lox.logdict({"loss": 0.5}, step={"loss": 3}), store)
        programs = {
            "python": ["pass"],
            "numpy": ["import numpy"],
            "jax": ["import jax"],
            "lox": ["import jax, lox"],
            "help": [COMMAND, "--help"],
            "ls": [COMMAND, "ls", str(store)],
        }
        seconds = processor_times(programs, folder)
    return [
        added("import jax, lox ÷ import jax", seconds, "lox", "jax", "≤ 40 ms more"),
        added("lox --help ÷ python", seconds, "help", "python", "≤ 150 ms"),
        added("lox ls ÷ import numpy", seconds, "ls", "numpy", "≤ 150 ms"),
    ]


def added(name, seconds, ours, theirs, goal):
    pairs = list(zip(seconds[ours], seconds[theirs], strict=True))
    low, median, high = quartiles([a / b for a, b in pairs])
    a, b = (1e3 * statistics.median(seconds[which]) for which in (ours, theirs))
    more = 1e3 * statistics.median(a - b for a, b in pairs)
    note = f"{a:.0f} ms ÷ {b:.0f} ms, {more:.0f} ms more"
    return Figure(name, median, goal, note, quartiles=(low, high))


def processor_times(programs, folder):
    """The seconds of the processor that each program takes, by round."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    found = {name: [] for name in programs}
    for i in range(-1, ROUNDS):  # the first round writes the bytecode
        for name, arguments in programs.items():
            seconds = processor_time([sys.executable, "-c", *arguments], environment)
            if i >= 0:
                found[name].append(seconds)
    return found


def processor_time(command, environment):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    print(table(figures()))
