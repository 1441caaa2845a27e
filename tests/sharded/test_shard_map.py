"""`shard_map`: the laws over the catalogue, and what is special to several devices."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import lox
from support.delivered import assert_delivered, heard
from support.programs import PROGRAMS, Program
from support.selection import covering, thin
from support.truth import (
    Record,
    assert_logs,
    assert_trees_close,
    bare,
    records_of_each,
    records_of_each_in_grad,
    run_each,
    total,
    total_of,
)

# JAX alone cannot type these as to which devices their values differ on, or gives them
# another meaning: the gradient of what is the same on all devices is a sum over them.
UNTYPED = {
    *("custom_root", "vjp", "linearize", "scatter_add", "training"),
    *("grad_of_a_scan_of_what_does_not_change", "vmap_with_a_named_axis"),
    "actor_and_critic",
}
TYPED = [
    p
    for p in PROGRAMS
    if p.name not in UNTYPED and not p.name.startswith("custom_linear_solve")
]
UNTYPED_SLOPES = {"custom_vjp_with_symbolic_zeros"}
DIFFERENTIABLE = [p for p in TYPED if p.grad and p.name not in UNTYPED_SLOPES]


def over(programs):
    return pytest.mark.parametrize("p", programs, ids=lambda p: p.name)


def mesh_of(*sizes: int, names: str = "xyz", kind: Any = AxisType.Auto) -> Mesh:
    devices = np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes)
    return Mesh(devices, tuple(names[: len(sizes)]), axis_types=(kind,) * len(sizes))


def on_three_devices(fun: Callable, check_vma: bool = True) -> Callable:
    """`fun` of three examples, each on a device of its own."""

    def one(x):
        return jax.tree.map(lambda y: y[None], fun(x[0]))

    spec, mesh = P("shard"), Mesh(np.array(jax.devices()[:3]), "shard")
    return jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)


# The laws, against an eager run of each shard -------------------------------------------


@over(covering(TYPED, 6))
def test_spool_gives_what_each_device_logs(p: Program):
    out, logs = jax.jit(lox.spool(on_three_devices(p.fun)))(p.xs)

    assert_logs(logs, records_of_each(p), natural=p.is_natural)
    assert_trees_close(out, jax.vmap(bare(p))(p.xs))


@over(thin(PROGRAMS, 8))
def test_it_does_so_where_jax_does_not_know_what_differs(p: Program):
    out, logs = lox.spool(on_three_devices(p.fun, check_vma=False))(p.xs)

    assert_logs(logs, records_of_each(p), natural=p.is_natural)
    assert_trees_close(out, jax.vmap(bare(p))(p.xs))


@over(thin(TYPED, 6, 1))
@pytest.mark.parametrize("batch", [None, 2])
def test_tap_calls_for_each_device_in_its_order(p: Program, batch):
    mapped = on_three_devices(p.fun)

    out, found = heard(lambda listen: jax.jit(lox.tap(mapped, listen, batch=batch)), p.xs)

    assert_trees_close(out, jax.vmap(bare(p))(p.xs))
    assert_each_device_delivered(found, records_of_each(p), by_key=batch is not None)


@over(thin(DIFFERENTIABLE, 8))
def test_the_gradient_logs_what_each_device_logs(p: Program):
    mapped = on_three_devices(p.fun)

    def fun(xs):
        out, logs = lox.spool(mapped)(xs)
        return total(out), logs

    slopes, logs = jax.jit(lox.spool(jax.grad(total_of(mapped))))(p.xs)
    inside, primal = jax.jit(jax.grad(fun, has_aux=True))(p.xs)

    expected = jax.vmap(jax.grad(total_of(bare(p))))(p.xs)
    assert_trees_close(slopes, expected)
    assert_trees_close(inside, expected)
    _, records = run_each(jax.grad(total_of(p.truth)), p.xs)
    assert_logs(logs, records, natural=p.is_natural)
    assert_logs(primal, records_of_each_in_grad(p), natural=p.is_natural)


@over(thin(TYPED, 16, 3))
def test_nolog_leaves_nothing_of_it(p: Program, capsys):
    out = jax.jit(lox.nolog(on_three_devices(p.fun)))(p.xs)

    jax.effects_barrier()
    assert capsys.readouterr().out == ""
    assert_trees_close(out, jax.vmap(bare(p))(p.xs))


def assert_each_device_delivered(
    found: list[lox.logdict], records: list[Record], *, by_key: bool
) -> None:
    for device in range(3):
        mine = [
            Record(r.data, r.steps, r.tags, r.lanes[1:], r.sizes[1:], r.raw)
            for r in records
            if r.lanes[0] == device
        ]
        own = [_without_step(logs) for logs in found if _device_of(logs) == device]
        assert_delivered(own, mine, by_key=by_key)
    assert len(found) == sum(_device_of(logs) in range(3) for logs in found)


def _device_of(logs: lox.logdict) -> int:
    (device,) = {int(x) for own in logs.steps["shard"].values() for x in np.ravel(own)}
    return device


def _without_step(logs: lox.logdict) -> lox.logdict:
    rows = logs.rows()
    for key, own in rows.items():
        steps = {name: step for name, step in own.steps.items() if name != "shard"}
        rows[key] = own.replace(steps=steps)
    return lox.logdict.of(rows)


# What is special to several devices ------------------------------------------------------

X = jnp.arange(16.0).reshape(8, 2)
SUMS = np.arange(16.0, dtype=np.float32).reshape(8, 2).sum(1)


def mapped(fun: Callable, mesh: Mesh | None = None, **options) -> Callable:
    options = {"in_specs": P("x"), "out_specs": P("x"), **options}
    return jax.shard_map(fun, mesh=mesh_of(8) if mesh is None else mesh, **options)


def logs_its_sum(x):
    lox.log({"sum": x.sum()})
    return 2 * x


def logs_three_sums(x):
    def step(x, i):
        lox.log({"sum": x.sum()}, step=i)
        return x + 1, None

    return lax.scan(step, x, jnp.arange(3))[0]


THREE_SUMS = SUMS + np.arange(0, 6, 2, dtype=np.float32)[:, None]


def steps_of(logs: lox.logdict) -> dict[str, int]:
    return {name: int(own["sum"]) for name, own in logs.steps.items()}


def test_the_axis_of_devices_comes_after_time_in_the_order_of_the_mesh():
    _, logs = jax.jit(lox.spool(mapped(logs_three_sums, mesh_of(4, 2))))(X)

    rows = (
        np.asarray(X).reshape(4, 4).sum(1) + 4 * np.arange(3.0, dtype=np.float32)[:, None]
    )
    assert np.array_equal(logs["sum"], np.repeat(rows, 2, axis=1))
    assert np.array_equal(logs.step["sum"], np.repeat([[0], [1], [2]], 8, axis=1))
    # Nothing leaves its device.
    sharding = NamedSharding(mesh_of(4, 2), P(None, ("x", "y")))
    assert logs["sum"].sharding.is_equivalent_to(sharding, 2)


def test_what_is_known_to_be_the_same_comes_without_it():
    def f(x):
        lox.log({"total": lax.psum(x.sum(), "x"), "constant": 1}, step=0)
        lox.log({"own": x.sum(), "constant": 2})
        return x

    _, logs = jax.jit(lox.spool(mapped(f)))(X)
    assert logs["total"].shape == ()
    assert float(logs["total"]) == SUMS.sum()
    assert logs["constant"].tolist() == [1, 2]
    assert np.array_equal(logs["own"], SUMS)
    _, logs = jax.jit(lox.spool(mapped(f, check_vma=False)))(X)
    assert np.array_equal(logs["total"], np.full(8, SUMS.sum()))


def test_a_mesh_that_is_partly_automatic():
    mesh = mesh_of(4, 2)
    x = jax.device_put(X, NamedSharding(mesh, P("x", "y")))

    def f(x):
        lox.log({"sums": x.sum(0)})
        return x

    fun = mapped(f, mesh, axis_names={"x"})
    _, logs = jax.jit(lox.spool(fun))(x)
    _, found = heard(lambda listen: jax.jit(lox.tap(fun, listen)), x)

    expected = np.asarray(X).reshape(4, 2, 2).sum(1)
    assert np.array_equal(logs["sums"], expected)
    assert logs["sums"].sharding.is_equivalent_to(NamedSharding(mesh, P("x", "y")), 2)
    # Once for all devices along the automatic axis.
    by_x = {int(own.x["sums"]): own["sums"] for own in found}
    assert len(found) == 4
    assert all(np.array_equal(by_x[i], expected[i]) for i in range(4))


def test_a_loop_on_a_mesh_that_is_partly_automatic():
    fun = mapped(logs_three_sums, mesh_of(4, 2), axis_names={"x"})
    rows = np.asarray(X).reshape(4, 4).sum(1) + 4 * np.arange(3.0)[:, None]

    _, logs = jax.jit(lox.spool(fun, reduce="mean"))(X)
    assert np.array_equal(logs["sum"], rows.mean(0))
    _, logs = jax.jit(lox.spool(fun, interval=2))(X)
    assert np.array_equal(logs["sum"], rows[::2])
    for batch in (None, 3):
        _, found = heard(lambda listen, k=batch: jax.jit(lox.tap(fun, listen, batch=k)), X)
        own = [[] for _ in range(4)]
        for logs in found:
            own[np.ravel(logs.x["sum"])[0]].extend(np.ravel(logs["sum"]))
        assert np.array_equal(np.transpose(own), rows)


@pytest.mark.skipif(not hasattr(lax, "pcast"), reason="JAX 0.7: no `axis_index` there")
def test_a_shard_map_in_another():
    def inner(x):
        lox.log({"sum": x.sum()})
        return x

    def outer(x):
        spec = P(None, "y")
        return jax.shard_map(inner, in_specs=spec, out_specs=spec, axis_names={"y"})(x)

    fun = mapped(outer, mesh_of(4, 2), axis_names={"x"})
    _, logs = jax.jit(lox.spool(fun))(X)
    _, found = heard(lambda listen: jax.jit(lox.tap(fun, listen)), X)

    expected = np.asarray(X).reshape(4, 2, 2).sum(1)
    assert np.array_equal(logs["sum"], expected)
    delivered = {(int(own.x["sum"]), int(own.y["sum"])): own["sum"] for own in found}
    assert len(found) == 8
    assert delivered == {(i, j): expected[i, j] for i in range(4) for j in range(2)}


def in_a_scan(x):
    def step(x, i):
        x = mapped(logs_its_sum)(x)
        lox.log({"total": x.sum()}, step=i)
        return x, None

    return lax.scan(step, x, jnp.arange(4))[0]


def test_a_shard_map_in_a_scan():
    rows = SUMS * 2.0 ** np.arange(4)[:, None]

    _, logs = jax.jit(lox.spool(in_a_scan))(X)
    assert np.array_equal(logs["sum"], rows)
    assert np.array_equal(logs["total"], 2 * rows.sum(1))
    _, thinned = jax.jit(lox.spool(in_a_scan, interval=3))(X)
    assert np.array_equal(thinned["sum"], rows[::3])
    for batch in (None, 3):
        _, found = heard(
            lambda listen, k=batch: jax.jit(lox.tap(in_a_scan, listen, batch=k)), X
        )
        own = [[] for _ in range(8)]
        for logs in found:
            if "sum" in logs:
                own[int(logs.x["sum"])].append(float(logs["sum"]))
        assert np.array_equal(np.transpose(own), rows)


def test_vmap_around_and_inside():
    xs = jnp.stack([X, X + 1, X + 2])
    sums = np.asarray(xs).sum(2)

    assert np.array_equal(lox.spool(jax.vmap(mapped(logs_its_sum)))(xs)[1]["sum"], sums)
    assert np.array_equal(jax.vmap(lox.spool(mapped(logs_its_sum)))(xs)[1]["sum"], sums)
    inside = mapped(jax.vmap(logs_its_sum))
    _, logs = jax.jit(lox.spool(inside))(jnp.concatenate([X, X + 1]))
    assert logs["sum"].shape == (8, 2)
    _, found = heard(lambda listen: jax.vmap(lox.tap(mapped(logs_its_sum), listen)), xs)
    at = [
        (int(own.steps["example"]["sum"]), int(own.x["sum"]), float(own["sum"]))
        for own in found
    ]
    assert sorted(at) == [(i, j, sums[i, j]) for i in range(3) for j in range(8)]


def test_an_interval_counts_for_each_example_and_device():
    def f(x):
        def some(x):
            lox.log({"sum": x.sum()})
            return x

        x = lax.cond(x.sum() > 20, some, lambda x: x, x)
        lox.log({"sum": x.sum() + 100})
        lox.log({"sum": jnp.float32(lax.axis_index("x") + 200)})  # one for all examples
        return x

    xs = jnp.stack([X + i for i in range(8)])  # as many examples as devices
    twice = jax.vmap(lambda x: mapped(f)(mapped(f)(x)))
    _, logs = jax.jit(lox.spool(twice, interval=2))(xs)
    for i in range(8):
        for j, s in enumerate(np.asarray(xs)[i].sum(1)):
            rows = 2 * ([s] * int(s > 20) + [s + 100, 200 + j])
            is_row = logs.valid["sum"][:, i, j]
            assert logs["sum"][:, i, j][is_row].tolist() == rows[::2]


def test_an_interval_over_rows_inside_and_outside_under_vmap():
    def f(x):
        x = mapped(logs_its_sum)(x)
        lox.log({"sum": x.sum()})
        return mapped(logs_its_sum)(x)

    xs = jnp.stack([X, X + 1, X + 2])
    _, logs = jax.jit(lox.spool(jax.vmap(f), interval=2))(xs)
    sums = np.asarray(xs).sum(2)
    assert np.array_equal(logs["sum"], [sums, 2 * sums])
    # As many examples as devices: which of them an example's own row is for is not clear.
    with pytest.raises(ValueError, match=r"'sum' depends on .* cannot tell which"):
        jax.jit(lox.spool(jax.vmap(f), interval=2))(jnp.stack([X] * 8))


def test_an_interval_of_rows_on_different_devices_is_an_error_that_names_the_key():
    def f(x):
        return mapped(logs_its_sum, mesh_of(4, 2), axis_names={"x"})(
            mapped(logs_its_sum, mesh_of(4, 2))(x)
        )

    message = r"'sum' is logged with axes .* of sizes \(4,\) and \(8,\), so `interval`"
    with pytest.raises(ValueError, match=message):
        jax.jit(lox.spool(f, interval=2))(X)
    with pytest.raises(ValueError, match=message):
        jax.jit(lox.tap(f, interval=2))(X)


def test_examples_that_take_other_branches_and_end_at_other_times():
    xs = jnp.stack([X, -X, X + 2])
    sums = np.asarray(xs).sum(2)

    def some(x):
        return lax.cond(x.sum() > 0, mapped(logs_its_sum), lambda x: x, x)

    def often(x):
        def body(carry):
            n, x = carry
            return n - 1, mapped(logs_its_sum)(x)

        times = jnp.where(x.sum() > 0, 2, 1)
        return lax.while_loop(lambda carry: carry[0] > 0, body, (times, x))[1]

    _, logs = jax.jit(lox.spool(jax.vmap(some)))(xs)
    assert np.array_equal(logs.valid["sum"], np.repeat([[1], [0], [1]], 8, axis=1))
    assert np.array_equal(logs["sum"][::2], sums[::2])
    for interval, rows in ((None, [0, 1]), (2, [0])):
        spooled = lox.spool(jax.vmap(often), capacity=2, interval=interval)
        _, logs = jax.jit(spooled)(xs)
        assert np.array_equal(logs["sum"][0], sums)
        for row in rows[1:]:
            assert np.array_equal(logs["sum"][row, ::2], 2 * sums[::2])
        assert logs.valid["sum"].sum() == 8 * (3 + 2 * (len(rows) - 1))


def test_inside_of_a_shard_map_each_device_has_its_own():
    @mapped
    def spooled(x):
        _, logs = lox.spool(logs_three_sums, reduce="mean")(x)
        return logs["sum"][None]

    assert np.array_equal(jax.jit(spooled)(X), THREE_SUMS.mean(0))
    for options in ({}, {"interval": 2}, {"batch": 2}):
        _, found = heard(
            lambda listen, o=options: jax.jit(
                mapped(lox.tap(logs_three_sums, listen, **o))
            ),
            X,
        )
        first = [
            own.slice[:1]["sum"].item()
            for own in found
            if np.ravel(own.step["sum"])[0] == 0
        ]
        assert sorted(first) == sorted(SUMS)


REDUCED = {
    "mean": lambda x, axis: x.mean(axis),
    "sum": lambda x, axis: x.sum(axis),
    "max": lambda x, axis: x.max(axis),
    "std": lambda x, axis: x.std(axis),
    "count": lambda x, axis: np.int32(np.sum(np.ones_like(x), axis)),
    "first": lambda x, axis: x[0] if axis == 0 else x[0, 0],
    "last": lambda x, axis: x[-1] if axis == 0 else x[-1, -1],
}


@pytest.mark.parametrize("name", REDUCED)
def test_reductions_are_for_each_device_unless_they_say_otherwise(name):
    over_all = lox.Reduction.named(name, devices=True)

    _, each = jax.jit(lox.spool(mapped(logs_three_sums), reduce=name))(X)
    _, logs = jax.jit(lox.spool(mapped(logs_three_sums), reduce=over_all))(X)

    # Time first, then devices: the first row is that of the first device.
    assert np.allclose(each["sum"], REDUCED[name](THREE_SUMS, 0))
    assert np.allclose(logs["sum"], REDUCED[name](THREE_SUMS.T.T, None))
    assert int(logs.step["sum"]) == (0 if name == "first" else 2)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_reduction_over_devices_counts_each_also_where_all_log_the_same(check_vma):
    def f(x):
        def step(x, i):
            lox.log({"often": lax.psum(x.sum(), "x")})
            return x, None

        lox.log({"once": lax.psum(x.sum(), "x")})
        return lax.scan(step, x, jnp.arange(2))[0]

    for name, each in (("sum", SUMS.sum()), ("count", 1)):
        reduce = lox.Reduction.named(name, devices=True)
        _, logs = jax.jit(lox.spool(mapped(f, check_vma=check_vma), reduce=reduce))(X)
        assert float(logs["once"]) == 8 * each
        assert float(logs["often"]) == 16 * each


def test_a_reduction_over_devices_of_ones_own():
    def total(accumulators):
        assert jax.tree.leaves(accumulators)[0].shape == (8,)
        return jax.tree.map(lambda x: x.sum(0), accumulators)

    reduce = lox.Reduction.named("sum", devices=total)
    _, logs = jax.jit(lox.spool(mapped(logs_three_sums), reduce=reduce))(X)
    assert np.allclose(logs["sum"], THREE_SUMS.sum())
    # Some devices have no row.

    def some(x):
        return lax.cond(x.sum() > 10, logs_three_sums, lambda x: x + 3, x)

    everything = lox.Reduction.named("mean", devices=True)
    _, logs = jax.jit(lox.spool(mapped(some), reduce=everything))(X)
    assert np.allclose(logs["sum"], THREE_SUMS[:, SUMS > 10].mean())
    assert bool(logs.valid["sum"])
    # It must return what it combines.
    for wrong in (lambda acc: 3, lambda acc: acc):
        reduce = lox.Reduction.named("last", devices=wrong)
        with pytest.raises(ValueError, match="`devices` of the reduction of 'sum' returns"):
            jax.jit(lox.spool(mapped(logs_three_sums), reduce=reduce))(X)
    with pytest.raises(ValueError, match="'append' keeps every row"):
        lox.Reduction.named("append", devices=True)


def test_loops_that_end_at_different_times():
    def f(x):
        def body(x):
            lox.log({"sum": x.sum()})
            return 2 * x + 1

        return lax.while_loop(lambda x: x.sum() < 20, body, x)

    rows = []
    for x in np.asarray(X):
        rows.append([])
        while x.sum() < 20:
            rows[-1].append(x.sum())
            x = 2 * x + 1

    _, logs = jax.jit(lox.spool(mapped(f), capacity=4))(X)
    _, found = heard(lambda listen: jax.jit(lox.tap(mapped(f), listen)), X)

    for i, expected in enumerate(rows):
        assert list(logs["sum"][:, i][logs.valid["sum"][:, i]]) == expected
        assert [float(own["sum"]) for own in found if int(own.x["sum"]) == i] == expected
    assert np.array_equal(logs.count["sum"], [len(own) for own in rows])


def test_the_print_says_which_device(capsys):
    jax.block_until_ready(jax.jit(mapped(logs_three_sums, mesh_of(4, 2)))(X))
    lox.barrier()

    lines = capsys.readouterr().out.splitlines()
    sums = np.asarray(X).reshape(4, 4).sum(1)
    for i in range(4):
        for j in range(2):
            mine = [line for line in lines if f"x={i} y={j}" in line]
            assert mine == [
                f"{{'sum': {sums[i] + 4 * t}}} step={t} x={i} y={j}" for t in range(3)
            ]
    assert len(lines) == 24


def test_the_compiler_makes_of_it_what_it_makes_of_the_program_by_hand():
    def step(x, y, out):
        out(x, y)
        return lax.pmean(jnp.tanh(x @ y).sum(), "x"), x * 2

    def f(x):
        def log(x, y):
            lox.log({"sum": x.sum(), "norm": lax.psum(jnp.vdot(x, x), "x")})

        return step(x, x.T, log)

    def by_hand(x):
        out = []
        mean, y = step(x, x.T, lambda x, y: out.extend([x.sum(), jnp.vdot(x, x)]))
        return mean, y, out[0][None], lax.psum(out[1], "x")

    spooled = lox.spool(mapped(f, out_specs=(P(), P("x"))))
    hand = mapped(by_hand, out_specs=(P(), P("x"), P("x"), P()))
    x = jax.device_put(X, NamedSharding(mesh_of(8), P("x")))
    ours, theirs = (jax.jit(fun).lower(x).compile() for fun in (spooled, hand))

    assert collectives(ours) == collectives(theirs) != []
    assert ours.cost_analysis() == theirs.cost_analysis()
    ours, theirs = (str(fun.memory_analysis()) for fun in (ours, theirs))
    assert ours == theirs


def collectives(compiled: Any) -> list[str]:
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    return sorted(re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", compiled.as_text()))


def test_tap_adds_no_collective():
    x = jax.device_put(X, NamedSharding(mesh_of(8), P("x")))
    for fun in (mapped(logs_three_sums), in_a_scan):
        tapped = jax.jit(lox.tap(fun, lambda logs: None)).lower(x).compile()
        heard = {kind for _, kind in collectives(tapped)}
        # What is logged outside of the `shard_map` is a sum over devices.
        assert heard == ({"all-reduce"} if fun is in_a_scan else set())


def test_pmap():
    if not hasattr(jax, "pmap"):
        return
    for name in (None, "seed"):
        fun = jax.pmap(logs_three_sums, axis_name=name)
        _, logs = lox.spool(fun)(X)
        _, found = heard(lambda listen, f=fun: lox.tap(f, listen), X)

        assert np.array_equal(logs["sum"], THREE_SUMS)
        axis = name or "device"
        at = [(int(own.steps[axis]["sum"]), float(own["sum"])) for own in found]
        assert [x for i, x in at if i == 3] == THREE_SUMS[:, 3].tolist()
        assert len(at) == 24
        assert np.array_equal(jax.pmap(lox.spool(logs_its_sum))(X)[1]["sum"], SUMS)


def test_a_callback_that_raises_does_not_hang_the_other_devices():
    def f(x):
        lox.log({"sum": x.sum()})
        return lax.psum(x, "x")

    with pytest.raises(RuntimeError, match=r"`lox\.tap` raised ZeroDivisionError"):
        lox.tap(mapped(f, out_specs=P()), lambda logs: 1 // 0)(X)


def test_progress_is_told_by_one_device(monkeypatch):
    moves = []

    class Noted:
        def __init__(self, title, total):
            moves.append(total)

        begin = advance = end = lambda self, number: moves.append(number)

    monkeypatch.setattr("lox._stream.progress.Bar", Noted)
    # Several times: the end came before the rest in one of ten.
    for _ in range(8):
        moves.clear()
        jax.block_until_ready(lox.nolog(lox.progress(mapped(logs_three_sums)))(X))
        assert moves == [3, 0, 1, 1, 1, 0]


def test_a_step_of_ones_own_with_the_name_of_an_axis_wins():
    def f(x):
        lox.log({"sum": x.sum()}, x=7)
        return x

    _, found = heard(lambda listen: jax.jit(lox.tap(mapped(f), listen)), X)
    assert [int(own.x["sum"]) for own in found] == [7] * 8
