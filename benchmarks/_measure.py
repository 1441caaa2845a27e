"""Ratios of programs, measured side by side in one run."""

import dataclasses
import math
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax


@dataclasses.dataclass(frozen=True)
class Figure:
    """One line of a table: how many times the cost of the other program."""

    name: str
    ratio: float
    goal: str
    note: str
    quartiles: tuple[float, float] | None = None

    def cells(self) -> list[str]:
        spread = "{:.2f} – {:.2f}".format(*self.quartiles) if self.quartiles else ""
        return [self.name, f"{self.ratio:.3f}", spread, self.goal, self.note]


# Seconds that one function runs in one round, and that all rounds take together.
ROUND, BUDGET = 0.002, 2.0
LEAST, MOST = 7, 1000
HEADER = ["", "ratio", "quartiles", "goal", "ours ÷ other"]


def compare(name: str, ours: Callable, theirs: Callable, *, goal: str) -> Figure:
    """Time two functions in turn, and take the median of the ratios of all rounds."""
    times = race({"ours": ours, "theirs": theirs})
    low, median, high = ratios(times["ours"], times["theirs"])
    seconds = typical(times["ours"]), typical(times["theirs"])
    note = " ÷ ".join(map(duration, seconds))
    return Figure(name, median, goal, note, quartiles=(low, high))


# The seconds that a call took in some rounds, by the number of the round.
Times = dict[int, float]


def race(
    runners: Mapping[str, Callable[[], Any]], *, budget: float = BUDGET, least: int = LEAST
) -> dict[str, Times]:
    """Time functions in turn, in many rounds.

    Rounds are short, and in each the functions come in another order: what slows the
    machine down for a while slows all of them. Each has its share of the time, so that a
    slow one runs every second, fourth, ... round only, always beside all faster ones.
    """
    for run in runners.values():
        _time(run, 1)
    once = {name: _time(run, 2) for name, run in runners.items()}
    calls = {name: max(1, round(ROUND / seconds)) for name, seconds in once.items()}
    share = budget / len(runners)
    turns = {
        name: min(max(least, round(share / (calls[name] * once[name]))), MOST)
        for name in runners
    }
    rounds = max(turns.values())
    every = {name: 2 ** int(math.log2(rounds / own)) for name, own in turns.items()}
    order, shuffle = list(runners), random.Random(0).shuffle
    times: dict[str, Times] = {name: {} for name in runners}
    for i in range(rounds):
        shuffle(order)
        for name in order:
            if i % every[name] == 0:
                times[name][i] = _time(runners[name], calls[name])
    return times


def ratios(ours: Times, theirs: Times) -> tuple[float, float, float]:
    """The quartiles of the ratio of two functions over the rounds of both."""
    return quartiles([ours[i] / theirs[i] for i in ours.keys() & theirs.keys()])


def quartiles(numbers: list[float]) -> tuple[float, float, float]:
    several = numbers if len(numbers) > 1 else 2 * numbers
    low, median, high = statistics.quantiles(several, n=4, method="inclusive")
    return low, median, high


def typical(times: Times) -> float:
    return statistics.median(times.values())


def table(figures: Iterable[Figure]) -> str:
    return grid(HEADER, [figure.cells() for figure in figures])


def grid(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def costs(compiled: Any) -> dict[str, float]:
    """What the compiler says of a program: its operations, and its memory in bytes."""
    analysis, memory = compiled.cost_analysis(), compiled.memory_analysis()
    # A list of one before JAX 0.5.
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    return {
        "flops": analysis["flops"],
        "memory": memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        + memory.argument_size_in_bytes,
    }


def likeness(ours: Any, theirs: Any) -> str:
    """How two compiled programs compare, in words."""
    texts = [_without_sources(program.as_text()) for program in (ours, theirs)]
    if texts[0] == texts[1]:
        return "the same program"
    ours, theirs = (Counter(map(_instruction, text.splitlines())) for text in texts)
    return "the same instructions" if ours == theirs else "programs that differ"


def _instruction(line: str) -> Any:
    """What a line of a program does, and to how many numbers of which kind."""
    found = re.match(r"\s+(?:ROOT )?%\S+ = (\(.*?\)|\S+) ([\w-]+)\(", line)
    if found is None:
        return None
    arrays = re.findall(r"(\w+)\[([\d,]*)\]", found[1])
    sizes = [(dtype, math.prod(map(int, re.findall(r"\d+", at)))) for dtype, at in arrays]
    return found[2], *sorted(sizes)


def _without_sources(text: str) -> str:
    """Return a compiled program without its metadata, even that of the module in front."""
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    return re.split(r"^(?=%|ENTRY)", text, maxsplit=1, flags=re.MULTILINE)[-1]


def duration(seconds: float) -> str:
    for unit, scale in [("s", 1), ("ms", 1e-3)]:
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _time(fun: Callable, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        out = fun()
    jax.block_until_ready(out)
    return (time.perf_counter() - start) / calls
