"""What a recorder or `tap(when=...)` costs while no record fires.

Each record has 20 scalars, and the recorder keeps the last 64 of them. The host is never
called. Computing the metrics takes time, too, with or without lox: the program by hand
only computes and returns them.
"""

import itertools as it
from collections.abc import Callable

import jax
from _measure import Figure, duration, race, ratios, table, typical
from cases import CASES, Case, ignore

import lox

SCALARS, KEEP = 20, 64
PROGRAMS = "ppo", "transformer", "mlp"
GOAL = "≤ 1.05"
SECONDS = 16.0  # for all programs of a case together


def figures() -> list[Figure]:
    return [figure for name in PROGRAMS for figure in compared(CASES[name])]


def compared(case: Case) -> list[Figure]:
    """Time all ways of a case in turn, so that all ratios are those of the same rounds."""
    keys = case.keys()
    programs = {
        "no logs": case.logged(ignore, case.steps),
        "by hand": case.by_hand(case.steps),
        **{name: way(case.logged(log_many, case.steps)) for name, way in WAYS.items()},
    }
    times = race(
        {name: runner(case, fun, keys) for name, fun in programs.items()}, budget=SECONDS
    )
    found = []
    for name, other in (
        *((name, "no logs") for name in WAYS),
        ("by hand", "no logs"),
        *((name, "by hand") for name in WAYS),
    ):
        low, median, high = ratios(times[name], times[other])
        note = " ÷ ".join(duration(typical(times[each])) for each in (name, other))
        goal = GOAL if (name, other) == ("recorder", "no logs") else ""
        title = f"{case.name}: {name} ÷ {other}"
        found.append(Figure(title, median, goal, note, quartiles=(low, high)))
    return found


def runner(case: Case, fun: Callable, keys: jax.Array) -> Callable:
    program = jax.jit(case.over_seeds(fun))
    return lambda: jax.block_until_ready(program(keys))


def calls(recording: object) -> None:
    raise AssertionError(f"The host was called: {recording}")


WAYS = {
    "recorder": lambda f: lox.recorder(f, keep=KEEP, then=calls),
    "tap(when=nonfinite)": lambda f: lox.tap(f, calls, when=lox.nonfinite),
}


def log_many(data: dict, **options) -> None:
    """Log a record with as many scalars as are to be recorded: the same ones repeatedly."""
    each = it.islice(it.cycle(data.items()), SCALARS)
    lox.log({f"{key} {i}": value for i, (key, value) in enumerate(each)}, **options)


if __name__ == "__main__":
    print(table(figures()))
