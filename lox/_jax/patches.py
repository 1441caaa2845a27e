"""Everything that importing lox changes in JAX."""

import os
from collections.abc import Callable
from typing import Any

import jax
from jax._src import (
    ad_util as _ad_util,
    core as _core,
    custom_batching as _custom_batching,
    custom_derivatives as _derivatives,
    linear_util as _linear_util,
    literals as _literals,
    source_info_util as _source_info,
)
from jax._src.interpreters import partial_eval as _pe
from jax.experimental.key_reuse import _core as _key_reuse
from jax.extend.core import Primitive
from jax.interpreters import batching

# Messages and profiles then name the user's line that logged, not ours.
_source_info.register_exclusion(os.path.dirname(os.path.dirname(__file__)))


def leaves_keys_unused(primitive: Primitive) -> None:
    """Tell `jax.debug_key_reuse` that to log a PRNG key is not to use it up."""
    _key_reuse.key_reuse_signatures[primitive] = _key_reuse.KeyReuseSignature()


def primitive_named(name: str) -> Primitive:
    """The primitive called `name`; where it is importable from moves between releases."""
    return next(p for p in batching.fancy_primitive_batchers if p.name == name)


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


# The equation of a `custom_vmap` did not say that its function has effects (JAX 0.7).
if "_effect_free" in _custom_batching.custom_vmap_p.abstract_eval.__qualname__:
    _custom_batching.custom_vmap_p.def_effectful_abstract_eval(
        lambda *avals, call, **params: (call.out_avals, call.effects)
    )


# Outside of `jit`, a literal could not be added to an array (JAX 0.7).
if hasattr(_literals, "LiteralArray"):
    _ad_util.raw_jaxval_adders[_literals.LiteralArray] = jax.lax.add  # pyright: ignore[reportAttributeAccessIssue]
