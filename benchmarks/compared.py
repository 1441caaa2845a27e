"""Whole programs: each way in which metrics can leave them, side by side."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from _measure import (
    Times,
    costs,
    duration,
    grid,
    likeness,
    quartiles,
    race,
    ratios,
    typical,
)
from _ways import BARE, CALLBACK, HAND, Subject, Way, all_ways, host_calls
from cases import CASES, Case

# Seconds for the race of all ways of a program.
RACE = 20.0
# Seconds that a step takes in programs for which there is a goal for batches.
LONG = 50e-6
# What is compiled several times, and how often: it takes long.
OFTEN, TIMES = {HAND, "lox.spool"}, 3
# What goals are about has a race of its own: there are more rounds if there are fewer ways.
CLOSE = {BARE, CALLBACK, "lox.tap", "lox.tap(batch=100)"} | OFTEN
HEADER = [
    "", "time ÷ no logs", "time ÷ by hand", "compile ÷ by hand", "memory ÷ by hand",
    "flops ÷ by hand", "host calls",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one way costs in one program; ratios with their quartiles.

    `likeness` says what it compiles to, compared with by hand, `added` how much time it
    adds to the program without logs, divided by what `jax.debug.callback` adds.
    """

    way: str
    seconds: float
    to_bare: tuple[float, float, float]
    to_hand: tuple[float, float, float]
    compiling: tuple[float, float, float]
    memory: float
    flops: float
    calls: int
    likeness: str
    added: Any

    def cells(self) -> list[str]:
        return [
            f"`{self.way}`" if "." in self.way else self.way,
            spread(self.to_bare),
            spread(self.to_hand),
            spread(self.compiling),
            plain(self.memory),
            plain(self.flops),
            f"{self.calls:,}",
        ]


def section(name: str) -> tuple[str, dict]:
    """The text about a program, and the figures in it."""
    case = CASES[name]
    measured = measure(case, all_ways())
    text = f"{case.what} Without logs it takes {duration(measured[BARE].seconds)}.\n\n"
    text += grid(HEADER, [each.cells() for each in measured.values()])
    text += "\n\n" + goals(case, measured)
    return text, {way: dataclasses.asdict(each) for way, each in measured.items()}


def measure(
    case: Case, ways: dict[str, Way], *, seconds: float = RACE
) -> dict[str, Measured]:
    subjects = {name: way.subject(case, case.steps) for name, way in ways.items()}
    programs, built = compiled(subjects)
    runners = {name: own.runner(programs[name]) for name, own in subjects.items()}
    every = race(runners, budget=seconds)
    close = race({name: runners[name] for name in runners if name in CLOSE}, budget=seconds)
    known = {name: costs(program) for name, program in programs.items()}
    return {
        name: Measured(
            way=name,
            seconds=typical(times[name]),
            to_bare=ratios(times[name], times[BARE]),
            to_hand=ratios(times[name], times[HAND]),
            compiling=ratios(built[name], built[HAND]),
            memory=known[name]["memory"] / known[HAND]["memory"],
            flops=known[name]["flops"] / known[HAND]["flops"],
            calls=host_calls(runners[name]),
            likeness=likeness(programs[name], programs[HAND]),
            added=added(times[name], times.get(CALLBACK), times[BARE]),
        )
        for name in subjects
        for times in (close if name in close else every,)
    }


def added(ours: Times, theirs: Times | None, bare: Times) -> Any:
    """What one way adds to a program ÷ what another does, over the rounds of all."""
    if theirs is None:
        return None
    rounds = ours.keys() & theirs.keys() & bare.keys()
    return quartiles([(ours[i] - bare[i]) / (theirs[i] - bare[i]) for i in rounds])


def compiled(subjects: dict[str, Subject]) -> tuple[dict, dict[str, Times]]:
    """The programs, and the seconds from a Python function to one that can run."""
    subjects[BARE].lower()  # pays for what JAX itself caches
    programs, times = {}, {name: {} for name in subjects}
    for i in range(TIMES):
        for name in subjects if i == 0 else OFTEN & subjects.keys():
            start = time.perf_counter()
            programs[name] = subjects[name].compile()
            times[name][i] = time.perf_counter() - start
    return programs, times


def goals(case: Case, measured: dict[str, Measured]) -> str:
    """What is aimed at, and whether it is reached."""
    bare, hand, spool = measured[BARE], measured[HAND], measured["lox.spool"]
    tap, batched = measured["lox.tap"], measured["lox.tap(batch=100)"]
    # By hand nobody keeps the last rows in order, or knows which of them exist.
    is_known = case.capacity is None
    found = [
        ("`lox.spool` ÷ by hand, time", spool.to_hand, 1.02 if is_known else 1.2),
        ("memory", [spool.memory] * 3, 1.0 if is_known else 1.2),
        *([("flops", [spool.flops] * 3, 1.0)] if is_known else []),
        ("compile time", spool.compiling, 1.2),
        ("what `lox.tap` adds ÷ what `jax.debug.callback` adds", tap.added, 0.1),
    ]
    if bare.seconds / case.steps >= LONG:
        found.append(("`lox.tap(batch=100)` ÷ no logs", batched.to_bare, 1.1))
    assert hand.memory == hand.flops == 1
    each = [
        f"{what} {spread(ratio, 3)}, {'' if ratio[1] <= limit else '**not** '}≤ {limit:g}"
        for what, ratio, limit in found
    ]
    return f"`lox.spool` and by hand compile to {spool.likeness}. Goals: {'; '.join(each)}."


def spread(ratio: Sequence[float], digits: int = 2) -> str:
    low, median, high = (f"{value:.{digits}f}" for value in ratio)
    return median if low == high else f"{median} ({low} – {high})"


def plain(ratio: float) -> str:
    return "1" if ratio == 1 else f"{ratio:.4g}"
