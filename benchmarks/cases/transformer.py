"""A transformer whose layers are scanned and recomputed in the backward pass."""

import jax
import jax.numpy as jnp

from ._case import Case, descend, flat, norm

LAYERS, WIDTH, HEADS, LENGTH, BATCH, TOKENS, RATE = 4, 64, 4, 32, 8, 32, 0.1


def logged(log, steps):
    @jax.checkpoint
    def layer(x, weights):
        x = block(x, weights)
        log({"activation": norm(x)})
        return x, None

    def loss(params, tokens):
        x, _ = jax.lax.scan(layer, embed(params, tokens), params["layers"])
        value, accuracy = errors(params, x, tokens)
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
    @jax.checkpoint
    def layer(x, weights):
        x = block(x, weights)
        return x, norm(x)

    def loss(params, tokens):
        x, activation = jax.lax.scan(layer, embed(params, tokens), params["layers"])
        value, accuracy = errors(params, x, tokens)
        return value, (activation, value, accuracy)

    def step(params, key):
        grads, rows = jax.grad(loss, has_aux=True)(params, data(key))
        rows = *rows, norm(grads)
        return descend(params, grads, RATE), rows

    def train(key):
        out, rows = jax.lax.scan(step, init(key), jax.random.split(key, steps))
        activation, *others = rows
        return out, (flat(activation, 2), *others)

    return train


def init(key):
    keys = jax.random.split(key, 4)

    def weights(key, *shape):
        return jax.random.normal(key, shape) / jnp.sqrt(shape[-2])

    return {
        "embedding": jax.random.normal(keys[0], (TOKENS, WIDTH)),
        "layers": {
            "attend": weights(keys[1], LAYERS, WIDTH, 3 * WIDTH),
            "in": weights(keys[2], LAYERS, WIDTH, 2 * WIDTH),
            "out": weights(keys[3], LAYERS, 2 * WIDTH, WIDTH),
        },
    }


def data(key):
    """Sequences that repeat themselves."""
    half = jax.random.randint(key, (BATCH, LENGTH // 2), 0, TOKENS)
    return jnp.concatenate([half, half], axis=1)


def embed(params, tokens):
    position = jnp.arange(LENGTH)[:, None] / jnp.arange(1, WIDTH + 1)[None]
    return params["embedding"][tokens] + jnp.sin(position)[None]


def block(x, weights):
    parts = normalised(x) @ weights["attend"]
    query, key, value = jnp.split(parts.reshape(BATCH, LENGTH, HEADS, -1), 3, axis=-1)
    x = x + jax.nn.dot_product_attention(query, key, value, is_causal=True).reshape(x.shape)
    return x + jax.nn.gelu(normalised(x) @ weights["in"]) @ weights["out"]


def normalised(x):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def errors(params, x, tokens):
    logits = normalised(x[:, :-1]) @ params["embedding"].T
    right = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return -right.mean(), (logits.argmax(-1) == tokens[:, 1:]).mean()


CASE = Case(
    "transformer",
    "A transformer of 4 layers, scanned and recomputed (`jax.checkpoint`), 20 training "
    "steps; each layer logs, and so do the loss and the step.",
    logged,
    by_hand,
    steps=20,
    small=2,
)
