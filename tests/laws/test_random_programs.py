"""Random programs against the eager truth, in every composition of transformations.

`LOX_FUZZ` says how many, `LOX_FUZZ_START` which seed is the first.
"""

import functools as ft
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import lox
from support.delivered import assert_delivered, heard
from support.evaluate import evaluated
from support.random_programs import Node, Scope, random_program
from support.reductions import assert_reduced
from support.selection import thin
from support.truth import (
    Record,
    assert_logs,
    assert_trees_close,
    of_example,
    run_in_python,
    without_logs,
)

COUNT = int(os.environ.get("LOX_FUZZ", "180"))
START = int(os.environ.get("LOX_FUZZ_START", "0"))
EXAMPLES = [
    jnp.array([0.7, 0.1, -0.4]),
    jnp.array([[0.7, -0.2], [0.1, 0.3], [-0.9, 0.4]]),
]


pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("seed", range(START, START + COUNT))
def test_a_random_program_logs_what_its_eager_run_logs(seed):
    program = random_program(seed)
    try:
        check(program, EXAMPLES[seed % 2], seed)
    except Exception as error:
        if not compiles(of(program), EXAMPLES[seed % 2]):
            pytest.skip("JAX cannot compile this program, also without logs.")
        error.add_note(f"\nThe program of seed {seed}:\n{program}")
        raise


@pytest.mark.parametrize("seed", range(START, START + COUNT // 12))
def test_a_random_program_with_while_loops_logs_what_its_eager_run_logs(seed):
    program = random_program(seed, nodes=range(4, 10), unknown=True)
    try:
        check_while(program, EXAMPLES[seed % 2], seed)
    except Exception as error:
        error.add_note(f"\nThe program of seed {seed}:\n{program}")
        raise


def check_while(program: Node, xs: jax.Array, seed: int) -> None:
    counts, margins, room = program.counts(), [], 32
    fun, noted = of(program), of(program, margins)
    each = truth_of_each(noted, xs, margins)
    one = of_example(each, 0)

    def natural(key):
        return counts[key].most == 1 and not counts[key].looped

    def agree(spool, run, x, truth, batch_first=False):
        out, logs = run(spool(lambda fun: lox.spool(fun, capacity=room)), x)
        rows = {"natural": natural, "batch_first": batch_first, "tol": 1e-3}
        assert_trees_close(out, truth[0], tol=1e-3)
        assert_logs(logs, truth[1], **rows)
        assert_logs(logs.compact(), truth[1], **rows)
        out, logs = run(spool(lambda fun: lox.spool(fun, reduce="sum")), x)
        assert_trees_close(out, truth[0], tol=1e-3)
        assert_reduced(logs, truth[1], "sum", tol=1e-3)

    def jit_of_spool(run):
        agree(lambda spool: spool(fun), run, xs[0], one)

    def spool_of_vmap(run):
        agree(lambda spool: spool(jax.vmap(fun)), run, xs, each)

    def vmap_of_spool(run):
        agree(lambda spool: jax.vmap(spool(fun)), run, xs, each, batch_first=True)

    def tap(run):
        check_tap(fun, run, xs, one, each, seed)

    run_all([jit_of_spool, spool_of_vmap, vmap_of_spool, tap], seed)


def check(program: Node, xs: jax.Array, seed: int) -> None:
    """Compare a program in some ways to run it: each way meets many programs."""
    counts, x, margins = program.counts(), xs[0], []
    fun, noted = of(program), of(program, margins)
    each = truth_of_each(noted, xs, margins)
    one = of_example(each, 0)
    slope = ft.cache(lambda: run_in_python(gradient(noted), x))

    def natural(key):
        return counts[key].most == 1 and not counts[key].looped

    def agree(found, truth, batch_first=False):
        (out, logs), (expected, records) = found, truth
        assert_trees_close(out, expected, tol=1e-3)
        assert_logs(logs, records, natural=natural, batch_first=batch_first, tol=1e-3)

    def spool_of_jit(run):
        jitted = jax.jit(fun)
        run = run if run is evaluated else eagerly
        agree(run(lox.spool(jitted), x), one)
        assert_trees_close(run(jitted, x), one[0], tol=1e-3)
        agree(run(lox.spool(jitted), x), one)

    def jit_of_spool(run):
        spooled = lox.spool(fun)
        agree(run(spooled, x), one)
        agree(run(spooled, xs[1]), of_example(each, 1))

    def spool_of_vmap(run):
        agree(run(lox.spool(jax.vmap(fun)), xs), each)

    def vmap_of_spool(run):
        agree(run(jax.vmap(lox.spool(fun)), xs), each, batch_first=True)

    def spool_of_grad(run):
        agree(run(lox.spool(gradient(fun)), x), slope())

    def grad_of_spool(run):
        found, (out, logs) = run(jax.grad(spooled_total(fun), has_aux=True), x)
        agree((out, logs), one)
        assert_trees_close(found, slope()[0], tol=1e-3)

    def tap_of_grad(run):
        _, found = heard(lambda hear: ft.partial(run, lox.tap(gradient(fun), hear)), x)
        assert_delivered(found, slope()[1], tol=1e-3)

    def grad_of_tap(run):
        _, found = heard(lambda hear: ft.partial(run, gradient(lox.tap(fun, hear))), x)
        assert_delivered(found, one[1], tol=1e-3)

    def tap(run):
        check_tap(fun, run, xs, one, each, seed)

    ways = [
        *(spool_of_jit, spool_of_vmap, spool_of_grad, tap, tap_of_grad),
        *(jit_of_spool, vmap_of_spool, grad_of_spool, grad_of_tap),
    ]
    run_all(ways, seed)


def check_tap(fun: Callable, run: Callable, xs: jax.Array, one, each, seed: int) -> None:
    """Some ways to deliver: each program meets two of them, each way many programs."""
    ways = [
        (lambda tap: tap(fun), one, xs[0]),
        (lambda tap: jax.vmap(tap(fun)), each, xs),
        (lambda tap: tap(jax.vmap(fun)), each, xs),
    ]
    transform, (expected, records), x = ways[seed % 3]
    for batch in (None, 3):

        def tapping(hear, batch=batch):
            return ft.partial(run, transform(lambda fun: lox.tap(fun, hear, batch=batch)))

        out, found = heard(tapping, x)
        assert_trees_close(out, expected, tol=1e-3)
        assert_delivered(found, records, by_key=batch is not None, tol=1e-3)


def run_all(ways: list[Callable], seed: int) -> None:
    """Run a program in each way, or in one if this is no fuzzing.

    XLA takes most of the time and has little to add, so of all programs and ways one in
    nine is compiled. The others are run by NumPy.
    """
    count = len(ways)
    chosen = range(count) if "LOX_FUZZ" in os.environ else thin(range(count), count, seed)
    for number in chosen:
        ways[number](compiled if number == seed // count % count else evaluated)


def compiled(fun: Callable, x: jax.Array) -> Any:
    return jax.jit(fun)(x)


def eagerly(fun: Callable, x: jax.Array) -> Any:
    return fun(x)


def truth_of_each(fun: Callable, xs: jax.Array, margins: list) -> tuple[Any, list[Record]]:
    found = run_in_python(lambda xs: jax.vmap(fun)(xs), xs)
    if min(margins, default=1) < 1e-3:
        pytest.skip("A condition is so close that rounding decides.")
    return found


def of(program: Node, margins: list | None = None) -> Callable:
    return lambda x: program.run(x, Scope(x, jnp.int32(0), margins))


def total(fun: Callable) -> Callable:
    return lambda x: jnp.sum(fun(x))


def gradient(fun: Callable) -> Callable:
    return jax.grad(total(fun))


def spooled_total(fun: Callable) -> Callable:
    def with_logs(x):
        out, logs = lox.spool(fun)(x)
        return jnp.sum(out), (out, logs)

    return with_logs


def compiles(fun: Callable, xs: jax.Array) -> bool:
    try:
        for plain, x in ((jax.vmap(fun), xs), (jax.grad(total(fun)), xs[0])):
            jax.jit(without_logs(plain)).lower(x)
    except Exception:
        return False
    return True
