"""Rows that wait on the device until there are enough of them for one host call.

A host call costs microseconds however little it brings, so `tap(batch=k)` sends k rows at
once. A loop of known length needs no buffer for that: it is cut into chunks of so many
iterations, and what a chunk collects is sent at its end (see `lox._core.rules.loops`).

Where it is not known how many rows an iteration logs, because there is a `while` inside or
around, rows are put into a buffer with a ring for each group of keys, the same one that
`spool` has for such loops (see `lox._rows.loop_carry`). It is threaded state: it goes along
the carries of loops and out of branches, wherever the program goes.

    capacity 3             a             b
    log a, log b, log a    [a0 a1 __]    [b0 __ __]
    log a                  [a0 a1 a2]    [b0 __ __]    full: send both, then
                           [__ __ __]    [__ __ __]    go on
    the outermost loop ends: flush, that is, send what is there

Invariant: after each row that is added, every ring has room for one more. So a ring never
overwrites a row that has not been sent, and its rows are in order as they stand.

Under `vmap` one host call brings the rows of all examples. It is made as soon as one of
them has no room left, which is the question that `any_example` asks.
"""

from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn, Primitive
from jax.interpreters import batching, mlir

from lox._core.interpreter import Interpreter
from lox._core.record import emit_effect
from lox._core.rules.table import rule_for
from lox._rows.collected import Collected


def any_example(condition: Any) -> jax.Array:
    """Return whether a condition holds for any of the examples of the `vmap`s around.

    So one host call brings the rows of all of them. An effect shows the question to whoever
    masks what is logged: an example that has finished has no say.
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
