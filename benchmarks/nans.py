"""What looking for a NaN costs if there is none: the program with checks ÷ without.

python benchmarks/nans.py                 this table
python benchmarks/nans.py --planted 200   what each tool names, in so many programs
"""

import argparse
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
from _measure import Figure, compare, grid, table
from cases import CASES
from cases._case import ignore
from jax.experimental import checkify

import lox
from lox._core.handler import Forward
from lox._core.interpreter import Interpreter
from lox._inside.nan.search import Searched
from lox._jax import equations
from lox._jax.example_marks import marked

PROGRAMS = "mlp", "transformer", "ppo"
GOAL = "≤ 1.30"
PLANTED = "What tools say about a planted NaN."
NAMED = "line", "iterations", "example", "operand"


def figures() -> list[Figure]:
    found = []
    for name in PROGRAMS:
        case = CASES[name]
        fun, key = case.over_seeds(case.logged(ignore, case.steps)), case.keys()
        plain, first, checked = jax.jit(fun), first_run(fun, key), checkified(fun)
        found += [
            compare(
                f"lox.find_nan, first run, {name}",
                lambda first=first, key=key: first(key),
                lambda plain=plain, key=key: jax.block_until_ready(plain(key)),
                goal=GOAL,
            ),
            compare(
                f"checkify, {name}",
                lambda checked=checked, key=key: jax.block_until_ready(checked(key)),
                lambda plain=plain, key=key: jax.block_until_ready(plain(key)),
                goal="",
            ),
        ]
    return found


def first_run(fun: Callable, *args) -> Callable:
    """Return the first run of `lox.find_nan`, which is the only one without a NaN."""
    with marked():
        traced = Interpreter(Forward()).trace(fun, *args)
    return Searched(equations.without_dead_code(traced.jaxpr)).find_region(
        None, is_first=True
    )


def checkified(fun: Callable) -> Callable:
    return jax.jit(checkify.checkify(fun, errors=checkify.nan_checks))


# Who names what. ------------------------------------------------------------------------


def says_lox(fun, x) -> str:
    return str(lox.find_nan(fun)(x))


def says_debug_nans(fun, x) -> str:
    with jax.debug_nans(True):
        try:
            jax.block_until_ready(jax.jit(fun)(x))
        except FloatingPointError as error:
            return with_lines(error)
    return ""


def says_checkify(fun, x) -> str:
    error, _ = checkified(fun)(x)
    try:
        error.throw()
    except checkify.JaxRuntimeError as raised:
        return with_lines(raised)
    return ""


def with_lines(error: BaseException) -> str:
    """Return the message of an error, and the lines of the program in its traceback."""
    lines = re.findall(r'planted_nans.py", line \d+', traceback.format_exc())
    return "\n".join([str(error), *lines])


def says_backward_nan(fun, x) -> str:
    """Put it at the only place that is outside the program: around its argument."""
    marked_fun = lambda x: fun(eqx.debug.backward_nan(x, "x", terminate=False))  # noqa: E731
    try:
        jax.block_until_ready(jax.jit(jax.grad(marked_fun))(x))
    except Exception as error:
        return str(error)
    return ""


TOOLS = {
    "lox.find_nan": says_lox,
    "jax.debug_nans": says_debug_nans,
    "checkify": says_checkify,
    "eqx.debug.backward_nan": says_backward_nan,
}


def named(number: int) -> str:
    """Return a table of how many planted NaNs each tool names.

    A tool names an iteration, an example or an operand if its message does, and a line if
    its message or its traceback does.
    """
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.planted_nans import planted

    counts = {tool: Counter() for tool in TOOLS}
    for seed in range(number):
        program = planted(seed)
        for tool, says in TOOLS.items():
            try:
                text = says(program.fun, program.x)
            except Exception as error:  # a tool that cannot run this program
                text = f"{type(error).__name__}"
            counts[tool].update(_named_in(text, program))
        jax.clear_caches()
    rows = []
    for tool, own in counts.items():
        rows.append([f"`{tool}`", *(f"{own[name]} of {number}" for name in NAMED)])
    return grid(["", *NAMED], rows)


def _named_in(text: str, program) -> list[str]:
    """Return what a text names of a planted NaN. Nothing to name counts as named."""
    culprit = program.operation.culprit
    example = program.example if isinstance(program.example, tuple) else (program.example,)
    wanted = {
        "line": any(
            re.search(rf'planted_nans.py(:|", line ){n}\b', text) for n in program.lines
        ),
        "iterations": _in_order([rf"iteration {i}\b" for i in program.iterations], text),
        "example": program.example is None
        or re.search("example .*" + ".*".join(map(str, example)), text) is not None,
        "operand": all(re.search(rf"\b{re.escape(str(abs(x)))}\b", text) for x in culprit),
    }
    return [name for name, is_there in wanted.items() if text and is_there]


def _in_order(patterns: list[str], text: str) -> bool:
    return re.search("(?s)" + ".*".join(patterns), text) is not None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--planted", type=int, help="how many planted NaNs to look for")
    options = parser.parse_args()
    print(named(options.planted) if options.planted else table(figures()))
