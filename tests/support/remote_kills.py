"""Kill writers of object storage at any moment, disturb the network, and count the rows.

Each writer is a process of its own (`remote_writer.py`) that is killed with SIGKILL at a
random time, as are some of those that upload what it left. Meanwhile the server is stopped,
slowed down, refuses, throttles, or cuts connections off after it has stored an object. At
the end, everything that is left is pushed, and the objects are read with pyarrow alone:
each row that a writer had flushed must be there, and none twice.
"""

import dataclasses
import io
import os
import pathlib
import random
import subprocess
import sys
import time
from collections import Counter

import pyarrow.parquet as pq

from support.object_server import REPO, environment

WRITER = pathlib.Path(__file__).parent / "remote_writer.py"
PUSH = "import sys; from lox_host.remote import push_others; push_others(sys.argv[1])"
MODES = ("stop", "refuse", "throttle", "slow", "cut", "no bucket")


@dataclasses.dataclass
class Tally:
    """What was done, and what came of it."""

    kills: int = 0
    killed_pushes: int = 0
    interruptions: Counter = dataclasses.field(default_factory=Counter)
    closed: int = 0
    rows: int = 0
    flushed: int = 0
    lost: int = 0
    twice: int = 0

    @property
    def disturbances(self):
        return self.kills + self.killed_pushes + sum(self.interruptions.values())


def disturb(server, proxy, url, folder, *, disturbances, seed=0, at_once=3):
    """Write, kill and disturb until there were so many of it, and return the tally."""
    random_, tally = random.Random(seed), Tally()
    env = {**os.environ, **environment(proxy.url, folder), "PYTHONPATH": REPO}
    env["PYTHONWARNINGS"] = "ignore"
    noted, number = [], 0
    while tally.disturbances < disturbances:
        writers = []
        for _ in range(at_once):
            noted.append(folder / f"noted-{number}")
            command = [sys.executable, WRITER, url, str(number), "100000", noted[-1]]
            writers.append(subprocess.Popen(command, env=env))
            number += 1
        _wait_for(noted[-at_once:])
        for process in writers:
            time.sleep(random_.uniform(0.05, 0.5))
            if random_.random() < 0.5:
                _interrupt(proxy, random_.choice(MODES), random_.uniform(0.1, 0.6), tally)
            process.kill()
            process.wait()
            tally.kills += 1
        if random_.random() < 0.3:
            push = subprocess.Popen([sys.executable, "-c", PUSH, url], env=env)
            time.sleep(random_.uniform(0.5, 1.5))
            push.kill()
            push.wait()
            tally.killed_pushes += 1
    # One that ends by itself, on the machine where all the others were killed.
    noted.append(folder / f"noted-{number}")
    command = [sys.executable, WRITER, url, str(number), "500", noted[-1]]
    tally.closed += not subprocess.run(command, env=env, check=True).returncode
    subprocess.run([sys.executable, "-c", PUSH, url], env=env, check=True)
    _count(url, noted, tally)
    return tally


def _wait_for(files):
    deadline = time.monotonic() + 60
    while not all(file.exists() and file.stat().st_size for file in files):
        assert time.monotonic() < deadline, "A writer does not begin."
        time.sleep(0.02)


def _interrupt(proxy, mode, seconds, tally):
    tally.interruptions[mode] += 1
    if mode == "stop":
        proxy.stop()
    else:
        proxy.mode = mode
    time.sleep(seconds)
    proxy.mode = ""
    proxy.start()


def _count(url, noted, tally):
    """Compare what is in the bucket with what the writers had flushed."""
    from lox_host.remote import Bucket

    bucket, found = Bucket(url), {}
    for entry in bucket.objects("rows"):
        table = pq.read_table(io.BytesIO(bucket.get(entry.path)[0]))
        for run, step in zip(
            table["run"].to_pylist(), table["step"].to_pylist(), strict=True
        ):
            found.setdefault(run, Counter())[step] += 1
    for number, file in enumerate(noted):
        lines = [line for line in file.read_text().split("\n")[:-1] if line != "closed"]
        flushed, steps = int(lines[-1]), found.get(f"run-{number}", Counter())
        tally.rows += len(steps)
        tally.flushed += flushed
        tally.lost += sum(step not in steps for step in range(max(flushed, len(steps))))
        tally.twice += sum(count - 1 for count in steps.values())
