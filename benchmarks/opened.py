"""What runs cost: configurations ÷ none, and records with the time ÷ with a constant.

Runs are opened under `vmap` in a store, with a name made from the configuration. A record
is a number that a tapped scan sends to a logger whose writer does nothing.
"""

import contextlib
import itertools as it
import pathlib
import tempfile
import types
from unittest import mock

import jax
import jax.numpy as jnp
from _measure import Figure, compare, table

import lox
from lox.loggers import Logger, SaveLogger
from lox_host import write_buffer

RUNS = 1024
RECORDS = 2000


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        return [*opened(pathlib.Path(folder)), stamped()]


def opened(folder):
    """Open runs with configurations of their own, and without."""
    rates = jnp.linspace(1e-4, 1e-1, RUNS)
    with SaveLogger(folder / "with") as ours, SaveLogger(folder / "without") as theirs:
        # Each call has other keys, so that it opens other runs.
        call = it.count()

        def with_config(seed, rate):
            config = {"rate": rate, "env": "CartPole"}
            return ours.init(seed, config=config, name="rate={rate:g}-{index}")

        starts = jax.jit(jax.vmap(with_config)), jax.jit(jax.vmap(theirs.init))

        def seeds():
            return next(call) * RUNS + jnp.arange(RUNS)

        yield compare(
            f"opening {RUNS:,} runs with configurations ÷ without",
            lambda: jax.block_until_ready(starts[0](seeds(), rates)),
            lambda: jax.block_until_ready(starts[1](seeds())),
            goal="≤ 1.2",
        )


def stamped():
    """Send records with the time of arrival, and with a constant."""
    logger = Logger(Nothing())
    run = logger.init(0)
    program = jax.jit(logger.tap(logs, run))

    def send():
        program(jnp.arange(RECORDS))
        lox.barrier()

    def send_without_time():
        with without_clock():
            send()

    figure = compare(
        "a record with its time ÷ with a constant", send, send_without_time, goal="≤ 1.02"
    )
    logger.finish(run)
    return figure


def logs(xs):
    def body(carry, x):
        lox.log({"x": x}, step=x)
        return carry, None

    return jax.lax.scan(body, 0, xs)[0]


def without_clock() -> contextlib.AbstractContextManager:
    """Have the buffer of loggers stamp all records with 0."""
    clock = types.SimpleNamespace(**vars(write_buffer.time))
    clock.time = float
    return mock.patch.object(write_buffer, "time", clock)


class Nothing:
    """A writer that does nothing."""

    def open(self, run):
        pass

    def write(self, batch):
        pass

    def flush(self):
        pass

    def close(self, run):
        pass


if __name__ == "__main__":
    print(table(figures()))
