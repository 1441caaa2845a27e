"""How time, compile time, memory and host calls grow with the size of a program."""

import dataclasses
import functools as ft
import math
import statistics
import time
from collections.abc import Callable

from _measure import Times, costs, grid, race, typical
from _ways import BARE, HAND, Subject, Way, all_ways, host_calls
from cases import Case, lbfgs, loop

# Seconds for the race at one point; what would take longer than the limit is left out.
RACE, LIMIT = 0.8, 3.0
WAYS = [
    BARE, HAND, "jax.debug.callback", "lox.spool", 'lox.spool(reduce="mean")',
    "lox.spool(interval=10)", "lox.tap", "lox.tap(batch=100)",
]  # fmt: skip
STEPS = 300


@dataclasses.dataclass(frozen=True)
class Axis:
    """What grows, how far, and what is measured of it."""

    sizes: list[int]
    case: Callable[[int], Case]
    measure: Callable[[dict[str, Subject]], dict[str, dict[str, float]]]


def section() -> tuple[str, dict]:
    """The slopes, and the curves that they are of."""
    known = all_ways()
    ways = {name: known[name] for name in WAYS}
    curves = {name: curve(axis, ways) for name, axis in AXES.items()}
    header = ["", *(f"{what}, by {axis}" for axis, what in COLUMNS)]
    return grid(header, [slopes(name, curves) for name in WAYS]), curves


def slopes(way: str, curves: dict) -> list[str]:
    name = f"`{way}`" if "." in way else way
    return [name, *(slope(curves[axis], way, what) for axis, what in COLUMNS)]


def curve(axis: Axis, ways: dict[str, Way]) -> dict:
    """For each way and each quantity a list of values, None where it took too long."""
    found: dict[str, dict[str, list]] = {name: {} for name in ways}
    going = dict(ways)
    for i, size in enumerate(axis.sizes):
        case = axis.case(size)
        subjects = {n: way.subject(case, case.steps) for n, way in going.items()}
        for name, values in axis.measure(subjects).items():
            for what, value in values.items():
                each = found[name].setdefault(what, [None] * len(axis.sizes))
                each[i] = value
        for more in axis.sizes[i + 1 : i + 2]:
            expected = {name: found[name].get("time", [0] * (i + 1))[i] for name in going}
            going = {n: w for n, w in going.items() if expected[n] * more / size <= LIMIT}
    return {"sizes": axis.sizes, "ways": found}


def all_of(subjects: dict[str, Subject]) -> dict[str, dict[str, float]]:
    """Time, compile time, memory and host calls."""
    programs, seconds = {}, {}
    for name, subject in subjects.items():
        start = time.perf_counter()
        programs[name] = subject.compile()
        seconds[name] = time.perf_counter() - start
    runners = {name: own.runner(programs[name]) for name, own in subjects.items()}
    times = race(runners, budget=RACE, least=3)
    return {
        name: {
            "time": typical(times[name]),
            "compiling": seconds[name],
            "memory": costs(programs[name])["memory"],
            "host calls": host_calls(runners[name]),
        }
        for name in subjects
    }


def tracing(subjects: dict[str, Subject]) -> dict[str, dict[str, float]]:
    """The time from a function to what the compiler takes."""
    times: dict[str, Times] = {name: {} for name in subjects}
    for i in range(3):
        for name, subject in subjects.items():
            start = time.perf_counter()
            subject.lower()
            times[name][i] = time.perf_counter() - start
    # The first round also pays for what JAX itself caches.
    return {name: {"tracing": min(each.values())} for name, each in times.items()}


def of_loop(*, steps: int = STEPS, seeds: int = 1, **options) -> Case:
    logged, by_hand = (ft.partial(fun, **options) for fun in (loop.logged, loop.by_hand))
    return Case("loop", "", logged, by_hand, steps=steps, seeds=seeds)


def of_layers(calls: int) -> Case:
    return Case("layers", "", loop.logged_layers, loop.layers_by_hand, steps=calls)


def of_loops_of_unknown_length(capacity: int) -> Case:
    by_hand = ft.partial(lbfgs.by_hand, room=capacity)
    return dataclasses.replace(lbfgs.VMAPPED, by_hand=by_hand, capacity=capacity)


def slope(curve: dict, way: str, what: str) -> str:
    """The exponent of the growth, over the last three points: 1 is linear, 0 is flat."""
    pairs = zip(curve["sizes"], curve["ways"][way].get(what, []), strict=False)
    points = [(math.log(x), math.log(y)) for x, y in pairs if y][-3:]
    if len(points) < 2:
        return ""
    return f"{statistics.linear_regression(*zip(*points, strict=True)).slope:.2f}"


AXES = {
    "steps": Axis([10**n for n in (3, 4, 5, 6)], lambda n: of_loop(steps=n), all_of),
    "metrics": Axis([1, 3, 10, 30, 100], lambda n: of_loop(metrics=n), all_of),
    "seeds": Axis([1, 8, 64, 512], lambda n: of_loop(seeds=n), all_of),
    "elements": Axis([1, 64, 4096], lambda n: of_loop(shape=(math.isqrt(n),) * 2), all_of),
    "capacity": Axis([256, 1024, 4096, 16384], of_loops_of_unknown_length, all_of),
    "log calls": Axis([1, 10, 100, 1000], of_layers, tracing),
}
COLUMNS = [
    ("steps", "time"),
    ("steps", "memory"),
    ("steps", "host calls"),
    ("metrics", "time"),
    ("metrics", "compiling"),
    ("metrics", "host calls"),
    ("seeds", "time"),
    ("seeds", "host calls"),
    ("elements", "time"),
    ("capacity", "time"),
    ("log calls", "tracing"),
]
