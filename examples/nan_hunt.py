"""Find out why a loss is NaN, in a jitted training loop.

A small policy chooses among actions, and an entropy bonus keeps it from being certain too
early. Its temperature falls from step to step, until one probability underflows to zero:
`0 * log(0)` is NaN, in one example of one step, deep inside `jit`, `scan`, `grad` and
`vmap`. From the next step on, everything is NaN. `lox.find_nan` runs the same program, and
says which line, which step and which example it was.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import lox

EXAMPLES, FEATURES, ACTIONS, RATE = 32, 8, 4, 0.5


def entropy(logits):
    probs = jax.nn.softmax(logits)
    return -jnp.sum(probs * jnp.log(probs))


def safe_entropy(logits):
    """Compute the same from the logarithms, which do not underflow."""
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_probs) * log_probs)


def loss(weights, observation, action, temperature, entropy):
    with jax.named_scope("policy"):
        logits = observation @ weights / temperature
    with jax.named_scope("bonus"):
        bonus = 0.01 * entropy(logits)
    return -jax.nn.log_softmax(logits)[action] - bonus


def train(key, steps, entropy=entropy):
    """Train a policy on labelled observations, and return it."""
    keys = jax.random.split(key)
    observations = jax.random.normal(keys[0], (EXAMPLES, FEATURES))
    actions = jnp.argmax(observations[:, :ACTIONS], axis=1)

    def update(weights, temperature):
        def mean_loss(weights):
            each = jax.vmap(loss, (None, 0, 0, None, None))
            return each(weights, observations, actions, temperature, entropy).mean()

        value, slope = jax.value_and_grad(mean_loss)(weights)
        lox.log({"loss": value}, step=temperature)
        return weights - RATE * slope, None

    weights = 0.1 * jax.random.normal(keys[1], (FEATURES, ACTIONS))
    temperatures = jnp.geomspace(1.0, 0.002, steps)
    return jax.lax.scan(update, weights, temperatures)[0]


def plot(curves, step, path):
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for name, values in curves.items():
        axes.plot(values, label=name)
    axes.axvline(step, color="tab:red", ls=":", label=f"step {step}, says the report")
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="train for fewer steps")
    parser.add_argument("--out", type=Path, default=Path(), help="where to put the picture")
    options = parser.parse_args()
    steps, key = 60 if options.quick else 200, jax.random.key(0)

    def run(key):
        return train(key, steps)

    def fixed(key):
        return train(key, steps, safe_entropy)

    _, logs = jax.jit(lox.spool(run))(key)
    finite = np.isfinite(logs["loss"])
    print(f"The loss is finite in {finite.sum()} of {steps} steps.\n")

    with lox.silent():
        report = lox.find_nan(jax.jit(run))(key)
        print(report, "\n")
        print("With `log_softmax` instead:", lox.find_nan(jax.jit(fixed))(key))

    _, fixed_logs = jax.jit(lox.spool(fixed))(key)
    curves = {"with log(p)": logs["loss"], "with log_softmax": fixed_logs["loss"]}
    plot(curves, report.iterations[0], options.out / "nan_hunt.png")


if __name__ == "__main__":
    main()
