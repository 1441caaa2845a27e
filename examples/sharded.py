"""Train on eight devices: one program for all of them, or one for each.

Under `jit`, the compiler splits the work, and you get the same logs as on one device. Under
`shard_map`, each device runs the program on its own part of the data and logs its own
values. In the logs, the axis of devices comes after time.

That axis is worth having. One of the eight parts of the data has wrong labels. The mean
loss only looks a little high; the loss of each device shows which part it is.
"""

import argparse
import functools as ft
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import lox

DEVICES = 8
FEATURES = 32
RATE = 0.5
BAD = 5  # the part with wrong labels


def dataset(size):
    """Draw points and the side of a plane that they are on, `size` for each device."""
    random = np.random.default_rng(0)
    plane = random.normal(size=FEATURES)
    points = random.normal(size=(DEVICES, size, FEATURES))
    sides = points @ plane > 0
    sides[BAD] ^= random.uniform(size=size) < 0.3
    return points.reshape(-1, FEATURES).astype(np.float32), sides.reshape(-1)


def loss(params, data):
    points, sides = data
    margin = jnp.where(sides, 1, -1) * (points @ params)
    value = jnp.mean(jax.nn.softplus(-margin))
    lox.log({"loss": value})
    return value


def train(params, data, steps, parts=1):
    """Descend along the gradient of the mean of the losses of all parts."""

    def update(params, step):
        gradient = jax.grad(loss)(params, data) / parts
        lox.log({"gradient": jnp.linalg.norm(gradient)}, step=step)
        return params - RATE * gradient, None

    return jax.lax.scan(update, params, jnp.arange(steps))[0]


def train_on_each(params, data, steps, mesh):
    """Train with one program for each device.

    All devices share the parameters, so that JAX adds up the gradients of their losses.
    """
    of_part = ft.partial(train, steps=steps, parts=DEVICES)
    return jax.shard_map(of_part, mesh=mesh, in_specs=(P(), P("part")), out_specs=P())(
        params, data
    )


def summarise(whole, parts):
    print(f"{'key':<12}{'jit':<12}{'shard_map':<12}")
    for key in whole:
        print(f"{key:<12}{whole[key].shape!s:<12}{parts[key].shape!s:<12}")
    difference = np.abs(whole["loss"] - parts["loss"].mean(1)).max()
    print(f"\nloss with jit, at the end       {whole['loss'][-1]:.4f}")
    print(f"largest difference to the mean of the devices {difference:.0e}\n")
    for device, value in enumerate(parts["loss"][-1]):
        remark = "   <- look at its data" if value > 1.4 * whole["loss"][-1] else ""
        print(f"loss on device {device}                {value:.4f}{remark}")


def plot(whole, parts, path):
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
    axes[0].plot(whole["loss"], lw=5, alpha=0.3, label="jit")
    axes[0].plot(parts["loss"].mean(1), label="shard_map, mean of the devices")
    for device, values in enumerate(parts["loss"].T):
        is_bad = device == BAD
        colour, label = ("C3", f"device {BAD}") if is_bad else ("C0", None)
        axes[1].plot(values, color=colour, lw=1, label=label)
    axes[0].set(xlabel="step", ylabel="loss", ylim=(0, None))
    axes[1].set(xlabel="step", title="each device")
    for axis in axes:
        axis.legend(frameon=False)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main():
    options = arguments()
    # Before anything is put on a device.
    jax.config.update("jax_num_cpu_devices", DEVICES)
    steps, size = (10, 32) if options.quick else (200, 512)
    mesh = jax.make_mesh((DEVICES,), ("part",), axis_types=(AxisType.Auto,))
    params = np.zeros(FEATURES, np.float32)
    data = jax.device_put(dataset(size), NamedSharding(mesh, P("part")))

    on_all = ft.partial(train, steps=steps)
    on_each = ft.partial(train_on_each, steps=steps, mesh=mesh)
    _, whole = jax.jit(lox.spool(on_all))(params, data)
    _, parts = jax.jit(lox.spool(on_each))(params, data)

    whole, parts = whole.to_numpy(), parts.to_numpy()
    summarise(whole, parts)
    picture = options.out / "sharded.png"
    plot(whole, parts, picture)
    print(f"\npicture: {picture}")


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps and points")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the picture")
    return parser.parse_args()


if __name__ == "__main__":
    main()
