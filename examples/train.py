"""Train a small network on eight seeds at once, and plot what it logged.

The network, its loss and the training loop call `lox.log` where they know something
worth knowing: inside a jitted layer, under `grad`, in a `cond`, in a `scan`. None of
them returns a metric. `lox.spool` around the whole collects them on the device, and
`vmap` makes it eight seeds.
"""

import functools as ft
import pathlib
import time

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import PercentFormatter

import lox

SEEDS = 8
STEPS = 2000
EVERY = 50
BATCH = 64
WIDTH = 32
LEARNING_RATE = 0.05
PICTURE = pathlib.Path("build/learning_curves.png")


def spirals(key, size):
    """Draw points from two spirals, labelled -1 and 1."""
    key_turn, key_label, key_noise = jax.random.split(key, 3)
    turn = jnp.sqrt(jax.random.uniform(key_turn, (size,))) * 1.5
    label = jax.random.rademacher(key_label, (size,)).astype(jnp.float32)
    angle = 2 * jnp.pi * turn
    arm = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1)
    x = arm * (label * turn)[:, None]
    return x + 0.12 * jax.random.normal(key_noise, x.shape), label


def init(key):
    sizes = [2, WIDTH, WIDTH, 1]
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (m, n)) * jnp.sqrt(2 / m), "b": jnp.zeros(n)}
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


@ft.partial(jax.jit, static_argnames="name")
def hidden(layer, x, name):
    h = jax.nn.relu(x @ layer["w"] + layer["b"])
    lox.log({f"{name}/active": jnp.mean(h > 0)})
    return h


def network(params, x):
    *inner, last = params
    for i, layer in enumerate(inner, start=1):
        x = hidden(layer, x, f"layer {i}")
    return (x @ last["w"] + last["b"])[:, 0]


def errors(params, data):
    x, label = data
    margin = label * network(params, x)
    return jnp.mean(jax.nn.softplus(-margin)), jnp.mean(margin > 0)


def loss(params, data):
    value, accuracy = errors(params, data)
    lox.log({"train/loss": value, "train/accuracy": accuracy})
    return value


def evaluate(best, params, step):
    data = spirals(jax.random.key(0), 1000)
    value, accuracy = lox.nolog(errors)(params, data)
    lox.log({"test/loss": value, "test/accuracy": accuracy}, step=step)

    def new_best():
        lox.log({"test/best": accuracy}, step=step)
        return accuracy

    return jax.lax.cond(accuracy > best, new_best, lambda: best)


def train(key):
    key_params, key_data = jax.random.split(key)

    def update(state, step):
        params, momentum, best = state
        data = spirals(jax.random.fold_in(key_data, step), BATCH)
        grads = jax.grad(loss)(params, data)
        lox.log({"gradient": norm(grads)})
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        params = jax.tree.map(lambda p, m: p - LEARNING_RATE * m, params, momentum)
        last_of_period = step % EVERY == EVERY - 1
        best = jax.lax.cond(
            last_of_period, evaluate, lambda best, *_: best, best, params, step
        )
        return (params, momentum, best), None

    params = init(key_params)
    state = (params, jax.tree.map(jnp.zeros_like, params), jnp.float32(0))
    (_, _, best), _ = jax.lax.scan(update, state, jnp.arange(STEPS))
    return best


def norm(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def summarise(logs):
    print(f"{'key':<16}{'rows':>6}{'first':>10}{'last':>10}   (mean of {SEEDS} seeds)")
    for key in logs.filter(lambda key, _: key not in logs.valid):
        first, last = logs[key][:, 0].mean(), logs[key][:, -1].mean()
        print(f"{key:<16}{logs[key].shape[1]:>6}{first:>10.3f}{last:>10.3f}")
    print("\nBest test accuracy, logged in a `cond` when a seed reaches a new one:")
    for seed, valid in enumerate(logs.valid["test/best"]):
        best = logs["test/best"][seed][valid]
        steps = logs.step["test/best"][seed][valid]
        print(f"  seed {seed}: {best[-1]:.3f} at step {steps[-1]}, after {len(best)} rows")


def plot(logs, path):
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    panels = {
        "loss": {"train/loss": "train", "test/loss": "test"},
        "accuracy": {"train/accuracy": "train", "test/accuracy": "test"},
        "active units": {"layer 1/active": "layer 1", "layer 2/active": "layer 2"},
    }
    for axis, (title, labels) in zip(axes, panels.items(), strict=True):
        for key, label in labels.items():
            curve(axis, *points(logs, key), label)
        axis.set(xlabel="training step", ylabel=title, xlim=(0, STEPS))
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    axes[0].set_yscale("log")
    for axis in axes[1:]:
        axis.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    figure.suptitle(
        f"Mean and range of {SEEDS} seeds, trained in one jitted program "
        f"(without dots: moving average of {EVERY} steps)"
    )
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)


def points(logs, key):
    """Return the steps of a key, and its values of shape (seeds, steps)."""
    values = np.asarray(logs[key])
    if key in logs.step:
        return logs.step[key][0], values
    return np.arange(STEPS), smooth(values)


def curve(axis, steps, values, label):
    marker = "o" if len(steps) < 100 else None
    (line,) = axis.plot(steps, values.mean(0), label=label, marker=marker, ms=3)
    low, high = values.min(0), values.max(0)
    axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, lw=0)


def smooth(values, window=EVERY):
    """Average over a moving window of steps; the first rows over fewer."""
    total = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1)
    start = np.maximum(np.arange(1, STEPS + 1) - window, 0)
    end = np.arange(1, STEPS + 1)
    return (total[:, end] - total[:, start]) / (end - start)


def main():
    start = time.perf_counter()
    keys = jax.random.split(jax.random.key(1), SEEDS)
    best, logs = jax.jit(jax.vmap(lox.spool(train)))(keys)
    jax.block_until_ready((best, logs))
    seconds = time.perf_counter() - start
    print(f"{SEEDS} seeds, {STEPS} steps each, in {seconds:.1f} s with compilation\n")
    logs = logs.compact()
    summarise(logs)
    plot(logs, PICTURE)
    print(f"\nlearning curves: {PICTURE}")


if __name__ == "__main__":
    main()
