"""Slice sampling: how long a step takes is not known, its search is a while_loop."""

import jax
import jax.numpy as jnp

from ._case import Case

WIDTH, SIZE = 4.0, 64


def logged(log, steps):
    def shrink(search):
        search = narrowed(search)
        log({"radius": search["radius"]}, reduce="max")
        return search

    def step(x, key):
        search = jax.lax.while_loop(is_outside, shrink, begin(x, key))
        log({"density": density(search["x"])})
        return search["x"], None

    def chain(key):
        return jax.lax.scan(step, jnp.zeros(SIZE), jax.random.split(key, steps))[0]

    return chain


def by_hand(steps):
    """The widest radius of each search, and whether there was any, and of all searches."""

    def shrink(state):
        search, widest, _ = state
        search = narrowed(search)
        return search, jnp.maximum(widest, search["radius"]), True

    def find(x, key):
        return jax.lax.while_loop(
            lambda state: is_outside(state[0]), shrink, (begin(x, key), *nothing())
        )

    def step(state, key):
        x, widest, is_any = state
        search, radius, is_one = find(x, key)
        state = search["x"], jnp.maximum(widest, radius), is_any | is_one
        return state, density(search["x"])

    def chain(key):
        start = jnp.zeros(SIZE), *nothing()
        (x, widest, is_any), rows = jax.lax.scan(step, start, jax.random.split(key, steps))
        return x, (widest, rows, is_any)

    return chain


def nothing():
    return jnp.float32(-jnp.inf), False


def density(x):
    """A ring with bumps, far from normal."""
    return -4 * (jnp.sqrt(jnp.sum(x**2)) - 2) ** 2 + jnp.sin(3 * x).sum() / 8


def begin(x, key):
    """A height below the density, and a box around the point."""
    level, box, key = jax.random.split(key, 3)
    low = x - WIDTH * jax.random.uniform(box, x.shape)
    height = density(x) + jnp.log(jax.random.uniform(level))
    return {
        "start": x, "x": low, "low": low, "high": low + WIDTH,
        "height": height, "radius": jnp.float32(0), "key": key,
    }  # fmt: skip


def is_outside(search):
    return density(search["x"]) < search["height"]


def narrowed(search):
    """Draw a point of the box, which then ends there."""
    key, draw = jax.random.split(search["key"])
    low, high, start = search["low"], search["high"], search["start"]
    x = low + (high - low) * jax.random.uniform(draw, low.shape)
    return {
        **search,
        "x": x,
        "low": jnp.where(x < start, x, low),
        "high": jnp.where(x < start, high, x),
        "radius": jnp.max(high - low),
        "key": key,
    }


CASE = Case(
    "sampler",
    "A chain of 500 steps of slice sampling in 64 dimensions; the search for a point is a "
    "`while_loop`, whose radius is reduced to its maximum.",
    logged,
    by_hand,
    steps=500,
    small=8,
)
