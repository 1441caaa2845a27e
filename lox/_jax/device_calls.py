"""Which devices run an equation that calls the host, and how each of them calls.

A program over many devices has one equation for a host call, but every device runs it. What
has to happen depends on how the program came to many devices:

    one device              it calls
    partitioned by `jit`    JAX cannot divide a host call, and the value is the same for all
                            devices. So the call is mapped over them, each knows its number,
                            and the caller decides which of them call (`lower_per_device`)
    inside a `shard_map`    each device has its own values, and calls. Along axes that are
                            not manual, the program is partitioned again, and only the
                            first device calls (`once_per_device`)
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import dispatch as _dispatch
from jax.core import AbstractValue, ShapedArray
from jax.interpreters import mlir
from jax.interpreters.mlir import LoweringRuleContext
from jax.sharding import PartitionSpec as P

from lox._jax.extend import Primitive
from lox._jax.sharding import manual_axes

Device = Any  # `jax.Device` is made at run time
AxisContext = Any  # one of three private classes, by how a program is divided


def require_devices(primitive: Primitive) -> None:
    """Let the lowering of `primitive` know the devices that the program will run on."""
    _dispatch.prim_requires_devices_during_lowering.add(primitive)


def partitioned_devices(context: LoweringRuleContext) -> Sequence[Device]:
    """Return the devices of a partitioned program; none if it is not partitioned."""
    axes: AxisContext = context.module_context.axis_context
    is_divided = getattr(axes, "num_devices", 1) != 1
    return axes.device_assignment if is_divided else ()


def devices_of_shard_map(context: LoweringRuleContext) -> Sequence[Device]:
    """Return the devices that the `shard_map` around an equation may be over."""
    axes: AxisContext = context.module_context.axis_context
    if isinstance(axes.mesh, jax.sharding.Mesh):
        return list(axes.mesh.devices.flat)
    # The mesh is abstract, and could be over the devices of any process.
    return jax.devices()


def runs_on_one_device(context: LoweringRuleContext) -> bool:
    """Tell whether the program that is being lowered runs on one device."""
    axes: AxisContext = context.module_context.axis_context
    return getattr(axes, "num_devices", 1) == 1 and (
        not hasattr(axes, "mesh") or axes.mesh.size == 1
    )


def lower_per_device(
    fun: Callable, context: LoweringRuleContext, *args: object, sender: int | None = None
) -> object:
    """Lower `fun(number, *args)` so that each device of a partitioned program calls it.

    Args:
        fun: Takes the number of the device, or None if there is only one, and whole
            arrays: an array that is spread over the devices is gathered first. The
            outputs are assumed to be equal on all devices. Nothing checks this, so no
            device waits for another.
        context: Of the equation that is being lowered.
        *args: The inputs of that equation.
        sender: If given, all devices wait for what this one returns, and take it.
    """
    devices = partitioned_devices(context)
    if not devices:
        alone = ft.partial(fun, None)
        return mlir.lower_fun(alone, multiple_results=True)(context, *args)
    axes: AxisContext = context.module_context.axis_context
    mesh = _mesh_over(devices, axes.abstract_mesh)

    def numbered(*args):
        number = jax.lax.axis_index(mesh.axis_names)
        outs = fun(number, *args)
        if sender is None:
            return outs
        # A sum in which all terms but one are zero hands the one to all devices.
        sent = [jnp.where(number == sender, x, jnp.zeros_like(x)) for x in outs]
        return jax.lax.psum(sent, mesh.axis_names)

    # Inputs and outputs are whole on every device: `P()` mentions no axis of the mesh.
    mapped = jax.shard_map(
        numbered, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
    )

    def on_each_device(*args):
        # Without the barrier, XLA would gather the program's own array for good.
        copies = [jax.lax.optimization_barrier(x) for x in args]
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return mapped(*copies)

    # The types must not mention their shardings, which are over another mesh.
    ins, outs = map(_unsharded, (context.avals_in, context.avals_out))
    context = context.replace(avals_in=ins, avals_out=outs)
    return mlir.lower_fun(on_each_device, multiple_results=True)(context, *args)


def _unsharded(avals: Sequence[AbstractValue]) -> list[ShapedArray]:
    avals = cast(Sequence[ShapedArray], avals)
    return [ShapedArray(aval.shape, aval.dtype) for aval in avals]


def _mesh_over(
    devices: Sequence[Device], like: jax.sharding.AbstractMesh | None
) -> jax.sharding.Mesh:
    """Return a mesh shaped like the program's own, which its shardings agree with."""
    if like is None or like.size != len(devices):
        return jax.sharding.Mesh(np.array(devices), ("devices",))
    sizes = tuple(like.shape.values())
    return jax.sharding.Mesh(np.array(devices).reshape(sizes), like.axis_names)


def once_per_device(fun: Callable) -> Callable:
    """Let a function inside a `shard_map` run once along the axes that are not manual.

    Along those the program is partitioned, and JAX cannot partition a host call. So it is
    mapped over them, too, and only the first device along each of them calls `fun`. The
    function takes a token and other arrays, and returns `[token]`.
    """
    mesh, manual = jax.sharding.get_abstract_mesh(), manual_axes()
    axes = [axis for axis in mesh.axis_names if manual and axis not in manual]
    if not axes:
        return fun

    def run(indices, token, *args):
        is_first = sum(index[0] for index in indices) == 0
        return jax.lax.cond(is_first, lambda: fun(token, *args), lambda: [token])

    # Each device gets its part of these, the number that it has along an axis.
    indices = [np.arange(mesh.shape[axis], dtype=np.int32) for axis in axes]
    return lambda *args: jax.shard_map(
        run,
        in_specs=([P(axis) for axis in axes], *[P()] * len(args)),
        out_specs=P(),
        axis_names=set(axes),
        check_vma=False,
    )(indices, *args)
