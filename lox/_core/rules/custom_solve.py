"""How logs leave solvers with implicit derivatives: `custom_linear_solve`, `custom_root`.

Such a primitive holds several programs, of which only `solve` runs in the forward pass. Its
logs leave as further outputs. The others, such as `matvec`, serve the derivative. What they
log belongs to the transformations around the derivative, and is passed on outwards:

    custom_linear_solve[solve { log a }  matvec { log b }  transpose_solve { log c }]

    spool(f)          a
    spool(grad(f))    a, and b and c as often as the backward pass runs them

JAX wants `solve` and `transpose_solve` to return the same. So the latter returns empty logs
in the form of those of `solve`.
"""

import functools as ft
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from lox._core import context as _context
from lox._core.handler import Forward
from lox._core.interpreter import Interpreter
from lox._core.rules.custom import run_with
from lox._core.rules.registry import rule_for
from lox._core.staging import split, stage
from lox._jax import equations, patches
from lox._jax.extend import ClosedJaxpr, JaxprEqn
from lox._jax.types import PyTree
from lox._rows.collected import Collected


@rule_for("custom_linear_solve")
def _custom_linear_solve(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    # Operands: the constants of matvec, vecmat, solve and transpose_solve, and then `b`.
    jaxprs, sizes = eqn.params["jaxprs"], eqn.params["const_lengths"]
    *consts, b = split(args, *sizes)
    solve = interpreter.stage(jaxprs.solve, *consts[2], *b)

    def transpose_solve(*args):
        # JAX wants `solve` and `transpose_solve` to return the same. Records in the latter
        # belong to the transformations around the derivative, so its logs are empty.
        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), solve.shape[1])
        return _forward(jaxprs.transpose_solve, *args), empty

    staged = [
        stage(ft.partial(_forward, jaxprs.matvec), *consts[0], *b),
        jaxprs.vecmat and stage(ft.partial(_forward, jaxprs.vecmat), *consts[1], *b),
        solve,
        jaxprs.transpose_solve and stage(transpose_solve, *consts[3], *b),
    ]
    # The primitive takes closed programs and the numbers of their constants. What staging
    # adds to the constants, such as a token, is passed as operands.
    programs, operands = [], []
    for part in staged:
        program = part and equations.constants_as_inputs(part.jaxpr.jaxpr)
        programs.append(program and equations.close(program))
        given = [*part.jaxpr.consts, *part.leaves] if part else []
        # Without `b`, which the primitive passes to each program itself.
        operands.append(given[: len(given) - len(b)])
    params = {
        "jaxprs": type(jaxprs)(*programs),
        "const_lengths": type(sizes)(*map(len, operands)),
    }
    given = [x for constants in operands for x in constants]
    return solve.output(eqn.primitive.bind(*given, *b, **{**eqn.params, **params}))


@patches.implements("transposed operators")
def _transposed_in_silence(original: Callable, operator: Callable, b: PyTree) -> Callable:
    """Trace an operator in silence to transpose it: its input has no value there."""

    def silent(*args: PyTree) -> PyTree:
        with _context.silent():
            return operator(*args)

    return original(silent, b)


@rule_for("CustomRoot")
def _custom_root(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    root = eqn.params["_prim"]
    consts, *rest = jax.tree.unflatten(jax.tree.structure(root.in_avals), args)

    def solve(interpreter_and_consts, guess):
        interpreter, consts = interpreter_and_consts
        given = jax.tree.leaves((consts, guess))
        outs, logs = interpreter.stage(root.solve_jaxpr, *given).run()
        solution = jax.tree.unflatten(root.out_tree, outs)
        x, aux = solution if root.has_aux else (solution, ())
        return x, (aux, logs)

    # The interpreter is passed along with the constants; the logs leave as a part of `aux`.
    interpreter_avals = jax.tree.map(jax.typeof, interpreter)
    in_avals = ((interpreter_avals, root.in_avals[0]), *root.in_avals[1:])
    rebuilt = type(root)(
        _forwarded(root.f),
        solve,
        _forwarded(root.tangent_solve),
        jax.jit(solve).trace(*in_avals[:2]),
        in_avals,
        has_aux=True,
    )
    x, (aux, logs) = rebuilt((interpreter, consts), *rest)
    return jax.tree.leaves((x, aux)), logs


@rule_for("_RootLinearMap")
def _root_linear_map(
    interpreter: Interpreter, eqn: JaxprEqn, *args: ArrayLike
) -> tuple[list, Collected]:
    """Expand the derivative of a function whose root is found, as JAX does in the end."""
    prim = eqn.params["_prim"]

    def expand(*args):
        return jax.tree.leaves(prim.expand(*jax.tree.unflatten(prim.in_tree, args)))

    traced = interpreter.trace(expand, *args)
    outs, logs = interpreter(traced.jaxpr, *traced.args)
    return traced.output(outs), logs


def _forward(jaxpr: ClosedJaxpr, *args: ArrayLike) -> list:
    """Evaluate a program, and pass its records on to the transformations around."""
    return Interpreter(Forward()).stage(jaxpr, *args).run()[0]


def _forwarded(fun: Callable) -> Callable:
    """Return a function that passes its records on to the transformations around it."""
    return ft.partial(run_with, Interpreter(Forward()), fun)
