"""Remember which axis of an array holds the examples of a `vmap`.

JAX batches a function by giving its arrays one more axis, somewhere, and forgets where. To
say later for which example something happened, lox marks arrays while a `vmap` batches
them, if it is asked to (`marked`). The mark is an identity:

    vmap(lambda x: log(x) * 2)          y = log x                       float32[8, 3]
                                        y' = lox_example[axis=0] y
                                        z = mul y' 2
                                        z' = lox_example[axis=0] z

It is linear and elementwise, so it comes through every transformation of JAX. The transpose
of a mark marks the cotangent. It vanishes when the program is lowered.

A `cond` whose predicate is batched runs all branches for all examples. In there, each value
also gets a mark that says which examples take the branch, as an operand:

    y = log x                           float32[8, 3]
    y' = lox_taken[axes=(0,)] y taken   taken bool[8]

Under nested `vmap`s, the outer one marks what the inner one has made: the arrays, and the
marks. So the mark next to an operation is always that of the outermost `vmap`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax._src import core as _core
from jax._src.interpreters.batching import BatchTracer
from jax.experimental import jet
from jax.interpreters import ad, batching, mlir

from lox._jax import patches
from lox._jax.extend import Primitive
from lox._jax.types import AnyArray

EXAMPLE, TAKEN = "lox_example", "lox_taken"

# Part of the key of every cache of JAX: a function is traced once with marks, once without.
_marking = jax.make_user_context(False)


def marked() -> AbstractContextManager:
    """Trace programs with marks on the axes of examples."""
    return _marking(True)


def is_marking() -> bool:
    return _marking.value


@patches.implements("examples of a vmap")
def _mark_examples(
    original: Callable, trace: Any, *args: object, **kwargs: object
) -> list | jax.Array:
    outs = original(trace, *args, **kwargs)
    if not _marking.value:
        return outs
    if isinstance(outs, list | tuple):
        return [_mark(trace, x) for x in outs]
    return _mark(trace, outs)


def _mark(trace: Any, x: AnyArray) -> AnyArray:
    """Mark the axis of examples of a value that `trace` has batched."""
    is_batched = isinstance(x, BatchTracer) and x._trace is trace
    if not is_batched or not isinstance(x.batch_dim, int):
        return x
    # Only floats can be NaN, and only they are asked about.
    if not jax.dtypes.issubdtype(x.dtype, jax.numpy.inexact):
        return x
    # The mark is for the batched array, so it is bound where the `vmap` binds.
    with _core.set_current_trace(trace.parent_trace):
        value = _example_p.bind(x.val, axis=x.batch_dim)
    return BatchTracer(trace, value, x.batch_dim, x.source_info)


_example_p = Primitive(EXAMPLE)
_example_p.def_impl(lambda x, axis: x)
_example_p.def_abstract_eval(lambda x, axis: x)
mlir.register_lowering(_example_p, lambda context, x, axis: [x])
ad.deflinear2(_example_p, lambda ct, _, axis: [_example_p.bind(ct, axis=axis)])
jet.deflinear(_example_p)


def _batch(
    args: Sequence[jax.Array], dims: Sequence[int], *, axis: int
) -> tuple[jax.Array, int]:
    """Batch a mark: the axis that it names moves if the new one is in front of it."""
    (x,), (dim,) = args, dims
    return _example_p.bind(x, axis=axis + (dim <= axis)), dim


batching.primitive_batchers[_example_p] = _batch


def mark_taken(x: Any, condition: Any) -> Any:
    """Mark a value that counts only if a condition holds, for one example."""
    return _taken_p.bind(x, condition, axes=())


_taken_p = Primitive(TAKEN)
_taken_p.def_impl(lambda x, taken, axes: x)
_taken_p.def_abstract_eval(lambda x, taken, axes: x)
mlir.register_lowering(_taken_p, lambda context, x, taken, axes: [x])


def _taken_jvp(primals: Any, tangents: Any, *, axes: tuple[int, ...]) -> tuple[Any, Any]:
    (x, taken), tangent = primals, tangents[0]
    out = _taken_p.bind(x, taken, axes=axes)
    if isinstance(tangent, ad.Zero):
        return out, tangent
    return out, _taken_p.bind(tangent, taken, axes=axes)


def _taken_transpose(ct: Any, x: Any, taken: Any, *, axes: tuple[int, ...]) -> list:
    is_zero = isinstance(ct, ad.Zero)
    return [ct if is_zero else _taken_p.bind(ct, taken, axes=axes), None]


def _taken_batch(args: Any, dims: Any, *, axes: tuple[int, ...]) -> tuple[Any, Any]:
    (x, taken), (dim, other) = args, dims
    if dim is None:
        # All examples share the value: it counts if any of them takes the branch.
        return _taken_p.bind(x, taken.any(other), axes=axes), None
    axes = tuple(axis + (dim <= axis) for axis in axes)
    if other is not None:
        axes, taken = (dim, *axes), jax.numpy.moveaxis(taken, other, 0)
    return _taken_p.bind(x, taken, axes=axes), dim


def _taken_jet(primals: Any, series: Any, *, axes: tuple[int, ...]) -> tuple[Any, list]:
    mark = lambda x: _taken_p.bind(x, primals[1], axes=axes)  # noqa: E731
    return mark(primals[0]), [mark(x) for x in series[0]]


ad.primitive_jvps[_taken_p] = _taken_jvp
ad.primitive_transposes[_taken_p] = _taken_transpose
batching.primitive_batchers[_taken_p] = _taken_batch
jet.jet_rules[_taken_p] = _taken_jet
