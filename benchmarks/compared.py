"""Whole programs: each way in which metrics can leave them, side by side."""

import dataclasses
import time

from _measure import Times, costs, duration, grid, race, ratios, typical
from _ways import BARE, HAND, Subject, Way, all_ways, host_calls
from cases import CASES, Case

# Seconds for the race of all ways of a program, and for compiling them again.
RACE, COMPILE = 25.0, 10.0
# How often each way is compiled, at least.
TIMES = 3
HEADER = [
    "", "time ÷ no logs", "time ÷ by hand", "compile ÷ by hand", "memory ÷ by hand",
    "flops ÷ by hand", "host calls",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one way costs in one program; ratios with their quartiles."""

    way: str
    seconds: float
    to_bare: tuple[float, float, float]
    to_hand: tuple[float, float, float]
    compiling: tuple[float, float, float]
    memory: float
    flops: float
    calls: int

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
    case: Case, ways: dict[str, Way], *, racing: float = RACE, compiling: float = COMPILE
) -> dict[str, Measured]:
    subjects = {name: way.subject(case, case.steps) for name, way in ways.items()}
    runners = {name: subject.runner() for name, subject in subjects.items()}
    times = race(runners, budget=racing)
    calls = {name: host_calls(run) for name, run in runners.items()}
    built, known = compiled(subjects, compiling)
    return {
        name: Measured(
            way=name,
            seconds=typical(times[name]),
            to_bare=ratios(times[name], times[BARE]),
            to_hand=ratios(times[name], times[HAND]),
            compiling=ratios(built[name], built[HAND]),
            memory=known[name]["memory"] / known[HAND]["memory"],
            flops=known[name]["flops"] / known[HAND]["flops"],
            calls=calls[name],
        )
        for name in subjects
    }


def compiled(
    subjects: dict[str, Subject], budget: float
) -> tuple[dict[str, Times], dict[str, dict]]:
    """The seconds from a Python function to a program that can run, and its costs."""
    times: dict[str, Times] = {name: {} for name in subjects}
    known: dict[str, dict] = {}
    start, i = time.perf_counter(), 0
    while i < TIMES or time.perf_counter() - start < budget:
        for name, subject in subjects.items():
            before = time.perf_counter()
            program = subject.compile()
            times[name][i] = time.perf_counter() - before
            known[name] = costs(program)
        i += 1
    return times, known


def goals(case: Case, measured: dict[str, Measured]) -> str:
    """What is aimed at, and whether it is reached."""
    hand, spool = measured[HAND], measured["lox.spool"]
    tap, callback = measured["lox.tap"], measured["jax.debug.callback"]
    batched = measured["lox.tap(batch=100)"]
    found = [
        ("`lox.spool` ÷ by hand, time", spool.to_hand[1], 1.02),
        ("memory", spool.memory, 1.0),
        ("flops", spool.flops, 1.0),
        ("compile time", spool.compiling[1], 1.2),
        ("`lox.tap` ÷ `jax.debug.callback`", tap.seconds / callback.seconds, 0.1),
    ]
    if case.is_long:
        found.append(("`lox.tap(batch=100)` ÷ no logs", batched.to_bare[1], 1.1))
    assert hand.memory == hand.flops == 1
    each = [
        f"{what} {value:.3g} ({'≤' if value <= limit else '**not** ≤'} {limit:g})"
        for what, value, limit in found
    ]
    return "Goals: " + "; ".join(each) + "."


def spread(quartiles: tuple[float, float, float]) -> str:
    low, median, high = quartiles
    return f"{median:.2f} ({low:.2f} – {high:.2f})"


def plain(ratio: float) -> str:
    return "1" if ratio == 1 else f"{ratio:.4g}"
