"""Whole programs: each way in which metrics can leave them, side by side."""

import dataclasses
import time
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
# What is compared most closely, and how often it is compiled, which takes long.
OFTEN, TIMES = {HAND, "lox.spool"}, 3
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
    times = race(runners, budget=seconds)
    # These two are so close that they need more rounds.
    close = race({name: runners[name] for name in OFTEN & runners.keys()}, budget=seconds)
    to_hand = {
        name: ratios(each[name], each[HAND]) for each in (times, close) for name in each
    }
    known = {name: costs(program) for name, program in programs.items()}
    return {
        name: Measured(
            way=name,
            seconds=typical(times[name]),
            to_bare=ratios(times[name], times[BARE]),
            to_hand=to_hand[name],
            compiling=ratios(built[name], built[HAND]),
            memory=known[name]["memory"] / known[HAND]["memory"],
            flops=known[name]["flops"] / known[HAND]["flops"],
            calls=host_calls(runners[name]),
            likeness=likeness(programs[name], programs[HAND]),
            added=added(times[name], times.get(CALLBACK), times[BARE]),
        )
        for name in subjects
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
    found = [
        ("`lox.spool` ÷ by hand, time", spool.to_hand[1], 1.02),
        ("memory", spool.memory, 1.0),
        ("flops", spool.flops, 1.0),
        ("compile time", spool.compiling[1], 1.2),
        ("what `lox.tap` adds ÷ what `jax.debug.callback` adds", tap.added[1], 0.1),
    ]
    if bare.seconds / case.steps >= LONG:
        found.append(("`lox.tap(batch=100)` ÷ no logs", batched.to_bare[1], 1.1))
    assert hand.memory == hand.flops == 1
    each = [
        f"{what} {value:.3g} ({'≤' if value <= limit else '**not** ≤'} {limit:g})"
        for what, value, limit in found
    ]
    return f"`lox.spool` and by hand compile to {spool.likeness}. Goals: {'; '.join(each)}."


def spread(quartiles: tuple[float, float, float]) -> str:
    low, median, high = quartiles
    return f"{median:.2f}" if low == high else f"{median:.2f} ({low:.2f} – {high:.2f})"


def plain(ratio: float) -> str:
    return "1" if ratio == 1 else f"{ratio:.4g}"
