"""Metrics of a sharded training step: `jit(spool(f))` ÷ the same returned by hand.

On eight devices of this machine. The benchmark checks that both programs use the same
collectives and the same memory.
"""

import collections
import dataclasses
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
from _measure import Figure, compare, table
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import lox

GOAL = "≤ 1.05"
DEVICES = 8
T, N, D, H = 20, 512, 64, 256
COLLECTIVES = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"


def figures() -> list[Figure]:
    """A process has the devices that it is started with: this is another one."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(DEVICES)}
    command = [sys.executable, __file__, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return [Figure(**figure) for figure in json.loads(done.stdout.splitlines()[-1])]


def measured() -> list[Figure]:
    return [
        ratio("data parallel, 20 steps", ("data", None), ()),
        ratio("data and model parallel, 20 steps", ("data", None), (None, "model")),
    ]


def ratio(name: str, batch: tuple, weights: tuple) -> Figure:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    keys = jax.random.split(jax.random.key(0), 3)

    def placed(key, shape, *axes):
        value = jax.random.normal(key, shape)
        return jax.device_put(value, NamedSharding(mesh, P(*axes)))

    args = (
        {
            "in": placed(keys[0], (D, H), *weights),
            "out": placed(keys[1], (H,), *weights[1:]),
        },
        placed(keys[2], (T, N, D), None, *batch),
    )
    ours, theirs = (
        jax.jit(fun).lower(*args).compile() for fun in (lox.spool(logged), by_hand)
    )
    assert exchanged(ours) == exchanged(theirs)
    assert sizes(ours) == sizes(theirs)
    figure = compare(name, lambda: ours(*args), lambda: theirs(*args), goal=GOAL)
    number = sum(exchanged(ours).values())
    held = f"collectives: {number}, bytes held: {sizes(ours)[2]}, in both"
    note = f"{figure.note}; {held}"
    return dataclasses.replace(figure, note=note)


def step(weights, x):
    def loss(weights):
        error = jnp.tanh(x @ weights["in"]) @ weights["out"] - x.sum(-1)
        return (error**2).mean(), jnp.abs(error)

    (value, errors), slopes = jax.value_and_grad(loss, has_aux=True)(weights)
    metrics = {"loss": value, "errors": errors, "slope": (slopes["in"] ** 2).sum()}
    return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, slopes), metrics


def by_hand(weights, xs):
    return jax.lax.scan(step, weights, xs)


def logged(weights, xs):
    def body(weights, x):
        weights, metrics = step(weights, x)
        lox.log(metrics)
        return weights, None

    return jax.lax.scan(body, weights, xs)[0]


def exchanged(program) -> collections.Counter:
    """The collectives of a program, by name and shape."""
    return collections.Counter(
        re.findall(rf"= (.*?) ({COLLECTIVES})(?:-start)?\(", program.as_text())
    )


def sizes(program) -> list[int]:
    memory = program.memory_analysis()
    names = ("argument_size", "output_size", "temp_size")
    return [getattr(memory, f"{name}_in_bytes") for name in names]


if __name__ == "__main__":
    if "--json" in sys.argv:
        print(json.dumps([dataclasses.asdict(figure) for figure in measured()]))
    else:
        print(table(figures()))
