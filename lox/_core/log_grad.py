"""`log_grad`: log the cotangent of a value, when the backward pass comes to it.

`h = log_grad(h, "h")` puts a primitive into the program that does nothing:

    { lambda ; x. let
        h = sin x
        h' = lox_log_grad[keys=(h,) tangent=False] h i          i is a step
        y = mul h' h'
      in (y,) }

It is linear. Its derivative is the same primitive on the tangent, marked with
`tangent=True`. Reverse mode transposes it, and the transpose of an identity is an identity
on the cotangent, which logs what passes. So there is one record each time the backward pass
comes by, in its order, wherever JAX takes the program: out of a loop, into a block that is
computed again, across devices. From then on it is a record like any other, for the
transformations around `grad`.

Why not a `custom_vjp`? It has no forward mode. And why the mark? `jvp` of a gradient, as
in `hessian`, differentiates the primitive on the tangent again, and so does `grad` of a
`jvp`. What flows back there is the cotangent of a tangent, not of `h`. So the derivative
of a marked primitive is a plain identity.

The primitive has no effect. In a program that is not differentiated, it vanishes when the
program is lowered, and it keeps nothing alive that is not used. So it cannot be found by
its effect, as records are. The mask of a vmapped `cond`, which has to find it, asks
`may_hold_records`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import AbstractValue
from jax.interpreters import ad, batching, mlir
from jax.typing import ArrayLike

from lox._core import context
from lox._core.analysis import LOG_GRAD
from lox._core.interpreter import Interpreter
from lox._core.log import names_in, relog, steps_of
from lox._core.record import Record, listed, with_batch_axis
from lox._core.rules.registry import rule_for
from lox._jax import tracing
from lox._jax.extend import JaxprEqn, Primitive
from lox._jax.types import AnyArray, AxisData, PyTree, PyTreeDef
from lox._rows.collected import Collected
from lox._rows.reductions import Reduction, reduction_named

T = TypeVar("T")
# Turns a record into another one. It is hashable, as programs are cached by it.
Describe = Callable[[Record], Record]


def log_grad(
    value: T,
    key: str,
    /,
    *,
    tags: str | Iterable[str] = (),
    reduce: str | Reduction | None = None,
    **steps: Any,
) -> T:
    """Log the cotangent of a value: the gradient of the loss with respect to it.

    It returns `value`. The cotangent is that of everything you compute from the returned
    value. It is logged once, when the backward pass reaches this point, after the
    cotangents of everything that was computed later. The record is then like those of
    `lox.log`, for the transformations around `jax.grad`. Without a gradient there is no
    record, and no cost.

    Args:
        value: An array of floats, or a pytree of them.
        key: The key to log the cotangent under.
        tags: One or more tags, by which transformations select logs.
        reduce: How `lox.spool` combines repeated records of this key.
        **steps: Any other keyword is a step, with its value in the forward pass.

    Returns:
        `value`, unchanged.

    Example:
        >>> def loss(w, xs):
        ...     def layer(h, w):
        ...         return lox.log_grad(jnp.tanh(w * h), "h"), None
        ...     return jax.lax.scan(layer, xs, w)[0].sum()
        >>> slope, logs = lox.spool(jax.grad(loss))(jnp.ones(3), jnp.ones(2))
        >>> logs["h"].shape  # the last layer comes first
        (3, 2)
        >>> print(logs["h"][0])
        [1. 1.]
    """
    _check(value, key)
    reduction_named(reduce)
    record = Record(
        values=(value,),
        steps=steps_of(steps),
        keys=(key,),
        tags=names_in(tags, "tags"),
        reduce=reduce,
    )
    if context.state() == "silent":
        return value
    leaves = bind_grad(record)
    return jax.tree.unflatten(jax.tree.structure(value), leaves)


def _check(value: PyTree, key: object) -> None:
    if not isinstance(key, str):
        raise TypeError(
            "`lox.log_grad` takes a value and the key to log its cotangent under, such as "
            f'`h = lox.log_grad(h, "h")`; the key is a string, not {key!r}.'
        )
    leaves = jax.tree.leaves(value)
    if not leaves:
        raise TypeError(
            f"The value of {key!r} has no arrays. `lox.log_grad` takes an array of "
            "floats, or a pytree of them."
        )
    for leaf in leaves:
        is_number = isinstance(leaf, float | complex | jax.Array | np.ndarray | np.generic)
        if is_number and jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            continue
        dtype = getattr(leaf, "dtype", None)
        what = f"`{type(leaf).__name__}`" if dtype is None else f"an array of {dtype}"
        raise TypeError(
            f"The value of {key!r} is or contains {what}, which has no cotangent: only "
            "floats and complex numbers have derivatives. Pass `lox.log_grad` only the "
            "floats of a pytree, or use `lox.log` to log the value itself."
        )


# The primitive ------------------------------------------------------------------------

log_grad_p = Primitive(LOG_GRAD)
log_grad_p.multiple_results = True


def bind_grad(
    record: Record, *, tangent: bool = False, describe: Describe | None = None
) -> list:
    """Return the values of a record; the cotangents of the results will be logged.

    If there is a function `describe`, it turns the record of cotangents into the one that
    is logged.
    """
    leaves, form = jax.tree.flatten((record,))
    # JAX caches by the parameters, and the hash of `form` does not depend on the keys.
    params = {"form": form, "keys": record.keys, "tangent": tangent, "describe": describe}
    return log_grad_p.bind(*leaves, **params)


def _parts(args: Sequence[T], form: PyTreeDef) -> tuple[list[T], list[T]]:
    """Return the values, and the other operands: steps and masks."""
    # Count the leaves instead of unflattening `args`: some of these, such as JAX's symbolic
    # zeros, are pytrees without leaves.
    positions = jax.tree.unflatten(form, range(form.num_leaves))[0]
    number = len(jax.tree.leaves(positions.values))
    return list(args[:number]), list(args[number:])


@log_grad_p.def_impl
def _impl(*args: AnyArray, form: PyTreeDef, **params: object) -> list:
    return _parts(args, form)[0]


@log_grad_p.def_abstract_eval
def _abstract_eval(*avals: AbstractValue, form: PyTreeDef, **params: object) -> list:
    return _parts(avals, form)[0]


mlir.register_lowering(log_grad_p, lambda context, *args, **params: _impl(*args, **params))
tracing.leave_keys_unused(log_grad_p)


def _jvp(
    primals: Sequence[jax.Array],
    tangents: Sequence[jax.Array | ad.Zero],
    *,
    form: PyTreeDef,
    tangent: bool,
    **params: Any,
) -> tuple[list, list]:
    outs = log_grad_p.bind(*primals, form=form, tangent=tangent, **params)
    moving, _ = _parts(tangents, form)
    if tangent:
        return outs, moving
    # All values of a record are logged together. So even a value that does not depend on
    # what is differentiated gets a tangent, of zeros, and with it a cotangent.
    moving = [ad.instantiate_zeros(x) for x in moving]
    _, others = _parts(primals, form)
    return outs, log_grad_p.bind(*moving, *others, form=form, tangent=True, **params)


def _transpose(
    cotangents: Sequence[jax.Array | ad.Zero],
    *args: AnyArray,
    form: PyTreeDef,
    keys: tuple[str, ...],
    describe: Describe | None,
    **params: Any,
) -> list:
    values, others = _parts(args, form)
    if any(map(ad.is_undefined_primal, others)):
        raise ValueError(
            f"A step of {listed(keys)} is a tangent under `jax.linear_transpose`, and "
            "tangents have no value in reverse mode. Use a step that does not depend on "
            "the arguments."
        )
    logged = [_strong(ad.instantiate_zeros(ct)) for ct in cotangents]
    (record,) = jax.tree.unflatten(form, [*logged, *others])
    relog(record if describe is None else describe(record))
    # A symbolic zero stays symbolic, so that the backward pass can stop here.
    pairs = zip(values, cotangents, strict=True)
    back = [ct if ad.is_undefined_primal(x) else None for x, ct in pairs]
    return [*back, *[None] * len(others)]


def _strong(x: jax.Array) -> jax.Array:
    return jnp.asarray(x, x.dtype)


def _batch(
    axis: AxisData,
    args: Sequence[jax.Array],
    axes: Sequence[int | None],
    *,
    form: PyTreeDef,
    keys: tuple[str, ...],
    **params: Any,
) -> tuple[list, list]:
    (record,) = jax.tree.unflatten(form, args)
    batched = with_batch_axis(record, iter(axes), axis)
    outs = bind_grad(batched, **params)
    return outs, [None if batched is record else 0] * len(outs)


ad.primitive_jvps[log_grad_p] = _jvp
ad.primitive_transposes[log_grad_p] = _transpose
batching.fancy_primitive_batchers[log_grad_p] = _batch


@rule_for(LOG_GRAD)
def _rewritten(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    (record,) = jax.tree.unflatten(eqn.params["form"], args)
    rewritten = interpreter.handler.rewrite(record)
    params = {name: eqn.params[name] for name in ("tangent", "describe")}
    return bind_grad(rewritten, **params), Collected()
