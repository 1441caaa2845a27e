"""A process that writes a run to object storage, without JAX, until it is killed.

    python remote_writer.py URL SEED ROWS FILE

It writes rows 0, 1, 2, ... and notes in FILE, after each flush, how many there are: what is
noted there must never be lost.
"""

import os
import sys
import time

import numpy as np

from lox_host.rows import Batch, Block, Form
from lox_host.runs.run import Run
from lox_host.writers.save_remote import RemoteSaveWriter


def block(run, first, rows):
    """Rows `first`, `first + 1`, ... of a run, whose loss is their number."""
    numbers = np.arange(first, first + rows)
    return Block(
        runs=np.full(rows, run, np.int32),
        steps={"step": numbers},
        values={"loss": numbers.astype(np.float32)},
        forms={"loss": Form(time=True)},
        time=np.full(rows, time.time()),
    )


def main(url, seed, rows, noted):
    run = Run(1, f"run-{seed}", (int(seed),), {"lr": 0.1}, time.time(), "g", 0, "0" * 8)
    writer = RemoteSaveWriter(url)
    writer.open(run)
    file = os.open(noted, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for first in range(0, int(rows), 10):
        writer.write(Batch([block(run.id, first, 10)]))
        writer.flush()
        os.write(file, f"{first + 10}\n".encode())
        time.sleep(0.005)
    writer.close(run)
    os.write(file, b"closed\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
