"""Loops that do hardly anything but log: the worst that can happen."""

import jax
import jax.numpy as jnp

from ._case import Case

SHAPE = 64, 64


def logged(log, steps, *, metrics=1, shape=()):
    def step(x, i):
        x = 0.99 * x + 1
        log({f"x{k}": x + k for k in range(metrics)})
        return x, None

    def run(key):
        return jax.lax.scan(step, start(key, shape), jnp.arange(steps))[0]

    return run


def by_hand(steps, *, metrics=1, shape=()):
    def step(x, i):
        x = 0.99 * x + 1
        return x, tuple(x + k for k in range(metrics))

    def run(key):
        return jax.lax.scan(step, start(key, shape), jnp.arange(steps))

    return run


def start(key, shape):
    return jax.random.normal(key, shape)


def logged_product(log, steps):
    def step(x, i):
        x = jnp.tanh(x @ x)
        log({"mean": x.mean(), "image": x})
        return x, None

    def run(key):
        return jax.lax.scan(step, start(key, SHAPE) / 8, jnp.arange(steps))[0]

    return run


def product_by_hand(steps):
    def step(x, i):
        x = jnp.tanh(x @ x)
        return x, (x.mean(), x)

    def run(key):
        return jax.lax.scan(step, start(key, SHAPE) / 8, jnp.arange(steps))

    return run


def logged_layers(log, layers):
    """No loop: each layer has a log call of its own."""

    def run(key):
        x = start(key, (8, 8))
        for i in range(layers):
            x = jnp.tanh(x @ x.T + 1) * x
            log({f"mean {i}": jnp.mean(x)})
        return x

    return run


def layers_by_hand(layers):
    def run(key):
        x, rows = start(key, (8, 8)), []
        for _ in range(layers):
            x = jnp.tanh(x @ x.T + 1) * x
            rows.append(jnp.mean(x))
        return x, rows

    return run


EMPTY = Case(
    "empty loop",
    "A scan of 10,000 steps that does hardly anything, and logs one number in each.",
    logged,
    by_hand,
    steps=10_000,
)
ARRAYS = Case(
    "arrays",
    "A scan of 1,000 steps, each with a product of 64 x 64 matrices (about 10 µs), which "
    "logs the matrix and its mean.",
    logged_product,
    product_by_hand,
    steps=1000,
)
