"""`log_grad` over the catalogue and over random programs: what flows back is logged, once.

The truth is an eager run with perturbations, see `support.cotangents`.
"""

import contextlib
import functools as ft
import inspect
import itertools as it
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

import lox
from support import cotangents, programs
from support.compiled import jit_in_turn, way
from support.delivered import assert_delivered, heard
from support.programs import PROGRAMS, Program
from support.random_programs import (
    CustomJvp,
    CustomVjp,
    Grad,
    Log,
    Node,
    Scope,
    random_program,
)
from support.selection import covering, thin
from support.truth import assert_logs, assert_trees_close, total_of

COUNT = int(os.environ.get("LOX_FUZZ", "30"))
START = int(os.environ.get("LOX_FUZZ_START", "0"))

# Programs that compute with logs, or whose values no cotangent reaches.
LEFT_OUT = {
    *{p.name for p in PROGRAMS if p.name.startswith("inner_spool")},
    "cond_with_a_pytree",  # holds booleans
    "cond_with_a_prng_key",
    "vmap_over_prng_keys",
    "custom_root",
    "value_and_grad",  # of a loss and something else
    "custom_jvp_whose_rule_differentiates",  # the truth cuts, JAX does not
    "scan_of_a_checkpoint_of_a_scan_for_its_logs",
    "cond_for_its_logs_in_a_scan",
    "scan_of_length_0_after_a_log",  # logs something else by hand
    # What does not depend on the examples has one cotangent, for all of them.
    "vmap_with_batched_and_unbatched_records_of_a_key",
}


def calls(p: Program, *names: str) -> bool:
    source = inspect.getsource(p.fun)
    return p.grad and p.name not in LEFT_OUT and any(name in source for name in names)


GRADIENTS = [p for p in PROGRAMS if calls(p, "jax.grad(", "jax.value_and_grad(")]
DIFFERENTIATED = [
    p
    for p in PROGRAMS
    if calls(p, "logged(") and not calls(p, "grad(", "vjp(", "jacrev(", "hessian(")
]


@contextlib.contextmanager
def marked() -> Iterator[None]:
    """Let the programs of the catalogue log cotangents, and nothing else."""

    def log_cotangent(key: str, x: Any, **steps: Any) -> Any:
        return lox.log_grad(x, key, **steps)

    with (
        mock.patch.object(programs, "logged", log_cotangent),
        mock.patch.object(lox, "log", lambda data, **_: dict(data)),
    ):
        yield


def with_marks(fun: Callable) -> Callable:
    def run(x):
        with marked():
            return fun(x)

    return run


def truth(fun: Callable, x: jax.Array) -> tuple[Any, list]:
    def run(x):
        recorder = lox.log
        with marked(), mock.patch.object(lox, "log", recorder):
            return fun(x)

    return cotangents.run(run, x)


def check(found: tuple[Any, lox.logdict], expected: tuple[Any, list], **options: Any):
    (out, logs), (result, records) = found, expected
    rows = logs.rows()
    assert_trees_close(out, result, tol=options.get("tol", 1e-4))
    assert_logs(logs, records, natural=lambda key: not rows[key].time, **options)


# The catalogue ------------------------------------------------------------------------


@way(DIFFERENTIATED)
def spool_of_grad(p: Program):
    return with_marks(lox.spool(jax.grad(total_of(p.fun)))), p.x


@spool_of_grad.every
def test_spool_of_grad_gives_the_cotangents_in_the_order_of_the_backward_pass(p: Program):
    check(spool_of_grad(p), truth(lambda x: jax.grad(total_of(p.truth))(x), p.x))


@way(covering(DIFFERENTIATED, 6))
def spool_of_grad_of_vmap(p: Program):
    return with_marks(lox.spool(jax.grad(total_of(jax.vmap(p.fun))))), p.xs


@spool_of_grad_of_vmap.every
def test_spool_of_grad_of_vmap_gives_the_cotangents_of_each_example(p: Program):
    expected = truth(lambda xs: jax.grad(total_of(jax.vmap(p.truth)))(xs), p.xs)
    check(spool_of_grad_of_vmap(p), expected)


@way(covering(DIFFERENTIATED, 6, start=1))
def vmap_of_spool_of_grad(p: Program):
    return with_marks(jax.vmap(lox.spool(jax.grad(total_of(p.fun))))), p.xs


@vmap_of_spool_of_grad.every
def test_vmap_of_spool_of_grad_gives_the_cotangents_of_each_example(p: Program):
    expected = truth(lambda xs: jax.vmap(jax.grad(total_of(p.truth)))(xs), p.xs)
    check(vmap_of_spool_of_grad(p), expected, batch_first=True)


@way(GRADIENTS)
def spool_of_a_gradient(p: Program):
    return with_marks(lox.spool(p.fun)), p.x


@spool_of_a_gradient.every
def test_spool_gives_the_cotangents_of_the_gradients_inside(p: Program):
    check(spool_of_a_gradient(p), truth(p.truth, p.x))


# A `custom_vjp` has no forward mode.
FORWARD = [p for p in DIFFERENTIATED if not calls(p, "custom_vjp", "custom_gradient")]


@way(covering(FORWARD, 6, start=2))
def values_under_forward_mode(p: Program):
    def both(x):
        tangent = jnp.ones_like(x)
        fun = total_of(p.fun)
        return jax.jvp(fun, (x,), (tangent,)), jax.jvp(jax.grad(fun), (x,), (tangent,))

    def run(x):
        with marked():
            found = lox.spool(both)(x)
            bare = lox.nolog(both)(x)
        return found, bare

    return run, p.x


@values_under_forward_mode.every
def test_it_is_an_identity_in_forward_mode_and_logs_first_order_cotangents_once(p: Program):
    (found, logs), bare = values_under_forward_mode(p)
    assert_trees_close(found, bare)
    expected = truth(lambda x: jax.grad(total_of(p.truth))(x), p.x)
    check((bare[1][0], logs), expected)


# JAX leaves out a `cond` whose branches do nothing at all; `log_grad` is something.
DOING = [p for p in DIFFERENTIATED if p.name != "nested_conds"]


@pytest.mark.parametrize("p", thin(DOING, 6), ids=lambda p: p.name)
@pytest.mark.usefixtures("optimized")
def test_without_a_gradient_there_is_no_record_and_no_cost(p: Program):
    def cost(fun):
        return jax.jit(with_marks(fun)).lower(p.x).compile().cost_analysis()

    assert not lox.spool(with_marks(p.fun))(p.x)[1]
    assert cost(p.fun) == cost(lox.nolog(p.fun))


# Random programs ----------------------------------------------------------------------

EXAMPLES = [
    jnp.array([0.7, 0.1, -0.4]),
    jnp.array([[0.7, -0.2], [0.1, 0.3], [-0.9, 0.4]]),
]


@pytest.mark.parametrize("seed", range(START, START + COUNT))
def test_a_random_program_logs_the_cotangents_of_its_eager_gradient(seed):
    program = suitable_program(seed)
    try:
        with mock.patch.object(Log, "run", log_cotangent):
            check_random(program, EXAMPLES[seed % 2], seed)
    except Exception as error:
        error.add_note(f"\nThe program of seed {seed}:\n{program}")
        raise


def check_random(program: Node, xs: jax.Array, seed: int) -> None:
    margins: list = []
    jit = ft.partial(jit_in_turn, seed // 3)

    def fun(x, margins=None):
        def value(x):
            return program.run(x, Scope(x, jnp.int32(0), margins))

        return value(x) if has_gradients(program) else jax.grad(total_of(value))(x)

    def each(xs, margins=None):
        return jax.vmap(lambda x: fun(x, margins))(xs)

    one = cotangents.run(lambda x: fun(x, margins), xs[0])
    if min(margins, default=1) < 1e-3:
        pytest.skip("A condition is so close that rounding decides.")

    def spool():
        check(jit(lox.spool(fun))(xs[0]), one, tol=1e-3)

    def tap():
        out, found = heard(lambda hear: jit(lox.tap(fun, hear)), xs[0])
        assert_trees_close(out, one[0], tol=1e-3)
        assert_delivered(found, one[1], tol=1e-3)

    def vmap_of_spool():
        expected = cotangents.run(lambda xs: each(xs, margins), xs)
        if min(margins, default=1) < 1e-3:
            pytest.skip("A condition is so close that rounding decides.")
        check(jit(jax.vmap(lox.spool(fun)))(xs), expected, tol=1e-3, batch_first=True)

    ways = [spool, tap, vmap_of_spool]
    for run in ways if "LOX_FUZZ" in os.environ else thin(ways, 3, seed):
        run()


def log_cotangent(self: Log, v: Any, scope: Scope) -> Any:
    steps = {name: self.VALUES[what](v, scope) for name, what in self.steps}
    return lox.log_grad(v, self.key, tags=self.tags, **steps)


def suitable_program(seed: int) -> Node:
    """A program without second derivatives: of what is linear they may be there or not."""
    numbers = it.count(1000 * seed)
    return next(filter(is_suitable, map(random_program, numbers)))


def is_suitable(program: Node) -> bool:
    nodes = list(nodes_of(program))
    if any(isinstance(node, CustomVjp) and node.backward_key for node in nodes):
        return False  # That logs something else.
    if any(isinstance(node, CustomJvp) and node.differentiates for node in nodes):
        return False  # The truth cuts these, JAX does not.
    gradients = [node for node in nodes if is_gradient(node)]
    logging = gradients or [program]
    return any(isinstance(inner, Log) for node in logging for inner in nodes_of(node)) and (
        not any(is_gradient(inner) for node in gradients for inner in nodes_of(node.body))
    )


def has_gradients(program: Node) -> bool:
    return any(map(is_gradient, nodes_of(program)))


def is_gradient(node: Node) -> bool:
    return isinstance(node, Grad) and node.how != "jvp"


def nodes_of(node: Node) -> Iterator[Node]:
    yield node
    fields = vars(node)
    for part in (*fields.get("nodes", ()), *fields.get("bodies", ()), fields.get("body")):
        if part is not None:
            yield from nodes_of(part)
