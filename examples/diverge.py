"""Train a network whose learning rate grows until it diverges, and see how it broke.

Each step logs the loss and a histogram of the hidden activations. `lox.recorder` keeps the
last steps on the device. When the loss is no longer finite, it writes them to disk and
stops the program. Nothing else leaves the device: the program that diverges is the one you
would have run anyway.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp

import lox

INPUTS, HIDDEN, BATCH = 8, 64, 128
GROWTH = 1.03  # of the learning rate, from step to step


def loss(params, x, step):
    hidden = jax.nn.relu(x @ params["in"])
    error = hidden @ params["out"] - jnp.sin(x.sum(1))
    value = jnp.mean(error**2)
    spread = lox.histogram(hidden, bins=48, edges="symlog")
    lox.log({"loss": value, "hidden": spread}, step=step)
    return value


def train(key, steps):
    def update(params, step):
        x = jax.random.normal(jax.random.fold_in(key, step), (BATCH, INPUTS))
        gradient = jax.grad(loss)(params, x, step)
        rate = 1e-4 * GROWTH ** step.astype(jnp.float32)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), None

    first, second = jax.random.split(key)
    params = {
        "in": jax.random.normal(first, (INPUTS, HIDDEN)) / INPUTS**0.5,
        "out": jax.random.normal(second, (HIDDEN,)) / HIDDEN**0.5,
    }
    return jax.lax.scan(update, params, jnp.arange(steps))[0]


def main():
    options = arguments()
    keep, steps = (16, 400) if options.quick else (64, 100_000)
    options.out.mkdir(parents=True, exist_ok=True)
    box = options.out / "black-box"
    program = jax.jit(train, static_argnames="steps")
    recorded = lox.recorder(program, keep=keep, after=2, path=box)
    try:
        recorded(jax.random.key(0), steps=steps)
    except lox.Diverged as error:
        (recording,) = error.recordings
        print(f"stopped by {', '.join(recording.fired)} at {recording.steps()[0]}")
    logs = lox.load(box)
    print(f"{len(logs['loss'])} steps on disk, from step {logs.step['loss'][0]}")
    figure = logs.plot(["hidden", "loss"])
    for ax in figure.axes:
        if ax.get_ylabel() == "loss":
            ax.set_yscale("log")
    picture = options.out / "diverge.png"
    figure.savefig(picture, dpi=100)
    print(f"picture: {picture}")


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="keep fewer steps")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the files")
    return parser.parse_args()


if __name__ == "__main__":
    main()
