"""Everything that knows JAX's private parts or asks for its version."""

import contextlib
import contextvars
import ctypes
import functools as ft
import itertools as it
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.experimental
import jax.ffi
import jax.numpy as jnp
import numpy as np
from jax._src import (
    ad_util as _ad_util,
    config as _config,
    core as _core,
    custom_batching as _custom_batching,
    custom_derivatives as _derivatives,
    dispatch as _dispatch,
    distributed as _distributed,
    linear_util as _linear_util,
    literals as _literals,
    mesh as _mesh,
    source_info_util as _source_info,
)
from jax._src.debugging import DebugEffect as _DebugEffect
from jax._src.interpreters import batching as _batching, partial_eval as _pe
from jax._src.sharding_impls import UnspecifiedValue
from jax.core import eval_jaxpr
from jax.experimental.buffer_callback import buffer_callback
from jax.experimental.key_reuse import _core as _key_reuse
from jax.experimental.layout import Format
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Primitive, jaxpr_as_fun
from jax.interpreters import batching, mlir
from jax.sharding import PartitionSpec as P

# Messages and profiles then name the user's line that logged, not ours.
_source_info.register_exclusion(os.path.dirname(os.path.dirname(__file__)))

Jitted = type(jax.jit(lambda: None))

# Moved from `jax.experimental` in JAX 0.9.
_enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # pyright: ignore[reportAttributeAccessIssue]


class RecordEffect(_DebugEffect):
    """Keeps an equation without outputs alive, in order, through every transformation.

    JAX asks `isinstance` to decide which effects a transformation may carry, so a
    subclass of the debug effect is allowed wherever `jax.debug.callback` is.
    """

    def __init__(self, name: str):
        self.name = name

    def __str__(self):
        return self.name


def leaves_keys_unused(primitive: Primitive) -> None:
    """Tell `jax.debug_key_reuse` that to log a PRNG key is not to use it up."""
    _key_reuse.key_reuse_signatures[primitive] = _key_reuse.KeyReuseSignature()


def primitive_named(name: str) -> Primitive:
    """The primitive called `name`; where it is importable from moves between releases."""
    return next(p for p in batching.fancy_primitive_batchers if p.name == name)


def close(jaxpr: Any) -> ClosedJaxpr:
    """Give a jaxpr that stands open in an equation (`remat`) its empty constants."""
    return jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ())


def without_consts(jaxpr: ClosedJaxpr) -> tuple[Any, Sequence[Any]]:
    """An open jaxpr that takes its constants as first arguments, and the constants."""
    return _pe.convert_constvars_jaxpr(jaxpr.jaxpr), jaxpr.consts


def bind(eqn: JaxprEqn, *args) -> list:
    """Run `eqn` unchanged."""
    return evaluate(_empty, [eqn], list(eqn.outvars), dict(_bindings(eqn, args)))


def _bindings(eqn: JaxprEqn, args) -> Iterator[tuple]:
    for atom, arg in zip(eqn.invars, args, strict=True):
        if not isinstance(atom, Literal):
            yield atom, arg


def evaluate(jaxpr: Any, eqns: list[JaxprEqn], outvars: list, env: dict) -> list:
    """Evaluate some equations of `jaxpr` as a small program of their own.

    JAX then takes care of bind parameters, contexts, name stacks and source lines.
    """
    defined, invars = set(), {}
    for eqn in eqns:
        for atom in eqn.invars:
            if not isinstance(atom, Literal) and atom not in defined:
                invars[atom] = None
        defined.update(eqn.outvars)
    trace = _core.trace_ctx.trace
    may_be_high = jaxpr is _empty or jaxpr.is_high
    is_high = may_be_high and any(map(_is_high, eqns))
    if not is_high and _can_restage(trace, eqns, invars, env):
        return _restage(trace, eqns, outvars, {v: env[v] for v in invars})
    small = jaxpr.replace(
        constvars=[],
        invars=list(invars),
        outvars=outvars,
        eqns=eqns,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return eval_jaxpr(small, (), *[env[v] for v in invars])


def _can_restage(trace: Any, eqns: list[JaxprEqn], invars, env: dict) -> bool:
    """Whether the equations would be traced into just what they are already."""
    return (
        isinstance(trace, _pe.DynamicJaxprTrace)
        and not getattr(trace, "requires_low", False)
        and not any(eqn.effects for eqn in eqns)
        and all(jax.typeof(env[v]) == v.aval for v in invars)
    )


def _is_high(eqn: JaxprEqn) -> bool:
    """Whether an equation is for `hijax`, or holds one that is."""
    return eqn.primitive.is_high(*(atom.aval for atom in eqn.invars), **eqn.params)


def _restage(trace: Any, eqns: list[JaxprEqn], outvars: list, env: dict) -> list:
    """Put the equations into a program that is being traced, as they are.

    This is how JAX inlines a jitted function; it takes a fifth of the time.
    """
    here = _source_info.current()
    tracers = {v: trace.to_jaxpr_tracer(x, source_info=here) for v, x in env.items()}
    for eqn in eqns:
        info = eqn.source_info
        info = info.replace(name_stack=here.name_stack + info.name_stack)
        args = [
            _pe.DynamicJaxprTracer(trace, atom.aval, atom, info)
            if isinstance(atom, Literal)
            else tracers[atom]
            for atom in eqn.invars
        ]
        avals = [v.aval for v in eqn.outvars]
        outs = trace.emit_eqn(
            args, avals, eqn.primitive, eqn.params, eqn.effects, info, eqn.ctx
        )
        tracers.update(zip(eqn.outvars, outs, strict=True))
    return [tracers[v] for v in outvars]


_empty = jax.make_jaxpr(lambda: ())().jaxpr


@contextlib.contextmanager
def at(eqn: JaxprEqn):
    """New equations belong to the source line, name stack and context of `eqn`."""
    info = eqn.source_info
    stack = _source_info.current_name_stack() + info.name_stack
    with _source_info.user_context(info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def where(eqn: JaxprEqn) -> str:
    """The user's line that made `eqn`."""
    return _source_info.summarize(eqn.source_info) or "a line that is not known"


def unbatched(x: Any, size: int, axis: int) -> Any:
    """What one example of a batch is, abstractly, its sharding included."""
    return _core.mapped_aval(size, axis, jax.typeof(x))


def constant(literal: Literal) -> Any:
    """The value of a literal, in its own dtype also where that is not enabled now."""
    dtype: Any = literal.aval.dtype  # pyright: ignore[reportAttributeAccessIssue]
    if jax.dtypes.canonicalize_dtype(dtype) == dtype:
        return np.asarray(literal.val, dtype)
    with _enable_x64(True):
        return jnp.asarray(literal.val, dtype)


def array(x: Any) -> Any:
    """The same, a constant of a program as NumPy's array and not one of JAX's own kind."""
    return np.asarray(x) if isinstance(x, _CONSTANTS) else x


_CONSTANTS = tuple(
    getattr(_literals, name)
    for name in ("LiteralArray", "TypedNdArray")  # JAX < 0.8, and since then
    if hasattr(_literals, name)
)


def scan_sizes(params: dict[str, Any]) -> tuple[int, int]:
    """The number of constants and of carried values of a `scan`."""
    if "ft_in" in params:  # JAX >= 0.11
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def scan_options(params: dict[str, Any]) -> dict[str, Any]:
    """The options that `jax.lax.scan` takes on this version, but for the length."""
    names = ("reverse", "unroll", "_split_transpose")
    return {name: params[name] for name in names if name in params}


@contextlib.contextmanager
def setting(variable: contextvars.ContextVar, value: Any):
    """Let a variable have a value in here."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def linear_as(eqn: JaxprEqn, args: Sequence[Any]) -> contextlib.AbstractContextManager:
    """Let the `scan` that is built here be linear in the same inputs as an equation.

    In old versions its transpose goes by what the equation says of this.
    """
    says = eqn.params.get("linear", ())
    pairs = zip(args, says, strict=False)
    return setting(_linear, [x for x, is_linear in pairs if is_linear])


_linear = contextvars.ContextVar[Sequence[Any]]("linear", default=())


def scan_params(args: Sequence[Any], params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a `scan` of these inputs."""
    linear = _linear.get()
    if not linear:
        return params
    pairs = zip(args, params["linear"], strict=True)
    said = tuple(is_linear or any(x is y for y in linear) for x, is_linear in pairs)
    return {**params, "linear": said}


def jit_options(fun: Any) -> dict[str, Any]:
    """How `fun` was jitted, as far as it concerns the arguments."""
    info = fun._jit_info
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
    options = dict(info.compiler_options_kvs)
    return {name: getattr(info, name) for name in names} | {
        "keep_unused": info.keep_unused,
        "compiler_options": options or None,
    }


def differentiating() -> bool:
    """Whether the operation that is about to be traced is being differentiated."""
    trace = _core.trace_ctx.trace
    return type(trace).__name__ in ("JVPTrace", "LinearizeTrace")


def used_inputs(jaxpr: ClosedJaxpr) -> list[bool]:
    """Of which inputs the outputs of a program depend."""
    return _pe.dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.out_avals))[1]


def wrap_bind(primitive: Primitive, wrapper: Callable) -> None:
    """Let `wrapper(bind, *args, **params)` stand before `primitive.bind`."""
    bind = primitive.bind

    def wrapped(*args, **params):
        return wrapper(bind, *args, **params)

    primitive.bind = wrapped


def wrap_partial_eval(primitive: Primitive, wrapper: Callable) -> None:
    """Let `wrapper(rule, unknown, eqn, ...)` stand before a rule for derivatives.

    It says how an equation is split into what is known and what is not, for `grad` and
    `checkpoint`; `unknown` are the inputs that are not.
    """
    rule = _pe.partial_eval_jaxpr_custom_rules[primitive]

    def original(unknown, eqn, saveable, instantiated):
        return rule(saveable, unknown, instantiated, eqn)

    def wrapped(saveable, unknown, instantiated, eqn):
        return wrapper(original, unknown, eqn, saveable, instantiated)

    _pe.partial_eval_jaxpr_custom_rules[primitive] = wrapped


def wrap_traced_partial_eval(
    primitive: Primitive, context: Callable, change: Callable[[dict], dict]
) -> None:
    """The same while tracing: be in `context()`, and change what is not known."""
    rule = _pe.custom_partial_eval_rules[primitive]
    process = _pe.JaxprTrace.default_process_primitive

    def wrapped(*args, **params):
        with context():
            return rule(*args, **params)

    def changed(self, given, tracers, params, **options):
        params = change(params) if given is primitive else params
        return process(self, given, tracers, params, **options)

    _pe.custom_partial_eval_rules[primitive] = wrapped
    _pe.JaxprTrace.default_process_primitive = changed  # pyright: ignore[reportAttributeAccessIssue]


def inline_calls(holds_records: Callable[[Any], bool]) -> None:
    """Run a `closed_call` that holds records as if it stood in the program itself.

    JAX makes such calls of a loop in a checkpointed block that is differentiated, and
    forgets them if nothing but their effects is wanted (JAX < 0.11).
    """

    def inline(bind, *args, **params):
        fun, *rest = [*params.get("subfuns", ()), *args, None]
        if not isinstance(fun, _linear_util.WrappedFun):  # JAX >= 0.11
            return bind(*args, **params)
        jaxpr, *_ = getattr(fun.f, "args", [None])
        if hasattr(jaxpr, "effects") and holds_records(jaxpr):
            return fun.call_wrapped(*rest[:-1])
        return bind(*args, **params)

    wrap_bind(_core.closed_call_p, inline)


def silence_rules(is_silent: Callable[[], bool], silent: Callable) -> None:
    """Let what is called in silence stay silent when its derivative rules run later."""

    def silenced(fun):
        @_linear_util.transformation2
        def quietly(fun, *args):
            with silent():
                return fun(*args)

        return quietly(fun)

    def bind_quietly(bind, *args, **params):
        if not is_silent():
            return bind(*args, **params)
        if "subfuns" in params:  # JAX >= 0.11
            fun, *rules = params["subfuns"]
            subfuns = (fun, *map(silenced, rules))
            return bind(*args, **{**params, "subfuns": subfuns})
        fun, *rest = args
        is_rule = [isinstance(x, _linear_util.WrappedFun) for x in rest]
        rest = [silenced(x) if rule else x for x, rule in zip(rest, is_rule, strict=True)]
        return bind(fun, *rest, **params)

    for primitive in (_derivatives.custom_jvp_call_p, _derivatives.custom_vjp_call_p):
        wrap_bind(primitive, bind_quietly)


def memoize_by_context(context: Callable[[], Any]) -> None:
    """Make JAX remember a derivative rule's program for each `context()` apart.

    The equation of a `custom_jvp` or `custom_vjp` traces its rule once, when it is
    first differentiated, and keeps the program whatever is traced later (JAX 0.7.2 to
    0.12). A rule that was first traced in silence would never log.
    """
    memoize = _pe._memoize

    def memoize_each(fun):
        memoized: dict[Any, Callable] = {}

        def call(*args):
            key = context()
            if key not in memoized:
                memoized[key] = memoize(fun)
            return memoized[key](*args)

        return call

    _pe._memoize = memoize_each


def portable_host_call(
    context: Any, callback: Callable, token: Any, *args: Any
) -> jax.Array:
    """Call `callback` on the host with a list of NumPy arrays, from any platform.

    The token that is returned is there when the call is over.
    """

    def deliver(token, *arrays):
        _keep_thread()
        callback([np.asarray(array) for array in arrays])
        return token

    form = jax.ShapeDtypeStruct(token.shape, token.dtype)
    return jax.experimental.io_callback(deliver, form, token, *args)


def requires_devices(primitive: Primitive) -> None:
    """Let the lowering of `primitive` know the devices that the program will run on."""
    _dispatch.prim_requires_devices_during_lowering.add(primitive)


def partitioned_over(context: Any) -> Sequence[Any]:
    """The devices that JAX divides an equation among as it likes, if it does."""
    axes = context.module_context.axis_context
    is_divided = getattr(axes, "num_devices", 1) != 1
    return axes.device_assignment if is_divided else ()


def mapped_over(context: Any) -> Sequence[Any]:
    """The devices that the `shard_map` around an equation may be over."""
    mesh = context.module_context.axis_context.mesh
    if isinstance(mesh, jax.sharding.Mesh):
        return list(mesh.devices.flat)
    # It is abstract, and those of any process may be meant.
    return jax.devices()


def runs_alone(context: Any) -> bool:
    """Whether the program that is being lowered runs on one device."""
    axes = context.module_context.axis_context
    return getattr(axes, "num_devices", 1) == 1 and (
        not hasattr(axes, "mesh") or axes.mesh.size == 1
    )


def lower_on_each(
    fun: Callable, context: Any, *args: Any, sender: int | None = None
) -> Any:
    """Lower `fun(number, *args)`; each device of a partitioned program calls it.

    It gets the number of the device, or None if there is only one, and whole arrays: a
    value that is not whole on each device is gathered. What it returns is taken to be the
    same on all of them, and nobody compares it: this way no device waits for another. With
    a `sender` all wait for what that device returns.
    """
    devices = partitioned_over(context)
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
        with _mesh.use_abstract_mesh(_mesh.empty_abstract_mesh):
            return each(*copies)

    ins, outs = (
        [_core.ShapedArray(aval.shape, aval.dtype) for aval in avals]
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


def shaped(
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


def abstract(x: Any) -> jax.ShapeDtypeStruct:
    """An array without its values, explicitly sharded as it is.

    Which devices it differs on is left out: that is not for another place of the program.
    """
    return shaped(x.shape, x.dtype, x, range(x.ndim))


def alike(x: Any, like: Any) -> Any:
    """The array, explicitly sharded as another one is."""
    (mesh, axes), (other, own) = explicit(like), explicit(x)
    if axes == own or (mesh or other) is None:
        return x
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh or other, P(*axes)))


def is_here(x: Any) -> bool:
    """Whether this process has all of an array, and no other has a part in it."""
    return not isinstance(x, jax.Array) or x.is_fully_addressable


def is_first(arrays: Sequence[jax.Array]) -> bool:
    """Whether this is the first of the processes that have a part in arrays."""
    devices = (device for x in arrays for device in x.sharding.device_set)
    return jax.process_index() == min(device.process_index for device in devices)


def once_a_device(fun: Callable) -> Callable:
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


def device_count(eqn: JaxprEqn) -> tuple[int, ...]:
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


def _batch_shard_map(trace: Any, *args: Any, **params: Any) -> Any:
    with setting(_vmaps_around, (*_vmaps_around.get(), trace.axis_data)):
        return _batch_shard_map_itself(trace, *args, **params)


_batch_shard_map_itself = _batching.BatchTrace.process_shard_map  # pyright: ignore[reportAttributeAccessIssue]
_batching.BatchTrace.process_shard_map = _batch_shard_map  # pyright: ignore[reportAttributeAccessIssue]


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


def varying(x: Any) -> frozenset[str]:
    """The axes of a mesh along which an array may differ from device to device."""
    aval = x if isinstance(x, _core.AbstractValue) else jax.typeof(x)
    kind = getattr(aval, "mat", None)  # JAX >= 0.9
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


def varied(x: Any, axes: frozenset[str] | None = None) -> Any:
    """The same, as something that may differ along axes. None: all that there are.

    JAX asks for it where both sides of a `cond` or of a carry must be alike.
    """
    if not _config._check_vma.value:
        return x
    wanted = frozenset(manual_axes()) if axes is None else axes
    missing = tuple(wanted - varying(x))
    if not missing:
        return x
    if hasattr(jax.lax, "pcast"):  # JAX >= 0.8
        return jax.lax.pcast(x, missing, to="varying")
    return jax.lax.pvary(x, missing)  # pyright: ignore[reportAttributeAccessIssue]


def key_name(dtype: Any) -> str:
    """The name of the implementation of typed PRNG keys, as `jax.random.key` takes it."""
    return dtype._impl.name


def host_result(callback: Callable, form: jax.ShapeDtypeStruct, *args: Any) -> jax.Array:
    """What `callback` returns on the host, from any platform."""
    return jax.experimental.io_callback(callback, form, *args)


def cpu_host_result(
    callback: Callable, form: jax.ShapeDtypeStruct, *args: Any
) -> jax.Array:
    """The same on one CPU device, without the copies and locks of the portable way."""

    def fill(context, out, *buffers):
        np.asarray(out)[...] = callback(*(np.asarray(buffer) for buffer in buffers))

    return buffer_callback(fill, form, has_side_effect=True)(*args)


def cpu_host_call(context: Any, callback: Callable, token: Any, *args: Any) -> jax.Array:
    """The same on one CPU device, without the copies and locks of the portable way.

    This is `jax.experimental.buffer_callback` without its pytrees.
    """

    def deliver(execution, token, *buffers):
        _keep_thread()
        # The last one is the output. All of them die after the call.
        callback([buffer.__array__().copy() for buffer in buffers[:-1]])
        return ()

    module = context.module_context
    module.add_host_callback(deliver)
    form = jax.ShapeDtypeStruct(token.shape, token.dtype)
    call = jax.ffi.ffi_call(
        "xla_buffer_python_cpu_callback",
        form,
        has_side_effect=True,
        input_output_aliases={0: 0},
    )
    return call(token, *args, index=np.uint64(len(module.host_callbacks) - 1))


class _Thread(threading.local):
    is_kept = False


_thread = _Thread()
# What is kept of a thread that ends is lost: some kilobytes.
_kept, _MOST_KEPT = it.count(), 1000


def _keep_thread() -> None:
    """Have Python know this thread of JAX from now on.

    For a thread that is not its own Python makes a state at each call, and unmaps it after
    the call, for which the other cores are interrupted: where they are at work this takes
    longer than all else in a host call. JAX has few threads, which live long.
    """
    if not _thread.is_kept and next(_kept) < _MOST_KEPT:
        _thread.is_kept = True
        ctypes.pythonapi.PyGILState_Ensure()  # JAX will release it once less


def staged_program() -> Any:
    """What stands for the program that is being traced, to be run later. None: none."""
    trace = _core.trace_ctx.trace
    while trace is not None and not isinstance(trace, _pe.DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace


def is_nested() -> bool:
    """Whether the program that is being traced is for a part of another one."""
    program = staged_program()
    trace = None if program is None else program.parent_trace
    while trace is not None and not isinstance(trace, _pe.DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


def is_current(x: Any) -> bool:
    """Whether `x` belongs to what is being traced now, not to something around."""
    return isinstance(x, _core.Tracer) and x._trace is _core.trace_ctx.trace


def staged_with(effect: Any) -> Iterator[tuple[Primitive, list]]:
    """The equations with an effect of the program that is being traced, the last first.

    Yields:
        What each of them does, and what comes out of it.
    """
    program = staged_program()
    if program is None:
        return
    for entry in reversed(program.frame.tracing_eqns):
        eqn = entry if hasattr(entry, "effects") else entry()
        if eqn is not None and effect in eqn.effects:
            yield (
                eqn.primitive,
                [
                    _pe.DynamicJaxprTracer(program, v.aval, v, eqn.source_info, eqn)
                    for v in eqn.outvars
                ],
            )


def jaxprs_in(params: Any) -> Iterator[Any]:
    """The programs in the parameters of an equation, wherever they stand."""
    if hasattr(params, "eqns") and hasattr(params, "jaxpr"):
        yield params.jaxpr
    elif hasattr(params, "eqns"):
        yield params
    elif isinstance(params, dict):
        for value in params.values():
            yield from jaxprs_in(value)
    elif isinstance(params, tuple | list):
        for value in params:
            yield from jaxprs_in(value)
    elif hasattr(params, "expand"):  # a primitive of JAX's `hijax`, since 0.9
        yield from jaxprs_in(params.params)


def name_of(eqn: JaxprEqn) -> str:
    """The name of what an equation does; `hijax` has one primitive for many things."""
    name = eqn.primitive.name
    return type(eqn.params["_prim"]).__name__ if name == "call_hi_primitive" else name


def inner_jit_options(params: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The options of `jax.jit` for `fun(interpreter, *args) -> (outs, logs)`, hashable."""
    donated = [i + 1 for i, is_donated in enumerate(params["donated_invars"]) if is_donated]
    options = {
        "donate_argnums": tuple(donated),
        "keep_unused": params["keep_unused"],
        "inline": params["inline"],
    }
    ins = _formats(params["in_shardings"], params["in_layouts"])
    outs = _formats(params["out_shardings"], params["out_layouts"])
    if any(s is not None for s in ins):
        options["in_shardings"] = (None, *ins)
    if any(s is not None for s in outs):
        options["out_shardings"] = (outs, None)
    if params["compiler_options_kvs"]:
        options["compiler_options"] = params["compiler_options_kvs"]
    return tuple(options.items())


def jit(fun: Callable, options: tuple[tuple[str, Any], ...]) -> Callable:
    given = dict(options)
    if "out_shardings" in given:
        outs, logs = given["out_shardings"]
        given["out_shardings"] = (list(outs), logs)
    if "compiler_options" in given:
        given["compiler_options"] = dict(given["compiler_options"])
    return jax.jit(fun, **given)


def agreed(name: str, value: str) -> str:
    """The value that was the first to be given by one of the processes under this name."""
    client = _distributed.global_state.client
    if client is None:
        return value
    with contextlib.suppress(jax.errors.JaxRuntimeError):  # it is there already
        client.key_value_set(name, value)
    return client.blocking_key_value_get(name, 10_000)


def _formats(shardings: Sequence[Any], layouts: Sequence[Any]) -> tuple:
    """What `jax.jit` takes for shardings and layouts; None leaves it open."""
    known = [None if isinstance(s, UnspecifiedValue) else s for s in shardings]
    pairs = zip(known, layouts, strict=True)
    return tuple(s if layout is None else Format(layout, s) for s, layout in pairs)


# The equation of a `custom_vmap` did not say that its function has effects (JAX 0.7).
if "_effect_free" in _custom_batching.custom_vmap_p.abstract_eval.__qualname__:
    _custom_batching.custom_vmap_p.def_effectful_abstract_eval(
        lambda *avals, call, **params: (call.out_avals, call.effects)
    )

# Outside of `jit`, a literal could not be added to an array (JAX 0.7).
if hasattr(_literals, "LiteralArray"):
    _ad_util.raw_jaxval_adders[_literals.LiteralArray] = jax.lax.add  # pyright: ignore[reportAttributeAccessIssue]
