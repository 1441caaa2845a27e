"""Programs with a planted NaN: where it appears is known by construction.

The core of a program is an operation on a vector that is fine for all values but one.
Around it are random wrappers. Some add an axis to the input, and run the inside once for
each entry: loops, and `vmap`. The input holds the bad value at a single index, so the index
is the truth:

    scan ( vmap ( jit ( cond ( log ))))       input (4, 3, 2), bad at (2, 1, 0):
                                              iteration 2, example 1
"""

import dataclasses
import functools as ft
import pathlib
import random
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

# Operations: the comment names the line that a report must name. ------------------------


def log(v):
    return jnp.log(v)  # plant: log


def sqrt(v):
    return jnp.sqrt(v)  # plant: sqrt


def asin(v):
    return jnp.arcsin(v)  # plant: asin


def log1p(v):
    return jnp.log1p(v)  # plant: log1p


def ratio(v):
    return v / (v * v)  # plant: ratio


def entropy(v):
    logs = jnp.log(v)  # plant: entropy
    return v * logs


def overflow(v):
    big = jnp.exp(v)  # plant: overflow
    return big / (1.0 + big)


def masked_log(v):
    bad = jnp.log(v)  # plant: masked_log
    return jnp.where(v > 0, bad, 0.0)


def masked_sqrt(v):
    root = jnp.sqrt(v)  # plant: masked_sqrt
    return jnp.where(v > 0, root, 0.0)


def norm(v):
    return jnp.sqrt(v * v)  # plant: norm


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation, a value that is fine, one that is not, and what must be reported.

    Attributes:
        fun: The operation, on a vector.
        good: A value for which everything is finite.
        bad: The value that leads to a NaN.
        name: The primitive in which the first value that is not finite appears.
        culprit: The inputs of that primitive.
        became: If that is an infinity, the primitive in which the NaN appears.
        backward: Whether this happens in the backward pass only.
    """

    fun: Callable
    good: float
    bad: float
    name: str
    culprit: tuple[float, ...]
    became: str | None = None
    backward: bool = False


OPERATIONS = (
    Operation(log, 1.5, -2.0, "log", (-2.0,)),
    Operation(sqrt, 1.5, -4.0, "sqrt", (-4.0,)),
    Operation(asin, 0.5, 3.0, "asin", (3.0,)),
    Operation(log1p, 0.5, -2.5, "log1p", (-2.5,)),
    Operation(ratio, 2.0, 0.0, "div", (0.0, 0.0)),
    Operation(entropy, 0.5, 0.0, "log", (0.0,), "mul"),
    Operation(overflow, 0.5, 1000.0, "exp", (1000.0,), "div"),
    Operation(masked_log, 1.5, -3.0, "log", (-3.0,)),
    Operation(masked_sqrt, 1.5, 0.0, "div", (0.5, 0.0), "mul", backward=True),
    Operation(norm, 1.5, 0.0, "div", (0.5, 0.0), "mul", backward=True),
)

# Wrappers: from a function of an array to a number, to another one. ---------------------


def total(fun):
    return lambda x: fun(x).sum()


def scan(fun):
    def run(xs):
        return jax.lax.scan(lambda c, x: (c + fun(x), None), 0.0, xs)[0]

    return run


def stacked_scan(fun):
    return lambda xs: jax.lax.scan(lambda c, x: (c + 1, fun(x)), 0, xs)[1].sum()


def reverse_scan(fun):
    def run(xs):
        return jax.lax.scan(lambda c, x: (c + fun(x), c), 0.0, xs, reverse=True)[0]

    return run


def fori(fun):
    return lambda xs: jax.lax.fori_loop(0, len(xs), lambda i, c: c + fun(xs[i]), 0.0)


def loop(fun):
    def run(xs):
        def body(state):
            i, c = state
            return i + 1, c + fun(xs[i])

        return jax.lax.while_loop(lambda s: s[0] < len(xs), body, (0, 0.0))[1]

    return run


def loop_while_small(fun):
    def run(xs):
        def body(state):
            i, c = state
            return i + 1, c + fun(xs[i])

        def go_on(state):
            i, c = state
            return (i < len(xs)) & (jnp.abs(c) < 1e9)

        return jax.lax.while_loop(go_on, body, (0, 0.0))[1]

    return run


def vmap(fun):
    return lambda xs: jax.vmap(fun)(xs).sum()


def vmap_last(fun):
    return lambda xs: jax.vmap(fun, -1)(jnp.moveaxis(xs, 0, -1)).mean()


def jit(fun):
    return jax.jit(fun)


def remat(fun):
    return jax.checkpoint(fun)


def branch(fun):
    # Both branches are finite for all values but the bad one.
    return lambda x: jax.lax.cond(jnp.size(x) + x.sum() > -1e9, fun, lambda x: x.sum(), x)


def switch(fun):
    return lambda x: jax.lax.switch(jnp.int32(1), [lambda x: x.sum(), fun, jnp.sum], x)


def custom_jvp(fun):
    wrapped = jax.custom_jvp(fun)
    wrapped.defjvp(lambda primals, tangents: jax.jvp(fun, primals, tangents))
    return lambda x: wrapped(x)  # plant: custom_jvp


def custom_vjp(fun):
    wrapped = jax.custom_vjp(fun)
    wrapped.defvjp(ft.partial(jax.vjp, fun), lambda pullback, ct: pullback(ct))
    return lambda x: wrapped(x)  # plant: custom_vjp


def scoped(fun):
    def run(x):
        with jax.named_scope("planted"):
            return fun(x)

    return run


def inner_grad(fun):
    """Use the value and the gradient, so that both passes run inside."""

    def run(x):
        value, slope = jax.value_and_grad(fun)(x)
        return value + slope.sum()

    return run


LOOPS = scan, stacked_scan, reverse_scan, fori
UNKNOWN = loop, loop_while_small
BATCHES = vmap, vmap_last
PLAIN = jit, remat, branch, switch, custom_jvp, custom_vjp, scoped


@dataclasses.dataclass(frozen=True)
class Planted:
    """A program with a planted NaN.

    Attributes:
        fun: The program.
        x: Its argument.
        operation: What goes wrong.
        iterations: In which iterations.
        example: For which example.
        wrappers: The names of what is around, the outermost first.
        is_differentiated: Whether the operation is inside a gradient.
    """

    fun: Callable
    x: np.ndarray
    operation: Operation
    iterations: tuple[int, ...]
    example: int | tuple[int, ...] | None
    wrappers: tuple[str, ...]
    is_differentiated: bool

    @property
    def lines(self) -> set[int]:
        """The line to report, or one of several.

        For what the rule of a custom derivative computes, JAX may know only the line that
        calls the function.
        """
        lines = {_line(self.operation.fun.__name__)}
        if self.is_differentiated:
            lines |= {_line(name) for name in self.wrappers if name.startswith("custom")}
        return lines

    def __str__(self) -> str:
        return "-".join((*self.wrappers, self.operation.fun.__name__))


def _line(name: str) -> int:
    """Return the line of this file that is marked with a name."""
    lines = pathlib.Path(__file__).read_text().splitlines()
    return next(i for i, x in enumerate(lines, 1) if x.endswith(f"# plant: {name}"))


def planted(seed: int) -> Planted:
    """Return a random program with a planted NaN."""
    draw = random.Random(seed)
    operation = OPERATIONS[seed % len(OPERATIONS)]
    wrappers = [draw.choice(PLAIN) for _ in range(draw.randint(0, 2))]
    loops = [draw.choice(LOOPS) for _ in range(draw.randint(0, 2))]
    wrappers += loops + [draw.choice(BATCHES) for _ in range(draw.randint(0, 2))]
    draw.shuffle(wrappers)
    is_differentiated = operation.backward or draw.random() < 0.4
    if is_differentiated:
        # Anything may be around a gradient. Inside it, loops have a known length.
        wrappers.insert(draw.randint(0, len(wrappers)), inner_grad)
        start = wrappers.index(inner_grad)
        wrappers[:start] = [_unknown(draw, wrapper) for wrapper in wrappers[:start]]
    else:
        wrappers = [_unknown(draw, wrapper) for wrapper in wrappers]
    return plant(operation, wrappers, draw)


def _unknown(draw: random.Random, wrapper: Callable) -> Callable:
    """Replace some loops by loops of unknown length."""
    return draw.choice(UNKNOWN) if wrapper in LOOPS and draw.random() < 0.4 else wrapper


def plant(operation: Operation, wrappers: list[Callable], draw: random.Random) -> Planted:
    fun = total(operation.fun)
    for wrapper in reversed(wrappers):
        fun = wrapper(fun)
    sizes = [draw.randint(2, 4) for w in wrappers if w in (*LOOPS, *UNKNOWN, *BATCHES)]
    index = tuple(draw.randrange(n) for n in (*sizes, 3))
    x = np.full((*sizes, 3), operation.good, np.float32)
    x[index] = operation.bad
    mapped = [w for w in wrappers if w in (*LOOPS, *UNKNOWN, *BATCHES)]
    examples = [i for i, w in zip(index, mapped, strict=False) if w in BATCHES]
    return Planted(
        fun,
        x,
        operation,
        tuple(i for i, w in zip(index, mapped, strict=False) if w not in BATCHES),
        examples[0] if len(examples) == 1 else tuple(examples) or None,
        tuple(wrapper.__name__ for wrapper in wrappers),
        inner_grad in wrappers,
    )
