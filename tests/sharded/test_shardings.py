"""Automatic sharding: JAX decides where a program's values are, and lox leaves it so.

Each program that logs stands beside one that returns the same values by hand. What XLA
makes of both has the same collectives, and needs the same memory.
"""

import collections
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import lox

pytestmark = pytest.mark.usefixtures("optimized")
MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
T, N, D, H = 6, 16, 8, 12


def sharding(*axes):
    return NamedSharding(MESH, P(*axes))


def normal(seed, shape, *axes):
    value = jax.random.normal(jax.random.key(seed), shape)
    return jax.device_put(value, sharding(*axes))


def arguments():
    """Weights, some of them over the model axis, and batches over the data axis."""
    weights = {"in": normal(0, (D, H), None, "model"), "out": normal(1, (H,), "model")}
    return weights, normal(2, (T, N, D), None, "data"), normal(3, (T, N), None, "data")


def losses(weights, x, y):
    return (jnp.tanh(x @ weights["in"]) @ weights["out"] - y) ** 2


def step(weights, batch, log=lambda values: None):
    """One step of gradient descent."""

    def mean(weights):
        each = losses(weights, *batch)
        return each.mean(), each

    (loss, each), slopes = jax.value_and_grad(mean, has_aux=True)(weights)
    values = {"loss": loss, "each": each, "slope": slopes["in"]}
    log(values)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, slopes), values


def over_time(body):
    def program(weights, xs, ys):
        return lax.scan(body, weights, (xs, ys))

    return program


def logging_step(weights, batch):
    return step(weights, batch, lox.log)[0], None


@dataclasses.dataclass(frozen=True)
class Case:
    """A program that logs, and one that returns the same values.

    `more` is the share of memory that it may take besides: a loop that thins its rows
    holds those of one iteration, too.
    """

    name: str
    logs: Callable
    by_hand: Callable
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    jit: dict[str, Any] = dataclasses.field(default_factory=dict)
    more: float = 0.02


def once(weights, xs, ys):
    return step(weights, (xs[0], ys[0]), lox.log)[0]


def once_by_hand(weights, xs, ys):
    return step(weights, (xs[0], ys[0]))


def trained(weights, xs, ys):
    return over_time(logging_step)(weights, xs, ys)[0]


def trained_by_hand(weights, xs, ys):
    return over_time(step)(weights, xs, ys)


def last_by_hand(weights, xs, ys):
    def body(carry, batch):
        return step(carry[0], batch), None

    _, shapes = jax.eval_shape(step, weights, (xs[0], ys[0]))
    empty = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return lax.scan(body, (weights, empty), (xs, ys))[0]


def largest_by_hand(weights, xs, ys):
    def body(carry, batch):
        weights, values = step(carry[0], batch)
        return (weights, jax.tree.map(jnp.maximum, carry[1], values)), None

    _, shapes = jax.eval_shape(step, weights, (xs[0], ys[0]))
    least = jax.tree.map(lambda s: jnp.full(s.shape, -jnp.inf, s.dtype), shapes)
    return lax.scan(body, (weights, least), (xs, ys))[0]


def every_other_by_hand(weights, xs, ys):
    def body(carry, batch):
        (weights, kept, i), row = carry, i_th(carry[2])
        weights, values = step(weights, batch)

        def write(column, value):
            old = lax.dynamic_index_in_dim(column, row, 0, keepdims=False)
            new = jnp.where(carry[2] % 2 == 0, value, old)
            return lax.dynamic_update_index_in_dim(column, new, row, 0)

        return (weights, jax.tree.map(write, kept, values), i + 1), None

    def i_th(i):
        return i // 2

    _, shapes = jax.eval_shape(step, weights, (xs[0], ys[0]))
    empty = jax.tree.map(lambda s: jnp.zeros((T // 2, *s.shape), s.dtype), shapes)
    start = weights, empty, jnp.int32(0)
    (weights, kept, _), _ = lax.scan(body, start, (xs, ys))
    return weights, kept


def constrained(weights, xs, ys):
    h = lax.with_sharding_constraint(xs @ weights["in"], sharding(None, "data", "model"))
    lox.log({"h": h, "mean": h.mean()})
    return h.sum(-1) - ys


def constrained_by_hand(weights, xs, ys):
    h = lax.with_sharding_constraint(xs @ weights["in"], sharding(None, "data", "model"))
    return h.sum(-1) - ys, {"h": h, "mean": h.mean()}


def branching(weights, xs, ys):
    def with_log(x):
        lox.log({"x": x, "sum": x.sum()})
        return 2 * x

    return lax.cond(ys.sum() > 0, with_log, lambda x: x - 1, xs)


def branching_by_hand(weights, xs, ys):
    def with_log(x):
        return 2 * x, {"x": x, "sum": x.sum()}

    def without(x):
        return x - 1, {"x": jnp.zeros_like(x), "sum": jnp.zeros((), x.dtype)}

    return lax.cond(ys.sum() > 0, with_log, without, xs)


def vmapped(weights, xs, ys):
    def example(x, y):
        lox.log({"error": losses(weights, x, y)})
        return x.sum()

    over_batch = jax.vmap(example, in_axes=1, spmd_axis_name="data")
    return over_batch(xs, ys)


def vmapped_by_hand(weights, xs, ys):
    def example(x, y):
        return x.sum(), {"error": losses(weights, x, y)}

    over_batch = jax.vmap(example, in_axes=1, spmd_axis_name="data")
    return over_batch(xs, ys)


def nested_jit(weights, xs, ys):
    @jax.jit
    def inner(x):
        x = lax.with_sharding_constraint(x, sharding(None, "data"))
        lox.log({"x": x})
        return x.mean(0)

    return inner(xs)


def nested_jit_by_hand(weights, xs, ys):
    @jax.jit
    def inner(x):
        x = lax.with_sharding_constraint(x, sharding(None, "data"))
        return x.mean(0), {"x": x}

    return inner(xs)


CASES = [
    Case("one_step", once, once_by_hand),
    Case("training", trained, trained_by_hand),
    Case("donated", trained, trained_by_hand, jit={"donate_argnums": 0}),
    Case("last", trained, last_by_hand, {"reduce": "last"}),
    Case("max", trained, largest_by_hand, {"reduce": "max"}),
    Case("interval", trained, every_other_by_hand, {"interval": 2}, more=0.8),
    Case("constrained", constrained, constrained_by_hand),
    Case("cond", branching, branching_by_hand),
    Case("vmap", vmapped, vmapped_by_hand),
    Case("nested_jit", nested_jit, nested_jit_by_hand),
]
COLLECTIVES = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
SHAPE = r"\w+\[[\d,]*\]"


def compiled(fun, **options):
    return jax.jit(fun, **options).lower(*arguments()).compile()


def collectives(program):
    """What is exchanged: the name of each collective, and each array that it returns."""
    # XLA combines some of them into one that returns a tuple.
    found = re.findall(rf"= (.*?) ({COLLECTIVES})(?:-start)?\(", program.as_text())
    return collections.Counter(
        (name, shape) for shapes, name in found for shape in re.findall(SHAPE, shapes)
    )


def memory(program):
    sizes = program.memory_analysis()
    names = ("argument_size", "output_size", "alias_size", "temp_size")
    return {name: getattr(sizes, f"{name}_in_bytes") for name in names}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_spool_costs_what_the_same_costs_by_hand(case):
    ours = compiled(lox.spool(case.logs, **case.options), **case.jit)
    theirs = compiled(case.by_hand, **case.jit)

    assert collectives(ours) == collectives(theirs)
    mine, other = memory(ours), memory(theirs)
    # Masks and steps are a few bytes more; nothing that is sharded is held twice.
    slack = 64 + case.more * other["temp_size"]
    assert mine["temp_size"] <= other["temp_size"] + slack
    assert mine["argument_size"] == other["argument_size"]
    assert mine["alias_size"] == other["alias_size"]
    assert mine["output_size"] <= other["output_size"] + 64

    y, logs = ours(*arguments())
    same, values = theirs(*arguments())
    assert_same(y, same)
    assert_same(logs.data, values)


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_tap_leaves_shardings_alone_and_gathers_only_what_is_sharded():
    def taps(key):
        with lox.silent():
            return compiled(lox.tap(trained, lambda logs: None, argnames=key))

    plain, loss, each = compiled(lox.nolog(trained)), taps("loss"), taps("each")
    names = [name for name, _ in collectives(each) - collectives(compiled(trained_by_hand))]

    # Of the loss the program has a part on each device: one number is to be added up.
    assert collectives(loss) - collectives(plain) == {("all-reduce", "f32[]"): 1}
    assert names == ["all-gather"]
    assert_same(loss(*arguments()), plain(*arguments()))
    assert_same(each(*arguments()), plain(*arguments()))
    lox.barrier()


def test_each_record_is_heard_once_and_in_order():
    heard = []
    tapped = jax.jit(lox.tap(trained, lambda logs: heard.append(logs.data)))
    _, values = jax.jit(trained_by_hand)(*arguments())
    for _ in range(2):
        tapped(*arguments())
    lox.barrier()

    assert len(heard) == 2 * T
    for i, logs in enumerate(heard):
        for key, value in logs.items():
            np.testing.assert_allclose(value, values[key][i % T], rtol=1e-5, atol=1e-6)


def test_seeds_on_several_devices_are_runs(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), sharding("data"))

    @jax.jit
    @jax.vmap
    def experiment(key):
        state = logger.init(key)
        w = logger.tap(lambda w: lox.log({"w": w}) and 2 * w, state)(jax.random.normal(key))
        logger.finish(state)
        return w

    for _ in range(4):
        w = experiment(keys)
    lox.barrier()

    assert w.sharding.is_equivalent_to(sharding("data"), 1)
    assert len(lox.runs(tmp_path)) == 4 * 8
    np.testing.assert_array_equal(lox.load(tmp_path)["w"], w / 2)


def test_logs_of_several_devices_can_be_shown():
    _, logs = jax.jit(lox.spool(trained))(*arguments())

    assert repr(logs.filter(lambda key, _: key == "each")) == "{'each': float32[6,16]}"


# Explicit meshes -----------------------------------------------------------------------


def halved(x):
    def body(x, i):
        lox.log({"x": x, "sum": x.sum()}, step=i)
        return x / 2, None

    return lax.scan(body, x, jnp.arange(4))[0]


def around_a_loop(x):
    lox.log({"x": x})
    x = halved(x)
    lox.log({"x": x})
    return x


def in_other_shardings(x):
    lox.log({"x": x})
    lox.log({"x": jax.sharding.reshard(x, P(None, "model"))})
    return x


def until_small(x):
    def body(x):
        lox.log({"x": x})
        return x / 2

    return lax.while_loop(lambda x: x.sum() > 1, body, x)


def maybe(x):
    def with_log(x):
        lox.log({"x": x})
        return 2 * x

    return lax.cond(x.sum() > 0, with_log, lambda x: 1 * x, x)


def twice(x):
    lox.log({"x": x})
    lox.log({"x": x})
    return x


@pytest.mark.skipif(jax.__version_info__ < (0, 9), reason="shapes lose their sharding")
@pytest.mark.parametrize(
    ("fun", "options"),
    [
        (halved, {}),
        (around_a_loop, {"reduce": "mean"}),
        (around_a_loop, {"interval": 2}),
        (in_other_shardings, {}),
        (until_small, {"capacity": 8}),
        (maybe, {}),
    ],
)
def test_explicit_shardings(fun, options):
    value = np.arange(32, dtype=np.float32).reshape(8, 4)
    kinds = (AxisType.Explicit,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=kinds)
    alone = twice if fun is in_other_shardings else fun
    heard, expected = [], []
    y, plain = lox.spool(alone, **options)(value)
    lox.tap(alone, expected.append)(value)
    with jax.set_mesh(mesh):
        x = jax.device_put(value, NamedSharding(mesh, P("data", "model")))
        out, logs = jax.jit(lox.spool(fun, **options))(x)
        jax.jit(lox.tap(fun, heard.append))(x)
        lox.barrier()

    assert out.sharding.spec == P("data", "model")
    assert logs["x"].sharding.spec[-2:] == ("data", "model")
    np.testing.assert_allclose(out, y)
    np.testing.assert_allclose(logs["x"], plain["x"], rtol=1e-6)
    for ours, theirs in zip(heard, expected, strict=True):
        np.testing.assert_allclose(ours["x"], theirs["x"])


def test_a_tapped_step_with_explicit_shardings():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    heard = []
    step = lox.tap(
        jax.jit(lambda x: lox.log({"x": x, "sum": x.sum()}) and x + 1), heard.append
    )
    with jax.set_mesh(mesh):
        x = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, P("data")))
        for _ in range(3):
            x = step(x)
        lox.barrier()

    assert x.sharding.spec == P("data")
    assert [logs["x"].tolist() for logs in heard] == [
        [n + i for n in range(8)] for i in range(3)
    ]
    assert [float(logs["sum"]) for logs in heard] == [28, 36, 44]
