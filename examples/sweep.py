"""Try all combinations of learning rates, momenta and seeds at once, by `vmap`.

The training function knows of one run only. It logs what is worth knowing of a run, and
says how the rows are combined: the mean loss of the last steps, and the first step with a
loss that is good enough. So no run keeps a curve, however long it is. A run that never is
good enough has no such step, and `logs.valid` says so.
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

WIDTH = 24
BATCH = 32
GOOD = 0.01


def init(key):
    keys = jax.random.split(key)
    return {
        "w1": 3 * jax.random.normal(keys[0], (1, WIDTH)),
        "b1": jnp.linspace(-3, 3, WIDTH),
        "w2": jax.random.normal(keys[1], (WIDTH, 1)) * WIDTH**-0.5,
    }


def loss(params, x):
    """Return how far the network is from a wave."""
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean((hidden @ params["w2"] - jnp.sin(4 * x)) ** 2)


def log_good(step):
    lox.log({"good after": step}, reduce="first")


def log_late(value):
    lox.log({"loss": value}, reduce="mean")


def train(rate, momentum, key, steps):
    def update(state, step):
        params, speed = state
        x = jax.random.uniform(jax.random.fold_in(key, step), (BATCH, 1), minval=-1)
        value, gradient = jax.value_and_grad(loss)(params, x)
        jax.lax.cond(value < GOOD, log_good, lambda step: None, step)
        jax.lax.cond(step >= 0.9 * steps, log_late, lambda value: None, value)
        speed = jax.tree.map(lambda v, g: momentum * v - rate * g, speed, gradient)
        return (jax.tree.map(jnp.add, params, speed), speed), None

    params = init(key)
    speed = jax.tree.map(jnp.zeros_like, params)
    jax.lax.scan(update, (params, speed), jnp.arange(steps))


def sweep(rates, momenta, keys, steps):
    """Return the logs of all runs, each value of shape (rates, momenta, seeds)."""
    run = lox.spool(ft.partial(train, steps=steps))
    over_seeds = jax.vmap(run, in_axes=(None, None, 0))
    over_momenta = jax.vmap(over_seeds, in_axes=(None, 0, None))
    over_rates = jax.vmap(over_momenta, in_axes=(0, None, None))
    _, logs = jax.jit(over_rates)(rates, momenta, keys)
    return logs.to_numpy()


def show(title, values, rates, momenta, form):
    print(f"\n{title}")
    print(f"{'rate':>8}  " + "".join(f"{f'm = {m:g}':>10}" for m in momenta))
    for rate, row in zip(rates, values, strict=True):
        cells = (f"{value:{form}}" if np.isfinite(value) else "-" for value in row)
        print(f"{rate:>8.3g}  " + "".join(f"{cell:>10}" for cell in cells))


def plot(values, rates, momenta, path):
    figure, axis = plt.subplots(figsize=(6, 4.4), layout="constrained")
    image = axis.imshow(np.log10(values), cmap="viridis_r", alpha=0.6, aspect="auto")
    for place, value in np.ndenumerate(values):
        text = f"{value:.1e}" if np.isfinite(value) else "diverged"
        axis.text(*reversed(place), text, ha="center", va="center", size=8, color="0.2")
    axis.set(
        xticks=range(len(momenta)),
        xticklabels=[f"{m:g}" for m in momenta],
        yticks=range(len(rates)),
        yticklabels=[f"{rate:.3g}" for rate in rates],
        xlabel="momentum",
        ylabel="learning rate",
    )
    figure.colorbar(image, label="log10 of the loss, median of the seeds")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main():
    options = arguments()
    steps, seeds = (100, 2) if options.quick else (1000, 4)
    rates = np.geomspace(0.002, 0.4, 7, dtype=np.float32)
    momenta = np.array([0, 0.5, 0.8, 0.9, 0.95], np.float32)
    keys = jax.random.split(jax.random.key(0), seeds)

    start = time.perf_counter()
    logs = sweep(rates, momenta, keys, steps)
    seconds = time.perf_counter() - start
    print(f"{logs['loss'].size} runs of {steps} steps in {seconds:.1f} s with compilation")

    loss = np.median(logs["loss"], axis=-1)
    show("Loss of the last tenth, median of the seeds", loss, rates, momenta, ".3g")
    steps_needed = np.where(logs.valid["good after"], logs["good after"], np.inf)
    median = np.median(steps_needed, axis=-1)
    show(f"Steps until the loss is below {GOOD}", median, rates, momenta, ".0f")
    at = np.unravel_index(np.nanargmin(loss), loss.shape)
    print(f"\nbest: rate {rates[at[0]]:.3g}, momentum {momenta[at[1]]:g}")

    picture = options.out / "sweep.png"
    plot(loss, rates, momenta, picture)
    print(f"\npicture: {picture}")


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and seeds")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
