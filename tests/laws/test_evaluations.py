"""Tracing takes time in proportion to the program, however deep it is nested.

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
from support.selection import FULL, thin


# What is nested: each takes the body of a level, and returns the level.
def while_loop(body):
    return lambda x: jax.lax.while_loop(lambda c: c < 9, lambda c: body(c) + 1, x)


def while_loop_that_logs_when_asked(body):
    def running(x):
        lox.log({"asked": x})
        return x < 9

    return lambda x: jax.lax.while_loop(running, lambda c: body(c) + 1, x)


def while_loop_until_a_flag(body):
    """Its predicate does not depend on the examples of a batch at first."""

    def step(c):
        x = body(c[0]) + 1
        return x, x > 9

    return lambda x: jax.lax.while_loop(lambda c: ~c[1], step, (x, False))[0]


def while_loop_for_its_logs(body):
    """JAX has a reverse mode of it: it needs no derivative."""
    return lambda x: x + jax.lax.stop_gradient(while_loop(body)(x))


def scan(body):
    return lambda x: jax.lax.scan(lambda c, _: (body(c) + 1, None), x, None, 2)[0]


def cond(body):
    return lambda x: jax.lax.cond(x < 9, lambda c: body(c) + 1, lambda c: c, x)


def jit(body):
    return jax.jit(lambda x: body(x) + 1)


def checkpoint(body):
    return jax.checkpoint(lambda x: body(x) + 1)


def custom_jvp(body):
    fun = jax.custom_jvp(lambda x: body(x) + 1)
    fun.defjvp(lambda primals, tangents: (fun(*primals), tangents[0]))
    return fun


def custom_vjp(body):
    fun = jax.custom_vjp(lambda x: body(x) + 1)
    fun.defvjp(lambda x: (fun(x), None), lambda residual, cotangent: (cotangent,))
    return fun


def custom_linear_solve(body):
    def solve(matvec, b):
        return body(b) / 2

    def level(x):
        return jax.lax.custom_linear_solve(lambda y: 2 * y, x, solve, lambda f, b: b / 2)

    return level


def shard_map(body):
    """Each level is over an axis of its own."""

    def level(x):
        mesh = jax.sharding.get_abstract_mesh()
        free = [axis for axis in AXES if axis not in getattr(mesh, "manual_axes", ())]
        if not mesh.axis_names:
            types = (jax.sharding.AxisType.Auto,) * len(AXES)
            mesh = jax.make_mesh((1,) * len(AXES), AXES, axis_types=types)
        spec = jax.sharding.PartitionSpec()
        inside = jax.shard_map(
            lambda x: body(x) + 1,
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
            axis_names={free[0]},
        )
        return inside(x)

    return level


AXES = ("a", "b", "c", "d", "e")


def of_examples(level):
    """A level that runs for two examples by `vmap`."""
    return lambda body: lambda x: jax.vmap(level(body))(jnp.stack([x, x - 1])).sum()


def mixed(*levels):
    """Different levels, one in the other."""
    return lambda body: ft.reduce(lambda body, level: level(body), levels, body)


LEVELS = {
    level.__name__: level
    for level in (
        while_loop,
        while_loop_that_logs_when_asked,
        while_loop_until_a_flag,
        while_loop_for_its_logs,
        scan,
        cond,
        jit,
        checkpoint,
        custom_jvp,
        custom_vjp,
        custom_linear_solve,
        shard_map,
    )
}
LEVELS |= {
    f"vmap of {level.__name__}": of_examples(level)
    for level in (while_loop, scan, cond, jit)
}
LEVELS["mixed"] = mixed(while_loop_for_its_logs, cond, scan, checkpoint)
LEVELS["custom and mixed"] = mixed(custom_jvp, scan, custom_vjp, cond)

reduced = ft.partial(lox.spool, reduce="count")  # needs no room in a `while_loop`
kept = ft.partial(lox.spool, capacity=2, interval=2)
tapped = ft.partial(lox.tap, callback=lambda logs: None)
batched = ft.partial(tapped, batch=3)
WAYS = {
    "spool": reduced,
    "spool(interval)": kept,
    "spool(vmap)": lambda fun: reduced(jax.vmap(fun)),
    "vmap(spool)": lambda fun: jax.vmap(reduced(fun)),
    "tap": tapped,
    "tap(vmap)": lambda fun: tapped(jax.vmap(fun)),
    "vmap(tap)": lambda fun: jax.vmap(tapped(fun)),
    "tap(batch)": batched,
    "vmap(tap(batch))": lambda fun: jax.vmap(batched(fun)),
    "nolog": lox.nolog,
    "progress": lox.progress,
    "spool(grad)": lambda fun: reduced(jax.grad(fun)),
    "grad(spool)": lambda fun: jax.grad(lambda x: reduced(fun)(x)[0]),
    "spool(vmap(grad))": lambda fun: reduced(jax.vmap(jax.grad(fun))),
    "spool(grad(remat))": lambda fun: reduced(jax.grad(jax.checkpoint(fun))),
    "jvp(tap)": lambda fun: lambda x: jax.jvp(tapped(fun), (x,), (x,)),
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


# JAX has no reverse mode of these.
FORWARD_ONLY = [name for name in LEVELS if "while_loop" in name and "for_its" not in name]
CASES = [
    (way, level)
    for number, level in enumerate(LEVELS)
    for way in (WAYS if level in ("while_loop", "mixed") else thin([*WAYS], 4, number))
    if not ("grad" in way and level in FORWARD_ONLY)
]
DEPTHS = [1, 2, 3, 4, 5] if FULL else [1, 2, 3, 4]


@pytest.mark.parametrize(("way", "level"), CASES)
def test_evaluations_grow_in_proportion_to_the_depth(way, level):
    found = counts(way, level, DEPTHS)
    steps = _differences(found)
    if "vmap of" in level:
        # Each level is batched by all of the `vmap`s around it.
        steps = _differences(steps)
    # The outermost levels may be special, but none costs more than those around it.
    assert steps[-1] <= max(steps[:-1]), found


def _differences(numbers):
    return [after - before for before, after in it.pairwise(numbers)]


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
