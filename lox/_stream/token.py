"""The token that host calls hand on, so that each comes after the one before it.

It travels like a key that is reduced: out of branches, along the carries of loops.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from lox._rows.accumulator import Accumulator, reduced
from lox._rows.reductions import Reduction
from lox._rows.rows import Rows

_TOKEN = "\0token"
_adding = Reduction(
    empty=jnp.zeros_like, lift=lambda x: x, combine=lambda a, b: a + b, finish=lambda x: x
)


def new_token() -> Any:
    """The token for a first call. All tokens are zero."""
    return np.zeros((), np.int32)


def chained(token: Any) -> dict[str, Accumulator]:
    """What is logged of a host call that returned `token`."""
    return {_TOKEN: reduced(_TOKEN, Rows(token, {}), _adding)}


def follow(token: Any, entries: Mapping[str, Any]) -> Any:
    """The token for a call that comes after `token` and after what was logged."""
    if _TOKEN not in entries:
        return token
    (last,) = entries[_TOKEN].value
    return token + (last.max() if last.ndim else last)


def same_everywhere(entries: Mapping[str, Any]) -> dict[str, Any]:
    """What has been logged on one of several devices, its token good for all of them.

    Each device has a token of its own, but all are zero. Nothing is exchanged.
    """
    if _TOKEN not in entries:
        return dict(entries)
    return {**entries, _TOKEN: entries[_TOKEN].map(same)}


def same(token: Any) -> Any:
    """The token as one that JAX takes to be the same on all devices."""
    return _same_p.bind(token)


def is_token(key: str) -> bool:
    return key == _TOKEN


# JAX knows of some values that they may differ between devices; this one does not.
_same_p = Primitive("lox_same")
_same_p.def_impl(lambda x: x)
_same_p.def_abstract_eval(lambda x: ShapedArray(x.shape, x.dtype))
batching.defvectorized(_same_p)
mlir.register_lowering(_same_p, lambda context, x: [x])
