"""What logs that are turned off cost: a jitted call ÷ the same without log calls."""

import jax
import jax.numpy as jnp
from _measure import Figure, compare, table

import lox

GOAL = "1.00"


def figures() -> list[Figure]:
    return [*both("one operation", one), *both("a scan of 100", loop)]


def both(name, program):
    without = call(f"nolog, {name}", lox.nolog(program(lox.log)), program)
    with lox.silent():
        inside = call(f"silent, {name}", program(lox.log), program)
    return without, inside


def call(name, logged, program):
    ours, theirs, x = jax.jit(logged), jax.jit(program(ignore)), jnp.arange(8.0)
    return compare(name, lambda: ours(x), lambda: theirs(x), goal=GOAL)


def ignore(*args, **steps):
    pass


def one(log):
    def f(x):
        log({"mean": x.mean(), "max": x.max()}, step=0)
        return 2 * x

    return f


def loop(log):
    def body(x, i):
        log({"mean": x.mean(), "max": x.max()}, step=i)
        return jnp.sin(x), None

    return lambda x: jax.lax.scan(body, x, jnp.arange(100))[0]


if __name__ == "__main__":
    print(table(figures()))
