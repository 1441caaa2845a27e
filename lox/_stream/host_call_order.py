"""The token that puts host calls in order.

XLA may run host calls at different places of a program in any order. So each call takes a
token, the output of the call before, and returns one for the call after:

    token -> emit a -> token -> while { token -> emit b -> token } -> token -> emit c

All tokens are zero. What counts is that the compiler cannot make one without the call that
returns it. Rules pass a token through loops, branches and inner functions as threaded state
(see `lox._rows.collected`). A new transformation in the same program starts with the token
that the last one ended with, which `last_token` finds.
"""

import jax
import jax.numpy as jnp
import numpy as np

from lox._core.record import emit_effect, emit_p
from lox._jax import tracing
from lox._jax.types import AnyArray


def new_token() -> np.ndarray:
    """Return the token for a first call."""
    return np.zeros((), np.int32)


def last_token() -> AnyArray:
    """Return the token for a call that comes after all calls of the program so far."""
    for primitive, outs in tracing.staged_with(emit_effect):
        if primitive is emit_p:
            return outs[0]
        # This is a loop, branch or function with calls inside. It is over once its outputs
        # are there, so a zero that depends on all of them serves as its token.
        zeros = [
            _zero(x)
            for x in outs
            if x.size and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        ]
        if zeros:
            return sum(zeros[1:], zeros[0])
    return new_token()


def _zero(x: jax.Array) -> jax.Array:
    """Return a zero that the compiler cannot make without `x`."""
    # Not `0 * x`, which is NaN if `x` is, nor `x & 0`, which the compiler simplifies. It
    # does not know that a number of 32 bits has at most 32 ones, and 32 >> 7 is 0.
    first = jnp.real(jax.lax.stop_gradient(x).reshape(-1)[0]).astype(np.float32)
    ones = jax.lax.population_count(jax.lax.bitcast_convert_type(first, np.int32))
    return ones >> 7
