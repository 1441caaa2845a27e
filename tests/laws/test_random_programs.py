"""Random programs against the eager truth, in every composition of transformations.

`LOX_FUZZ` says how many, `LOX_FUZZ_START` which seed is the first.
"""

import functools as ft
import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

import lox
from support.delivered import assert_delivered, heard
from support.random_programs import Node, Scope, random_program
from support.reductions import assert_reduced
from support.selection import thin
from support.truth import assert_logs, assert_trees_close, run, run_each, without_logs

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

    def natural(key):
        return counts[key].most == 1 and not counts[key].looped

    def agree(spool, x, truth, batch_first=False):
        out, logs = spool(lambda fun: lox.spool(fun, capacity=room))(x)
        rows = {"natural": natural, "batch_first": batch_first, "tol": 1e-3}
        assert_trees_close(out, truth[0], tol=1e-3)
        assert_logs(logs, truth[1], **rows)
        assert_logs(logs.compact(), truth[1], **rows)
        out, logs = spool(lambda fun: lox.spool(fun, reduce="sum"))(x)
        assert_trees_close(out, truth[0], tol=1e-3)
        assert_reduced(logs, truth[1], "sum", tol=1e-3)

    fun, noted = of(program), of(program, margins)
    truth, truth_of_each = run(noted, xs[0]), run_each(noted, xs)
    if min(margins, default=1) < 1e-3:
        pytest.skip("A condition is so close that rounding decides.")

    agree(lambda spool: jax.jit(spool(fun)), xs[0], truth)
    agree(lambda spool: jax.jit(spool(jax.vmap(fun))), xs, truth_of_each)
    agree(lambda spool: jax.jit(jax.vmap(spool(fun))), xs, truth_of_each, batch_first=True)
    check_tap(fun, xs, truth, truth_of_each, seed)


def check(program: Node, xs: jax.Array, seed: int) -> None:
    """Compare a program in some ways to run it: each way meets many programs."""
    counts, x, margins = program.counts(), xs[0], []
    fun, noted = of(program), of(program, margins)

    def truth(fun, x):
        found = run(fun, x)
        if min(margins, default=1) < 1e-3:
            pytest.skip("A condition is so close that rounding decides.")
        return found

    one = ft.cache(lambda: truth(noted, x))
    each = ft.cache(lambda: truth(lambda xs: jax.vmap(noted)(xs), xs))
    slope = ft.cache(lambda: truth(gradient(noted), x))
    slopes = ft.cache(lambda: truth(lambda xs: gradient(jax.vmap(noted))(xs), xs))

    def natural(key):
        return counts[key].most == 1 and not counts[key].looped

    def agree(found, truth, batch_first=False):
        (out, logs), (expected, records) = found, truth
        assert_trees_close(out, expected, tol=1e-3)
        assert_logs(logs, records, natural=natural, batch_first=batch_first, tol=1e-3)

    def spool_of_jit():
        jitted, expected = jax.jit(fun), one()
        agree(lox.spool(jitted)(x), expected)
        assert_trees_close(jitted(x), expected[0], tol=1e-3)
        agree(lox.spool(jitted)(x), expected)

    def jit_of_spool():
        spooled = jax.jit(lox.spool(fun))
        agree(spooled(x), one())
        agree(spooled(xs[1]), truth(noted, xs[1]))

    def spool_of_vmap():
        agree(jax.jit(lox.spool(jax.vmap(fun)))(xs), each())

    def vmap_of_spool():
        agree(jax.jit(jax.vmap(lox.spool(fun)))(xs), each(), batch_first=True)

    def spool_of_grad():
        agree(jax.jit(lox.spool(gradient(fun)))(x), slope())

    def spool_of_grad_of_vmap():
        agree(jax.jit(lox.spool(gradient(jax.vmap(fun))))(xs), slopes())

    def grad_of_spool():
        found, (out, logs) = jax.jit(jax.grad(spooled_total(fun), has_aux=True))(x)
        agree((out, logs), one())
        assert_trees_close(found, slope()[0], tol=1e-3)

    def tap_of_grad():
        _, found = heard(lambda hear: jax.jit(lox.tap(gradient(fun), hear)), x)
        assert_delivered(found, slope()[1], tol=1e-3)

    def grad_of_tap():
        _, found = heard(lambda hear: jax.jit(gradient(lox.tap(fun, hear))), x)
        assert_delivered(found, one()[1], tol=1e-3)

    def tap():
        check_tap(fun, xs, one(), each(), seed)

    ways = [
        *(spool_of_jit, spool_of_vmap, spool_of_grad, tap, tap_of_grad),
        *(jit_of_spool, vmap_of_spool, grad_of_spool, grad_of_tap, spool_of_grad_of_vmap),
    ]
    for way in ways if "LOX_FUZZ" in os.environ else thin(ways, len(ways), seed):
        way()


def check_tap(fun: Callable, xs: jax.Array, truth, truth_of_each, seed: int) -> None:
    """Some ways to deliver: each program meets two of them, each way many programs."""
    ways = [
        (lambda tap: jax.jit(tap(fun)), truth, xs[0]),
        (lambda tap: jax.jit(jax.vmap(tap(fun))), truth_of_each, xs),
        (lambda tap: jax.jit(tap(jax.vmap(fun))), truth_of_each, xs),
    ]
    transform, (expected, records), x = ways[seed % 3]
    for batch in (None, 3):

        def tapping(hear, batch=batch):
            return transform(lambda fun: lox.tap(fun, hear, batch=batch))

        out, found = heard(tapping, x)
        assert_trees_close(out, expected, tol=1e-3)
        assert_delivered(found, records, by_key=batch is not None, tol=1e-3)


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
