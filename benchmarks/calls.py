"""What a call costs: `spool(jitted)` ÷ a jitted function returning the same arrays."""

import jax
import jax.numpy as jnp
from _measure import Figure, compare, table

import lox

GOAL = "≤ 3"


def figures() -> list[Figure]:
    x = jnp.float32(1)
    tree = {f"weight {i}": x for i in range(100)}
    return [
        call("2 arguments", outside, GOAL, x, x),
        call("100 arguments", outside, GOAL, *[x] * 100),
        call("a tree of 100 arrays", outside, GOAL, tree),
        call("2 arguments, jit(spool(f))", inside, "", x, x),
    ]


def outside(f):
    return lox.spool(jax.jit(f))


def inside(f):
    return jax.jit(lox.spool(f))


def call(name, transform, goal, *args):
    def f(*args):
        first, *_ = jax.tree.leaves(args)
        lox.log({"half": first / 2, "double": 2 * first, "square": first**2})
        return first + 1

    def same(*args):
        first, *_ = jax.tree.leaves(args)
        return first + 1, {"half": first / 2, "double": 2 * first, "square": first**2}

    spooled, jitted = transform(f), jax.jit(same)
    return compare(name, lambda: spooled(*args), lambda: jitted(*args), goal=goal)


if __name__ == "__main__":
    print(table(figures()))
