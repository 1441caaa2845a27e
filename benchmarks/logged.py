"""What a logger costs: a training loop that logs to it ÷ the same without logs.

A step takes about a millisecond, so there are about a thousand records per second, each
with two numbers and a step. Time ends when everything has reached the writer's thread.
"""

import io
import tempfile

import jax
import jax.numpy as jnp
from _measure import Figure, compare, table

import lox
from lox.loggers import ConsoleLogger, CSVLogger, JSONLogger, SaveLogger

STEPS = 300
SIZE = 384


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        save = SaveLogger(folder)
        return [
            figure("SaveLogger.tap", save, "≤ 1.1"),
            figure("SaveLogger.tap(batch=100)", save, "≤ 1.1", batch=100),
            figure("SaveLogger.spool", save, "≤ 1.1", way="spool"),
            figure("CSVLogger.tap", CSVLogger(f"{folder}/csv"), ""),
            figure("JSONLogger.tap", JSONLogger(f"{folder}/json"), ""),
            figure("ConsoleLogger.tap", ConsoleLogger(file=io.StringIO()), ""),
        ]


def figure(name, logger, goal, *, way="tap", **options) -> Figure:
    state = logger.init(jax.random.key(0))
    x = jnp.full((SIZE, SIZE), 1 / SIZE)

    @jax.jit
    def logs(state, x):
        return getattr(logger, way)(train, state, **options)(x)

    silent = jax.jit(lox.nolog(train))
    measured = compare(
        f"{name} ÷ no logs", lambda: sent(logs(state, x)), lambda: silent(x), goal=goal
    )
    logger.finish(state)
    return measured


def train(x):
    def step(x, i):
        x = jnp.tanh(x @ x)
        lox.log({"mean": x.mean(), "max": x.max()}, step=i)
        return x, None

    return jax.lax.scan(step, x, jnp.arange(STEPS))[0]


def sent(out):
    jax.effects_barrier()
    return out


if __name__ == "__main__":
    print(table(figures()))
