"""Programs for many devices: how arrays are sharded, and along which axes they vary.

A program can run on many devices in two ways, and both can be around a log at once:

    partitioned   `jit` with sharded arrays. One program in terms of whole arrays, which JAX
                  divides among the devices as it likes. A log holds the whole array.
    mapped        `shard_map`. The program says what each device does with its part, over
                  some axes of a mesh, called manual. A log holds one device's part, and its
                  record says by `coordinates` which.

In a `shard_map` with `check_vma=True`, the type of an array says along which manual axes it
varies from device to device, and JAX insists that both sides of a `cond` or of a loop agree
on it (`make_varying`). With explicit sharding, the type of an array says how its axes are
sharded, and arrays that meet in an operation have to agree on that (`shard_like`).

How each device calls the host is in `device_calls.py`.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import (
    config as _config,
    distributed as _distributed,
)
from jax._src.core import get_axis_env, pvary_p
from jax.core import AbstractValue, ShapedArray
from jax.interpreters import batching, mlir
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike, DTypeLike

from lox._jax import patches
from lox._jax.equations import close
from lox._jax.extend import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    jaxpr_as_fun,
)
from lox._jax.tracing import setting, staged_program
from lox._jax.types import AxisData, PyTree
from lox_host.frozen import frozen

Specs = PyTree  # of `PartitionSpec`s
Shaped = jax.Array | np.ndarray | jax.ShapeDtypeStruct


# Explicit shardings --------------------------------------------------------------------


def _explicit_sharding(
    x: Shaped,
) -> tuple[jax.sharding.Mesh | jax.sharding.AbstractMesh | None, list]:
    """Return the mesh of an explicitly sharded array, or None, and how each axis is."""
    # The sharding is part of the type only where the mesh has explicit axes.
    typed = x if isinstance(x, jax.ShapeDtypeStruct | np.ndarray) else jax.typeof(x)
    sharding: Any = getattr(typed, "sharding", None)
    # A spec may be shorter than the shape: the rest is not sharded.
    axes = list(getattr(sharding, "spec", ()))
    if not any(axis is not None for axis in axes):
        return None, [None] * np.ndim(x)
    return sharding.mesh, axes + [None] * (np.ndim(x) - len(axes))


def is_explicitly_sharded(atom: Var | Literal) -> bool:
    """Return whether the type of a variable says how its axes are sharded."""
    sharding: Any = getattr(atom.aval, "sharding", None)
    return any(axis is not None for axis in getattr(sharding, "spec", ()))


def abstract_array(
    shape: tuple[int, ...], dtype: DTypeLike, like: Shaped, axes: Sequence[int | None]
) -> jax.ShapeDtypeStruct:
    """Return the type of an array; `axes[i]` is the axis of `like` that axis i is like.

    It says nothing of varying axes: those may be different in another part of the program,
    which the type is for.
    """
    mesh, sharded = _explicit_sharding(like)
    if mesh is None:
        return jax.ShapeDtypeStruct(shape, dtype)
    spec = P(*(None if i is None else sharded[i] for i in axes))
    return jax.ShapeDtypeStruct(
        shape, dtype, sharding=jax.sharding.NamedSharding(mesh, spec)
    )


def shard_like(x: jax.Array, like: Shaped) -> jax.Array:
    """Return the array with the explicit sharding of another one."""
    (mesh, wanted), (old_mesh, axes) = _explicit_sharding(like), _explicit_sharding(x)
    # To take a sharding away, the mesh that it is over must be known, too.
    mesh = mesh or old_mesh
    if axes == wanted or mesh is None:
        return x
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh, P(*wanted)))


# shard_map ----------------------------------------------------------------------------


def mapped_axes(eqn: JaxprEqn) -> dict[str, int]:
    """Return the axes that a `shard_map` is over and their sizes, in the mesh's order.

    Without those that a `vmap` around, which is still to come, splits its examples over.
    """
    sizes, mapped = eqn.params["mesh"].shape, _mapped_names(eqn)
    mapped = mapped - get_axis_env().spmd_axis_names
    return {axis: size for axis, size in sizes.items() if axis in mapped}


def _mapped_names(eqn: JaxprEqn) -> frozenset[str]:
    name = "manual_axes" if "manual_axes" in eqn.params else "newly_manual_axes"
    return frozenset(eqn.params[name])


@frozen
class Division:
    """How an array outside a `shard_map` is divided among its devices.

        ([time,] *outer, devices, *inner, ...)

    Each device has a row along the axis of devices. A `vmap` around with `spmd_axis_name`
    splits its examples over some axes of the mesh. The other ones make the axis of devices.

    Attributes:
        outer: For each axis of a `vmap` around, the mesh axes that it is split over.
        first: The position of the first of them.
        spread: Whether the array has an axis of devices.
    """

    outer: tuple[tuple[str, ...], ...] = ()
    first: int = 0
    spread: bool = False

    @property
    def axis(self) -> int:
        """The position of the axis of devices. -1: there is none."""
        return self.first + len(self.outer) if self.spread else -1

    def spec(self, axes: dict[str, int]) -> P:
        """Return the spec of the array in a `shard_map` over these axes."""
        split = [names or None for names in self.outer]
        devices = [tuple(self.unsplit(axes))] if self.spread else []
        return P(*[None] * self.first, *split, *devices)

    def unsplit(self, axes: dict[str, int]) -> dict[str, int]:
        """Return the axes that no examples are split over."""
        return {
            name: n for name, n in axes.items() if not any(name in s for s in self.outer)
        }

    def batch(self, inside: tuple[int, ...], axes: dict[str, int]) -> tuple[int, ...]:
        """Return the sizes of the batch axes outside, given those on one device."""
        n = len(self.outer)
        # On a mesh (a: 2, b: 4), with 3 examples split over `a`, and 5 inside:
        #     inside (3, 5)    outside (3 * 2, 4, 5)
        counts = [math.prod(axes[name] for name in names) for names in self.outer]
        outer = [size * k for size, k in zip(inside[:n], counts, strict=True)]
        devices = [math.prod(self.unsplit(axes).values())] if self.spread else []
        return *outer, *devices, *inside[n:]


def batch_outside(
    eqn: JaxprEqn, batch: tuple[int, ...], outer: tuple[tuple[str, ...], ...]
) -> tuple[int, ...]:
    """Return the batch axes that rows have outside an equation, given those inside.

    Only a `shard_map` changes them, where the rows of all devices are side by side.
    """
    if eqn.primitive.name != "shard_map":
        return batch
    return Division(outer, spread=True).batch(batch, mapped_axes(eqn))


def shard_map(fun: Callable, eqn: JaxprEqn, in_specs: Specs, out_specs: Specs) -> Callable:
    """Map another function as a `shard_map` equation maps its own."""
    mapped = jax.shard_map(
        fun,
        mesh=eqn.params["mesh"],
        in_specs=in_specs,
        out_specs=out_specs,
        axis_names=set(_mapped_names(eqn)),
        check_vma=eqn.params["check_vma"],
    )
    # Outside of `jit`, JAX would compile each operation by itself.
    return jax.jit(mapped) if staged_program() is None else mapped


def split_around_shard_map(axis: AxisData) -> tuple[str, ...] | None:
    """Return the mesh axes that a `vmap` around the innermost `shard_map` is split over.

    None: it is not around a `shard_map`. JAX replaces an axis that is split by another one,
    which holds the examples of one device.
    """
    # An axis that is split is known by its name: JAX has made another object of it.
    for other in _vmaps_around.get():
        if axis is other and not axis.spmd_name:
            return ()
        if axis.spmd_name and axis.spmd_name == other.spmd_name:
            return tuple(axis.spmd_name)
    return None


_vmaps_around = contextvars.ContextVar[tuple]("vmaps_around", default=())


@patches.implements("shard_map under vmap")
def _batch_shard_map(
    original: Callable, trace: Any, *args: object, **params: object
) -> object:
    is_split = bool(trace.axis_data.spmd_name)
    with (
        setting(_vmaps_around, (*_vmaps_around.get(), trace.axis_data)),
        splitting_examples() if is_split else contextlib.nullcontext(),
    ):
        return original(trace, *args, **params)


def splitting_examples() -> contextlib.AbstractContextManager:
    """Let values vary in here along axes that they may vary along already.

    Where a `vmap` with `spmd_axis_name` is around a `shard_map`, the types in the programs
    that JAX has batched lack the axes that the examples are split over (in JAX 0.12, too).
    So JAX adds equations that let values vary along them, and these fail if the program is
    batched or traced again, now with the right types.
    """
    return setting(_may_vary_already, True)


_may_vary_already = contextvars.ContextVar("may_vary_already", default=False)


@patches.implements("pvary under vmap")
def _vary(
    bind: Callable, *args: ArrayLike, axes: Sequence[str], **params: object
) -> ArrayLike | list[ArrayLike]:
    if not _may_vary_already.get():
        return bind(*args, axes=axes, **params)
    outs = []
    for x in args:
        missing = tuple(axis for axis in axes if axis not in varying_axes(x))
        outs.append(bind(x, axes=missing, **params) if missing else x)
    if not pvary_p.multiple_results:
        return outs[0]
    return [out[0] if isinstance(out, list) else out for out in outs]  # JAX 0.7


def manual_axes() -> list[str]:
    """Return the axes that the `shard_map`s around are over, in the mesh's order."""
    mesh = jax.sharding.get_abstract_mesh()
    manual = getattr(mesh, "manual_axes", ())
    return [axis for axis in mesh.axis_names if axis in manual]


def coordinates() -> dict[str, jax.Array]:
    """Return the position in the mesh of the device that runs this `shard_map`."""
    found = {axis: jax.lax.axis_index(axis) for axis in manual_axes()}
    # Nothing varies along `spmd_axis_names` yet, and these indices must not be the first.
    split = get_axis_env().spmd_axis_names
    return {
        _axis_name(axis): make_unvarying(index) if axis in split else index
        for axis, index in found.items()
    }


def _axis_name(axis: Hashable) -> str:
    # JAX makes up a name for the axis of a `pmap` that was given none.
    is_given = str(axis).isidentifier() and not str(axis).startswith("_")
    return str(axis) if is_given else "device"


def pmap_as_shard_map(eqn: JaxprEqn, *args: ArrayLike) -> ClosedJaxpr:
    """Return the program of a `pmap` as newer versions trace it, with a `shard_map`."""
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


def varying_axes(x: ArrayLike | AbstractValue) -> frozenset[str]:
    """Return the manual axes along which an array may vary from device to device."""
    aval = x if isinstance(x, AbstractValue) else jax.typeof(x)
    kind = getattr(aval, "mat", None)  # JAX >= 0.9
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


def vary_like(aval: ShapedArray, x: ArrayLike) -> ShapedArray:
    """Return a type that varies along the axes that `x` varies along, too.

    The types in a loop that JAX has batched may lack some, see `splitting_examples`.
    """
    axes = varying_axes(aval) | varying_axes(x)
    if axes == varying_axes(aval):
        return aval
    if hasattr(aval, "mat"):  # JAX >= 0.9
        return aval.update(manual_axis_type=type(aval.mat)(varying=axes))
    return aval.update(vma=axes)


def make_varying(x: ArrayLike, axes: frozenset[str] | None = None) -> ArrayLike:
    """Return the array with a type that varies along these axes, or all manual ones."""
    if not _config._check_vma.value:
        return x
    if axes is None:
        # A `vmap` around that is still to come makes it vary along `spmd_axis_names`.
        wanted = frozenset(manual_axes()) - get_axis_env().spmd_axis_names
    else:
        wanted = axes
    missing = tuple(wanted - varying_axes(x))
    if not missing:
        return x
    if hasattr(jax.lax, "pcast"):  # JAX >= 0.8
        return jax.lax.pcast(x, missing, to="varying")
    return jax.lax.pvary(x, missing)  # pyright: ignore[reportAttributeAccessIssue]


# Processes ----------------------------------------------------------------------------


def is_addressable(x: object) -> bool:
    """Tell whether this process has all of an array."""
    return not isinstance(x, jax.Array) or x.is_fully_addressable


def is_first_process(arrays: Sequence[jax.Array]) -> bool:
    """Tell whether this is the first of the processes that have a part in the arrays."""
    # An array may be on the devices of some processes only.
    devices = (device for x in arrays for device in x.sharding.device_set)
    return jax.process_index() == min(device.process_index for device in devices)


def agree_on(name: str, value: str) -> str:
    """Return the first value that any of the processes proposed under this name."""
    # One process alone agrees with itself.
    client = _distributed.global_state.client
    if client is None:
        return value
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # another process was first
        client.key_value_set(name, value)
    return client.blocking_key_value_get(name, 10_000)


def make_unvarying(x: ArrayLike) -> jax.Array:
    """Return a value as one that JAX takes to be the same on all devices."""
    return _unvarying_p.bind(x)


_unvarying_p = Primitive("lox_same")
_unvarying_p.def_impl(lambda x: x)
_unvarying_p.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
batching.defvectorized(_unvarying_p)
mlir.register_lowering(_unvarying_p, lambda context, x: [x])
