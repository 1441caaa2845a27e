"""`shard_map`: the laws over the catalogue, and what is special to several devices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from delivered import assert_delivered, heard
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from programs import PROGRAMS, Program
from selection import thin
from truth import (
    Record,
    assert_logs,
    assert_trees_close,
    bare,
    records_of_each,
    run_each,
    total,
    total_of,
)

import lox

pytestmark = pytest.mark.usefixtures("quick_compilation")

# JAX alone cannot type these as to which devices their values differ on, or gives them
# another meaning: the gradient of what is the same on all devices is a sum over them.
UNTYPED = {
    *("custom_root", "custom_linear_solve", "vjp", "linearize", "scatter_add", "training"),
    *("grad_of_a_scan_of_what_does_not_change", "vmap_with_a_named_axis"),
    "actor_and_critic",
}
TYPED = [p for p in PROGRAMS if p.name not in UNTYPED]
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
    return jax.shard_map(
        one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma
    )


# The laws, against an eager run of each shard -------------------------------------------


@over(TYPED)
def test_spool_gives_what_each_device_logs(p: Program):
    out, logs = jax.jit(lox.spool(on_three_devices(p.fun)))(p.xs)

    assert_logs(logs, records_of_each(p), natural=p.is_natural)
    assert_trees_close(out, jax.vmap(bare(p))(p.xs))


@over(thin(PROGRAMS, 4))
def test_it_does_so_where_jax_does_not_know_what_differs(p: Program):
    out, logs = lox.spool(on_three_devices(p.fun, check_vma=False))(p.xs)

    assert_logs(logs, records_of_each(p), natural=p.is_natural)
    assert_trees_close(out, jax.vmap(bare(p))(p.xs))


@over(thin(TYPED, 3, 1))
@pytest.mark.parametrize("batch", [None, 2])
def test_tap_calls_for_each_device_in_its_order(p: Program, batch):
    mapped = on_three_devices(p.fun)

    out, found = heard(lambda listen: jax.jit(lox.tap(mapped, listen, batch=batch)), p.xs)

    assert_trees_close(out, jax.vmap(bare(p))(p.xs))
    assert_each_device_delivered(found, records_of_each(p), by_key=batch is not None)


@over(thin(DIFFERENTIABLE, 4))
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
    assert_logs(primal, records_of_each(p), natural=p.is_natural)


@over(thin(TYPED, 8, 3))
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
