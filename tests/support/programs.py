"""The catalogue: small programs, one for each thing that a log can meet in JAX.

They call `lox.log`, `jax.vmap`, `jax.checkpoint` and their kin through the module, so
that the truth can replace them. Where `vmap`s are nested, or inside a program that is
itself vmapped over 3 examples, their sizes differ.
"""

import dataclasses
import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A function of one array, and what must be known to check its logs."""

    fun: Callable[[jax.Array], Any]
    x: jax.Array
    natural: frozenset[
        str
    ]  # keys that keep the shape they were logged with; all others have a time axis
    masked: frozenset[str]  # keys that some path does not log
    grad: bool  # can be differentiated
    # A Python loop, where the function itself cannot run eagerly.
    by_hand: Callable[[jax.Array], Any] | None
    # The same result without logs, where the function computes with its own logs.
    equivalent: Callable[[jax.Array], Any] | None

    @property
    def name(self) -> str:
        return self.fun.__name__

    @property
    def truth(self) -> Callable[[jax.Array], Any]:
        return self.by_hand or self.fun

    @property
    def xs(self) -> jax.Array:
        """Three examples; conditions differ between them."""
        return jnp.stack([self.x, -0.5 * self.x, self.x + 0.25])

    def is_natural(self, key: str) -> bool:
        return key in self.natural


PROGRAMS: list[Program] = []
X = jnp.float32(0.7)
V = jnp.array([0.7, -0.4], jnp.float32)
constant = jax.lax.stop_gradient  # logs carry no derivatives


def program(*, natural="", masked="", x=X, grad=True, by_hand=None, equivalent=None):
    def register(fun):
        keys = frozenset(natural.split()), frozenset(masked.split())
        PROGRAMS.append(Program(fun, x, *keys, grad, by_hand, equivalent))
        return fun

    return register


def logged(key: str, x: Any, **steps: Any) -> Any:
    """Log `x` and return it."""
    lox.log({key: x}, **steps)
    return x


# What can be logged -------------------------------------------------------------------


@program()
def nothing(x):
    return 2 * x


@program()
def no_keys(x):
    lox.log({})
    return 2 * x


@program(natural="x")
def plain(x):
    lox.log({"x": x})
    return 2 * x


@program(natural="c")
def a_constant(x):
    lox.log({"c": 3.0}, step=1)
    return 2 * x


@program(natural="n f")
def numpy_values(x):
    lox.log({"n": np.arange(3, dtype=np.int32), "f": np.float32(1.5)})
    return 2 * x


@program(natural="b a c")
def several_keys(x):
    lox.log({"b": x, "a": x + 1})
    lox.log({"c": jnp.sin(x)})
    return 2 * x


@program(natural="x m", x=V)
def arrays(x):
    lox.log({"x": x, "m": x[:, None] * x[None, :]})
    return jnp.sum(x * x)


@program()
def a_key_twice(x):
    lox.log({"x": x})
    lox.log({"x": x + 1})
    return 2 * x


@program(natural="y")
def a_key_three_times_and_another(x):
    lox.log({"x": x})
    lox.log({"y": 2 * x})
    lox.log({"x": x + 1, "z": x})
    lox.log({"z": x - 1, "x": x + 2})
    return 2 * x


@program(natural="x")
def one_step(x):
    lox.log({"x": x}, step=3)
    return 2 * x


@program(natural="x y")
def several_steps(x):
    lox.log({"x": x, "y": 2 * x}, step=jnp.int32(3), episode=x, phase=0.5)
    return 2 * x


@program()
def a_step_that_only_some_records_have(x):
    lox.log({"x": x}, step=1)
    lox.log({"x": x + 1})
    lox.log({"x": x + 2}, step=3, episode=0)
    return 2 * x


@program(natural="tree")
def a_pytree(x):
    lox.log({"tree": {"a": x, "b": (2 * x, jnp.stack([x, x]))}}, step=1)
    return 2 * x


@program()
def a_pytree_twice(x):
    lox.log({"tree": {"a": x, "b": (2 * x, jnp.stack([x, x]))}})
    lox.log({"tree": {"a": x + 1, "b": (x, jnp.stack([x, -x]))}})
    return 2 * x


@program(natural="x y z")
def tags(x):
    lox.log({"x": x}, tags="metric")
    lox.log({"y": 2 * x}, tags=("metric", "debug"))
    lox.log({"z": 2 * x})
    return 2 * x


@program()
def tags_that_only_some_records_have(x):
    lox.log({"x": x}, tags="metric")
    lox.log({"x": 2 * x}, tags=["debug"])
    return 2 * x


@program(natural="train/x train/y")
def a_prefix(x):
    lox.log({"x": x, "y": 2 * x}, prefix="train/", step=1)
    return 2 * x


@program(natural="bf16 f16")
def half_precision(x):
    lox.log({"bf16": x.astype(jnp.bfloat16), "f16": x.astype(jnp.float16)})
    return 2 * x


@program(natural="e5m2")
def eight_bits(x):
    lox.log({"e5m2": x.astype(jnp.float8_e5m2), "e4m3": x.astype(jnp.float8_e4m3fn)})
    lox.log({"e4m3": (2 * x).astype(jnp.float8_e4m3fn)})
    return 2 * x


@program(natural="positive true")
def bools(x):
    lox.log({"positive": x > 0, "true": True})
    return 2 * x


@program(natural="i8 u32 i")
def integers(x):
    lox.log({"i8": (10 * x).astype(jnp.int8), "u32": jnp.uint32(7), "i": 3})
    return 2 * x


@program(natural="z")
def complex_numbers(x):
    lox.log({"z": jax.lax.complex(x, 2 * x)})
    return 2 * x


@program()
def prng_keys(x):
    key = jax.random.key(0)
    lox.log({"key": key})
    lox.log({"key": jax.random.fold_in(key, 1)})
    return x * jax.random.uniform(key)


@program()
def prng_keys_in_a_scan(x):
    def step(key, _):
        key, sub = jax.random.split(key)
        lox.log({"sub": sub})
        return key, jax.random.normal(sub)

    return x * jnp.sum(jax.lax.scan(step, jax.random.key(1), None, length=3)[1])


@program(natural="x y")
def the_record_that_log_returns(x):
    record = lox.log({"x": x})
    lox.log({"y": record["x"] + 1})
    return 2 * x


@program(natural="unused")
def a_value_that_is_not_used(x):
    lox.log({"unused": jnp.sin(x) * 3})
    return 2 * x


# jit ----------------------------------------------------------------------------------


@program(natural="x y")
def jitted(x):
    lox.log({"x": x})
    return jax.jit(lambda x: 2 * logged("y", x + 1))(x)


@program(natural="x y z")
def nested_jit(x):
    @jax.jit
    def inner(x):
        return 2 * logged("z", x * x)

    @jax.jit
    def middle(x):
        return inner(logged("y", x + 1))

    return jax.jit(lambda x: middle(logged("x", x)))(x)


@program(natural="x")
def jit_with_closed_over_arrays(x):
    table = jnp.arange(4, dtype=jnp.float32) + 1
    return jax.jit(lambda x: jnp.sum(logged("x", table * x)))(x)


@program(natural="x")
def jit_with_static_arguments(x):
    @ft.partial(jax.jit, static_argnums=1, static_argnames="name")
    def inner(x, times, name):
        return logged(name, times * x)

    return inner(x, 3, name="x")


@program(natural="x")
def jit_that_donates(x):
    return jax.jit(lambda y: 2 * logged("x", y), donate_argnums=0)(x + 1)


@program()
def jit_that_is_called_several_times(x):
    @jax.jit
    def inner(x):
        return jnp.sin(logged("x", x))

    return inner(inner(inner(x)) + inner(x))


@program(masked="x")
def jit_that_is_shared_by_a_scan_and_a_branch(x):
    inner = jax.jit(lambda x: jnp.sin(logged("x", x)))
    y, _ = jax.lax.scan(lambda c, _: (inner(c), None), x, None, length=2)
    return jax.lax.cond(y > 0, inner, lambda y: inner(inner(y)), y) + inner(x)


@program(natural="x y")
def jit_with_keywords_and_pytrees(x):
    @jax.jit
    def inner(batch, *, scale):
        lox.log({"x": batch["x"]}, step=scale)
        return {"y": logged("y", batch["x"] * 2), "scale": scale}

    return inner({"x": x}, scale=3)["y"]


@program(natural="x")
def inlined_jit(x):
    return jax.jit(lambda x: 2 * logged("x", x), inline=True)(x)


@program(natural="x")
def a_named_scope(x):
    with jax.named_scope("inner"):
        return 2 * logged("x", x)


@program(natural="x")
def a_named_call(x):
    return jax.named_call(lambda x: 2 * logged("x", x), name="inner")(x)


# scan and its kin ---------------------------------------------------------------------


@program()
def scan(x):
    def step(carry, a):
        carry = jnp.sin(carry + a)
        lox.log({"carry": carry})
        return carry, carry

    return jax.lax.scan(step, x, jnp.arange(3.0))


@program()
def scan_with_steps(x):
    def step(carry, i):
        lox.log({"carry": carry, "twice": 2 * carry}, step=i, half=i // 2, tags="loop")
        return jnp.sin(carry), None

    return jax.lax.scan(step, x, jnp.arange(4))[0]


@program()
def reversed_scan(x):
    def step(carry, a):
        lox.log({"a": a, "carry": carry}, step=a)
        return carry * a, carry

    return jax.lax.scan(step, x, jnp.array([1.0, 2.0, 3.0]), reverse=True)


@program()
def unrolled_scan(x):
    def step(carry, a):
        lox.log({"a": a})
        return jnp.sin(logged("carry", carry + a)), None

    return jax.lax.scan(step, x, jnp.arange(5.0), unroll=2)[0]


@program()
def wholly_unrolled_scan(x):
    return jax.lax.scan(
        lambda c, a: (jnp.sin(logged("c", c + a)), None), x, jnp.arange(3.0), unroll=True
    )[0]


@program()
def reversed_unrolled_scan(x):
    step = lambda c, a: (jnp.sin(logged("c", c + a, step=a)), None)  # noqa: E731
    return jax.lax.scan(step, x, jnp.arange(4.0), unroll=2, reverse=True)[0]


@program(by_hand=lambda x: x)
def scan_of_length_0(x):
    return jax.lax.scan(lambda c, a: (logged("c", c + a), None), x, jnp.zeros(0))[0]


@program(by_hand=lambda x: logged("c", x, step=7))
def scan_of_length_0_after_a_log(x):
    lox.log({"c": x}, step=7)
    return jax.lax.scan(lambda c, i: (logged("c", c + 1, step=i), None), x, jnp.arange(0))[
        0
    ]


@program()
def scan_of_length_1(x):
    return jax.lax.scan(lambda c, a: (logged("c", c + a), None), x, jnp.ones(1))[0]


@program()
def scan_with_a_weak_carry(x):
    def step(carry, a):
        lox.log({"carry": carry, "a": a})
        return carry + 1.0, a * x

    count, ys = jax.lax.scan(step, 0.0, jnp.arange(3.0))
    return count + jnp.sum(ys)


@program()
def scan_that_logs_what_does_not_change(x):
    def step(carry, a):
        lox.log({"x": x, "one": 1.0})
        return carry * a, None

    return jax.lax.scan(step, x, jnp.array([1.0, 2.0, 3.0]))[0]


@program()
def scan_that_logs_what_hardly_changes(x):
    def step(carry, a):
        lox.log({"y": jnp.sin(x) * 2}, step=a)
        return carry * jnp.cos(x), None

    return jax.lax.scan(step, x, jnp.arange(3))[0]


@program(natural="first last")
def log_before_in_and_after_a_scan(x):
    lox.log({"x": x, "first": x})
    lox.log({"x": x + 1})
    y, _ = jax.lax.scan(
        lambda c, a: (logged("x", c * a), None), x, jnp.array([1.0, 2.0, 3.0])
    )
    lox.log({"x": y, "last": y})
    return y


@program()
def two_logs_of_a_key_in_a_scan(x):
    def step(carry, a):
        lox.log({"x": carry}, step=a)
        lox.log({"y": carry * a})
        carry = jnp.sin(carry)
        lox.log({"x": carry})
        return carry, None

    return jax.lax.scan(step, x, jnp.arange(3.0))[0]


@program()
def two_scans_that_log_one_key(x):
    x, _ = jax.lax.scan(
        lambda c, a: (logged("x", jnp.sin(c) + a), None), x, jnp.arange(2.0)
    )
    x, _ = jax.lax.scan(
        lambda c, a: (logged("x", jnp.cos(c) + a), None), x, jnp.arange(3.0), reverse=True
    )
    return x


@program()
def nested_scans(x):
    def outer(carry, a):
        lox.log({"x": carry}, step=a)
        carry, _ = jax.lax.scan(
            lambda c, b: (logged("x", jnp.sin(c + b)), None), carry, jnp.arange(2.0)
        )
        lox.log({"x": carry, "outer": a})
        return carry, None

    return jax.lax.scan(outer, x, jnp.arange(3.0))[0]


@program()
def reversed_scan_in_a_reversed_scan(x):
    def outer(carry, a):
        inner = lambda c, b: (logged("x", jnp.sin(c + b), outer=a, inner=b), None)  # noqa: E731
        return jax.lax.scan(inner, carry, jnp.arange(2.0), reverse=True)[0], None

    return jax.lax.scan(outer, x, jnp.arange(3.0), reverse=True)[0]


@program()
def scans_nested_four_deep(x):
    def nest(depth):
        def step(carry, i):
            lox.log({f"depth {depth}": carry, "all": carry}, step=i)
            return (nest(depth - 1)(carry) if depth else jnp.sin(carry) + 0.1), None

        return lambda carry: jax.lax.scan(step, carry, jnp.arange(2))[0]

    return nest(3)(x)


@program(x=V)
def scan_over_a_pytree(x):
    def step(carry, row):
        lox.log({"row": row, "carry": carry})
        return {"c": carry["c"] + jnp.sum(row["a"]) * row["b"]}, row["b"]

    rows = {"a": jnp.ones((3, 2)), "b": jnp.arange(3.0)}
    return jax.lax.scan(step, {"c": x}, rows)


@program()
def fori_loop(x):
    def body(i, carry):
        lox.log({"carry": carry}, step=i, episode=i // 2)
        return jnp.sin(carry) + 1

    return jax.lax.fori_loop(2, 6, body, x)


@program()
def nested_fori_loops(x):
    def body(i, carry):
        lox.log({"carry": carry}, i=i)
        return jax.lax.fori_loop(
            0, 2, lambda j, c: logged("carry", jnp.sin(c), i=i, j=j), carry
        )

    return jax.lax.fori_loop(0, 2, body, x)


@program()
def map_over_rows(x):
    return jax.lax.map(lambda a: jnp.sin(logged("a", a * x)), jnp.arange(3.0))


@program()
def map_over_batches(x):
    return jax.lax.map(lambda a: jnp.sin(logged("a", a * x)), jnp.arange(4.0), batch_size=2)


@program()
def associative_scan(x):
    def combine(a, b):
        lox.log({"sum": jnp.sum(a) + jnp.sum(b)})
        return a * b

    return jax.lax.associative_scan(combine, x + jnp.arange(5.0) / 5)


@program(natural="x y")
def while_loop_without_logs(x):
    lox.log({"x": x})
    y = jax.lax.while_loop(lambda y: y < 3, lambda y: y + 1, jax.lax.stop_gradient(x))
    lox.log({"y": y})
    return x * y


@program()
def scan_of_a_while_loop_without_logs(x):
    def step(carry, a):
        n = jax.lax.while_loop(lambda n: n < a, lambda n: n + 1, 0)
        lox.log({"n": n}, step=a)
        return jnp.sin(carry), None

    return jax.lax.scan(step, x, jnp.arange(3))[0]


# cond and its kin ---------------------------------------------------------------------


@program(natural="x")
def cond_with_equal_logs(x):
    return jax.lax.cond(
        x > 0, lambda x: logged("x", x) + 1, lambda x: logged("x", x - 1) * 2, x
    )


@program(natural="a b", masked="a b")
def cond_with_different_keys(x):
    return jax.lax.cond(
        x > 0, lambda x: logged("a", x) + 1, lambda x: logged("b", x - 1) * 2, x
    )


@program(natural="x", masked="x")
def cond_with_a_silent_branch(x):
    return jax.lax.cond(x > 0, lambda x: logged("x", x, step=1) + 1, lambda x: 2 * x, x)


@program(natural="x", masked="x")
def cond_whose_logging_branch_is_not_taken(x):
    return jax.lax.cond(x > 5, lambda x: logged("x", x, step=1) + 1, lambda x: 2 * x, x)


@program(masked="x")
def cond_with_different_numbers(x):
    def twice(x):
        return logged("x", logged("x", x) + 1)

    return jax.lax.cond(x > 0, twice, lambda x: logged("x", x - 1), x)


@program(masked="x")
def cond_with_a_log_around(x):
    lox.log({"x": x}, step=0)
    y = jax.lax.cond(x > 0, lambda x: logged("x", x + 1, step=1), jnp.sin, x)
    lox.log({"x": y}, step=2)
    return y


@program(natural="x")
def cond_with_a_step_in_one_branch(x):
    return jax.lax.cond(
        x > 0, lambda x: logged("x", x, step=1), lambda x: logged("x", x - 1, episode=2), x
    )


@program(natural="a c d", masked="a b c d")
def nested_conds(x):
    def inner(x):
        lox.log({"b": x})
        return jax.lax.cond(
            x > 0.8, lambda x: logged("c", x), lambda x: logged("b", logged("d", x)), x
        )

    return jax.lax.cond(x > 0, inner, lambda x: logged("a", x), x)


@program(masked="x", natural="y")
def cond_with_a_scan_inside(x):
    def loop(x):
        return jax.lax.scan(
            lambda c, a: (logged("x", jnp.sin(c + a), step=a), None), x, jnp.arange(3.0)
        )[0]

    y = jax.lax.cond(x > 0, loop, lambda x: logged("x", x), x)
    return logged("y", y)


@program(masked="low", natural="")
def cond_in_a_scan(x):
    def step(carry, i):
        lox.log({"all": carry})
        carry = jax.lax.cond(
            carry < 1, lambda c: logged("low", c, step=i) * 2, lambda c: c - 1, carry
        )
        return carry, None

    return jax.lax.scan(step, x, jnp.arange(5))[0]


@program(masked="high low")
def cond_in_jit_in_a_scan(x):
    @jax.jit
    def choose(carry, i):
        high = lambda c: logged("high", c - 1.1, step=i)  # noqa: E731
        low = lambda c: logged("low", logged("low", c) * 2)  # noqa: E731
        return jax.lax.cond(carry > 1, high, low, carry)

    return jax.lax.scan(lambda c, i: (choose(c, i), None), x, jnp.arange(5))[0]


@program(masked="x")
def cond_on_the_counter_in_a_reversed_scan(x):
    def step(carry, i):
        carry = jax.lax.cond(
            i % 2 == 0, lambda c: logged("x", jnp.sin(c), step=i), lambda c: c + 1, carry
        )
        return carry, None

    return jax.lax.scan(step, x, jnp.arange(5), reverse=True)[0]


@program(natural="x")
def switch_with_equal_logs(x):
    index = (x > 0).astype(jnp.int32) + (x > 0.8).astype(jnp.int32)
    branches = [lambda x, k=k: logged("x", x * (k + 1), step=k) for k in range(3)]
    return jax.lax.switch(index, branches, x)


@program(natural="b c", masked="a b c")
def switch_with_different_logs(x):
    index = (x > 0).astype(jnp.int32) + (x > 0.8).astype(jnp.int32)

    def twice(x):
        lox.log({"a": x, "b": 2 * x})
        return logged("a", x + 1, step=1)

    return jax.lax.switch(
        index, [twice, lambda x: logged("b", x), lambda x: logged("c", x)], x
    )


@program(masked="b")
def switch_in_a_scan(x):
    def step(carry, i):
        branches = [
            jnp.sin,
            lambda c: logged("b", c + 1, step=i),
            lambda c: logged("b", logged("b", c - 1)),
        ]
        carry = jax.lax.switch(i % 3, branches, carry)
        return logged("carry", carry), None

    return jax.lax.scan(step, x, jnp.arange(5))[0]


@program(natural="x")
def cond_on_a_constant(x):
    return jax.lax.cond(True, lambda x: logged("x", x), lambda x: logged("x", -x), x)


@program(natural="tree", masked="tree")
def cond_with_a_pytree(x):
    return jax.lax.cond(
        x > 0, lambda x: logged("tree", {"a": x, "b": [x > 1, 3]}, step=x)["a"], jnp.sin, x
    )


@program(natural="key", masked="key")
def cond_with_a_prng_key(x):
    key = jax.random.key(3)
    return jax.lax.cond(
        x > 0, lambda x: x * jax.random.normal(logged("key", key)), jnp.sin, x
    )


@program(natural="x")
def platform_dependent(x):
    return jax.lax.platform_dependent(
        x, cpu=lambda x: logged("x", x + 1), default=lambda x: logged("x", x * 2)
    )


# checkpoint ---------------------------------------------------------------------------


@program(natural="x y")
def checkpoint(x):
    return jax.checkpoint(lambda x: jnp.sin(logged("y", jnp.sin(logged("x", x)))))(x)


@program()
def checkpoint_in_a_scan(x):
    @jax.checkpoint
    def layer(x):
        return jnp.sin(logged("y", jnp.sin(logged("x", x))))

    return jax.lax.scan(lambda c, _: (layer(c), None), x, None, length=3)[0]


@program(natural="x y")
def checkpoint_with_a_policy(x):
    policy = jax.checkpoint_policies.everything_saveable
    return jax.checkpoint(
        lambda x: jnp.sin(logged("y", jnp.sin(logged("x", x)))), policy=policy
    )(x)


@program(natural="x y")
def checkpoint_that_saves_nothing(x):
    policy = jax.checkpoint_policies.nothing_saveable
    return jax.checkpoint(
        lambda x: jnp.sin(logged("y", jnp.sin(logged("x", x)))), policy=policy
    )(x)


@program(natural="x")
def checkpoint_with_an_option_for_each_input(x):
    block = jax.checkpoint(
        lambda a, b: jnp.sin(logged("x", a * b)), prevent_cse=(True, False)
    )
    return block(x, jnp.sin(x))


@program(natural="x y z")
def nested_checkpoints(x):
    @jax.checkpoint
    def outer(x):
        y = jax.checkpoint(lambda x: jnp.sin(logged("y", jnp.sin(logged("x", x)))))(x)
        return jnp.cos(logged("z", y))

    return outer(x)


@program(natural="z")
def checkpoint_of_a_scan(x):
    @jax.checkpoint
    def block(x):
        return jax.lax.scan(
            lambda c, a: (jnp.sin(logged("x", c + a)), None), x, jnp.arange(3.0)
        )[0]

    return logged("z", block(x))


@program()
def scan_of_a_checkpoint_of_a_scan_for_its_logs(x):
    """JAX may drop a loop whose results nobody needs."""

    @jax.checkpoint
    def block(x):
        jax.lax.scan(lambda c, _: (jnp.sin(logged("x", c)), None), x, None, length=2)
        return jnp.sin(x)

    return jax.lax.scan(lambda c, _: (block(c), None), x, None, length=3)[0]


@program()
def scan_of_a_checkpoint_of_a_scan_that_passes_through(x):
    @jax.checkpoint
    def block(x):
        return jnp.sum(jax.lax.map(ft.partial(logged, "x"), jnp.stack([x, x + 1])))

    return jax.lax.scan(lambda c, _: (block(c) / 3, None), x, None, length=3)[0]


@program(natural="x", masked="x")
def checkpoint_of_a_cond(x):
    return jax.checkpoint(
        lambda x: jax.lax.cond(
            x > 0, lambda x: jnp.sin(logged("x", jnp.sin(x))), jnp.cos, x
        )
    )(x)


@program()
def checkpoint_of_jit_called_twice(x):
    inner = jax.jit(lambda x: jnp.sin(logged("x", jnp.sin(x))))
    return jax.checkpoint(lambda x: inner(inner(x)))(x)


# custom rules -------------------------------------------------------------------------


def tripled_jvp(key):
    """A sine that logs; its rule triples the derivative, so that one sees it is used."""

    @jax.custom_jvp
    def fun(x):
        return jnp.sin(logged(key, x))

    @fun.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        return fun(x), 3 * t * jnp.cos(x)

    return fun


def tripled_vjp(key, forward_key=None, backward_key=None):
    """The same with a vjp, whose rules may log under keys of their own."""

    def primal(x):
        return jnp.sin(logged(key, x))

    def forward(x):
        return jnp.sin(logged(forward_key or key, x)), x

    def backward(x, g):
        if backward_key:
            lox.log({backward_key: g * x})
        return (3 * g * jnp.cos(x),)

    fun = jax.custom_vjp(primal)
    fun.defvjp(forward, backward)
    return fun


@program(natural="x")
def custom_jvp(x):
    return tripled_jvp("x")(x)


@program()
def custom_jvp_in_a_scan(x):
    fun = tripled_jvp("x")
    return jax.lax.scan(lambda c, _: (fun(c), None), x, None, length=3)[0]


@program(natural="x", masked="x")
def custom_jvp_in_a_cond(x):
    return jax.lax.cond(x > 0, tripled_jvp("x"), jnp.cos, x)


@program()
def custom_jvp_called_twice_in_jit(x):
    fun = tripled_jvp("x")
    return jax.jit(lambda x: fun(fun(x)))(x)


@program(natural="y")
def custom_jvp_with_a_rule_by_argument(x):
    @jax.custom_jvp
    def fun(x, y):
        return logged("y", x * y)

    fun.defjvps(lambda t, out, x, y: 3 * t * y, None)
    return fun(x, x + 1)


@program(natural="x")
def custom_jvp_with_a_static_argument(x):
    @ft.partial(jax.custom_jvp, nondiff_argnums=(0,))
    def apply(fun, x):
        return fun(logged("x", x))

    @apply.defjvp
    def _(fun, primals, tangents):
        return apply(fun, *primals), 3 * tangents[0]

    return apply(jnp.sin, x)


@program(natural="x")
def custom_jvp_whose_rule_differentiates(x):
    def primal(x):
        return jnp.sin(logged("x", x))

    @jax.custom_jvp
    def fun(x):
        return primal(x)

    @fun.defjvp
    def _(primals, tangents):
        out, tangent = jax.jvp(primal, primals, tangents)
        return out, 3 * tangent

    return fun(x)


@program(natural="x")
def custom_vjp(x):
    return tripled_vjp("x")(x)


@program(natural="x forward", masked="x")
def custom_vjp_whose_forward_logs_another_key(x):
    return tripled_vjp("x", forward_key="forward")(x)


@program(natural="x backward")
def custom_vjp_whose_backward_logs(x):
    return tripled_vjp("x", backward_key="backward")(x)


@program()
def custom_vjp_whose_backward_logs_in_a_scan(x):
    fun = tripled_vjp("x", backward_key="backward")
    return jax.lax.scan(lambda c, a: (fun(c) + a, None), x, jnp.arange(3.0))[0]


@program(masked="yes no")
def cond_for_its_logs_in_a_scan(x):
    """The condition does not change, and nothing uses what the branches return."""

    def step(c, a):
        jax.lax.cond(x > 0, lambda: logged("yes", c), lambda: logged("no", c))
        return jnp.sin(c) + a, None

    return jax.lax.scan(step, x, jnp.arange(3.0))[0]


@program()
def grad_of_a_custom_vjp_that_calls_itself_in_a_scan(x):
    """The result of the inner call is not used, but it logs."""
    fun = jax.custom_vjp(lambda x: jnp.sin(logged("x", x)))
    fun.defvjp(lambda x: (fun(x), x), lambda x, g: (3 * g * jnp.cos(x),))
    slope = jax.grad(fun)
    return jax.lax.scan(lambda c, a: (slope(c) + a, None), x, jnp.arange(2.0))[0]


@program(natural="x backward")
def custom_vjp_whose_backward_logs_in_jit_and_checkpoint(x):
    fun = tripled_vjp("x", backward_key="backward")
    return jax.jit(jax.checkpoint(lambda x: jnp.sin(fun(jnp.sin(x)))))(x)


@program()
def grad_of_a_custom_vjp_whose_backward_logs_the_same_key(x):
    return jax.grad(tripled_vjp("x", backward_key="x"))(x)


@program(natural="x", masked="x")
def custom_vjp_in_a_cond(x):
    return jax.lax.cond(x > 0, tripled_vjp("x"), jnp.cos, x)


@program(natural="x")
def custom_vjp_with_symbolic_zeros(x):
    @jax.custom_vjp
    def fun(x, y):
        return logged("x", x) * y

    def forward(x, y):
        return fun(x.value, y.value), (x.value, y.value)

    def backward(residuals, g):
        x, y = residuals
        return 3 * g * y, g * x

    fun.defvjp(forward, backward, symbolic_zeros=True)
    return fun(x, jnp.float32(2))


@program(natural="x")
def custom_vjp_with_a_static_argument(x):
    @ft.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def apply(fun, x):
        return fun(logged("x", x))

    apply.defvjp(lambda fun, x: (apply(fun, x), x), lambda fun, x, g: (3 * g * x,))
    return apply(jnp.sin, x)


@program(natural="x")
def custom_gradient(x):
    @jax.custom_gradient
    def fun(x):
        lox.log({"x": x})
        return jnp.sin(x), lambda g: 3 * g

    return fun(x)


@program(natural="x", masked="x")
def custom_jvp_whose_rule_does_not_log(x):
    fun = jax.custom_jvp(lambda x: jnp.sin(logged("x", x)))
    fun.defjvp(lambda primals, tangents: (jnp.sin(*primals), 3 * tangents[0]))
    return fun(x)


@program(natural="y", masked="x w")
def custom_rules_that_do_not_log_in_a_scan(x):
    """The rule of the outer function calls the inner one, and logs one of two keys."""
    inner = jax.custom_jvp(lambda x: jnp.sin(logged("x", x, step=2)))
    inner.defjvp(lambda primals, tangents: (jnp.sin(*primals), 3 * tangents[0]))

    @jax.custom_vjp
    def outer(x):
        lox.log({"z": x, "w": x})
        return inner(x)

    outer.defvjp(lambda x: (inner(logged("z", x)), x), lambda x, g: (2 * g * x,))
    fun = jax.jit(lambda x: inner(outer(x)))
    return logged("y", jax.lax.scan(lambda c, _: (fun(c), None), x, None, length=2)[0])


def custom_vmap_by_hand(x):
    jnp.sin(logged("x", x))
    jax.vmap(lambda x: logged("x", x))(x + jnp.arange(2.0))
    return x


@program(grad=False, by_hand=custom_vmap_by_hand)
def custom_vmap(x):
    @jax.custom_batching.custom_vmap
    def fun(x):
        return jnp.sin(logged("x", x))

    @fun.def_vmap
    def _(axis_size, in_batched, x):
        return jax.vmap(lambda x: jnp.sin(logged("x", x)))(x), True

    return fun(x) + jnp.sum(jax.vmap(fun)(x + jnp.arange(2.0)))


def newton(x):
    y = jnp.float32(1)
    for _ in range(3):
        y = logged("x", y - (y * y - x * x - 1) / (2 * y))
    return y


@program(by_hand=newton)
def custom_root(x):
    def solve(fun, x0):
        return jax.lax.scan(
            lambda y, _: (logged("x", y - fun(y) / (2 * y)), None), x0, None, length=3
        )[0]

    return jax.lax.custom_root(
        lambda y: y * y - x * x - 1, jnp.float32(1), solve, lambda g, y: y / g(1.0)
    )


# Its derivative solves once more, so `spool(grad(f))` is another matter.
@program(
    x=V, natural="b", grad=False, by_hand=lambda x: logged("b", x) / jnp.array([2.0, 4.0])
)
def custom_linear_solve(x):
    diagonal = jnp.array([2.0, 4.0])
    return jax.lax.custom_linear_solve(
        lambda y: diagonal * y,
        x,
        lambda matvec, b: logged("b", b) / diagonal,
        symmetric=True,
    )


def two_products(x):
    diagonal = jnp.array([2.0, 4.0])
    b = x * jnp.ones(2)
    return logged("y", diagonal * logged("y", b)) * diagonal


@program(grad=False, by_hand=two_products)
def custom_linear_solve_whose_operator_logs(x):
    diagonal = jnp.array([2.0, 4.0])
    return jax.lax.custom_linear_solve(
        lambda y: diagonal * logged("y", y),
        x * jnp.ones(2),
        lambda matvec, b: matvec(matvec(b)),
        symmetric=True,
    )


@program(grad=False, by_hand=two_products)
def custom_linear_solve_whose_operator_is_transposed(x):
    diagonal = jnp.array([2.0, 4.0])
    return jax.lax.custom_linear_solve(
        lambda y: diagonal * logged("y", y),
        x * jnp.ones(2),
        lambda matvec, b: matvec(matvec(b)),
        lambda vecmat, b: vecmat(b),
    )


@program(natural="hidden")
def activations(x):
    return jax.nn.relu(logged("hidden", jax.nn.softplus(jax.nn.silu(x))))


# Derivatives inside -------------------------------------------------------------------


def cube(key):
    return lambda x: logged(key, x) ** 3


@program(natural="x")
def grad(x):
    return jax.grad(cube("x"))(x)


@program(natural="x y")
def value_and_grad(x):
    def loss(x):
        return logged("x", x) ** 3, logged("y", jnp.sin(x))

    (value, aux), slope = jax.value_and_grad(loss, has_aux=True)(x)
    return value + aux * slope


@program(natural="x")
def jvp(x):
    return jax.jvp(cube("x"), (x,), (2.0,))


@program(natural="x y")
def vjp(x):
    y, pull = jax.vjp(cube("x"), x)
    lox.log({"y": y})
    return pull(2.0)[0]


@program(natural="x y")
def linearize(x):
    y, push = jax.linearize(cube("x"), x)
    lox.log({"y": y})
    return push(2.0) + push(3.0)


@program(natural="x")
def hessian(x):
    return jax.hessian(cube("x"))(x)


@program(natural="x", x=V)
def jacfwd(x):
    return jax.jacfwd(cube("x"))(x)


@program(natural="x", x=V)
def jacrev(x):
    return jax.jacrev(cube("x"))(x)


@program(natural="x")
def grad_of_grad(x):
    return jax.grad(jax.grad(lambda x: jnp.sin(logged("x", x)) ** 2))(x)


@program(natural="x")
def grad_of_jit(x):
    return jax.grad(jax.jit(cube("x")))(x)


@program(natural="g")
def grad_of_a_scan(x):
    def loss(x):
        return jax.lax.scan(
            lambda c, a: (jnp.sin(logged("c", c + a, step=a)), None), x, jnp.arange(3.0)
        )[0]

    return logged("g", jax.grad(loss)(x))


@program(natural="loss")
def grad_of_a_scan_of_checkpoints(x):
    @jax.checkpoint
    def layer(x):
        return jnp.sin(logged("y", jnp.sin(logged("x", x))))

    def loss(x):
        return logged(
            "loss", jax.lax.scan(lambda c, _: (layer(c), None), x, None, length=3)[0]
        )

    return jax.grad(loss)(x)


@program()
def scan_of_a_grad(x):
    def step(x, i):
        loss, slope = jax.value_and_grad(lambda x: jnp.sin(logged("x", x, step=i)) ** 2)(x)
        lox.log({"loss": loss, "slope": slope}, step=i)
        return x - slope / 2, None

    return jax.lax.scan(step, x, jnp.arange(4))[0]


@program(natural="x y", masked="x y")
def grad_of_a_cond(x):
    return jax.grad(
        lambda x: jax.lax.cond(x > 0, cube("x"), lambda x: jnp.sin(logged("y", x)), x)
    )(x)


@program()
def grad_of_a_scan_with_a_backward_that_logs(x):
    fun = tripled_vjp("x", backward_key="g")

    def loss(x):
        return jax.lax.scan(lambda c, a: (fun(c) * a, None), x, jnp.array([1.0, 2.0, 3.0]))[
            0
        ]

    return jax.grad(loss)(x)


@program(natural="x y")
def vjp_whose_pullback_logs(x):
    def fun(x):
        return tripled_vjp("x", backward_key="y")(jnp.cos(x))

    return jax.grad(fun)(x)


@program()
def grad_of_a_scan_of_what_does_not_change(x):
    def loss(w):
        def step(carry, a):
            lox.log({"w": w})
            return carry * w, None

        return jax.lax.scan(step, 1.0, jnp.arange(3))[0]

    return jax.grad(loss)(x)


# vmap inside --------------------------------------------------------------------------


@program(natural="y")
def vmap(x):
    return jnp.sum(jax.vmap(lambda a: jnp.sin(logged("y", a * x)))(jnp.arange(2.0)))


@program(natural="y x")
def vmap_with_an_unbatched_record(x):
    def inner(a):
        lox.log({"x": x})
        return jnp.sin(logged("y", a * x))

    return jnp.sum(jax.vmap(inner)(jnp.arange(2.0)))


@program(natural="y")
def vmap_with_a_batched_step(x):
    def inner(a, i):
        lox.log({"y": x}, step=i)
        return a * x

    return jnp.sum(jax.vmap(inner)(jnp.arange(2.0), jnp.arange(2)))


@program()
def vmap_with_batched_and_unbatched_records_of_a_key(x):
    def inner(a):
        lox.log({"y": x}, step=0)
        lox.log({"y": a})
        lox.log({"y": 2.0})
        return jnp.sin(logged("y", a * x))

    return jnp.sum(jax.vmap(inner)(jnp.arange(2.0)))


@program()
def a_key_inside_and_outside_of_vmap(x):
    lox.log({"y": x})
    z = jnp.sum(jax.vmap(lambda a: jnp.sin(logged("y", a * x)))(jnp.arange(2.0)))
    return logged("y", z)


@program(natural="y")
def vmap_over_other_axes(x):
    table = x * jnp.arange(6.0).reshape(3, 2)
    fun = jax.vmap(lambda row, b: logged("y", row * b), in_axes=(1, None), out_axes=1)
    return fun(table, jnp.array([1.0, 2.0, 3.0]))


@program(natural="y z")
def nested_vmaps(x):
    def outer(a):
        lox.log({"z": a + x})
        return jnp.sum(jax.vmap(lambda b: jnp.sin(logged("y", a * b * x)))(jnp.arange(4.0)))

    return jnp.sum(jax.vmap(outer)(jnp.arange(2.0)))


@program()
def nested_vmaps_with_partly_batched_records(x):
    def outer(a):
        def inner(b):
            lox.log({"y": b})
            lox.log({"y": a})
            lox.log({"y": a * b * x})
            return a * b * x

        return jnp.sum(jax.vmap(inner)(jnp.arange(4.0)))

    return jnp.sum(jax.vmap(outer)(jnp.arange(2.0)))


@program(natural="y", masked="y")
def vmap_of_a_cond(x):
    def inner(a):
        return jax.lax.cond(a > 1, lambda a: logged("y", a, step=a), jnp.sin, a * x)

    return jnp.sum(jax.vmap(inner)(jnp.arange(4.0) * 2))


@program(masked="x z", natural="z")
def vmap_of_a_cond_with_different_logs(x):
    def inner(a):
        many = lambda a: logged("x", logged("x", a) + 1)  # noqa: E731
        return jax.lax.cond(a > 1, many, lambda a: logged("x", logged("z", a)), a * x)

    return jnp.sum(jax.vmap(inner)(jnp.arange(4.0) * 2))


@program(masked="x")
def vmap_of_a_scan_of_a_cond(x):
    def inner(a):
        def step(c, i):
            return jax.lax.cond(
                c > 1, lambda c: logged("x", c - 1, step=i), lambda c: 1.7 * c, c
            ), None

        return jax.lax.scan(step, a * x, jnp.arange(4))[0]

    return jnp.sum(jax.vmap(inner)(jnp.arange(4.0) + 0.3))


@program()
def vmap_of_a_scan(x):
    def inner(a):
        return jax.lax.scan(
            lambda c, b: (jnp.sin(logged("x", c + b, step=b)), None), a * x, jnp.arange(3.0)
        )[0]

    return jnp.sum(jax.vmap(inner)(jnp.arange(2.0)))


@program()
def vmap_of_a_scan_with_unbatched_records(x):
    def inner(a):
        def step(c, i):
            lox.log({"i": i})
            return jnp.sin(c), None

        return jax.lax.scan(step, a * x, jnp.arange(3))[0]

    return jnp.sum(jax.vmap(inner)(jnp.arange(2.0)))


@program()
def scan_of_a_vmap(x):
    def step(c, b):
        return jnp.sum(
            jax.vmap(lambda a: jnp.sin(logged("x", a * c + b)))(jnp.arange(2.0))
        ), None

    return jax.lax.scan(step, x, jnp.arange(3.0))[0]


@program(natural="a b", masked="a b")
def nested_vmaps_of_a_cond(x):
    def inner(a, b):
        return jax.lax.cond(
            a > b, lambda a: logged("a", a), lambda a: logged("b", a + b), a * x
        )

    return jnp.sum(
        jax.vmap(lambda a: jax.vmap(lambda b: inner(a, b))(jnp.arange(4.0)))(
            jnp.arange(2.0) * 2 + 0.5
        )
    )


@program(natural="a c", masked="a c")
def vmap_of_nested_conds(x):
    def deep(a):
        return jax.lax.cond(a > 3, lambda a: logged("c", a), jnp.cos, logged("a", a))

    return jnp.sum(
        jax.vmap(lambda a: jax.lax.cond(a > 1, deep, jnp.sin, a))(jnp.arange(4.0) * 2 + x)
    )


@program(masked="b")
def vmap_of_a_switch(x):
    def inner(a, i):
        branches = [
            jnp.sin,
            lambda a: logged("b", a),
            lambda a: logged("b", logged("b", a) + 1),
        ]
        return jax.lax.switch(i, branches, a * x)

    return jnp.sum(jax.vmap(inner)(jnp.arange(4.0), jnp.array([2, 0, 1, 1])))


@program(natural="x")
def vmap_of_a_grad(x):
    return jnp.sum(jax.vmap(jax.grad(cube("x")))(jnp.arange(2.0) * x))


@program(natural="y", masked="y")
def vmap_of_a_grad_of_a_cond(x):
    loss = lambda a: jax.lax.cond(a > 1, lambda a: jnp.sin(logged("y", a)), jnp.cos, a)  # noqa: E731
    return jnp.sum(jax.vmap(jax.grad(loss))(jnp.arange(4.0) * x * 2))


def by_rules_only(forward_key, backward_key):
    """A sine that does not log; the rules for its derivative do."""
    fun = jax.custom_vjp(jnp.sin)

    def forward(x):
        return jnp.sin(logged(forward_key, x)), x

    def backward(x, g):
        lox.log({backward_key: g * x}, step=3)
        return (3 * g * jnp.cos(x),)

    fun.defvjp(forward, backward)
    return fun


@program(natural="x g", masked="x")
def vmap_of_a_cond_with_a_backward_that_logs(x):
    fun = tripled_vjp("x", backward_key="g")
    inner = lambda a: jax.lax.cond(a > 1, fun, jnp.sin, a * x)  # noqa: E731
    return jnp.sum(jax.vmap(inner)(jnp.arange(4.0) * 2))


@program(natural="f g")
def vmap_of_a_cond_in_which_only_rules_log(x):
    fun = by_rules_only("f", "g")
    inner = lambda a: jax.lax.cond(a > 1, jax.jit(fun), jnp.sin, a * x)  # noqa: E731
    return jnp.sum(jax.vmap(inner)(jnp.arange(4.0) * 2))


@program()
def vmap_of_nested_branches_in_which_rules_log(x):
    fun, other = by_rules_only("f", "g"), by_rules_only("h", "g")

    def deep(a):
        return jax.lax.cond(a > 3, other, lambda a: fun(a) + 1, a)

    def inner(a, i):
        step = lambda c, _: (jax.lax.switch(i, [jnp.sin, fun, deep], c), None)  # noqa: E731
        loop = lambda a: jax.lax.scan(step, a, None, length=2)[0]  # noqa: E731
        return jax.lax.cond(a < 5, loop, jnp.cos, a)

    return jnp.sum(jax.vmap(inner)(jnp.arange(4.0) * 2 + x, jnp.array([2, 1, 2, 0])))


@program(masked="f g")
def grad_of_a_vmap_of_a_cond_with_a_backward_that_logs(x):
    fun = by_rules_only("f", "g")

    def loss(x):
        inner = lambda a: jax.lax.cond(a > 1, fun, jnp.sin, a * x)  # noqa: E731
        return jnp.sum(jax.vmap(inner)(jnp.arange(4.0) * 2))

    def step(x, _):
        return x - jax.grad(loss)(x) / 9, None

    return jax.lax.scan(step, x, None, length=2)[0]


@program(natural="x y")
def grad_of_a_vmap(x):
    def loss(x):
        return logged(
            "y", jnp.sum(jax.vmap(lambda a: jnp.sin(logged("x", a * x)))(jnp.arange(2.0)))
        )

    return jax.grad(loss)(x)


@program(natural="x")
def vmap_of_a_custom_jvp(x):
    return jnp.sum(jax.vmap(tripled_jvp("x"))(x * jnp.arange(2.0)))


@program(natural="x")
def vmap_of_a_custom_vjp(x):
    return jnp.sum(jax.vmap(tripled_vjp("x"))(x * jnp.arange(2.0)))


@program(natural="x")
def vmap_of_a_checkpoint(x):
    return jnp.sum(
        jax.vmap(jax.checkpoint(lambda a: jnp.sin(logged("x", jnp.sin(a)))))(
            x * jnp.arange(2.0)
        )
    )


@program(natural="x")
def vmap_of_jit(x):
    return jnp.sum(
        jax.vmap(jax.jit(lambda a: jnp.sin(logged("x", a))))(x * jnp.arange(2.0))
    )


@program(natural="key")
def vmap_over_prng_keys(x):
    keys = jax.random.split(jax.random.key(0), 2)
    return x * jnp.sum(jax.vmap(lambda key: jax.random.normal(logged("key", key)))(keys))


@program(
    natural="y",
    grad=False,
    by_hand=lambda x: jax.vmap(lambda a: logged("y", 3 * x) * a)(jnp.arange(3.0)),
)
def vmap_with_a_named_axis(x):
    def inner(a):
        total = logged("y", jax.lax.psum(a * x, "i"))
        return a * x / total

    return jax.vmap(inner, axis_name="i")(jnp.arange(3.0))


# lox inside lox, and whole programs ---------------------------------------------------


@program(natural="y", equivalent=lambda x: 6 * x + constant(10 * x))
def inner_spool(x):
    def inner(x):
        lox.log({"x": x}, step=1)
        return jax.lax.scan(
            lambda c, a: (logged("c", c * a), None), x, jnp.array([1.0, 2.0, 3.0])
        )[0]

    y, logs = lox.spool(inner)(x)
    return logged("y", y + logs["x"] + jnp.sum(logs["c"]))


@program(equivalent=lambda x: jnp.sin(jnp.sin(jnp.sin(x) + 1) + 2))
def inner_spool_in_a_scan(x):
    def step(carry, a):
        carry, logs = lox.spool(lambda c: jnp.sin(logged("hidden", c + a)))(carry)
        lox.log({"twice": 2 * logs["hidden"]}, step=a)
        return carry, None

    return jax.lax.scan(step, x, jnp.arange(3.0))[0]


@program(natural="b", equivalent=lambda x: jnp.sin(x) + constant(x))
def inner_spool_that_filters(x):
    def inner(x):
        lox.log({"a": x, "b": 2 * x})
        return jnp.sin(x)

    y, logs = lox.spool(inner, argnames="a")(x)
    return y + logs["a"]


@program(natural="b", equivalent=lambda x: jnp.sin(x) + constant(x))
def inner_spool_that_filters_tags(x):
    def inner(x):
        lox.log({"a": x}, tags="metric")
        lox.log({"b": 2 * x}, tags="debug")
        return jnp.sin(x)

    y, logs = lox.spool(inner, tags="metric")(x)
    return y + logs["a"]


@program(natural="a", equivalent=lambda x: jnp.sin(x) + constant(x))
def inner_spool_that_keeps_logs(x):
    y, logs = lox.spool(lambda x: jnp.sin(logged("a", x)), keep_logs=True)(x)
    return y + logs["a"]


@program(
    natural="y",
    by_hand=lambda x: logged("y", 3 * x**2 + x),
    equivalent=lambda x: 3 * x**2 + constant(x),
)
def inner_spool_of_jit_and_grad(x):
    value, logs = lox.spool(jax.jit(jax.grad(cube("hidden"))))(x)
    return logged("y", value + logs["hidden"])


@program(natural="x y")
def inner_nolog(x):
    lox.log({"x": x})
    y = lox.nolog(lambda x: jnp.sin(logged("hidden", x)))(x)
    return logged("y", y)


@program()
def inner_nolog_in_a_scan(x):
    quiet = lox.nolog(jax.jit(lambda x: jnp.sin(logged("x", x))))
    return jax.lax.scan(lambda c, _: (logged("x", quiet(c)), None), x, None, length=3)[0]


@program(natural="x")
def inner_silence(x):
    with lox.silent():
        y = jnp.sin(logged("hidden", x))
    return logged("x", y)


@program(natural="x")
def eval_shape(x):
    shape = jax.eval_shape(lambda x: jnp.sin(logged("hidden", x)), x).shape
    return logged("x", x + jnp.zeros(shape))


@program(natural="x")
def a_callback_of_the_program(x):
    jax.debug.callback(lambda x: None, x)
    return logged("x", x)


@program()
def scatter_add(x):
    def step(counts, i):
        counts = counts.at[i % 2].add(x)
        lox.log({"counts": counts}, step=i)
        return counts, None

    return jax.lax.scan(step, jnp.zeros(2), jnp.arange(3))[0]


@program()
def training(x):
    """A small network trained in one loop, logging from deep inside."""
    inputs = jnp.linspace(-1.0, 1.0, 4)[:, None]

    def init(key):
        keys = jax.random.split(key)
        return {
            "w": jax.random.normal(keys[0], (1, 4)) * x,
            "v": jax.random.normal(keys[1], (4, 1)),
        }

    def predict(params, inputs):
        hidden = jnp.tanh(inputs @ params["w"])
        lox.log({"hidden": jnp.mean(hidden**2)}, tags="debug")
        return hidden @ params["v"]

    def loss_of(params, i):
        loss = jnp.mean((jax.checkpoint(predict)(params, inputs) - jnp.sin(inputs)) ** 2)
        lox.log({"loss": loss}, step=i)
        return loss

    def update(params, i):
        grads = jax.grad(loss_of)(params, i)
        lox.log({"grads": grads}, step=i)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None

    params, _ = jax.lax.scan(jax.jit(update), init(jax.random.key(0)), jnp.arange(5))
    return predict(params, inputs)


@program(masked="accepted rejected")
def rejection_sampling(x):
    def step(state, i):
        key, sub = jax.random.split(state["key"])
        proposal = jax.random.uniform(sub)
        accept = lambda: logged("accepted", proposal * x, step=i)  # noqa: E731
        reject = lambda: (lox.log({"rejected": proposal}, step=i), state["y"])[1]  # noqa: E731
        return {"key": key, "y": jax.lax.cond(proposal < 0.5, accept, reject)}, None

    return jax.lax.scan(step, {"key": jax.random.key(1), "y": x}, jnp.arange(8))[0]["y"]


@program(masked="return")
def actor_and_critic(x):
    """The shape of a PPO: rollouts, a reversed scan, minibatches, in a loop of updates."""

    def env_step(env, action):
        env = {"s": jnp.sin(env["s"] + action), "t": env["t"] + 1}
        done = env["t"] % 3 == 0
        jax.lax.cond(
            done,
            lambda: (lox.log({"return": env["s"]}, step=env["t"]), None)[1],
            lambda: None,
        )
        return env, env["s"]

    def rollout(carry, _):
        w, envs = carry
        envs, rewards = jax.vmap(env_step)(envs, w * envs["s"])
        return (w, envs), rewards

    def advantages(rewards):
        def step(acc, r):
            acc = r + 0.9 * acc
            lox.log({"advantage": acc})
            return acc, acc

        return jax.lax.scan(step, jnp.zeros(2), rewards, reverse=True, unroll=2)[1]

    def update(carry, i):
        (w, envs), rewards = jax.lax.scan(rollout, carry, None, length=4)
        targets = advantages(rewards)

        def minibatch(w, row):
            loss, slope = jax.value_and_grad(
                lambda w: logged("loss", jnp.mean((w * row) ** 2), epoch=i)
            )(w)
            return w - 0.1 * slope, loss

        w, losses = jax.lax.scan(minibatch, w, targets)
        lox.log({"mean loss": jnp.mean(losses)}, epoch=i)
        return (w, envs), None

    envs = {"s": jnp.array([0.1, 0.2]), "t": jnp.array([0, 1])}
    return jax.lax.scan(update, (x, envs), jnp.arange(2))[0][0]
