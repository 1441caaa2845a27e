"""The programs of the benchmarks, and what the compiler says of them."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import quick
from _measure import likeness, race, ratios
from _report import END, START, updated
from _ways import all_ways
from cases import CASES

import lox
from support.selection import FULL


@pytest.fixture(scope="module")
def ways():
    return all_ways()


# The largest of them takes as long as all others together.
@pytest.mark.parametrize("name", [name for name in CASES if FULL or name != "transformer"])
def test_logs_cost_what_metrics_by_hand_cost_and_nothing_without_a_listener(name, ways):
    quick.check_case(CASES[name], ways)


def test_host_calls_do_not_depend_on_the_number_of_seeds(ways):
    quick.check_host_calls(ways)


def test_the_check_finds_a_program_that_costs_more(ways):
    """Here the metrics by hand are those of another loop."""
    loop, other = CASES["empty loop"], CASES["arrays"]
    wrong = dataclasses.replace(loop, by_hand=other.by_hand)
    with pytest.raises(AssertionError, match=r"empty loop: `lox\.spool` takes .*flops"):
        quick.check_case(wrong, ways)


@pytest.mark.parametrize("name", ["sampler", "empty loop", "l-bfgs"])
def test_what_is_carried_by_hand_is_what_is_logged(name):
    case = CASES[name]
    spooled = lox.spool(case.logged(lox.log, case.small), capacity=case.capacity)
    _, logs = jax.jit(spooled)(case.keys())
    _, rows = jax.jit(case.by_hand(case.small))(case.keys())
    for value, expected in zip(logs.values(), rows, strict=False):
        assert jnp.array_equal(value, expected)


def test_a_slow_function_has_fewer_turns_and_ratios_are_of_the_same_rounds():
    times = race({"slow": lambda: sum(range(400_000)), "fast": lambda: 0}, budget=0.1)
    assert len(times["slow"]) < len(times["fast"])
    assert times["slow"].keys() <= times["fast"].keys()
    assert ratios({0: 2.0, 1: 9.0, 2: 6.0}, {0: 1.0, 2: 2.0}) == (2.25, 2.5, 2.75)


def test_programs_are_compared_by_what_the_compiler_made_of_them():
    def compiled(fun, *args):
        return jax.jit(fun).lower(*args).compile()

    def loop(x, n=3, swap=False):
        step = lambda c, _: ((c[1], c[0] * 2), None)  # noqa: E731
        a, b = jax.lax.scan(step, (x, x + 1), None, n)[0]
        return (b, a) if swap else (a, b)

    x, longer = jnp.ones(4), jnp.ones(5)
    assert likeness(compiled(loop, x), compiled(loop, x)) == "the same program"
    swapped = compiled(lambda x: loop(x, swap=True), x)
    assert likeness(compiled(loop, x), swapped) == "the same instructions"
    assert likeness(compiled(loop, x), compiled(loop, longer)) == "programs that differ"


def test_figures_replace_older_ones_and_leave_the_rest():
    text = f"before\n{START}\nold\n{END}\nafter"
    assert updated(text, "new") == f"before\n{START}\nnew\n{END}\nafter"
