"""Random programs against the eager truth, in every composition of transformations.

`LOX_FUZZ` says how many, `LOX_FUZZ_START` which seed is the first.
"""

import functools as ft
import os
from collections import Counter
from collections.abc import Callable, Iterator
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

COUNT = int(os.environ.get("LOX_FUZZ", "150"))
START = int(os.environ.get("LOX_FUZZ_START", "0"))
EXAMPLES = [
    jnp.array([0.7, 0.1, -0.4]),
    jnp.array([[0.7, -0.2], [0.1, 0.3], [-0.9, 0.4]]),
]


@pytest.mark.parametrize("seed", range(START, START + COUNT))
def test_a_random_program_logs_what_its_eager_run_logs(seed):
    program = random_program(seed)
    try:
        check(program, EXAMPLES[seed % 2], seed)
    except Exception as error:
        if not is_right_without_logs(of(program), EXAMPLES[seed % 2]):
            pytest.skip("JAX fails on this program without logs, too.")
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
    each = truth(vmapped(noted), xs, margins)
    one = of_example(each, 0)

    def natural(key):
        return counts[key].most == 1 and not counts[key].looped

    def agree(spool, run, x, expected, batch_first=False):
        out, logs = run(spool(lambda fun: lox.spool(fun, capacity=room)), x)
        rows = {"natural": natural, "batch_first": batch_first, "tol": 1e-3}
        assert_trees_close(out, expected[0], tol=1e-3)
        assert_logs(logs, expected[1], **rows)
        assert_logs(logs.compact(), expected[1], **rows)
        out, logs = run(spool(lambda fun: lox.spool(fun, reduce="sum")), x)
        assert_trees_close(out, expected[0], tol=1e-3)
        assert_reduced(logs, expected[1], "sum", tol=1e-3)

    def jit_of_spool(run):
        agree(lambda spool: spool(fun), run, xs[0], one)

    def spool_of_vmap(run):
        agree(lambda spool: spool(jax.vmap(fun)), run, xs, each)

    def vmap_of_spool(run):
        agree(lambda spool: jax.vmap(spool(fun)), run, xs, each, batch_first=True)

    def tap(run):
        check_tap(fun, run, xs, one, each, seed)

    pairs = [*runs([jit_of_spool, spool_of_vmap, vmap_of_spool, tap], seed)]
    for way, run in pairs if "LOX_FUZZ" in os.environ else thin(pairs, 2, seed):
        way(run)


def check(program: Node, xs: jax.Array, seed: int) -> None:
    """Compare a program in some ways to run it: each way meets many programs."""
    counts, x, margins = program.counts(), xs[0], []
    fun, noted = of(program), of(program, margins)
    each = truth(vmapped(noted), xs, margins)
    one = of_example(each, 0)
    slope = ft.cache(lambda: truth(gradient(noted), x, margins))
    slopes = ft.cache(lambda: truth(gradient(vmapped(noted)), xs, margins))

    def agree(found, known, batch_first=False):
        (out, logs), (expected, records) = found, known

        def natural(key):
            if key[0] == "b":
                return runs_backward_once(key, logs, records)
            return counts[key].most == 1 and not counts[key].looped

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

    def spool_of_grad_of_vmap(run):
        agree(run(lox.spool(gradient(jax.vmap(fun))), xs), slopes())

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
        *(jit_of_spool, vmap_of_spool, grad_of_spool, grad_of_tap, spool_of_grad_of_vmap),
    ]
    pairs = [*runs(ways, seed)]
    # Many programs in some ways find more than some programs in all ways.
    for way, run in thin(pairs, 3 if "LOX_FUZZ" in os.environ else len(pairs), seed):
        way(run)


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


def runs_backward_once(key: str, logs: Any, records: list[Record]) -> bool:
    """Whether a key of backward rules has no time axis.

    How often they run depends on the derivatives around: never inside another rule, and
    twice if a gradient is differentiated. A branch that is not taken may have more of them.
    """
    mine = [record for record in records if key in record.data]
    most = max(Counter(record.lanes for record in mine).values(), default=0)
    return most <= 1 and logs[key].ndim <= max((len(r.sizes) for r in mine), default=0)


def runs(ways: list[Callable], seed: int) -> Iterator[tuple[Callable, Callable]]:
    """For each way to run a program what runs it.

    XLA takes most of the time and has little to add, so it compiles one of the ways. NumPy
    runs the others.
    """
    for number, way in enumerate(ways):
        is_compiled = number == seed // len(ways) % len(ways)
        yield way, compiled if is_compiled else evaluated


def compiled(fun: Callable, x: jax.Array) -> Any:
    return jax.jit(fun)(x)


def eagerly(fun: Callable, x: jax.Array) -> Any:
    return fun(x)


def truth(fun: Callable, x: jax.Array, margins: list) -> tuple[Any, list[Record]]:
    found = run_in_python(fun, x)
    if min(margins, default=1) < 1e-3:
        pytest.skip("A condition is so close that rounding decides.")
    return found


def vmapped(fun: Callable) -> Callable:
    """`jax.vmap`, or what stands in for it when this is called."""
    return lambda xs: jax.vmap(fun)(xs)


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


def is_right_without_logs(fun: Callable, xs: jax.Array) -> bool:
    """Whether JAX compiles a program, and differentiates it as it does eagerly."""
    try:
        for transformed in (vmapped(fun), gradient(vmapped(fun))):
            plain = without_logs(transformed)
            expected, _ = run_in_python(plain, xs)
            assert_trees_close(jax.jit(plain)(xs), expected, tol=1e-3)
    except Exception:
        return False
    return True
