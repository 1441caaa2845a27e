"""Look into a transformer that contains no log calls.

The same small transformer, written with flax linen, flax nnx and equinox in the usual way.
`lox.watch` finds the layers by their name scopes, and logs the norms of their outputs and
of the gradients. No line of a model is about logging.

The learning rate doubles every 10 steps, so at some point training has to explode. The
pictures show when and where it does; a layer is white where its norm is not finite.
Libraries that are not installed are left out.
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

LAYERS, HEADS, WIDTH = 8, 2, 16
BATCH, LENGTH = 16, 8
RATE = 1e-3


def linen_model():
    """Layers that are scanned and rematerialized: one scope, with the step `layer`."""
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            h = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(HEADS, name="attention")(h)
            hidden = nn.gelu(nn.Dense(4 * WIDTH, name="up")(nn.LayerNorm()(x)))
            return x + nn.Dense(WIDTH, name="down")(hidden), None

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, x):
            blocks = nn.scan(
                nn.remat(Block, prevent_cse=False),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=LAYERS,
            )
            x, _ = blocks(name="blocks")(x, None)
            return nn.Dense(1, name="head")(x)

    model = Transformer()
    return model.apply, model.init(jax.random.key(0), inputs(0)), ["Transformer/blocks"]


def nnx_model():
    """A list of layers: a scope for each of them."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, rngs=rngs, decode=False)
            self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
            self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
            self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.norms[0](x))
            return x + self.down(nnx.gelu(self.up(self.norms[1](x))))

    class Transformer(nnx.Module):
        def __init__(self, rngs):
            self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
            self.head = nnx.Linear(WIDTH, 1, rngs=rngs)

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    graph, params = nnx.split(Transformer(nnx.Rngs(0)))

    def apply(params, x):
        return nnx.merge(graph, params)(x)

    return apply, params, [f"Transformer/blocks_{i}" for i in range(LAYERS)]


def equinox_model():
    """A list of layers with one name: all of them are rows of one key."""
    import equinox as eqx

    class Block(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP
        norm: eqx.nn.LayerNorm

        def __init__(self, key):
            first, second = jax.random.split(key)
            self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=first)
            self.mlp = eqx.nn.MLP(WIDTH, WIDTH, 4 * WIDTH, 1, jax.nn.gelu, key=second)
            self.norm = eqx.nn.LayerNorm(WIDTH)

        def __call__(self, x):
            h = jax.vmap(self.norm)(x)
            x = x + self.attention(h, h, h)
            return x + jax.vmap(self.mlp)(jax.vmap(self.norm)(x))

    class Transformer(eqx.Module):
        blocks: list
        head: eqx.nn.Linear

        def __init__(self, key):
            *keys, last = jax.random.split(key, LAYERS + 1)
            self.blocks = [Block(key) for key in keys]
            self.head = eqx.nn.Linear(WIDTH, 1, key=last)

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return jax.vmap(self.head)(x)

    model = Transformer(jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)

    def apply(params, x):
        return jax.vmap(eqx.combine(params, static))(x)

    return apply, params, ["eqx.nn.MLP"]


MODELS = {
    "linen": ("flax", linen_model),
    "nnx": ("flax", nnx_model),
    "equinox": ("equinox", equinox_model),
}


def inputs(step):
    return jax.random.normal(
        jax.random.fold_in(jax.random.key(1), step), (BATCH, LENGTH, WIDTH)
    )


def train(apply, params, scopes, steps):
    """Train with a growing learning rate, and watch the scopes."""

    def loss(params, x):
        target = jnp.cumsum(x.mean(-1), axis=1)
        value = jnp.mean((apply(params, x)[..., 0] - target) ** 2)
        lox.log({"loss": value})
        return value

    def update(params, step):
        watched = lox.watch(loss, scopes, stats="norm", step=step)
        gradient = jax.grad(watched)(params, inputs(step))
        rate = RATE * 2 ** (step / 10)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradient), None

    return jax.lax.scan(update, params, jnp.arange(steps))[0]


def by_layer(logs, scopes, value, steps):
    """The norms of each layer: (layers, steps)."""
    keys = [f"{scope}/{value}/norm" for scope in scopes]
    rows = [np.asarray(logs[key]).reshape(steps, -1) for key in keys]
    layers = np.concatenate(rows, axis=1).T
    # The backward pass comes to the last layer first; a list of scopes is in order anyway.
    return layers[::-1] if value == "grad" and len(scopes) == 1 else layers


def plot(found, value, title, path):
    figure, axes = plt.subplots(
        1, len(found), figsize=(4 * len(found), 3.2), layout="constrained", squeeze=False
    )
    for axis, (name, layers) in zip(axes[0], found.items(), strict=True):
        norms = layers[value][:, : last_finite(layers["grad"]) + 4]
        size = np.log10(np.where(np.isfinite(norms), norms, np.nan))
        # A few large norms at the end would leave one colour for all others.
        low, high = np.nanpercentile(size, [1, 97])
        image = axis.imshow(size, aspect="auto", origin="lower", vmin=low, vmax=high)
        axis.set(title=name, xlabel="training step", ylabel="layer")
        figure.colorbar(image, ax=axis, label=f"log10 norm of {title}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def last_finite(layers):
    """The last step at which the norms of all layers are finite."""
    return int(np.flatnonzero(np.isfinite(layers).all(axis=0))[-1])


def main():
    options = arguments()
    steps = 4 if options.quick else 120
    found = {}
    for name, (library, made) in MODELS.items():
        if importlib.util.find_spec(library) is None:
            print(f"{name}: {library} is not installed")
            continue
        start = time.perf_counter()
        apply, params, scopes = made()
        if name == "linen":
            print(lox.scopes(apply)(params, inputs(0)), "\n")
        run = jax.jit(lox.spool(lambda p, a=apply, s=scopes: train(a, p, s, steps)))
        _, logs = jax.block_until_ready(run(params))
        found[name] = {v: by_layer(logs, scopes, v, steps) for v in ("out", "grad")}
        gradients = found[name]["grad"]
        last = last_finite(gradients)
        print(
            f"{name}: {time.perf_counter() - start:.1f} s, gradients are finite until step "
            f"{last}; the largest one is then that of layer {gradients[:, last].argmax()}"
        )
    if found:
        plot(found, "grad", "gradients", options.out / "inside_transformer.png")
        plot(found, "out", "activations", options.out / "activations.png")


def arguments():
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only some steps")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the pictures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
