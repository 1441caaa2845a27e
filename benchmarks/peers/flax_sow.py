"""flax sows in modules: what is logged elsewhere is still carried by hand."""

import jax
from _ways import Way
from cases import mlp, transformer
from cases._case import descend, flat, norm
from flax import linen as nn

OURS = ["lox.spool"]


class Network(nn.Module):
    @nn.compact
    def __call__(self, batch):
        shapes = {"in": (mlp.IN, mlp.HIDDEN), "out": (mlp.HIDDEN,)}
        params = given(self, shapes)
        value, accuracy = mlp.errors(params, batch)
        self.sow("logs", "loss", value)
        self.sow("logs", "accuracy", accuracy)
        return value


def network(case, steps):
    def loss(params, batch):
        value, state = Network().apply({"params": params}, batch, mutable=["logs"])
        return value, state["logs"]

    def step(params, key):
        grads, logs = jax.grad(loss, has_aux=True)(params, mlp.data(key))
        rows = {**logs, "norm": norm(grads)}
        return descend(params, grads, mlp.RATE), rows

    return lambda key: jax.lax.scan(step, mlp.init(key), jax.random.split(key, steps))


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        width = transformer.WIDTH
        shapes = {
            "attend": (width, 3 * width),
            "in": (width, 2 * width),
            "out": (2 * width, width),
        }
        x = transformer.block(x, given(self, shapes))
        self.sow("logs", "activation", norm(x))
        return x, None


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        width, count = transformer.WIDTH, transformer.TOKENS
        params = given(self, {"embedding": (count, width)})
        layers = nn.scan(
            nn.remat(Layer),
            variable_axes={"params": 0, "logs": 0},
            split_rngs={"params": False},
            length=transformer.LAYERS,
        )
        x, _ = layers(name="layers")(transformer.embed(params, tokens), None)
        value, accuracy = transformer.errors(params, x, tokens)
        self.sow("logs", "loss", value)
        self.sow("logs", "accuracy", accuracy)
        return value


def attention(case, steps):
    def loss(params, tokens):
        value, state = Transformer().apply({"params": params}, tokens, mutable=["logs"])
        return value, state["logs"]

    def step(params, key):
        grads, logs = jax.grad(loss, has_aux=True)(params, transformer.data(key))
        rows = {**logs, "norm": norm(grads)}
        return descend(params, grads, transformer.RATE), rows

    def train(key):
        keys = jax.random.split(key, steps)
        out, rows = jax.lax.scan(step, transformer.init(key), keys)
        return out, {**rows, "layers": flat(rows["layers"], 2)}

    return train


def given(module, shapes):
    """The parameters of a module, which are handed to it and never made."""
    return {
        name: module.param(name, nn.initializers.zeros, shape)
        for name, shape in shapes.items()
    }


WAYS = {
    "mlp": Way("flax sow", network),
    "transformer": Way("flax sow", attention),
}
