"""What reducing costs: `jit(spool(f, reduce=...))` ÷ the same accumulator by hand.

A loop that does hardly anything else, one whose body takes about a microsecond, and 8
seeds of it.
"""

import jax
import jax.numpy as jnp
from _measure import Figure, compare, table

import lox

GOAL = "≤ 1.05"
NUMBERS = 320_000  # in all steps of a loop
EVERY = 10
WAYS = ["mean", "std", "interval"]


def figures() -> list[Figure]:
    return [
        figure(f"{name}: {how}", transform, how, x)
        for name, (transform, x) in programs().items()
        for how in WAYS
    ]


def programs():
    """For each name what is done to a loop, and its argument."""
    x = jnp.linspace(-1, 1, 64)
    return {
        "empty scan": (lambda fun: fun, x[:1]),
        "scan": (lambda fun: fun, x),
        "8 seeds": (jax.vmap, jnp.stack([x + k for k in range(8)])),
    }


def figure(name, transform, how, x):
    options = {"interval": EVERY} if how == "interval" else {"reduce": how}
    spooled = jax.jit(transform(lox.spool(scan, **options)))
    carried = jax.jit(transform(by_hand(how)))
    (out, logs), (other, value) = spooled(x), carried(x)
    assert jnp.allclose(out, other), name
    assert jnp.allclose(logs["mean"], value, rtol=1e-4), name
    return compare(name, lambda: spooled(x), lambda: carried(x), goal=GOAL)


def rotate(x):
    return jnp.roll(jnp.sin(3 * x), 1)


def scan(x):
    def body(x, _):
        lox.log({"mean": x.mean()})
        return rotate(x), None

    return jax.lax.scan(body, x, length=NUMBERS // x.size)[0]


def by_hand(how):
    """The loop with an accumulator in its carry."""
    start, add, finish = ACCUMULATORS[how]

    def fun(x):
        def body(carry, i):
            x, accumulator = carry
            return (rotate(x), add(accumulator, x.mean(), i)), None

        steps = NUMBERS // x.size
        (x, accumulator), _ = jax.lax.scan(body, (x, start(steps)), jnp.arange(steps))
        return x, finish(accumulator)

    return fun


def plus(total, x):
    """Add to a sum whose second part holds what the first has no room for."""
    high, low = total
    new = high + x
    back = new - high
    low = low + ((high - (new - back)) + (x - back))
    low = jnp.where(jnp.isfinite(new), low, 0)
    high = new + low
    return high, jnp.where(jnp.isfinite(new), low - (high - new), low)


def nothing():
    return jnp.float32(0), jnp.float32(0)


def empty_mean(steps):
    return jnp.int32(0), nothing()


def empty_deviation(steps):
    return jnp.int32(0), nothing(), nothing()


def add_to_mean(accumulator, x, i):
    count, total = accumulator
    return count + 1, plus(total, x)


def mean_of(accumulator):
    count, (high, low) = accumulator
    # Without any row this is 0: a NaN would stop the program under `jax_debug_nans`.
    return (high + low) / jnp.maximum(count, 1).astype(jnp.float32)


def add_to_deviation(accumulator, x, i):
    """Welford's formula with compensated sums."""
    count, mean, squares = accumulator
    delta = (x - mean[0]) - mean[1]
    share = 1 / (count + 1).astype(jnp.float32)
    mean = plus(mean, delta * share)
    return count + 1, mean, plus(squares, delta * delta * share * count)


def deviation_of(accumulator):
    count, _, (high, low) = accumulator
    return jnp.sqrt((high + low) / count)


def add_row(rows, x, i):
    at = i // EVERY
    return rows.at[at].set(jnp.where(i % EVERY == 0, x, rows[at]))


ACCUMULATORS = {
    "mean": (empty_mean, add_to_mean, mean_of),
    "std": (empty_deviation, add_to_deviation, deviation_of),
    "interval": (lambda steps: jnp.zeros(steps // EVERY), add_row, lambda rows: rows),
}


if __name__ == "__main__":
    print(table(figures()))
