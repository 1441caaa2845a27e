"""What streaming costs: `jit(tap(f))` ÷ other ways, until everything is delivered.

A loop that does hardly anything else, and one with a product of 64 x 64 matrices; each
logs one number and a step. The callback does nothing.
"""

import importlib.util

import jax
import jax.numpy as jnp
from _measure import Figure, compare, table

import lox

STEPS = 2000
SEEDS = 256
BODIES = {
    "empty body": (lambda x: 0.99 * x + 1, jnp.float32(1)),
    "64 x 64": (lambda x: jnp.tanh(x @ x), jnp.full((64, 64), 0.01)),
}


def figures() -> list[Figure]:
    return [figure for name in BODIES for figure in figures_of(name)]


def figures_of(name):
    step, x = BODIES[name]
    logs = loop(step, lambda x, i: lox.log({"mean": x.mean()}, step=i))
    calls = loop(step, lambda x, i: jax.debug.callback(ignore, x.mean(), i))
    tapped, batched = (
        delivered(jax.jit(lox.tap(logs, ignore, batch=batch))) for batch in (None, 100)
    )
    thinned = delivered(jax.jit(lox.tap(logs, ignore, interval=100)))
    silent = jax.jit(lox.nolog(logs))
    shown = delivered(jax.jit(lox.progress(lox.nolog(logs))))

    def ratio(what, ours, theirs, goal):
        return compare(f"{name}: {what}", lambda: ours(x), lambda: theirs(x), goal=goal)

    few = "≤ 1.1" if x.ndim else ""
    yield ratio("tap ÷ debug.callback", tapped, delivered(jax.jit(calls)), "≤ 0.1")
    if importlib.util.find_spec("jaxtap"):
        yield ratio("tap ÷ jax-tap", tapped, delivered(jax.jit(with_jax_tap(step))), "")
    yield ratio("tap ÷ no logs", tapped, silent, "")
    yield ratio("tap(batch=100) ÷ no logs", batched, silent, few)
    yield ratio("tap(interval=100) ÷ no logs", thinned, silent, few)
    yield ratio("progress ÷ no logs", shown, silent, few)
    if not x.ndim:
        yield from figures_of_seeds(logs, jnp.stack([x] * SEEDS))


def figures_of_seeds(logs, xs):
    tapped = delivered(jax.jit(jax.vmap(lox.tap(logs, ignore, batch=100))))
    silent = jax.jit(jax.vmap(lox.nolog(logs)))
    yield compare(
        f"{SEEDS} seeds: tap(batch=100) ÷ no logs",
        lambda: tapped(xs), lambda: silent(xs), goal="",
    )  # fmt: skip
    many, one = (
        delivered(jax.jit(jax.vmap(lox.tap(logs, ignore, interval=20)))) for _ in range(2)
    )
    yield compare(
        f"{SEEDS} seeds ÷ one: tap of a record in 20",
        lambda: many(xs), lambda: one(xs[:1]), goal="",
    )  # fmt: skip


def ignore(*args):
    pass


def loop(step, log):
    def fun(x):
        def body(x, i):
            x = step(x)
            log(x, i)
            return x, None

        return jax.lax.scan(body, x, jnp.arange(STEPS))[0]

    return fun


def with_jax_tap(step):
    import jaxtap

    silent = loop(step, ignore)
    return jaxtap.record(silent, select=lambda leaves: leaves[0].mean())[0]


def delivered(fun):
    """Call `fun`, and wait until all that it streams has arrived."""

    def call(x):
        out = fun(x)
        lox.barrier()
        return out

    return call


if __name__ == "__main__":
    print(table(figures()))
