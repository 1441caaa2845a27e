"""Programs whose loops run as often as their argument says, and their truth.

Each takes a number between 0 and 6. None logs more than 24 rows of a key.
"""

import functools as ft

import jax
import jax.numpy as jnp

import lox
from support.programs import logged
from support.truth import run, run_each


def collatz(x):
    """A loop whose end nobody knows."""

    def body(state):
        n, i = state
        lox.log({"n": n, "half": 0.5 * n}, step=i, tags="loop")
        return jnp.where(n % 2 < 1, jnp.floor(n / 2), 3 * n + 1), i + 1

    return jax.lax.while_loop(lambda s: s[0] > 1, body, (jnp.floor(x) + 1, 0))


def dynamic_fori_loop(x):
    body = lambda i, c: logged("c", jnp.sin(c) + 1, step=i)  # noqa: E731
    return jax.lax.fori_loop(1, x.astype(jnp.int32) + 1, body, x)


def log_around_the_loop(x):
    lox.log({"x": x})
    lox.log({"x": x + 1}, step=-1)
    y = count_up(x, lambda i, c: logged("x", c + 0.5, step=i))
    lox.log({"x": y, "last": y})
    return y


def only_before_and_after(x):
    lox.log({"x": x, "before": x})
    y = count_up(x, lambda i, c: c + 0.5)
    return logged("x", y)


def twice_in_the_body(x):
    def body(i, c):
        lox.log({"c": c}, step=i)
        lox.log({"d": 2 * c})
        return logged("c", jnp.sin(c))

    return count_up(x, body)


def two_loops(x):
    y = count_up(x, lambda i, c: logged("x", jnp.sin(c)))
    return count_up(6 - x, lambda i, c: logged("x", jnp.cos(c), step=i), y)


def logging_predicate(x):
    def ask(state):
        return logged("asked", state) < 4

    return jax.lax.while_loop(ask, lambda c: c + 1, x)


def logging_predicate_and_body(x):
    def ask(state):
        lox.log({"x": state[1]}, asked=state[0])
        return state[0] < x

    def body(state):
        return state[0] + 1, logged("x", jnp.sin(state[1]), step=state[0])

    return jax.lax.while_loop(ask, body, (jnp.float32(0), x))


def arrays_and_trees(x):
    def body(i, c):
        lox.log({"tree": {"a": c, "b": (c > 1, jnp.stack([c, -c]))}, "i": i}, step=i)
        return jnp.sin(c) + 1

    return count_up(x, body)


def prng_keys(x):
    def body(i, key):
        lox.log({"key": key})
        return jax.random.fold_in(key, i)

    return x * jax.random.normal(count_up(x, body, jax.random.key(0)))


def while_in_a_scan(x):
    def step(carry, i):
        lox.log({"outer": carry}, step=i)
        shorter = x - i.astype(jnp.float32)
        carry = count_up(shorter, lambda j, c: logged("x", jnp.sin(c), i=i, j=j), carry)
        return carry, None

    return jax.lax.scan(step, x, jnp.arange(3))[0]


def while_in_a_reversed_scan(x):
    def step(carry, i):
        times = x - i.astype(jnp.float32)
        return count_up(times, lambda j, c: logged("x", jnp.sin(c), i=i), carry), None

    return jax.lax.scan(step, x, jnp.arange(3), reverse=True)[0]


def scan_in_a_while(x):
    def body(i, c):
        step = lambda c, a: (logged("x", jnp.sin(c + a), step=a), None)  # noqa: E731
        return jax.lax.scan(step, c, jnp.arange(3.0))[0]

    return count_up(x, body)


def while_in_a_while(x):
    def body(i, c):
        lox.log({"outer": c}, i=i)
        times = i.astype(jnp.float32) - 1
        return count_up(times, lambda j, c: logged("x", jnp.sin(c), i=i, j=j), c) + 1

    return count_up(x, body)


def while_in_a_cond_in_a_while(x):
    def body(i, c):
        lox.log({"outer": c})
        turn = lambda j, c: logged("x", jnp.sin(c), step=j)  # noqa: E731
        loop = lambda c: count_up(x - 1, turn, c)  # noqa: E731
        return jax.lax.cond(c > 1, loop, lambda c: logged("x", c) + 1, c)

    return count_up(x, body)


def while_in_a_scan_in_a_while(x):
    def body(i, c):
        def step(c, j):
            times = i.astype(jnp.float32) - j
            return count_up(times, lambda k, c: logged("x", jnp.sin(c), i=i, k=k), c), None

        return jax.lax.scan(step, c, jnp.arange(2.0))[0] + 1

    return count_up(x, body)


def while_with_a_logging_predicate_in_a_while(x):
    def body(i, c):
        ask = lambda s: logged("asked", s) < i.astype(jnp.float32)  # noqa: E731
        lox.log({"outer": c}, i=i)
        end = jax.lax.while_loop(ask, lambda s: logged("x", s) + 1, jnp.float32(0))
        return logged("x", c) + end

    return count_up(x - 1, body)


def logging_predicate_around_a_while(x):
    def ask(c):
        return logged("asked", c) < x

    def body(c):
        count_up(c - 1, lambda j, c: logged("x", jnp.sin(c), step=j), c)
        return c + 1

    return jax.lax.while_loop(ask, body, jnp.float32(0))


def while_in_a_custom_rule_in_a_while(x):
    """Its rows come out of the rule before they go into the buffer."""

    @jax.custom_jvp
    def fun(c):
        return jnp.sin(count_up(c, lambda j, d: logged("x", d, step=j)))

    fun.defjvps(lambda t, out, c: 3 * t * jnp.cos(c))
    return count_up(x, lambda i, c: fun(logged("x", c)) + 1)


def while_in_a_cond(x):
    loop = lambda x: count_up(x, lambda i, c: logged("x", jnp.sin(c), step=i))  # noqa: E731
    return jax.lax.cond(x > 2, loop, lambda x: logged("x", x), x)


def while_in_one_branch(x):
    loop = lambda x: count_up(x, lambda i, c: logged("x", jnp.sin(c), step=i))  # noqa: E731
    return jax.lax.cond(x > 2, loop, jnp.cos, x)


def cond_in_a_while(x):
    def body(i, c):
        even = lambda c: logged("even", c, step=i) + 1  # noqa: E731
        odd = lambda c: logged("odd", logged("odd", c) + 1) * 1.1  # noqa: E731
        lox.log({"all": c})
        return jax.lax.cond(i % 2 == 0, even, odd, c)

    return count_up(x, body)


def while_in_jit_called_twice(x):
    inner = jax.jit(lambda x: count_up(x, lambda i, c: logged("x", jnp.sin(c), step=i)))
    return inner(x) + inner(x + 1)


def grad_in_a_while(x):
    def body(i, c):
        loss, slope = jax.value_and_grad(lambda c: jnp.sin(logged("c", c, step=i)) ** 2)(c)
        lox.log({"loss": loss, "slope": slope}, step=i)
        return c - slope / 2

    return count_up(x, body)


def checkpoint_and_custom_rules_in_a_while(x):
    @jax.custom_jvp
    def fun(c):
        return jnp.sin(logged("x", c))

    fun.defjvps(lambda t, out, c: 3 * t * jnp.cos(c))
    layer = jax.checkpoint(lambda c: logged("y", fun(c)))
    return count_up(x, lambda i, c: layer(c))


def vmap_of_a_while(x):
    def each(a):
        return count_up(a, lambda i, c: logged("x", jnp.sin(c), step=i))

    return jnp.sum(jax.vmap(each)(jnp.array([0.0, 2.0, x[...], 4.0, 1.0])))


def vmap_of_a_while_with_an_unbatched_predicate(x):
    def each(a):
        return count_up(x, lambda i, c: logged("x", jnp.sin(c), step=i), a)

    return jnp.sum(jax.vmap(each)(jnp.arange(5.0)))


def vmap_of_a_while_of_a_cond(x):
    def each(a):
        def body(i, c):
            big = lambda c: logged("x", c - 1, step=i)  # noqa: E731
            return jax.lax.cond(c > 1, big, lambda c: 1.7 * c, c)

        return count_up(a + 2, body, a * 0.7)

    return jnp.sum(jax.vmap(each)(jnp.array([0.0, 2.0, x[...], 4.0, 1.0])))


def vmap_of_a_scan_of_a_while(x):
    def each(a):
        def step(c, i):
            times = a - i.astype(jnp.float32)
            return count_up(times, lambda j, c: logged("x", jnp.sin(c), i=i, j=j), c), None

        return jax.lax.scan(step, a, jnp.arange(2))[0]

    return jnp.sum(jax.vmap(each)(jnp.array([0.0, 2.0, x[...], 4.0, 1.0])))


def vmap_of_a_logging_predicate(x):
    def each(a):
        ask = lambda c: logged("asked", c) < 4  # noqa: E731
        return jax.lax.while_loop(ask, lambda c: logged("x", c + 1), a)

    return jnp.sum(jax.vmap(each)(jnp.array([0.0, 2.0, x[...], 4.0, 1.0])))


def count_up(times, body, start=None):
    """`fori_loop(0, ceil(times), body, start)`, by a `while_loop`."""
    start = times if start is None else start
    return jax.lax.while_loop(
        lambda s: s[0].astype(jnp.float32) < times,
        lambda s: (s[0] + 1, body(*s)),
        (jnp.int32(0), start),
    )[1]


PROGRAMS = [
    collatz,
    dynamic_fori_loop,
    log_around_the_loop,
    only_before_and_after,
    twice_in_the_body,
    two_loops,
    logging_predicate,
    logging_predicate_and_body,
    arrays_and_trees,
    prng_keys,
    while_in_a_scan,
    while_in_a_reversed_scan,
    scan_in_a_while,
    while_in_a_while,
    while_in_a_cond_in_a_while,
    while_in_a_scan_in_a_while,
    while_with_a_logging_predicate_in_a_while,
    logging_predicate_around_a_while,
    while_in_a_custom_rule_in_a_while,
    while_in_a_cond,
    while_in_one_branch,
    cond_in_a_while,
    while_in_jit_called_twice,
    grad_in_a_while,
    checkpoint_and_custom_rules_in_a_while,
    vmap_of_a_while,
    vmap_of_a_while_with_an_unbatched_predicate,
    vmap_of_a_while_of_a_cond,
    vmap_of_a_scan_of_a_while,
    vmap_of_a_logging_predicate,
]
ONCE = {"before", "last"}  # keys that are logged once, outside of the loops
X, NONE, ROOM = jnp.float32(3.5), jnp.float32(0), 24
XS = jnp.array([3.5, 0, 5, 1], jnp.float32)


@ft.cache
def truth(fun, x: float):
    return run(fun, jnp.float32(x))


@ft.cache
def truth_of_each(fun):
    return run_each(fun, XS)
