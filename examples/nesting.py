"""Log in a jitted function in a `scan` in a `vmap` in a `grad` in a `scan`.

The program simulates a damped spring, and fits its stiffness and friction to measurements
of several throws:

    scan        over the updates of the parameters, logs the parameters
      grad      of the loss, logs the loss
        vmap    over the throws, logs how far each of them is off
          scan  over time
            jit of one step of the simulation, logs the energy

Each function logs its own values and knows nothing about the functions around it. In the
logs, a key has one axis of time, for all loops around it in the order of execution, and one
axis for the batch.
"""

import argparse
import functools as ft
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import lox

TRUTH = {"stiffness": jnp.float32(4.0), "friction": jnp.float32(0.5)}
GUESS = {"stiffness": jnp.float32(2.5), "friction": jnp.float32(0.05)}
SECONDS_A_STEP = 0.05
RATES = {"stiffness": 0.4, "friction": 0.1}


@jax.jit
def step(params, state):
    position, speed = state
    force = -params["stiffness"] * position - params["friction"] * speed
    speed = speed + SECONDS_A_STEP * force
    position = position + SECONDS_A_STEP * speed
    lox.log({"energy": (params["stiffness"] * position**2 + speed**2) / 2})
    return position, speed


def simulate(params, start, length):
    """Return the positions of a spring that is let go at `start`."""

    def body(state, _):
        state = step(params, state)
        return state, state[0]

    return jax.lax.scan(body, (start, jnp.zeros_like(start)), length=length)[1]


def distance(params, start, measured):
    positions = simulate(params, start, len(measured))
    value = jnp.mean((positions - measured) ** 2)
    lox.log({"distance": value})
    return value


def loss(params, starts, measured):
    distances = jax.vmap(ft.partial(distance, params))(starts, measured)
    value = jnp.mean(distances)
    lox.log({"loss": value})
    return value


def fit(params, starts, measured, updates):
    def update(params, i):
        lox.log(params, step=i)
        slopes = jax.grad(loss)(params, starts, measured)
        return {name: params[name] - RATES[name] * slopes[name] for name in params}, None

    return jax.lax.scan(update, params, jnp.arange(updates))[0]


def describe(logs, updates, length, throws):
    print(f"{updates} updates, {length} steps of time, {throws} throws\n")
    print(f"{'key':<12}{'shape':<14}{'logged'}")
    places = {
        "stiffness": "in a scan",
        "friction": "in a scan",
        "loss": "in a grad in a scan",
        "distance": "in a vmap in a grad in a scan",
        "energy": "in a jit in a scan in a vmap in a grad in a scan",
    }
    for key, place in places.items():
        print(f"{key:<12}{logs[key].shape!s:<14}{place}")


def plot(logs, updates, path):
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    logs.plot("distance", x="row", axes=axes[0], band=None)
    axes[0].set(xlabel="update", ylabel="distance", yscale="log")
    for name in TRUTH:
        (line,) = axes[1].plot(logs.step[name], logs[name], label=name)
        axes[1].axhline(TRUTH[name], color=line.get_color(), ls=":", lw=1)
    axes[1].set(xlabel="update", ylabel="parameter (dotted: the truth)")
    axes[1].legend(frameon=False)
    # (updates * time, throws) -> (updates, time, throws)
    energy = np.asarray(logs["energy"]).reshape(updates, -1, logs["energy"].shape[-1])
    seconds = SECONDS_A_STEP * np.arange(energy.shape[1])
    for i, label in ((0, "first update"), (-1, "last update")):
        axes[2].plot(seconds, energy[i, :, 0], label=label)
    axes[2].set(xlabel="seconds", ylabel="energy of the first throw")
    axes[2].legend(frameon=False)
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main():
    options = arguments()
    updates, length, throws = (20, 40, 3) if options.quick else (200, 100, 5)
    starts = jnp.linspace(0.5, 1.5, throws)
    measure = jax.vmap(lambda start: simulate(TRUTH, start, length))
    measured = lox.nolog(measure)(starts)

    fitted = jax.jit(lox.spool(ft.partial(fit, updates=updates)))
    params, logs = fitted(GUESS, starts, measured)

    describe(logs, updates, length, throws)
    print(f"\n{'':<12}{'guess':>8}{'fitted':>8}{'truth':>8}")
    for name in TRUTH:
        print(f"{name:<12}{GUESS[name]:>8.3f}{params[name]:>8.3f}{TRUTH[name]:>8.3f}")
    picture = options.out / "nesting.png"
    plot(logs, updates, picture)
    print(f"\npicture: {picture}")


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer updates and throws")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
