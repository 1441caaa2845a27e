"""Processes that write to a store, to be killed or read from meanwhile. Run as a script."""

import os
import pathlib
import random
import signal
import struct
import sys
import time

import numpy as np

from lox.loggers import Batch, Block, Form, Run
from lox_host.writers.save import SaveWriter


def run(number: int, *, id: int = 0) -> Run:
    return Run(id, f"run-{number}", (number,), {"lr": 0.1}, 1e9 + number, "group")


def values(steps: np.ndarray) -> dict[str, np.ndarray]:
    """What is logged at a step: anybody can tell whether it is right."""
    steps = np.asarray(steps)
    return {
        "x": np.sin(steps).astype(np.float32),
        "y": np.stack([steps, -steps], -1).astype(np.int64),
    }


def block(steps, *, id: int = 0, split: bool = False) -> Block:
    """Rows of both keys, or of `x` alone with another step beside."""
    steps = np.asarray(steps, np.int32)
    own = values(steps)
    own = {"x": own["x"]} if split else own
    more = {"epoch": steps // 10} if split else {}
    forms = {key: Form(time=True) for key in own}
    runs, times = np.full(len(steps), id, np.int32), 1e9 + steps
    return Block(runs, {"step": steps, **more}, own, forms, time=times)


def write_forever(path: str, acknowledge: int) -> None:
    """Sessions of 40 rows, one row a flush, and after each flush a word of it."""
    for number in range(10**6):
        writer = SaveWriter(path)
        writer.open(run(number))
        for i in range(40):
            writer.write(Batch([block([i], split=i % 7 == 3)]))
            writer.flush()
            os.write(acknowledge, struct.pack("ii", number, i + 1))
        writer.close(run(number))


def kill(path: pathlib.Path, times: int) -> None:
    """Kill a process that writes, over and over; keep how much each had acknowledged."""
    moment = random.Random(0)
    for i in range(times):
        receive, send = os.pipe()
        child = os.fork()
        if not child:
            write_forever(str(path / str(i)), send)
        os.close(send)
        os.read(receive, 8)
        time.sleep(moment.uniform(0, 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said = b""
        while more := os.read(receive, 1 << 20):
            said += more
        os.close(receive)
        (path / f"{i}.acknowledged").write_bytes(said)


def write_two(path: pathlib.Path) -> None:
    """Two processes write to one path at once, each its own run."""
    children = []
    for number in range(2):
        child = os.fork()
        if not child:
            write_run(path, number)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def write_run(path: pathlib.Path, number: int) -> None:
    writer = SaveWriter(path)
    writer.open(run(number))
    for i in range(200):
        writer.write(Batch([block([i])]))
        writer.flush()
        time.sleep(0.002)
    writer.close(run(number))
    os._exit(0)


if __name__ == "__main__":
    command, where = sys.argv[1:]
    {"kill": lambda path: kill(path, 40), "two": write_two}[command](pathlib.Path(where))
