"""Tracing takes time in proportion to the program: nested bodies are evaluated once each.

The interpreter evaluates the body of a loop, branch or call while JAX traces. A rule that
evaluates it twice, once to learn what it logs and once to run it, does so at every level:
five levels deep, that is 32 times.
"""

import functools as ft
import itertools as it

import jax
import jax.numpy as jnp
import pytest

import lox
from support.evaluations import equations, evaluations


# What is nested: each takes the body of a level, and returns the level.
def while_loop(body):
    return lambda x: jax.lax.while_loop(lambda c: c < 9, lambda c: body(c) + 1, x)


def scan(body):
    return lambda x: jax.lax.scan(lambda c, _: (body(c) + 1, None), x, None, 2)[0]


def cond(body):
    return lambda x: jax.lax.cond(x < 9, lambda c: body(c) + 1, lambda c: c, x)


def jit(body):
    return jax.jit(lambda x: body(x) + 1)


def of_examples(level):
    """A level that runs for two examples by `vmap`."""
    return lambda body: lambda x: jax.vmap(level(body))(jnp.stack([x, x - 1])).sum()


LEVELS = {"while_loop": while_loop, "scan": scan, "cond": cond, "jit": jit}
LEVELS |= {f"vmap of {name}": of_examples(level) for name, level in LEVELS.items()}

reduced = ft.partial(lox.spool, reduce="count")  # needs no room in a `while_loop`
tapped = ft.partial(lox.tap, callback=lambda logs: None)
batched = ft.partial(tapped, batch=3)
WAYS = {
    "spool": reduced,
    "spool(vmap)": lambda fun: reduced(jax.vmap(fun)),
    "vmap(spool)": lambda fun: jax.vmap(reduced(fun)),
    "tap": tapped,
    "tap(vmap)": lambda fun: tapped(jax.vmap(fun)),
    "vmap(tap)": lambda fun: jax.vmap(tapped(fun)),
    "tap(batch)": batched,
    "spool(grad)": lambda fun: reduced(jax.grad(fun)),
    "grad(spool)": lambda fun: jax.grad(lambda x: reduced(fun)(x)[0]),
}

# Where evaluations grow faster than the depth, the number at depths 1, 2 and 3. An entry
# goes when its rule evaluates a body once.
FASTER: dict[tuple[str, str], list[int]] = {
    ("spool", "while_loop"): [6, 16, 36],
    ("spool", "vmap of while_loop"): [7, 23, 59],
    ("spool(vmap)", "while_loop"): [7, 24, 68],
    ("spool(vmap)", "cond"): [3, 7, 13],
    ("spool(vmap)", "vmap of while_loop"): [7, 23, 59],
    ("vmap(spool)", "while_loop"): [6, 16, 36],
    ("vmap(spool)", "vmap of while_loop"): [7, 23, 59],
    ("tap", "while_loop"): [6, 16, 36],
    ("tap", "vmap of while_loop"): [7, 23, 59],
    ("tap(vmap)", "while_loop"): [7, 24, 68],
    ("tap(vmap)", "cond"): [3, 7, 13],
    ("tap(vmap)", "vmap of while_loop"): [7, 23, 59],
    ("vmap(tap)", "while_loop"): [7, 28, 118],
    ("vmap(tap)", "cond"): [5, 11, 19],
    ("vmap(tap)", "vmap of while_loop"): [7, 23, 59],
    ("tap(batch)", "while_loop"): [7, 22, 52],
    ("tap(batch)", "vmap of while_loop"): [8, 25, 63],
    ("spool(grad)", "scan"): [2, 5, 9],
    ("spool(grad)", "vmap of scan"): [2, 5, 9],
}


def nested(level, depth):
    """A function of a number, which logs at every level."""

    def fun(x):
        lox.log({f"x at {depth}": x})
        return level(nested(level, depth - 1))(x) if depth else x

    return fun


def counts(way, level, depths):
    x = jnp.ones(3) if "vmap" in way else jnp.float32(1)
    return [evaluations(WAYS[way](nested(LEVELS[level], depth)), x) for depth in depths]


CASES = [
    (way, level)
    for way in WAYS
    for level in LEVELS
    if not ("grad" in way and "while_loop" in level)  # JAX has no reverse mode of it
]


@pytest.mark.parametrize(("way", "level"), CASES)
def test_evaluations_grow_in_proportion_to_the_depth(way, level):
    if (way, level) in FASTER:
        assert counts(way, level, [1, 2, 3]) == FASTER[way, level]
        return
    found = counts(way, level, [1, 2, 3, 4, 5])
    steps = {after - before for before, after in it.pairwise(found)}
    assert len(steps) == 1, found


# Operands -----------------------------------------------------------------------------


def ten_keys_and_two_steps(x):
    lox.log({f"key {i}": i * x for i in range(10)}, step=x, epoch=-x)
    return x


def test_operands_that_a_record_is_sent_with():
    jaxpr = jax.make_jaxpr(tapped(ten_keys_and_two_steps))(1.0)
    (emit,) = equations(jaxpr.jaxpr, "lox_emit")
    assert len(emit.invars) == 13  # a token, the values, and both steps once


def test_arrays_that_spool_returns_for_a_record():
    _, logs = jax.eval_shape(lox.spool(ten_keys_and_two_steps), 1.0)
    assert len(jax.tree.leaves(logs)) == 12
