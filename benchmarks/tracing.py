"""What tracing costs: `jit(spool(f)).lower(x)` ÷ the same metrics returned by hand."""

import jax
import jax.numpy as jnp
from _measure import Figure, compare, table

import lox

COUNTS = [1, 10, 100, 1000]
GOAL = "≤ 1.5"


def figures() -> list[Figure]:
    straight = [measure("log calls: {}", logged, by_hand, n) for n in COUNTS]
    looped = [
        measure("log calls in a scan: {}", in_scan, in_scan_by_hand, n) for n in COUNTS[:-1]
    ]
    return [*straight, growth(*straight[-2:]), *looped]


def growth(hundred, thousand):
    """Compare the times for 1000 and for 100 log calls: linear is 1."""
    ours, by_hand = (b / a for a, b in zip(hundred.seconds, thousand.seconds, strict=True))
    note = f"by hand {by_hand / 10:.2f}"
    return Figure("1000 ÷ 10 times 100 log calls", ours / 10, "≤ 1.2", note)


def measure(name, ours, theirs, count):
    x = jnp.ones((8, 8))
    return compare(
        name.format(count),
        # A new function each time, or JAX would find the last one's trace in its cache.
        lambda: jax.jit(lox.spool(ours(count))).lower(x),
        lambda: jax.jit(theirs(count)).lower(x),
        goal=GOAL,
    )


def layer(x):
    return jnp.tanh(x @ x.T + 1) * x


def logged(count):
    def f(x):
        for i in range(count):
            x = layer(x)
            lox.log({f"mean {i}": jnp.mean(x)})
        return x

    return f


def by_hand(count):
    def f(x):
        rows = {}
        for i in range(count):
            x = layer(x)
            rows[f"mean {i}"] = jnp.mean(x)
        return x, rows

    return f


def in_scan(count):
    def f(x):
        body = logged(count)
        return jax.lax.scan(lambda x, _: (body(x), None), x, length=10)[0]

    return f


def in_scan_by_hand(count):
    def f(x):
        body = by_hand(count)
        return jax.lax.scan(lambda x, _: body(x), x, length=10)

    return f


if __name__ == "__main__":
    print(table(figures()))
