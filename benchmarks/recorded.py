"""What it costs to wait for trouble: a recorder, or `tap(when=...)`, when nothing fires.

Each record has 20 scalars, and the recorder keeps the last 64 of them. The host is never
called. To compute the metrics costs something, too, whoever gets them: so programs are
compared with the same ones without logs, and with their metrics carried by hand.
"""

import itertools as it
from collections.abc import Callable

import jax
from _measure import Figure, compare, table
from cases import CASES, Case, ignore

import lox

SCALARS, KEEP = 20, 64
PROGRAMS = "ppo", "transformer", "mlp"
GOAL = "1.05"


def figures() -> list[Figure]:
    found = []
    for case in (CASES[name] for name in PROGRAMS):
        others = {
            "no logs": case.logged(ignore, case.steps),
            "by hand": case.by_hand(case.steps),
        }
        for (name, way), (other, fun) in it.product(WAYS.items(), others.items()):
            title = f"{name}, {case.name} ÷ {other}"
            found.append(compared(title, case, way, fun))
    return found


def calls(recording: object) -> None:
    raise AssertionError(f"The host was called: {recording}")


WAYS = {
    "recorder": lambda f: lox.recorder(f, keep=KEEP, then=calls),
    "tap(when=nonfinite)": lambda f: lox.tap(f, calls, when=lox.nonfinite),
}


def compared(title: str, case: Case, way: Callable, other: Callable) -> Figure:
    logged = way(case.logged(log_many, case.steps))
    programs = [jax.jit(case.over_seeds(fun)) for fun in (logged, other)]
    keys = case.keys()
    ours, theirs = (
        lambda program=program: jax.block_until_ready(program(keys)) for program in programs
    )
    return compare(title, ours, theirs, goal=GOAL)


def log_many(data: dict, **options) -> None:
    """Log a record with as many scalars as are to be recorded: the same ones repeatedly."""
    each = it.islice(it.cycle(data.items()), SCALARS)
    lox.log({f"{key} {i}": value for i, (key, value) in enumerate(each)}, **options)


if __name__ == "__main__":
    print(table(figures()))
