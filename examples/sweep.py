"""Try all combinations of learning rates and seeds at once, with `vmap`.

The training function only knows about one run. It opens the run with its own learning rate
as configuration, and one host call opens all runs. The store has a curve for each run; a
table and a picture compare the learning rates. If W&B is installed, the runs are written to
its offline files, too.
"""

import argparse
import importlib.util
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import lox

WIDTH = 24
BATCH = 32


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


def train(key, rate, steps):
    def update(params, step):
        x = jax.random.uniform(jax.random.fold_in(key, step), (BATCH, 1), minval=-1)
        value, gradient = jax.value_and_grad(loss)(params, x)
        lox.log({"loss": value}, step=step)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), None

    return jax.lax.scan(update, init(key), jnp.arange(steps))[0]


def sweep(logger, rates, seeds, steps):
    """Train with every learning rate and seed, in one program."""

    def experiment(rate, seed):
        run = logger.init(
            seed, config={"rate": rate}, name="rate={rate:.3g}-{seed}", group="sweep"
        )
        fun = logger.tap(train, run, batch=50)
        fun(jax.random.key(seed), rate, steps)
        logger.finish(run)

    over_seeds = jax.vmap(experiment, in_axes=(None, 0))
    over_rates = jax.vmap(over_seeds, in_axes=(0, None))
    jax.jit(over_rates)(rates, seeds)
    lox.barrier()


def load_curves(path):
    """Return the losses of all runs by learning rate, each of shape (seeds, steps)."""
    runs = lox.runs(path)
    losses = lox.load(path, "loss")["loss"]  # (runs, steps), in the order of the runs
    rates = np.array([run.config["rate"] for run in runs])
    return {rate: losses[rates == rate] for rate in np.unique(rates)}


def show(curves):
    print(f"\n{'rate':>8}  {'loss of the last tenth':>22}  {'best seed':>9}")
    for rate, losses in curves.items():
        last = losses[:, -losses.shape[1] // 10 :].mean(1)
        print(f"{rate:>8.3g}  {np.median(last):>22.3g}  {last.min():>9.3g}")


def plot(curves, path):
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(curves)))
    for color, (rate, losses) in zip(colors, curves.items(), strict=True):
        smooth = losses.reshape(len(losses), -1, 10).mean(-1)
        steps = 10 * np.arange(smooth.shape[1]) + 5
        axis.fill_between(steps, smooth.min(0), smooth.max(0), color=color, alpha=0.2, lw=0)
        axis.plot(steps, np.median(smooth, axis=0), color=color, label=f"{rate:.3g}")
    axis.set(xlabel="step", ylabel="loss: median and range of the seeds", yscale="log")
    axis.legend(title="learning rate")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main():
    options = arguments()
    steps, seeds = (100, 2) if options.quick else (1000, 4)
    rates = jnp.geomspace(0.003, 0.1, 5)
    store = options.out / "sweep"
    loggers = [lox.loggers.SaveLogger(store, mode="w")]
    if importlib.util.find_spec("wandb"):
        folder = str(options.out)
        loggers.append(lox.loggers.WandbLogger(project="sweep", mode="offline", dir=folder))

    start = time.perf_counter()
    with lox.loggers.MultiLogger(*loggers, config={"width": WIDTH}) as logger:
        sweep(logger, rates, jnp.arange(seeds), steps)
    seconds = time.perf_counter() - start
    print(f"{rates.size * seeds} runs of {steps} steps in {seconds:.1f} s with compilation")

    curves = load_curves(store)
    show(curves)
    picture = options.out / "sweep.png"
    plot(curves, picture)
    print(f"\npicture: {picture}")
    print(f"compare: lox ls {store}")


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and seeds")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
