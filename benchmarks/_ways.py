"""The ways in which the metrics of a program can leave it."""

import dataclasses
import sys
import tempfile
from collections.abc import Callable
from unittest import mock

import jax
from cases import Case, ignore

BARE, HAND, CALLBACK = "no logs", "by hand", "jax.debug.callback"


@dataclasses.dataclass(frozen=True)
class Way:
    """How the metrics of a case leave it.

    Attributes:
        name: What it is called in the tables.
        make: From a case and a number of steps to a new program of one seed, which JAX
            has not seen before.
        wait: Returns when all that was streamed has arrived.
        state: From the keys to what the program takes as its first argument.
    """

    name: str
    make: Callable[[Case, int], Callable]
    wait: Callable[[], None] = ignore
    state: Callable | None = None

    def jitted(self, case: Case, steps: int, seeds: int) -> Callable:
        return jax.jit(case.over_seeds(self.make(case, steps), seeds))

    def args(self, case: Case, seeds: int) -> tuple:
        keys = case.keys(seeds)
        if self.state is None:
            return (keys,)
        return case.over_seeds(self.state, seeds)(keys), keys

    def subject(self, case: Case, steps: int, seeds: int | None = None) -> "Subject":
        seeds = seeds or case.seeds
        return Subject(self, case, steps, seeds, self.args(case, seeds))


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program to be measured, with its arguments."""

    way: Way
    case: Case
    steps: int
    seeds: int
    args: tuple

    def lower(self):
        """Trace it again, and return what the compiler takes."""
        return self.way.jitted(self.case, self.steps, self.seeds).lower(*self.args)

    def compile(self):
        return self.lower().compile()

    def runner(self, program: Callable) -> Callable[[], object]:
        """Runs it, compiled, until everything has arrived."""

        def run():
            out = jax.block_until_ready(program(*self.args))
            self.way.wait()
            return out

        return run


class Calls:
    """Counts host calls."""

    def __init__(self):
        self.number = 0

    def hear(self, *args, **options) -> None:
        self.number += 1

    def of(self, run: Callable) -> int:
        """How many calls a run makes."""
        run()
        before = self.number
        run()
        return self.number - before


called = Calls()


def with_callback(metrics, *, reduce=None):
    jax.debug.callback(called.hear, metrics)


PLAIN = [
    Way(BARE, lambda case, steps: case.logged(ignore, steps)),
    Way(HAND, lambda case, steps: case.by_hand(steps)),
    Way(
        CALLBACK,
        lambda case, steps: case.logged(with_callback, steps),
        jax.effects_barrier,
    ),
]


def ways_of_lox() -> list[Way]:
    import lox

    logger = lox.loggers.SaveLogger(tempfile.mkdtemp(prefix="lox-bench-"))

    def spooled(**options):
        return lambda case, steps: lox.spool(
            case.logged(lox.log, steps), **options, capacity=case.capacity
        )

    def tapped(**options):
        return lambda case, steps: lox.tap(case.logged(lox.log, steps), ignore, **options)

    def saved(transform, **options):
        def make(case, steps):
            fun = case.logged(lox.log, steps)
            return lambda state, key: transform(fun, state, **options)(key)

        return make

    def saved_after(case, steps):
        return saved(logger.spool, capacity=case.capacity)(case, steps)

    return [
        Way("lox.nolog", lambda case, steps: lox.nolog(case.logged(lox.log, steps))),
        Way("lox.spool", spooled()),
        Way('lox.spool(reduce="mean")', spooled(reduce="mean")),
        Way("lox.spool(interval=10)", spooled(interval=10)),
        Way("lox.tap", tapped(), lox.barrier),
        Way("lox.tap(batch=100)", tapped(batch=100), lox.barrier),
        Way("SaveLogger.spool", saved_after, lox.barrier, logger.init),
        Way(
            "SaveLogger.tap(batch=100)",
            saved(logger.tap, batch=100),
            lox.barrier,
            logger.init,
        ),
    ]


def all_ways() -> dict[str, Way]:
    return {way.name: way for way in (*PLAIN, *ways_of_lox())}


def host_calls(run: Callable) -> int:
    """How many host calls a run makes, of lox or of what calls `called.hear`."""
    emitting = sys.modules.get("lox._stream.emit")
    if emitting is None:
        return called.of(run)
    packet = emitting.Packet

    def counted(*args):
        called.hear()
        return packet(*args)

    # One is made for each host call, of whatever kind.
    with mock.patch.object(emitting, "Packet", counted):
        return called.of(run)
