"""A network trained in one scan, with logs inside the loss."""

import jax
import jax.numpy as jnp

from ._case import Case, descend, norm

IN, HIDDEN, BATCH, RATE = 16, 128, 64, 0.1


def logged(log, steps):
    def loss(params, batch):
        value, accuracy = errors(params, batch)
        log({"loss": value, "accuracy": accuracy})
        return value

    def step(params, key):
        grads = jax.grad(loss)(params, data(key))
        log({"norm": norm(grads)})
        return descend(params, grads, RATE), None

    def train(key):
        return jax.lax.scan(step, init(key), jax.random.split(key, steps))[0]

    return train


def by_hand(steps):
    def loss(params, batch):
        value, accuracy = errors(params, batch)
        return value, (value, accuracy)

    def step(params, key):
        grads, rows = jax.grad(loss, has_aux=True)(params, data(key))
        rows = *rows, norm(grads)
        return descend(params, grads, RATE), rows

    def train(key):
        return jax.lax.scan(step, init(key), jax.random.split(key, steps))

    return train


def init(key):
    first, second = jax.random.split(key)
    return {
        "in": jax.random.normal(first, (IN, HIDDEN)) / 4,
        "out": jax.random.normal(second, (HIDDEN,)) / 8,
    }


def data(key):
    x = jax.random.normal(key, (BATCH, IN))
    return x, jnp.sign(x[:, 0] * x[:, 1])


def errors(params, batch):
    x, label = batch
    margin = label * (jnp.tanh(x @ params["in"]) @ params["out"])
    return jax.nn.softplus(-margin).mean(), (margin > 0).mean()


CASE = Case(
    "mlp",
    "A network with one hidden layer, 1,000 steps of gradient descent in one scan; loss "
    "and accuracy are logged inside the loss.",
    logged,
    by_hand,
    steps=1000,
)
