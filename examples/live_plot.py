"""Watch learning curves while a jitted scan runs, in a window or in a PNG file.

Four networks learn a curve in one program that runs for some seconds. `PlotLogger` draws
live curves of what they log: in a window if there is a display, otherwise in a file. Then
the script trains another network and draws its curve by hand, with `lox.tap`.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

import lox
from lox.loggers import PlotLogger

WIDTH, BATCH, RATE = 32, 64, 0.02


def target(x):
    return jnp.sin(3 * x) * jnp.exp(-(x**2) / 4)


def network(params, x):
    (w1, b1), (w2, b2), (w3, b3) = params
    x = jnp.tanh(x[:, None] @ w1 + b1)
    x = jnp.tanh(x @ w2 + b2)
    return (x @ w3 + b3)[:, 0]


def loss(params, x, step):
    value = jnp.mean((network(params, x) - target(x)) ** 2)
    lox.log({"loss": value}, step=step)
    return value


def init(key):
    sizes = [(1, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
    keys = jax.random.split(key, len(sizes))
    return [
        (jax.random.normal(key, size) / size[0] ** 0.5, jnp.zeros(size[1]))
        for key, size in zip(keys, sizes, strict=True)
    ]


def train(key, steps):
    """Train one network. Every hundred steps, log its largest error anywhere."""
    key_params, key_data = jax.random.split(key)

    def update(params, step):
        x = 3 * jax.random.normal(jax.random.fold_in(key_data, step), (BATCH,))
        slopes = jax.grad(loss)(params, x, step)
        rate = RATE * (1 - step / steps)
        params = jax.tree.map(lambda p, slope: p - rate * slope, params, slopes)
        jax.lax.cond(step % 100 == 0, evaluate, lambda *_: None, params, step)
        return params, None

    return jax.lax.scan(update, init(key_params), jnp.arange(steps))[0]


def evaluate(params, step):
    grid = jnp.linspace(-3, 3, 101)
    error = jnp.max(jnp.abs(network(params, grid) - target(grid)))
    lox.log({"largest error": error}, step=step)


def with_a_logger(seeds, steps, path):
    """Draw the curves of all seeds, refreshed every second."""
    logger = PlotLogger(path, every=1, points=256, title="Four networks learn a curve")

    @jax.jit
    @jax.vmap
    def experiment(seed):
        state = logger.init(seed)
        # One host call for 50 rows of all seeds.
        logger.tap(lambda key: train(key, steps), state, batch=50)(jax.random.key(seed))
        logger.finish(state)

    experiment(jnp.arange(seeds))
    lox.barrier()


def by_hand(seed, steps, path):
    """Draw one curve from a callback, which runs on a thread of its own."""
    at, values = [], []
    drawn = time.monotonic()

    def draw():
        figure = Figure(figsize=(6, 3.5), layout="constrained")
        ax = figure.subplots()
        ax.semilogy(at, values, linewidth=1)
        ax.set(xlabel="step", ylabel="loss", title="Drawn from the callback of lox.tap")
        ax.grid(alpha=0.25)
        figure.savefig(path)

    def redraw(logs):
        nonlocal drawn
        at.append(int(logs.step["loss"]))
        values.append(float(logs["loss"]))
        if time.monotonic() - drawn > 1:
            draw()
            drawn = time.monotonic()

    # One row in 20 is enough; `nolog` drops the other logs.
    tapped = lox.tap(lambda key: train(key, steps), redraw, argnames="loss", interval=20)
    jax.jit(lox.nolog(tapped))(jax.random.key(seed))
    lox.barrier()
    draw()
    return values


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path(), help="folder for what it writes"
    )
    parser.add_argument("--steps", type=int, help="how long to train, default 40000")
    parser.add_argument("--quick", action="store_true", help="only 2000 steps")
    options = parser.parse_args()
    steps = options.steps or (2000 if options.quick else 40_000)
    options.out.mkdir(parents=True, exist_ok=True)
    live, own = options.out / "live_plot.png", options.out / "by_hand.png"
    print(f"Learning curves are drawn to {live}, and in a window where there can be one.")
    with_a_logger(4, steps, live)
    print(f"One more, drawn by hand to {own}.")
    values = by_hand(4, steps, own)
    print(f"Its loss went from {values[0]:.4f} to {values[-1]:.4f}.")


if __name__ == "__main__":
    main()
