"""What a Python loop costs: 200 calls of a small jitted step that logs ÷ without logs.

Each step logs two numbers. It is over when everything has been delivered to callbacks, and
sent to the threads of loggers. The processor time includes what these threads do.
"""

import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
from _measure import Figure, compare, quartiles, table

import lox
from lox.loggers import SaveLogger

CALLS = 200
ROUNDS = 20
SIZE = 128
# How many microseconds of the processor a call may add.
GOALS = {
    "tap": 60,
    "SaveLogger.tap": 80,
    "SaveLogger.spool": 150,
    "SaveLogger.log of three numbers": 60,
}


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        logger = SaveLogger(folder)
        run = logger.init(0)
        jitted = jax.jit(step)
        ways = {
            "by hand": by_hand(),
            "spool": lambda x: lox.spool(jitted)(x)[0],
            "tap": lox.tap(jitted, ignore),
            "tap(batch=100)": lox.tap(jitted, ignore, batch=100),
            "SaveLogger.tap": logger.tap(jitted, run),
            "SaveLogger.spool": logger.spool(jitted, run),
            "SaveLogger.log of three numbers": log_three(logger, run),
            "jax.debug.callback": jax.jit(calls_back),
        }
        silent = jax.jit(lox.nolog(step))
        found = [
            compare(f"{name} ÷ no logs", loop(way), loop(silent), goal="")
            for name, way in ways.items()
        ]
        for name, goal in GOALS.items():
            found.append(processor_time(name, ways[name], silent, goal))
        logger.finish(run)
    return found


def processor_time(name, way, silent, goal):
    """What a call takes of the processor, on all threads, and how much of it lox adds."""
    pairs = []
    for _ in range(ROUNDS):
        seconds = []
        for run in (loop(way), loop(silent)):
            before = time.process_time()
            run()
            lox.barrier()
            seconds.append((time.process_time() - before) / CALLS)
        pairs.append(seconds)
    low, median, high = quartiles([ours / theirs for ours, theirs in pairs])
    ours, theirs = (1e6 * statistics.median(each) for each in zip(*pairs, strict=True))
    note = f"{ours:.0f} µs ÷ {theirs:.0f} µs, {ours - theirs:.0f} µs more"
    name = f"{name} ÷ no logs, processor"
    return Figure(name, median, f"≤ {goal} µs more", note, quartiles=(low, high))


def loop(call):
    def run():
        x = jnp.full((SIZE, SIZE), 1 / SIZE)
        for _ in range(CALLS):
            x = call(x)
        lox.barrier()
        return x

    return run


def step(x):
    x = jnp.tanh(x @ x)
    lox.log({"mean": x.mean(), "max": x.max()})
    return x


def by_hand():
    @jax.jit
    def with_metrics(x):
        x = jnp.tanh(x @ x)
        return x, {"mean": x.mean(), "max": x.max()}

    kept = []

    def call(x):
        x, metrics = with_metrics(x)
        kept.append(metrics)
        return x

    return call


def log_three(logger, run):
    silent = jax.jit(lox.nolog(step))

    def call(x):
        logger.log(run, {"a": 1.0, "b": 2.0, "c": 3.0})
        return silent(x)

    return call


def calls_back(x):
    x = jnp.tanh(x @ x)
    jax.debug.callback(ignore, x.mean(), x.max())
    return x


def ignore(*_):
    pass


if __name__ == "__main__":
    print(table(figures()))
