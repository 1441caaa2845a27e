"""The laws of lox over the catalogue, each program on three devices at once."""

import functools as ft
from collections.abc import Callable

import jax
import numpy as np
import pytest
from delivered import heard
from jax.sharding import AxisType, Mesh, PartitionSpec as P
from programs import PROGRAMS, Program
from truth import assert_logs, assert_trees_close, bare, records_of_each

import lox

pytestmark = pytest.mark.usefixtures("quick_compilation")
every = pytest.mark.parametrize("p", PROGRAMS, ids=lambda p: p.name)
checked = pytest.mark.parametrize("check_vma", [True, False])


def on_three_devices(fun: Callable, check_vma: bool = True) -> Callable:
    """`fun` of three examples, each on a device of its own."""
    mesh = Mesh(np.array(jax.devices()[:3]), "i", axis_types=(AxisType.Auto,))

    def one(x):
        return jax.tree.map(lambda y: y[None], fun(x[0]))

    spec = P("i")
    return jax.shard_map(
        one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma
    )


@checked
@every
def test_spool_gives_what_each_device_logs(p: Program, check_vma: bool):
    mapped = on_three_devices(p.fun, check_vma)

    out, logs = jax.jit(lox.spool(mapped))(p.xs)

    assert_logs(logs, records_of_each(p), natural=p.is_natural)
    assert_trees_close(out, jax.vmap(bare(p))(p.xs))
