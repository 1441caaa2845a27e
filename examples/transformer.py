"""Train a small transformer, and look into each of its layers.

The layers are a `scan` over stacked parameters, and each is under `jax.checkpoint`, so
that the gradient computes it twice instead of keeping what is inside. A layer logs how
spread out its attention is and how much it adds to its input, once per forward pass, with
its number as a step.

The task: a row of random letters, a mark, and then the same letters backwards. Only the
second half can be predicted, and only by looking at the right place of the first.
"""

import argparse
import functools as ft
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import lox

LETTERS = 8
HALF = 8  # letters before the mark
LAYERS, HEADS, WIDTH = 3, 4, 32
BATCH = 64
RATE = 3e-3


def init(seed):
    random = np.random.default_rng(seed)

    def normal(*shape):
        return random.normal(scale=shape[-2] ** -0.5, size=shape).astype(np.float32)

    return {
        "letters": normal(LETTERS + 1, WIDTH),
        "places": normal(2 * HALF, WIDTH),
        "layers": {
            "attention_in": normal(LAYERS, WIDTH, 3 * WIDTH),
            "attention_out": normal(LAYERS, WIDTH, WIDTH),
            "hidden_in": normal(LAYERS, WIDTH, 4 * WIDTH),
            "hidden_out": normal(LAYERS, 4 * WIDTH, WIDTH),
        },
        "out": normal(WIDTH, LETTERS),
    }


def rows(key):
    """Draw letters, a mark, and the letters backwards: (batch, 2 * HALF + 1)."""
    letters = jax.random.randint(key, (BATCH, HALF), 0, LETTERS)
    mark = jnp.full((BATCH, 1), LETTERS)
    return jnp.concatenate([letters, mark, letters[:, ::-1]], axis=1)


def normalise(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def attention(layer, x):
    batch, length, _ = x.shape
    parts = (x @ layer["attention_in"]).reshape(batch, length, 3, HEADS, -1)
    query, key, value = jnp.moveaxis(parts, 2, 0)
    scores = jnp.einsum("bqhc,bkhc->bhqk", query, key) * query.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    weights = jax.nn.softmax(scores)
    entropy = -jnp.sum(weights * jnp.log(weights + 1e-9), axis=-1)
    # Where the letters are to be given back: 1 is looking at one place, 8 at eight.
    lox.log({"places looked at": jnp.exp(jnp.mean(entropy[..., HALF:]))})
    found = jnp.einsum("bhqk,bkhc->bqhc", weights, value).reshape(x.shape)
    return found @ layer["attention_out"]


@jax.checkpoint
def apply_layer(layer, x):
    start = x
    x = x + attention(layer, normalise(x))
    hidden = jax.nn.relu(normalise(x) @ layer["hidden_in"])
    x = x + hidden @ layer["hidden_out"]
    lox.log(
        {
            "added": jnp.linalg.norm(x - start) / jnp.linalg.norm(start),
            "active units": jnp.mean(hidden > 0),
        }
    )
    return x


def network(params, letters):
    def body(x, numbered_layer):
        number, layer = numbered_layer
        # The layer does not know its number: it is put to what was logged on its way out.
        x, logs = lox.spool(apply_layer)(layer, x)
        lox.log(logs, layer=number)
        return x, None

    x = params["letters"][letters] + params["places"]
    x, _ = jax.lax.scan(body, x, (jnp.arange(LAYERS), params["layers"]))
    return normalise(x) @ params["out"]


def loss(params, batch):
    scores = network(params, batch[:, :-1])[:, HALF:]
    letters = batch[:, HALF + 1 :]
    chances = jnp.take_along_axis(jax.nn.log_softmax(scores), letters[..., None], axis=-1)
    value = -jnp.mean(chances)
    lox.log({"loss": value, "accuracy": jnp.mean(scores.argmax(-1) == letters)})
    return value


def train(params, key, steps):
    def update(state, step):
        params, first, second = state
        gradient = jax.grad(loss)(params, rows(jax.random.fold_in(key, step)))
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g**2, second, gradient)
        warm = jnp.minimum(1.0, (step + 1) / 50)
        params = jax.tree.map(
            lambda p, m, v: p - RATE * warm * m / (jnp.sqrt(v) + 1e-6),
            params,
            first,
            second,
        )
        return (params, first, second), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    (params, _, _), _ = jax.lax.scan(update, (params, zeros, zeros), jnp.arange(steps))
    return params


def by_layer(logs, key):
    """The rows of each layer: (steps * layers,) -> (layers, steps)."""
    number = np.asarray(logs.layer[key])
    return [np.asarray(logs[key])[number == layer] for layer in range(LAYERS)]


def summarise(logs, steps):
    print(f"{'step':>6}{'loss':>8}{'accuracy':>10}   places looked at, by layer")
    places = by_layer(logs, "places looked at")
    for step in np.linspace(0, steps - 1, 6).astype(int):
        looked = "  ".join(f"{layer[step]:4.1f}" for layer in places)
        loss, accuracy = logs["loss"][step], logs["accuracy"][step]
        print(f"{step:>6}{loss:>8.3f}{accuracy:>10.1%}   {looked}")


def plot(logs, path):
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
    axes[0].plot(logs["loss"], label="loss")
    axes[0].plot(logs["accuracy"], label="accuracy")
    axes[0].legend(frameon=False)
    keys = ["places looked at", "added", "active units"]
    for axis, key in zip(axes[1:], keys, strict=True):
        for number, values in enumerate(by_layer(logs, key)):
            axis.plot(values, lw=1, label=f"layer {number}")
        axis.set_ylabel(key)
    axes[1].legend(frameon=False)
    for axis in axes:
        axis.set(xlabel="training step", ylim=(0, None))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def main():
    options = arguments()
    steps = 20 if options.quick else 300
    start = time.perf_counter()
    trained = jax.jit(lox.spool(ft.partial(train, steps=steps)))
    _, logs = jax.block_until_ready(trained(init(seed=0), jax.random.key(0)))
    print(f"{steps} steps in {time.perf_counter() - start:.1f} s with compilation\n")
    summarise(logs, steps)
    picture = options.out / "transformer.png"
    plot(logs, picture)
    print(f"\npicture: {picture}")


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="too few steps to learn it")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
