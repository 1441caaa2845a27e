"""Log the residuals of a solver that runs in a `while_loop`.

The solver is the method of conjugate gradients, the problem a heated plate: the stronger
the cooling, the sooner the solver is done. The number of iterations is not known in
advance. So the example reduces the residuals while the solver runs, keeps the last of them,
and streams all of them to the host. Under `vmap`, each problem stops on its own and has its
own residuals.
"""

import argparse
import functools as ft
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import lox

COOLING = jnp.array([0.0, 0.001, 0.01, 0.1])
TOLERANCE = 1e-4


def plate(cooling, heat):
    """Return the heat that flows out of each point: (size, size) -> (size, size)."""
    padded = jnp.pad(heat, 1)
    around = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2]
    return (4 + cooling) * heat - around


def solve(operator, b):
    """Solve `operator(x) == b` for a linear operator, symmetric and positive."""

    def unfinished(state):
        return state["square"] > TOLERANCE**2 * jnp.sum(b**2)

    def iterate(state):
        image = operator(state["direction"])
        length = state["square"] / jnp.sum(state["direction"] * image)
        residual = state["residual"] - length * image
        square = jnp.sum(residual**2)
        lox.log({"residual": jnp.sqrt(square)}, iteration=state["iteration"])
        direction = residual + square / state["square"] * state["direction"]
        return {
            "x": state["x"] + length * state["direction"],
            "residual": residual,
            "direction": direction,
            "square": square,
            "iteration": state["iteration"] + 1,
        }

    start = {
        "x": jnp.zeros_like(b),
        "residual": b,
        "direction": b,
        "square": jnp.sum(b**2),
        "iteration": 0,
    }
    return jax.lax.while_loop(unfinished, iterate, start)["x"]


def temperature(cooling, sources):
    return solve(ft.partial(plate, cooling), sources)


def report_reduced(sources):
    print("Reduced while it runs, in constant memory:")
    for name in ("count", "min"):
        spooled = jax.vmap(lox.spool(temperature, reduce=name), in_axes=(0, None))
        _, logs = jax.jit(spooled)(COOLING, sources)
        print(f"  {name:<7}{logs['residual']}")


def report_live(sources, every):
    print(f"\nWhile it runs, every {every} iterations, without cooling:")

    def show(logs):
        iteration = logs.iteration["residual"]
        print(f"  iteration {iteration:>4}   residual {logs['residual']:.2e}")

    jax.jit(lox.tap(temperature, show, interval=every))(COOLING[0], sources)
    lox.barrier()


def last_rows(sources, capacity):
    spooled = jax.vmap(lox.spool(temperature, capacity=capacity), in_axes=(0, None))
    x, logs = jax.jit(spooled)(COOLING, sources)
    print(f"\nThe last {capacity} rows:")
    for i, cooling in enumerate(COOLING):
        kept, count = logs.valid["residual"][i].sum(), logs.count["residual"][i]
        print(f"  cooling {cooling:<6.3f} kept {kept:>4} of {count:>4} residuals")
    return x, logs


def plot(x, logs, path):
    figure, axes = plt.subplots(
        1, 3, figsize=(11, 3.4), layout="constrained", width_ratios=[2, 1, 1]
    )
    for i, cooling in enumerate(COOLING):
        there = np.asarray(logs.valid["residual"][i])
        iterations = logs.iteration["residual"][i][there]
        residuals = logs["residual"][i][there]
        axes[0].plot(iterations, residuals, label=f"cooling {cooling:g}")
    title = f"The last {logs['residual'].shape[1]} residuals of each"
    axes[0].set(xlabel="iteration", ylabel="residual", yscale="log", title=title)
    axes[0].grid(alpha=0.25)
    axes[0].spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False)
    for axis, i in zip(axes[1:], (0, 2), strict=True):
        axis.imshow(x[i], cmap="inferno")
        axis.set(xticks=[], yticks=[], title=f"cooling {COOLING[i]:g}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def main():
    options = arguments()
    size, capacity = (24, 40) if options.quick else (96, 150)
    places = jax.random.randint(jax.random.key(1), (2, 5), size // 8, size - size // 8)
    sources = jnp.zeros((size, size)).at[places[0], places[1]].set(1.0)

    report_reduced(sources)
    report_live(sources, every=size // 2)
    x, logs = last_rows(sources, capacity)

    picture = options.out / "solver.png"
    plot(np.asarray(x), logs, picture)
    print(f"\npicture: {picture}")


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller plate")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
