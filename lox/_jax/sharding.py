"""Programs for many devices: meshes, varying axes, one host call per device."""

import contextlib
import contextvars
import functools as ft
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import (
    config as _config,
    dispatch as _dispatch,
    distributed as _distributed,
)
from jax.core import AbstractValue, ShapedArray
from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive, jaxpr_as_fun
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P

from lox._jax import patches
from lox._jax.equations import close
from lox._jax.tracing import setting, staged_program


def require_devices(primitive: Primitive) -> None:
    """Let the lowering of `primitive` know the devices that the program will run on."""
    _dispatch.prim_requires_devices_during_lowering.add(primitive)


def partitioned_devices(context: Any) -> Sequence[Any]:
    """The devices that JAX divides an equation among as it likes, if it does."""
    axes = context.module_context.axis_context
    is_divided = getattr(axes, "num_devices", 1) != 1
    return axes.device_assignment if is_divided else ()


def devices_of_shard_map(context: Any) -> Sequence[Any]:
    """The devices that the `shard_map` around an equation may be over."""
    mesh = context.module_context.axis_context.mesh
    if isinstance(mesh, jax.sharding.Mesh):
        return list(mesh.devices.flat)
    # It is abstract, and those of any process may be meant.
    return jax.devices()


def runs_on_one_device(context: Any) -> bool:
    """Whether the program that is being lowered runs on one device."""
    axes = context.module_context.axis_context
    return getattr(axes, "num_devices", 1) == 1 and (
        not hasattr(axes, "mesh") or axes.mesh.size == 1
    )


def lower_per_device(
    fun: Callable, context: Any, *args: Any, sender: int | None = None
) -> Any:
    """Lower `fun(number, *args)`; each device of a partitioned program calls it.

    It gets the number of the device, or None if there is only one, and whole arrays: a
    value that is not whole on each device is gathered. What it returns is taken to be the
    same on all of them, and nobody compares it: this way no device waits for another. With
    a `sender` all wait for what that device returns.
    """
    devices = partitioned_devices(context)
    if not devices:
        alone = ft.partial(fun, None)
        return mlir.lower_fun(alone, multiple_results=True)(context, *args)
    mesh = _mesh_over(devices, context.module_context.axis_context.abstract_mesh)

    def numbered(*args):
        number = jax.lax.axis_index(mesh.axis_names)
        outs = fun(number, *args)
        if sender is None:
            return outs
        sent = [jnp.where(number == sender, x, jnp.zeros_like(x)) for x in outs]
        return jax.lax.psum(sent, mesh.axis_names)

    each = jax.shard_map(numbered, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)

    def on_each(*args):
        # The gathered copy is another value: the program's own keeps its sharding.
        copies = [jax.lax.optimization_barrier(x) for x in args]
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            return each(*copies)

    ins, outs = (
        [ShapedArray(aval.shape, aval.dtype) for aval in avals]
        for avals in (context.avals_in, context.avals_out)
    )
    # Without the shardings that they have, which are over another mesh.
    context = context.replace(avals_in=ins, avals_out=outs)
    return mlir.lower_fun(on_each, multiple_results=True)(context, *args)


def _mesh_over(devices: Sequence[Any], form: Any) -> jax.sharding.Mesh:
    """A mesh of the program's own form: another would get in the way of its shardings."""
    if form is None or form.size != len(devices):
        return jax.sharding.Mesh(np.array(devices), ("devices",))
    sizes = tuple(form.shape.values())
    return jax.sharding.Mesh(np.array(devices).reshape(sizes), form.axis_names)


def explicit(x: Any) -> tuple[Any, list]:
    """The mesh that an array is explicitly sharded over, and how each axis is. Or None."""
    typed = x if isinstance(x, jax.ShapeDtypeStruct | np.ndarray) else jax.typeof(x)
    sharding: Any = getattr(typed, "sharding", None)
    axes = list(getattr(sharding, "spec", ()))
    if not any(axis is not None for axis in axes):
        return None, [None] * np.ndim(x)
    return sharding.mesh, axes + [None] * (np.ndim(x) - len(axes))


def abstract_array(
    shape: tuple[int, ...], dtype: Any, like: Any, axes: Sequence[int | None]
) -> jax.ShapeDtypeStruct:
    """An abstract array; `axes` says as which axis of `like` each one is sharded."""
    mesh, own = explicit(like)
    if mesh is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    spec = P(*(None if i is None else own[i] for i in axes))
    return jax.ShapeDtypeStruct(
        shape, dtype, sharding=jax.sharding.NamedSharding(mesh, spec)
    )


def abstract_like(x: Any) -> jax.ShapeDtypeStruct:
    """An array without its values, explicitly sharded as it is.

    Which devices it differs on is left out: that is not for another place of the program.
    """
    return abstract_array(x.shape, x.dtype, x, range(x.ndim))


def shard_like(x: Any, like: Any) -> Any:
    """The array, explicitly sharded as another one is."""
    (mesh, axes), (other, own) = explicit(like), explicit(x)
    if axes == own or (mesh or other) is None:
        return x
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh or other, P(*axes)))


def is_addressable(x: Any) -> bool:
    """Whether this process has all of an array, and no other has a part in it."""
    return not isinstance(x, jax.Array) or x.is_fully_addressable


def is_first_process(arrays: Sequence[jax.Array]) -> bool:
    """Whether this is the first of the processes that have a part in arrays."""
    devices = (device for x in arrays for device in x.sharding.device_set)
    return jax.process_index() == min(device.process_index for device in devices)


def once_per_device(fun: Callable) -> Callable:
    """Run `fun`, inside of a `shard_map`, once along axes that it is not over.

    Otherwise JAX divides it along them as it likes, and cannot if it calls the host. The
    function takes and returns a token first, and other arrays.
    """
    mesh, manual = jax.sharding.get_abstract_mesh(), manual_axes()
    axes = [axis for axis in mesh.axis_names if manual and axis not in manual]
    if not axes:
        return fun

    def run(indices, token, *args):
        is_first = sum(index[0] for index in indices) == 0
        return jax.lax.cond(is_first, lambda: fun(token, *args), lambda: [token])

    indices = [np.arange(mesh.shape[axis], dtype=np.int32) for axis in axes]
    return lambda *args: jax.shard_map(
        run,
        in_specs=([P(axis) for axis in axes], *[P()] * len(args)),
        out_specs=P(),
        axis_names=set(axes),
        check_vma=False,
    )(indices, *args)


def mapped_axes(eqn: JaxprEqn) -> dict[str, int]:
    """The axes of a mesh that a `shard_map` is over, in the order of the mesh."""
    name = "manual_axes" if "manual_axes" in eqn.params else "newly_manual_axes"
    sizes, mapped = eqn.params["mesh"].shape, eqn.params[name]
    return {axis: size for axis, size in sizes.items() if axis in mapped}


def device_counts(eqn: JaxprEqn) -> tuple[int, ...]:
    """On how many devices a `shard_map` runs. Empty: it is something else."""
    if eqn.primitive.name != "shard_map":
        return ()
    return (math.prod(mapped_axes(eqn).values()),)


def shard_map(fun: Callable, eqn: JaxprEqn, in_specs: Any, out_specs: Any) -> Callable:
    """The same `shard_map` of another function."""
    mapped = jax.shard_map(
        fun,
        mesh=eqn.params["mesh"],
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(mapped_axes(eqn)),
        check_vma=eqn.params["check_vma"],
    )
    # Otherwise JAX would run, and compile, each operation by itself.
    return jax.jit(mapped) if staged_program() is None else mapped


def is_around_shard_map(axis: Any) -> bool:
    """Whether the `vmap` over this axis is around the `shard_map` that we are in."""
    return any(axis is other for other in _vmaps_around.get())


_vmaps_around = contextvars.ContextVar[tuple]("vmaps_around", default=())


@patches.implements("shard_map under vmap")
def _batch_shard_map(original: Callable, trace: Any, *args: Any, **params: Any) -> Any:
    with setting(_vmaps_around, (*_vmaps_around.get(), trace.axis_data)):
        return original(trace, *args, **params)


def manual_axes() -> list[str]:
    """The axes of the mesh that the `shard_map`s around are over, in its order."""
    mesh = jax.sharding.get_abstract_mesh()
    manual = getattr(mesh, "manual_axes", ())
    return [axis for axis in mesh.axis_names if axis in manual]


def coordinates() -> dict[str, jax.Array]:
    """Inside of a `shard_map`, where in the mesh the device is that runs this."""
    return {_axis_name(axis): jax.lax.axis_index(axis) for axis in manual_axes()}


def _axis_name(axis: Any) -> str:
    # A `pmap` without a name of its own has one of JAX's.
    is_own = str(axis).isidentifier() and not str(axis).startswith("_")
    return str(axis) if is_own else "device"


def pmap_as_shard_map(eqn: JaxprEqn, *args: Any) -> ClosedJaxpr:
    """The program of a `pmap` with the `shard_map` that newer versions make of it."""
    params = eqn.params
    with _config.pmap_shmap_merge(True):  # pyright: ignore[reportAttributeAccessIssue]
        mapped = jax.pmap(
            jaxpr_as_fun(close(params["call_jaxpr"])),
            axis_name=params["axis_name"],
            in_axes=params["in_axes"],
            out_axes=list(params["out_axes"]),
            devices=params["devices"],
            backend=params["backend"],
        )
        return jax.make_jaxpr(mapped)(*args)


def varying_axes(x: Any) -> frozenset[str]:
    """The axes of a mesh along which an array may differ from device to device."""
    aval = x if isinstance(x, AbstractValue) else jax.typeof(x)
    kind = getattr(aval, "mat", None)  # JAX >= 0.9
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


def make_varying(x: Any, axes: frozenset[str] | None = None) -> Any:
    """The same, as something that may differ along axes. None: all that there are.

    JAX asks for it where both sides of a `cond` or of a carry must be alike.
    """
    if not _config._check_vma.value:
        return x
    wanted = frozenset(manual_axes()) if axes is None else axes
    missing = tuple(wanted - varying_axes(x))
    if not missing:
        return x
    if hasattr(jax.lax, "pcast"):  # JAX >= 0.8
        return jax.lax.pcast(x, missing, to="varying")
    return jax.lax.pvary(x, missing)  # pyright: ignore[reportAttributeAccessIssue]


def agree_on(name: str, value: str) -> str:
    """The value that was the first to be given by one of the processes under this name."""
    client = _distributed.global_state.client
    if client is None:
        return value
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # it is there already
        client.key_value_set(name, value)
    return client.blocking_key_value_get(name, 10_000)
