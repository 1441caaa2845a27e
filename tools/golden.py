"""Write down the jaxprs of the catalogue, to compare them before and after a change.

    python tools/golden.py before
    ...
    python tools/golden.py after
    diff -r before after

There is one file per program and way to run it. What differs from process to process, such
as addresses and the names of modules, is left out.
"""

import pathlib
import re
import sys

import jax

ROOT = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import lox  # noqa: E402
from support.programs import PROGRAMS, Program  # noqa: E402


def ignore(logs: lox.logdict) -> None:
    pass


def summed(fun):
    """Return a function whose gradient can be taken, whatever `fun` returns."""

    def total(*args):
        leaves = jax.tree.leaves(fun(*args))
        floats = [x for x in leaves if jax.numpy.issubdtype(x.dtype, jax.numpy.floating)]
        return sum(x.sum() for x in floats) if floats else 0.0

    return total


WAYS = {
    "spool": lambda p: (lox.spool(p.fun, capacity=4), p.x),
    "reduce": lambda p: (lox.spool(p.fun, reduce="mean"), p.x),
    "spool_vmap": lambda p: (lox.spool(jax.vmap(p.fun), capacity=4), p.xs),
    "spool_grad": lambda p: (lox.spool(jax.grad(summed(p.fun)), capacity=4), p.x),
    "tap": lambda p: (lox.tap(p.fun, ignore), p.x),
    "tap_batch": lambda p: (lox.tap(p.fun, ignore, batch=3), p.x),
    "vmap_tap": lambda p: (jax.vmap(lox.tap(p.fun, ignore)), p.xs),
    "nolog": lambda p: (lox.nolog(p.fun), p.x),
}


def jaxpr_of(p: Program, way: str) -> str:
    if way == "spool_grad" and not p.grad:
        return "not differentiable"
    fun, x = WAYS[way](p)
    try:
        text = str(jax.make_jaxpr(fun)(x))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    text = re.sub(r"(form|in_tree|out_tree)=PyTreeDef.*", r"\1=...", text)
    return re.sub(r"[\w/.]*\.py:\d+", "a line", text)


def main(folder: str) -> None:
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    for p in PROGRAMS:
        for way in WAYS:
            (out / f"{p.name}.{way}.txt").write_text(jaxpr_of(p, way) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
