"""What the compiler proves of all programs, without a clock; the tests run it, too."""

import re

from _measure import costs
from _ways import BARE, HAND, Subject, Way, all_ways, host_calls
from cases import CASES, Case
from growth import of_loop

# The names of functions and results do not count.
NAMES = r"@\w+|jax\.result_info = \"[^\"]*\"|loc\([^)]*\)"
# The machine code is never run: the same program is analysed in a fraction of the time.
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
SEEDS = 1, 8
STEPS = 250
# How much more memory than by hand the rows of a loop of unknown length may take: there is
# a mask of those that exist, and one more column while they are put in order.
MEMORY = 1.26


def check_all() -> None:
    ways = all_ways()
    for case in CASES.values():
        check_case(case, ways)
        print(f"{case.name}: spool costs what metrics by hand cost, and nolog nothing.")
    check_host_calls(ways)
    print("Host calls do not depend on the number of seeds.")


def check_case(case: Case, ways: dict[str, Way]) -> None:
    """Raise if a log costs anything that it need not."""
    found = {
        name: ways[name].subject(case, case.small)
        for name in (BARE, HAND, "lox.nolog", "lox.spool")
    }
    assert text(found["lox.nolog"]) == text(found[BARE]), (
        f"{case.name}: `lox.nolog` is not the program without log calls."
    )
    if text(found["lox.spool"]) == text(found[HAND]):
        return
    ours, theirs = analysed(found["lox.spool"]), analysed(found[HAND])
    if case.capacity is not None:
        is_fine = ours["memory"] <= MEMORY * theirs["memory"]
    else:
        is_fine = ours == theirs
    assert is_fine, (
        f"{case.name}: `lox.spool` takes {ours}, the same metrics by hand {theirs}."
    )


def check_host_calls(ways: dict[str, Way]) -> None:
    """Raise if there is more than one host call a record, or a batch of them."""
    case = of_loop(metrics=2, steps=STEPS)
    for name, expected in {"lox.tap": STEPS, "lox.tap(batch=100)": 3}.items():
        for seeds in SEEDS:
            subject = ways[name].subject(case, STEPS, seeds)
            calls = host_calls(subject.runner(subject.compile()))
            assert calls == expected, (
                f"`{name}` makes {calls} host calls for {seeds} seeds, not {expected}."
            )


def text(subject: Subject) -> str:
    return re.sub(NAMES, "@", subject.lower().as_text())


def analysed(subject: Subject) -> dict[str, float]:
    return costs(subject.lower().compile(compiler_options=FAST))
