"""Estimate the mean and the deviation of some numbers by gradient descent.

The likelihood logs its value where it is computed, under `grad`; the descent logs its
position in a `scan`. Neither returns a metric. The example then handles the logs in four
ways: it returns every row, returns the last rows, calls a callback while the program runs,
and removes the logs. With `vmap`, it starts from several points at once.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import lox

MEAN, DEVIATION = 3.0, 1.5
STARTS = jnp.array([[-2.0, 1.5], [0.0, 4.5], [7.0, 1.0], [6.5, 4.0]])  # mean, deviation
RATE = 0.05


def loss(params, samples):
    """Return minus the mean log-likelihood, up to a constant.

    The deviation is given by its logarithm, which keeps it positive.
    """
    deviation = jnp.exp(params["log_deviation"])
    scores = (samples - params["mean"]) / deviation
    value = jnp.mean(scores**2) / 2 + params["log_deviation"]
    lox.log({"loss": value})
    return value


def fit(start, samples, steps):
    def update(params, step):
        lox.log(
            {"mean": params["mean"], "deviation": jnp.exp(params["log_deviation"])},
            step=step,
        )
        gradient = jax.grad(loss)(params, samples)
        return jax.tree.map(lambda p, g: p - RATE * g, params, gradient), None

    params = {"mean": start[0], "log_deviation": jnp.log(start[1])}
    params, _ = jax.lax.scan(update, params, jnp.arange(steps))
    return params["mean"], jnp.exp(params["log_deviation"])


def plot(logs, samples, path):
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    landscape(axes[0], samples)
    for i in range(len(STARTS)):
        axes[0].plot(logs["mean"][i], logs["deviation"][i], "-o", ms=2.5, lw=1, markevery=4)
        axes[1].plot(logs["loss"][i])
    axes[0].plot(samples.mean(), samples.std(), "k*", ms=14, label="those of the samples")
    axes[0].set(xlabel="mean", ylabel="deviation")
    axes[0].legend(frameon=False)
    axes[1].set(xlabel="step", ylabel="loss", yscale="log")
    axes[1].grid(alpha=0.25)
    axes[1].spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def landscape(axis, samples):
    means, deviations = np.meshgrid(np.linspace(-3, 8, 120), np.linspace(0.35, 5, 120))
    squares = samples.var() + (samples.mean() - means) ** 2
    height = squares / deviations**2 / 2 + np.log(deviations)
    axis.contourf(means, deviations, np.log(height), levels=20, cmap="Greys", alpha=0.6)


def main():
    options = arguments()
    steps, size = (60, 100) if options.quick else (600, 1000)
    samples = MEAN + DEVIATION * jax.random.normal(jax.random.key(0), (size,))

    def descend(start):
        return fit(start, samples, steps)

    print("Every row, from one starting point:")
    _, logs = jax.jit(lox.spool(descend))(STARTS[0])
    print(f"  {logs}\n  the last three at the steps {logs.slice[-3:].step['mean']}\n")

    print("Only the smallest loss, and where it ended:")
    reduce = {"loss": "min", "mean": "last", "deviation": "last"}
    _, logs = jax.jit(lox.spool(descend, reduce=reduce))(STARTS[0])
    print(f"  {logs}\n")

    print("While it runs:")
    live = lox.tap(descend, lambda logs: print(f"  {logs}"), interval=steps // 3)
    jax.jit(live)(STARTS[0])
    lox.barrier()

    print("\nFrom each starting point, with no logs:")
    for mean, deviation in zip(*jax.jit(jax.vmap(lox.nolog(descend)))(STARTS), strict=True):
        print(f"  mean {mean:.4f}, deviation {deviation:.4f}")
    print(f"  mean {samples.mean():.4f}, deviation {samples.std():.4f} of the samples")

    _, logs = jax.jit(jax.vmap(lox.spool(descend)))(STARTS)
    picture = options.out / "estimate.png"
    plot(logs, np.asarray(samples), picture)
    print(f"\npicture: {picture}")


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and samples")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
