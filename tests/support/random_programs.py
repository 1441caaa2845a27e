"""Random programs: trees of nested constructs that run as JAX functions of one array.

Each node takes a float array `v` to another of the same shape. Its value depends on `v`
all the way, so that no cotangent is a symbolic zero, for which JAX may or may not call a
backward rule.
"""

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

import lox
from support.truth import concrete


@dataclasses.dataclass(frozen=True)
class Scope:
    """What a node can see besides `v`."""

    x: Any  # the argument of the program: it does not change in loops
    i: Any  # the counter of the innermost loop
    margins: list | None  # how far each condition was from the other branch

    def note(self, number: Any, bounds: list[float]) -> None:
        if self.margins is not None:
            self.margins.extend(abs(concrete(number) - bound) for bound in bounds)

    def exceeds(self, v: Any, bound: float = 0.137) -> Any:
        self.note(jnp.sum(v), [bound])
        return jnp.sum(v) > bound


@dataclasses.dataclass(frozen=True)
class Count:
    """How often a key may be logged on one path, and whether in a loop."""

    least: int
    most: int
    looped: bool = False


class Node:
    def run(self, v: Any, scope: Scope) -> Any:
        raise NotImplementedError

    def counts(self) -> dict[str, Count]:
        return {}

    def __str__(self) -> str:
        return "\n".join(lines(self))


@dataclasses.dataclass(frozen=True)
class Math(Node):
    op: str

    OPS: ClassVar[dict[str, Callable]] = {
        "sin": lambda v: jnp.sin(v + 0.3),
        "tanh": lambda v: jnp.tanh(v) + 0.4,
        "affine": lambda v: 0.7 * v - 0.2,
        "wave": lambda v: v + 0.5 * jnp.cos(2 * v),
    }

    def run(self, v, scope):
        return self.OPS[self.op](v)


@dataclasses.dataclass(frozen=True)
class Log(Node):
    key: str
    what: str
    steps: tuple[tuple[str, str], ...]
    tags: tuple[str, ...]

    VALUES: ClassVar[dict[str, Callable]] = {
        "sum": lambda v, scope: jnp.sum(v),
        "array": lambda v, scope: v,
        "tree": lambda v, scope: {"a": v, "b": (scope.exceeds(v), scope.i)},
        "counter": lambda v, scope: scope.i,
        "argument": lambda v, scope: jnp.sum(scope.x),
        "constant": lambda v, scope: 2.5,
        "three": lambda v, scope: 3,
    }

    def run(self, v, scope):
        steps = {name: self.VALUES[what](v, scope) for name, what in self.steps}
        lox.log({self.key: self.VALUES[self.what](v, scope)}, tags=self.tags, **steps)
        return v

    def counts(self):
        return {self.key: Count(1, 1)}


@dataclasses.dataclass(frozen=True)
class Block(Node):
    nodes: tuple[Node, ...]

    def run(self, v, scope):
        for node in self.nodes:
            v = node.run(v, scope)
        return v

    def counts(self):
        return in_sequence([node.counts() for node in self.nodes])


@dataclasses.dataclass(frozen=True)
class Jit(Node):
    times: int
    body: Node

    def run(self, v, scope):
        inner = jax.jit(lambda v, x, i: self.body.run(v, Scope(x, i, scope.margins)))
        for _ in range(self.times):
            v = inner(v, scope.x, scope.i)
        return v

    def counts(self):
        return in_sequence([self.body.counts()] * self.times)


@dataclasses.dataclass(frozen=True)
class Scan(Node):
    length: int
    reverse: bool
    unroll: int
    body: Node

    def run(self, v, scope):
        def step(v, i):
            v = v + 0.1 * i.astype(jnp.float32)
            return self.body.run(v, dataclasses.replace(scope, i=i)), None

        how = {"reverse": self.reverse, "unroll": self.unroll}
        return jax.lax.scan(step, v, jnp.arange(self.length), **how)[0]

    def counts(self):
        return in_a_loop(self.body.counts())


@dataclasses.dataclass(frozen=True)
class Fori(Node):
    length: int
    body: Node

    def run(self, v, scope):
        def step(i, v):
            return self.body.run(v, dataclasses.replace(scope, i=jnp.int32(i)))

        return jax.lax.fori_loop(1, 1 + self.length, step, v)

    def counts(self):
        return in_a_loop(self.body.counts())


@dataclasses.dataclass(frozen=True)
class While(Node):
    """Runs never, once or twice, by where a number lies."""

    what: str
    body: Node

    def run(self, v, scope):
        number = Log.VALUES[self.what](v, scope)
        if self.what == "counter":
            times = number % 3
        else:
            scope.note(number, [0.137, -0.313])
            times = sum(jnp.int32(number > bound) for bound in [0.137, -0.313])

        def body(state):
            i, v = state
            v = v + 0.1 * i.astype(jnp.float32)
            return i + 1, self.body.run(v, dataclasses.replace(scope, i=i))

        return jax.lax.while_loop(lambda s: s[0] < times, body, (jnp.int32(0), v))[1]

    def counts(self):
        return in_a_loop(self.body.counts())


@dataclasses.dataclass(frozen=True)
class Map(Node):
    length: int
    body: Node

    def run(self, v, scope):
        vs = spread(v, self.length)
        return jnp.mean(jax.lax.map(lambda v: self.body.run(v, scope), vs), 0)

    def counts(self):
        return in_a_loop(self.body.counts())


@dataclasses.dataclass(frozen=True)
class Vmap(Node):
    size: int
    body: Node

    def run(self, v, scope):
        vs = spread(v, self.size)
        return jnp.mean(jax.vmap(lambda v: self.body.run(v, scope))(vs), 0)

    def counts(self):
        return self.body.counts()


@dataclasses.dataclass(frozen=True)
class Switch(Node):
    """Chooses by where a number lies; a `cond` if there are two bodies."""

    what: str
    bodies: tuple[Node, ...]

    def run(self, v, scope):
        bounds = [0.137, 0.613][: len(self.bodies) - 1]
        number = Log.VALUES[self.what](v, scope)
        if self.what == "counter":
            index = number % len(self.bodies)
        else:
            scope.note(number, bounds)
            index = sum(jnp.int32(number > bound) for bound in bounds)
        branches = [lambda v, body=body: body.run(v, scope) for body in self.bodies]
        if len(branches) == 2:
            return jax.lax.cond(index == 1, branches[1], branches[0], v)
        return jax.lax.switch(index, branches, v)

    def counts(self):
        return on_one_path([body.counts() for body in self.bodies])


@dataclasses.dataclass(frozen=True)
class Checkpoint(Node):
    body: Node

    def run(self, v, scope):
        return jax.checkpoint(lambda v: self.body.run(v, scope))(v)

    def counts(self):
        return self.body.counts()


@dataclasses.dataclass(frozen=True)
class CustomJvp(Node):
    differentiates: bool
    body: Node

    def run(self, v, scope):
        def plain(v, x, i):
            return self.body.run(v, Scope(x, i, scope.margins))

        fun = jax.custom_jvp(plain)

        @fun.defjvp
        def _(primals, tangents):
            (v, x, i), (t, *_) = primals, tangents
            if self.differentiates:
                return jax.jvp(lambda v: plain(v, x, i), (v,), (t,))
            return fun(*primals), 0.5 * t * jnp.cos(v)

        return fun(v, scope.x, scope.i)

    def counts(self):
        return self.body.counts()


@dataclasses.dataclass(frozen=True)
class CustomVjp(Node):
    backward_key: str | None
    body: Node

    def run(self, v, scope):
        @jax.custom_vjp
        def fun(v, x, i):
            return self.body.run(v, Scope(x, i, scope.margins))

        def backward(v, g):
            if self.backward_key:
                lox.log({self.backward_key: jnp.sum(g * v)})
            return 0.5 * g * jnp.cos(v), None, None

        fun.defvjp(lambda v, x, i: (fun(v, x, i), v), backward)
        return fun(v, scope.x, scope.i)

    def counts(self):
        backward = {self.backward_key: Count(0, 1)} if self.backward_key else {}
        return in_sequence([self.body.counts(), backward])


@dataclasses.dataclass(frozen=True)
class Grad(Node):
    how: str
    body: Node

    def run(self, v, scope):
        fun = lambda v: jnp.sum(self.body.run(v, scope))  # noqa: E731
        if self.how == "jvp":
            value, slope = jax.jvp(fun, (v,), (jnp.ones_like(v),))
        elif self.how == "grad":
            value, slope = 0.0, jax.grad(fun)(v)
        else:
            value, slope = jax.value_and_grad(fun)(v)
        return v + 0.2 * jnp.tanh(slope) + 0.1 * jnp.tanh(value)

    def counts(self):
        return self.body.counts()


@dataclasses.dataclass(frozen=True)
class Nolog(Node):
    body: Node

    def run(self, v, scope):
        return lox.nolog(lambda v: self.body.run(v, scope))(v)


# How often is a key logged? -----------------------------------------------------------


def in_sequence(parts: list[dict[str, Count]]) -> dict[str, Count]:
    total: dict[str, Count] = {}
    for part in parts:
        for key, b in part.items():
            a = total.get(key, Count(0, 0))
            both = Count(a.least + b.least, a.most + b.most, a.looped or b.looped)
            total[key] = both
    return total


def on_one_path(parts: list[dict[str, Count]]) -> dict[str, Count]:
    def merge(key):
        found = [part.get(key, Count(0, 0)) for part in parts]
        return Count(
            min(c.least for c in found),
            max(c.most for c in found),
            any(c.looped for c in found),
        )

    return {key: merge(key) for part in parts for key in part}


def in_a_loop(counts: dict[str, Count]) -> dict[str, Count]:
    return {key: Count(c.least, c.most, looped=True) for key, c in counts.items()}


# Making and showing them --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """Where in a program a node is made."""

    depth: int
    vmaps: int = 0
    runs: int = 1  # how often the node will run, so that eager runs stay short
    forward: bool = False  # under a `jvp`, where there can be no custom vjp
    unknown: bool = False  # there may be loops of unknown length

    def inside(self, times: int = 1, **changes: Any) -> "Place":
        return dataclasses.replace(
            self, depth=self.depth - 1, runs=self.runs * times, **changes
        )


def random_program(
    seed: int, depth: int = 4, nodes: range = range(4, 13), unknown: bool = False
) -> Node:
    """A program that logs, and that compiles in a moment."""
    choose = random.Random(seed)
    while True:
        program = block(choose, Place(depth, unknown=unknown))
        logs = any(count.most for key, count in program.counts().items() if key[0] != "b")
        right = not unknown or logs_in_a_while(program)
        if logs and right and len(list(lines(program))) in nodes:
            return program


def logs_in_a_while(node: Node) -> bool:
    if isinstance(node, While):
        return bool(node.counts())
    fields = vars(node)
    inner = [*fields.get("nodes", ()), *fields.get("bodies", ()), fields.get("body")]
    return any(logs_in_a_while(part) for part in inner if part is not None)


def block(choose: random.Random, place: Place) -> Node:
    return Block(tuple(node(choose, place) for _ in range(choose.choice([1, 1, 2, 2, 3]))))


def node(choose: random.Random, place: Place) -> Node:
    if not place.depth or choose.random() < 0.3:
        return log(choose, place) if choose.random() < 0.75 else math(choose)
    return choose.choice(WITH_WHILE if place.unknown else MAKERS)(choose, place)


def math(choose: random.Random) -> Node:
    return Math(choose.choice(sorted(Math.OPS)))


def log(choose: random.Random, place: Place) -> Node:
    """A key has one kind of value, and is used under so many `vmap`s."""
    kind, whats = choose.choice(
        [
            ("s", ["sum"]),
            ("s", ["sum"]),
            ("v", ["array"]),
            ("t", ["tree"]),
            ("c", ["counter"]),
            ("x", ["argument"]),
            ("m", ["sum", "argument", "constant"]),
        ]
    )
    steps = choose.choice(
        [
            {},
            {},
            {"step": "counter"},
            {"step": "three"},
            {"at": "sum"},
            {"step": "counter", "at": "argument"},
        ]
    )
    return Log(
        f"{kind}{choose.randrange(2)}" + place.vmaps * "'",
        choose.choice(whats),
        tuple(steps.items()),
        choose.choice([(), ("metric",)]),
    )


def a_jit(choose, place):
    times = choose.choice([1, 1, 2])
    return Jit(times, block(choose, place.inside(times)))


def a_scan(choose, place):
    length = choose.choice([1, 2, 3]) if place.runs < 20 else 2
    unroll = choose.choice([1, 1, 2])
    reverse = choose.random() < 0.3
    return Scan(length, reverse, unroll, block(choose, place.inside(length)))


def a_while(choose, place):
    what = choose.choice(["sum", "sum", "counter", "argument"])
    return While(what, block(choose, place.inside(2)))


def a_fori(choose, place):
    return Fori(2, block(choose, place.inside(2)))


def a_map(choose, place):
    return Map(2, block(choose, place.inside(2)))


def a_vmap(choose, place):
    if place.vmaps == 2:
        return a_jit(choose, place)
    # Sizes differ by level, so that one sees which axis is which.
    size = [2, 4][place.vmaps]
    inside = place.inside(size, vmaps=place.vmaps + 1)
    return Vmap(size, block(choose, inside))


def a_switch(choose, place):
    what = choose.choice(["sum", "sum", "counter", "argument"])
    count = choose.choice([2, 2, 3])
    return Switch(what, tuple(block(choose, place.inside()) for _ in range(count)))


def a_checkpoint(choose, place):
    return Checkpoint(block(choose, place.inside()))


def a_custom_jvp(choose, place):
    differentiates = choose.random() < 0.4
    forward = place.forward or differentiates
    return CustomJvp(differentiates, block(choose, place.inside(forward=forward)))


def a_custom_vjp(choose, place):
    if place.forward:
        return a_custom_jvp(choose, place)
    key = "b" + place.vmaps * "'" if choose.random() < 0.3 else None
    return CustomVjp(key, block(choose, place.inside()))


def a_grad(choose, place):
    how = choose.choice(["grad", "value_and_grad", "jvp"])
    forward = place.forward or how == "jvp"
    # JAX has no reverse mode for loops of unknown length.
    unknown = place.unknown and how == "jvp"
    return Grad(how, block(choose, place.inside(forward=forward, unknown=unknown)))


def a_nolog(choose, place):
    return Nolog(block(choose, place.inside()))


MAKERS = [
    *[a_jit, a_scan, a_switch, a_vmap, a_grad] * 3,
    *[a_fori, a_map, a_checkpoint, a_custom_jvp, a_custom_vjp] * 2,
    a_nolog,
]
WITH_WHILE = [*MAKERS, *[a_while] * 8]


def lines(node: Any, indent: str = "") -> Iterator[str]:
    """The program as text, a node a line."""
    if isinstance(node, Block):
        for part in node.nodes:
            yield from lines(part, indent)
        return
    fields = {field.name: getattr(node, field.name) for field in dataclasses.fields(node)}
    bodies = fields.pop("bodies", None) or [fields.pop("body", None)]
    plain = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    yield f"{indent}{type(node).__name__}({plain})"
    for number, body in enumerate(bodies):
        if len(bodies) > 1:
            yield f"{indent}  branch {number}"
        if body is not None:
            yield from lines(body, indent + "    ")


def spread(v: Any, size: int) -> Any:
    return jnp.stack([v + 0.5 * k - 0.2 for k in range(size)])
