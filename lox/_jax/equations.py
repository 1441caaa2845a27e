"""Read the parameters of equations: the programs in them, and their options.

Parameters are where versions of JAX differ most. What a rule needs of them is asked here:

    programs     `jaxprs_in` finds them, whatever they are wrapped in; `close` gives each
                 the same form, and `constants_as_inputs` the form that `remat` wants
    loops        `scan_sizes`, `scan_options`; `keep_linear` for JAX before 0.10
    `jit`        `jit_options` of a function, `inner_jit_options` of an equation: what to
                 jit the new function with, so that it stays what the old one was
    rules        `split_subfunctions`, `with_rules_in`: the functions that a `custom_vjp` is
                 bound with
"""

import contextlib
import contextvars
import functools as ft
import itertools as it
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax._src.interpreters.partial_eval import EffectHandle, convert_constvars_jaxpr
from jax.core import Tracer
from jax.experimental.layout import Format, Layout
from jax.interpreters.partial_eval import dce_jaxpr
from jax.typing import ArrayLike

from lox._jax.extend import ClosedJaxpr, Jaxpr, JaxprEqn, WrappedFun, linear_util
from lox._jax.tracing import setting
from lox._jax.types import AnyArray, Atom, DType, Params, Program, PyTree

JitOptions = tuple[tuple[str, Any], ...]
Jitted = type(jax.jit(lambda: None))


def close(jaxpr: Program) -> ClosedJaxpr:
    """Close a jaxpr that is open in its equation, as that of `remat` is."""
    return jaxpr if hasattr(jaxpr, "consts") else ClosedJaxpr(jaxpr, ())


def with_debug_info_of(jaxpr: ClosedJaxpr, other: ClosedJaxpr) -> ClosedJaxpr:
    """Return a program that names its inputs and outputs as another one does."""
    named = jaxpr.jaxpr.replace(debug_info=other.jaxpr.debug_info)
    return jaxpr.replace(jaxpr=named)


def constants_as_inputs(jaxpr: Jaxpr) -> Jaxpr:
    """Return an open jaxpr that takes its constants as first inputs."""
    return convert_constvars_jaxpr(jaxpr)


def scan_sizes(params: Params) -> tuple[int, int]:
    """Return the numbers of constants and of carried values of a `scan`."""
    if "ft_in" in params:  # JAX >= 0.11
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def scan_options(params: Params) -> Params:
    """Return the options of `jax.lax.scan` on this version, except for the length."""
    # `_split_transpose` is private, but a program that was traced with it should keep it.
    names = ("reverse", "unroll", "_split_transpose")
    return {name: params[name] for name in names if name in params}


def keep_linear(
    eqn: JaxprEqn, args: Sequence[ArrayLike]
) -> contextlib.AbstractContextManager:
    """Make a `scan` that is traced in here linear in the same inputs as `eqn`.

    Before JAX 0.10, the transpose of a `scan` relies on its parameter `linear`, which
    `jax.lax.scan` does not take. So `bind_scan` sets it when the `scan` is bound.
    """
    pairs = zip(args, eqn.params.get("linear", ()), strict=False)
    return setting(_linear, [x for x, is_linear in pairs if is_linear])


_linear = contextvars.ContextVar[Sequence[ArrayLike]]("linear", default=())


def bind_scan(bind: Callable[..., list], args: Sequence[ArrayLike], params: Params) -> list:
    """Bind a `scan`, and if it is traced inside `keep_linear`, keep what is linear."""
    kept = _linear.get()
    if not kept:
        return bind(*args, **params)
    pairs = zip(args, params["linear"], strict=True)
    linear = tuple(is_linear or any(x is y for y in kept) for x, is_linear in pairs)
    # If it is differentiated, JAX binds others now, for its derivative. What is linear in
    # this one may be a residual there, and no longer linear.
    with setting(_linear, ()):
        return bind(*args, **{**params, "linear": linear})


def jit_options(fun: Any) -> Params:
    """Return the options that a function was jitted with, without its shardings."""
    info = fun._jit_info
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
    options = dict(info.compiler_options_kvs)
    return {name: getattr(info, name) for name in names} | {
        "keep_unused": info.keep_unused,
        "compiler_options": options or None,
    }


def keep_recipe(trace: Any, inputs: Sequence[Tracer], recipe: Any) -> None:
    """Let a trace that builds a program from its outputs keep one for its effects."""
    trace.effect_handles.append(EffectHandle(list(inputs), recipe))


def used_inputs(jaxpr: ClosedJaxpr) -> list[bool]:
    """Tell for each input of a program whether an output depends on it."""
    return dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.out_avals))[1]


def without_dead_code(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Return a program without equations that neither its outputs nor effects need."""
    outs = [True] * len(jaxpr.out_avals)
    return jaxpr.replace(jaxpr=dce_jaxpr(jaxpr.jaxpr, outs, instantiate=True)[0])


def is_same_call(one: ClosedJaxpr, other: ClosedJaxpr) -> bool:
    """Return whether two programs only call the same jitted function with their inputs."""
    return one is other or (_only_call(one) or one) is _only_call(other)


def _only_call(jaxpr: ClosedJaxpr) -> ClosedJaxpr | None:
    """Return the jitted program that a program calls. None: it does something else."""
    if len(jaxpr.eqns) != 1 or jaxpr.consts:
        return None
    (eqn,), program = jaxpr.eqns, jaxpr.jaxpr
    ins, outs = list(eqn.invars) == program.invars, list(eqn.outvars) == program.outvars
    is_call = primitive_name(eqn) in ("jit", "pjit") and ins and outs
    return eqn.params["jaxpr"] if is_call else None


def is_of_jax(jaxpr: Jaxpr) -> bool:
    """Return whether a program comes from one of JAX's own functions."""
    file = jaxpr.debug_info.func_filename
    return file is not None and file.startswith(_FOLDER_OF_JAX)


_FOLDER_OF_JAX = os.path.dirname(jax.__file__) + os.sep


def named_axes(eqn: JaxprEqn) -> list[str]:
    """Return the names of the axes along which an equation exchanges values."""
    # `psum` has "axes", a mix of names and of positions, and `all_gather` an "axis_name",
    # which is one name or a tuple.
    names = []
    for parameter in ("axes", "axis_name"):
        given = eqn.params.get(parameter, ())
        axes = given if isinstance(given, tuple) else (given,)
        names += [axis for axis in axes if isinstance(axis, str)]
    return names


def is_dropped(atom: Atom) -> bool:
    """Return whether an output of an equation has no name, as nothing reads it."""
    return type(atom).__name__ == "DropVar"


def key_name(dtype: DType) -> str:
    """Return the implementation of typed PRNG keys, as `jax.random.key` takes it."""
    return dtype._impl.name


def jaxprs_in(params: PyTree) -> Iterator[Jaxpr]:
    """Yield the programs in the parameters of an equation, however deep they are.

    A program is in there itself: `jaxprs_in(jaxpr)` yields it.
    """
    # Closed ones have both. JAX has several classes of each, so ask for attributes.
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
    elif hasattr(params, "expand"):  # a primitive of hijax with parameters of its own
        yield from jaxprs_in(params.params)
    elif isinstance(params, jax.stages.Traced):  # in a primitive of `hijax`
        yield from jaxprs_in(params.jaxpr)


def primitive_name(eqn: JaxprEqn) -> str:
    """Return the name of an equation's primitive.

    All primitives of `hijax` share one, which holds the one that is meant.
    """
    name = eqn.primitive.name
    return type(eqn.params["_prim"]).__name__ if name == "call_hi_primitive" else name


def inner_jit_options(params: Params) -> JitOptions:
    """Return the options of an inner `jit` for `fun(interpreter, *args) -> (outs, logs)`.

    They are hashable, so that rules can keep one jitted function per set of options.
    """
    # The interpreter is the first argument, and the logs are the second output: what the
    # equation says of its inputs and outputs moves by one.
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


def jit_with(fun: Callable, options: JitOptions) -> Callable:
    """Jit a function with the result of `inner_jit_options`."""
    # Lists and dictionaries were tuples, to be hashable.
    given = dict(options)
    if "out_shardings" in given:
        outs, logs = given["out_shardings"]
        given["out_shardings"] = (list(outs), logs)
    if "compiler_options" in given:
        given["compiler_options"] = dict(given["compiler_options"])
    return jax.jit(fun, **given)


def _formats(
    shardings: Sequence[object], layouts: Sequence[Layout | None]
) -> tuple[jax.sharding.Sharding | Format | None, ...]:
    """Return shardings and layouts as `jax.jit` takes them; None leaves it open."""
    # JAX marks what the user has left open with a sentinel, which `jit` does not take.
    known = [s if isinstance(s, jax.sharding.Sharding) else None for s in shardings]
    pairs = zip(known, layouts, strict=True)
    return tuple(s if layout is None else Format(layout, s) for s, layout in pairs)


def split_subfunctions(
    args: Sequence[AnyArray], params: Params
) -> tuple[list[WrappedFun], list[AnyArray]]:
    """Return the functions that a call is bound with, and its operands."""
    if "subfuns" in params:  # JAX >= 0.9.2
        return list(params["subfuns"]), list(args)
    # Before, the functions are operands, in front of all others.
    functions = list(it.takewhile(lambda x: isinstance(x, WrappedFun), args))
    return functions, list(args[len(functions) :])


def with_rules_in(
    context: Callable[[], contextlib.AbstractContextManager],
    args: Sequence[AnyArray],
    params: Params,
) -> tuple[tuple[AnyArray, ...], Params]:
    """Return what to bind so that derivative rules run in a context, whenever they do."""

    @linear_util.transformation2
    def run_in_context(rule, *args):
        with context():
            return rule(*args)

    (fun, *rules), operands = split_subfunctions(args, params)
    functions = (fun, *map(run_in_context, rules))
    if "subfuns" in params:
        return tuple(operands), {**params, "subfuns": functions}
    return (*functions, *operands), params


def around_function(
    fun: Callable | WrappedFun, transform: Callable
) -> Callable | WrappedFun:
    """Return `transform(fun, *args)` as a function in the form that `fun` has in JAX."""
    if not isinstance(fun, WrappedFun):
        return ft.wraps(fun)(ft.partial(transform, fun))
    # Before JAX 0.10.
    called = ft.partial(transform, fun.call_wrapped)
    return linear_util.wrap_init(called, debug_info=fun.debug_info)
