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

EXAMPLE = "lox_example"

# Part of the key of every cache of JAX: a function is traced once with marks, once without.
_marking = jax.make_user_context(False)


def marked() -> AbstractContextManager:
    """Trace programs with marks on the axes of examples."""
    return _marking(True)


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
