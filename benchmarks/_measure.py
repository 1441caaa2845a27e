"""Ratios of two programs, measured side by side in one run."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable

import jax


@dataclasses.dataclass(frozen=True)
class Figure:
    """One line of the table: how many times the cost of the other program."""

    name: str
    ratio: float
    goal: str
    note: str
    quartiles: tuple[float, float] | None = None
    seconds: tuple[float, float] | None = None

    def cells(self) -> list[str]:
        spread = "{:.2f} – {:.2f}".format(*self.quartiles) if self.quartiles else ""
        return [self.name, f"{self.ratio:.3f}", spread, self.goal, self.note]


# Seconds that one function runs in one round, and that all rounds take together.
ROUND, BUDGET = 0.002, 4.0
HEADER = ["", "ratio", "quartiles", "goal", "ours ÷ other"]


def compare(name: str, ours: Callable, theirs: Callable, *, goal: str) -> Figure:
    """Time two functions in turn, and take the median of the ratios of all rounds.

    Rounds are short and many, and each starts with the other function: what slows the
    machine down for a while slows both.
    """
    _time(ours, 1)
    _time(theirs, 1)
    once = max(_time(ours, 3), _time(theirs, 3))
    calls = max(1, round(ROUND / once))
    rounds = min(max(7, round(BUDGET / (2 * calls * once))), 1000)
    ours_times, theirs_times = [], []
    for i in range(rounds):
        turn = [(ours, ours_times), (theirs, theirs_times)]
        for fun, times in turn if i % 2 else reversed(turn):
            times.append(_time(fun, calls))
    ratios = [a / b for a, b in zip(ours_times, theirs_times, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    seconds = statistics.median(ours_times), statistics.median(theirs_times)
    note = " ÷ ".join(map(_duration, seconds))
    return Figure(name, median, goal, note, quartiles=(low, high), seconds=seconds)


def table(figures: Iterable[Figure]) -> str:
    rows = [HEADER, ["---"] * len(HEADER), *(figure.cells() for figure in figures)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _time(fun: Callable, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        out = fun()
    jax.block_until_ready(out)
    return (time.perf_counter() - start) / calls


def _duration(seconds: float) -> str:
    for unit, scale in [("s", 1), ("ms", 1e-3)]:
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
