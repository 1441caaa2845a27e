"""Rows that wait on the device until there are enough of them for one host call.

A host call costs microseconds however little it brings, so `tap(batch=k)` sends k rows at
once. A loop of known length needs no buffer for that: it is cut into chunks of iterations,
and what a chunk collects is sent at its end (see `lox._core.rules.loops`).

If an iteration logs an unknown number of rows, because there is a `while` inside or around,
rows go into a buffer with a ring for each group of keys. `spool` uses the same buffer for
such loops (see `lox._rows.loop_carry`). It is threaded state: rules carry it through loops
and branches.

    capacity 3             a             b
    log a, log b, log a    [a0 a1 __]    [b0 __ __]
    log a                  [a0 a1 a2]    [b0 __ __]    full: send both, then empty both
                           [__ __ __]    [__ __ __]
    the outermost loop ends: flush, that is, send what is left

Invariant: after a row has been added and a full buffer sent, every ring has room for one
more row. So a ring never overwrites a row that has not been sent, and never wraps around:
its rows are in order.

Under `vmap`, one host call brings the rows of all examples. It is made as soon as the ring
of any example is full, which `any_example` finds out.
"""

import jax
from jax.core import ShapedArray
from jax.interpreters import batching, mlir
from jax.typing import ArrayLike

from lox._core.interpreter import Interpreter
from lox._core.record import emit_effect
from lox._core.rules.registry import rule_for
from lox._jax.extend import JaxprEqn, Primitive
from lox._rows.collected import Collected


def any_example(condition: ArrayLike) -> jax.Array:
    """Return whether a condition holds for any example of the `vmap`s around.

    It is a primitive with an effect, so that handlers that mask records find it and mask
    its condition: an example that has finished does not count.
    """
    return _any_example_p.bind(condition)


_any_example_p = Primitive("lox_full")
_any_example_p.def_impl(lambda condition: condition)
_any_example_p.def_effectful_abstract_eval(
    lambda condition: (ShapedArray(condition.shape, condition.dtype), {emit_effect})
)
batching.primitive_batchers[_any_example_p] = lambda args, axes: (
    _any_example_p.bind(args[0].any(axes[0])),
    None,
)
mlir.register_lowering(_any_example_p, lambda context, condition: [condition])


@rule_for("lox_full")
def _any_example(
    interpreter: Interpreter, eqn: JaxprEqn, condition: jax.Array
) -> tuple[list, Collected]:
    asked = interpreter.handler.narrow(condition)
    return [condition if asked is None else any_example(asked)], Collected()
