"""What collecting costs: `jit(spool(f))` ÷ the same metrics carried by hand.

Time on the clock, and what can be said without it: whether both are the same program,
its operations, the bytes that it moves, its memory.
"""

import re

import jax
import jax.numpy as jnp
from _measure import Figure, compare, table

import lox

GOAL = "≤ 1.02"
STEPS = 500
NAMES = r"@jit_\w+|jax\.result_info = \"[^\"]*\""


def figures() -> list[Figure]:
    return [
        figure
        for name, (spooled, carried, x) in programs().items()
        for figure in both(name, jax.jit(spooled), jax.jit(carried), x)
    ]


def both(name, spooled, carried, x):
    assert_same(spooled(x), carried(x), name)
    yield compare(f"{name}: time", lambda: spooled(x), lambda: carried(x), goal=GOAL)
    ours, theirs = lines(spooled, x), lines(carried, x)
    note = "identical" if ours == theirs else f"{len(ours)} ÷ {len(theirs)} lines"
    yield Figure(f"{name}: StableHLO", len(ours) / len(theirs), "1.00", note)
    ours, theirs = costs(spooled, x), costs(carried, x)
    for key, value in theirs.items():
        ratio = ours[key] / value if value else float(ours[key] == value)
        note = f"{ours[key]:,.0f} ÷ {value:,.0f}"
        yield Figure(f"{name}: {key}", ratio, "≤ 1.01", note)


def lines(fun, x):
    """List the lines of the program; its name and those of its results do not count."""
    return re.sub(NAMES, "", fun.lower(x).as_text()).splitlines()


def costs(fun, x):
    compiled = fun.lower(x).compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    return {
        "flops": cost["flops"],
        "bytes accessed": cost["bytes accessed"],
        "memory": memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        + memory.argument_size_in_bytes,
    }


def programs():
    """Each spooled, with the same metrics by hand, and its argument."""
    x = jnp.linspace(-1, 1, 256)
    keys = jax.random.split(jax.random.key(0), 8)
    return {
        "scan": (lox.spool(scan), scan_by_hand, x),
        "nested scan": (lox.spool(nested), nested_by_hand, x),
        "grad in scan": (lox.spool(train), train_by_hand, keys[0]),
        "8 seeds": (jax.vmap(lox.spool(train)), jax.vmap(train_by_hand), keys),
    }


def metrics(x):
    return {"mean": x.mean(), "square": (x**2).mean()}


def rotate(x):
    return jnp.roll(jnp.sin(3 * x), 1)


def scan(x):
    def body(x, _):
        lox.log(metrics(x))
        return rotate(x), None

    return jax.lax.scan(body, x, length=STEPS)[0]


def scan_by_hand(x):
    def body(x, _):
        rows = metrics(x)
        return rotate(x), rows

    return jax.lax.scan(body, x, length=STEPS)


def nested(x):
    def outer(x, _):
        return scan(x), None

    return jax.lax.scan(outer, x, length=8)[0]


def nested_by_hand(x):
    def outer(x, _):
        return scan_by_hand(x)

    out, rows = jax.lax.scan(outer, x, length=8)
    return out, jax.tree.map(lambda leaf: leaf.reshape(-1), rows)


def train(key):
    def loss(params, batch):
        value, accuracy = errors(params, batch)
        lox.log({"accuracy": accuracy, "loss": value})
        return value

    def body(params, key):
        grads = jax.grad(loss)(params, data(key))
        lox.log({"norm": norm(grads)})
        return update(params, grads), None

    return jax.lax.scan(body, init(key), jax.random.split(key, STEPS))[0]


def train_by_hand(key):
    def loss(params, batch):
        value, accuracy = errors(params, batch)
        return value, {"accuracy": accuracy, "loss": value}

    def body(params, key):
        grads, rows = jax.grad(loss, has_aux=True)(params, data(key))
        rows = {**rows, "norm": norm(grads)}
        return update(params, grads), rows

    return jax.lax.scan(body, init(key), jax.random.split(key, STEPS))


def init(key):
    first, second = jax.random.split(key)
    return [
        jax.random.normal(first, (16, 64)) / 4,
        jax.random.normal(second, (64,)) / 8,
    ]


def data(key):
    x = jax.random.normal(key, (32, 16))
    return x, jnp.sign(x[:, 0] * x[:, 1])


def errors(params, batch):
    (first, second), (x, label) = params, batch
    margin = label * (jnp.tanh(x @ first) @ second)
    return jax.nn.softplus(-margin).mean(), (margin > 0).mean()


def update(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def norm(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def assert_same(ours, theirs, name):
    (out, logs), (other, rows) = ours, theirs
    assert logs.keys() == rows.keys(), name
    pairs = zip(*map(jax.tree.leaves, ((out, dict(logs)), (other, rows))), strict=True)
    assert all(jnp.allclose(a, b, atol=1e-5) for a, b in pairs), name


if __name__ == "__main__":
    print(table(figures()))
