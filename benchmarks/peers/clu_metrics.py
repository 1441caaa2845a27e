"""clu averages metrics that are handed to it: they are carried by hand."""

import flax
import jax
from _ways import Way
from cases import mlp
from cases._case import descend, norm
from clu import metrics

OURS = ['lox.spool(reduce="mean")']


@flax.struct.dataclass
class Metrics(metrics.Collection):
    loss: metrics.Average.from_output("loss")
    accuracy: metrics.Average.from_output("accuracy")
    norm: metrics.Average.from_output("norm")


def network(case, steps):
    def loss(params, batch):
        value, accuracy = mlp.errors(params, batch)
        return value, {"loss": value, "accuracy": accuracy}

    def step(state, key):
        params, means = state
        grads, rows = jax.grad(loss, has_aux=True)(params, mlp.data(key))
        new = Metrics.single_from_model_output(**rows, norm=norm(grads))
        return (descend(params, grads, mlp.RATE), means.merge(new)), None

    def train(key):
        start = mlp.init(key), Metrics.empty()
        (params, means), _ = jax.lax.scan(step, start, jax.random.split(key, steps))
        return params, means.compute()

    return train


WAYS = {"mlp": Way("clu metrics", network)}
