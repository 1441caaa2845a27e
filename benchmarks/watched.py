"""What `lox.watch` costs: `spool(watch(f))` ÷ the same statistics computed by hand.

The program is a training step of a transformer whose layers are scanned and rematerialized.
By hand, a layer returns the statistics of its activations as outputs of the `scan`. For
those of the cotangents, zeros are added to the activations, and the gradient with respect
to these zeros is what is described.
"""

import functools as ft

import jax
import jax.numpy as jnp
from _measure import Figure, compare, costs, table

import lox

LAYERS, BATCH, LENGTH, WIDTH, HEADS = 4, 8, 64, 128, 4
STATS = "rms", "max", "finite"


def init():
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)
    names = "heads", "out", "up", "down"
    weights = [
        jax.random.normal(key, (LAYERS, *shape)) * shape[0] ** -0.5
        for key, shape in zip(keys, shapes, strict=True)
    ]
    return dict(zip(names, weights, strict=True))


def normalise(x):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


@jax.named_scope("attention")
def attention(w, x):
    parts = (x @ w["heads"]).reshape(BATCH, LENGTH, 3, HEADS, -1)
    query, key, value = jnp.moveaxis(parts, 2, 0)
    scores = jnp.einsum("bqhc,bkhc->bhqk", query, key) * query.shape[-1] ** -0.5
    found = jnp.einsum("bhqk,bkhc->bqhc", jax.nn.softmax(scores), value)
    return found.reshape(x.shape) @ w["out"]


@jax.named_scope("mlp")
def mlp(w, x):
    return jax.nn.gelu(x @ w["up"]) @ w["down"]


def block(w, x, probe=lambda name, value: value):
    x = x + probe("attention", attention(w, normalise(x)))
    return x + probe("mlp", mlp(w, normalise(x)))


def loss(weights, x):
    @jax.checkpoint
    def layer(x, w):
        return block(w, x), None

    return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()


def describe(x):
    both = lox.stats(x)
    return {"rms": both["rms"], "max": both["max"], "finite": jnp.isfinite(x).mean()}


def loss_by_hand(weights, zeros, x):
    """Return the loss, and statistics of the activations; zeros may be None."""

    @jax.checkpoint
    def layer(x, each):
        w, zero = each
        found = {}

        def probe(name, value):
            value = value if zero is None else value + zero[name]
            found[name] = describe(jax.lax.stop_gradient(value))
            return value

        return block(w, x, probe), found

    x, found = jax.lax.scan(layer, x, (weights, zeros))
    return (x**2).mean(), found


def with_activations(weights, x):
    return jax.value_and_grad(loss_by_hand, has_aux=True)(weights, None, x)


def with_gradients(weights, x):
    zeros = dict.fromkeys(("attention", "mlp"), jnp.zeros((LAYERS, *x.shape)))
    both = jax.value_and_grad(loss_by_hand, argnums=(0, 1), has_aux=True)
    (value, activations), (slope, cotangents) = both(weights, zeros, x)
    described = jax.tree.map(jax.vmap(describe), cotangents)
    return value, slope, activations, described


def watched(values):
    watch = ft.partial(lox.watch, scopes=("attention", "mlp"), stats=STATS)
    return lox.spool(jax.value_and_grad(watch(loss, values=values)))


def figures() -> list[Figure]:
    args = init(), jax.random.normal(jax.random.key(1), (BATCH, LENGTH, WIDTH))
    pairs = (
        ("activations", watched("out"), with_activations, "≤ 1.05"),
        ("activations and gradients", watched(("out", "grad")), with_gradients, "≤ 1.05"),
    )
    found = []
    for name, ours, theirs, goal in pairs:
        programs = [jax.jit(f).lower(*args).compile() for f in (ours, theirs)]
        run, other = (ft.partial(_run, program, args) for program in programs)
        found.append(compare(f"{name}: time", run, other, goal=goal))
        flops, others = (costs(program)["flops"] for program in programs)
        note = f"{flops:,.0f} ÷ {others:,.0f}"
        found.append(Figure(f"{name}: operations", flops / others, "", note))
    return found


def _run(program, args):
    return jax.block_until_ready(program(*args))


if __name__ == "__main__":
    print(table(figures()))
