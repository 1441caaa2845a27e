"""One compilation per program, which serves many laws.

XLA needs 15 ms for the smallest program, and each law runs the programs of the catalogue in
its own way: under `vmap`, under `grad`, reduced, thinned. Each way is traced by itself,
with its own errors. NumPy runs most ways of a program, see `evaluate.py`, and XLA the
others, which are compiled together. A full run (`LOX_FULL=1`) compiles all of them.

    @way(PROGRAMS)
    def spool_of_vmap(p):
        return lox.spool(jax.vmap(p.fun)), p.xs

    out, logs = spool_of_vmap(PROGRAMS[0])

A compiled program is run twice, which must give the same bytes.
"""

import contextlib
import functools as ft
import io
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.evaluate import holds_keys, outcome_of
from support.selection import FULL, thin

# From a program to a function, and the argument to call it with.
Make = Callable[[Any], tuple[Callable, Any]]


class Way:
    """A way to run programs. Called with one, it returns the outcome."""

    def __init__(self, make: Make, programs: Sequence[Any]):
        self.make = make
        self.programs = programs

    @property
    def every(self) -> pytest.MarkDecorator:
        """Give a test each of the programs."""
        return pytest.mark.parametrize("p", self.programs, ids=name_of)

    @ft.cached_property
    def compiled(self) -> list[Any]:
        """The programs that XLA runs: each program meets it in some of the ways."""
        return thin(self.programs, 4, start=WAYS.index(self))

    def __call__(self, p: Any) -> Any:
        assert p in self.programs
        outcome = outcomes(p)[self]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


WAYS: list[Way] = []


def name_of(p: Any) -> str:
    return getattr(p, "name", None) or p.__name__


def way(programs: Sequence[Any]) -> Callable[[Make], Way]:
    """Register a way to run `programs`, before the first of them is run."""

    def register(make: Make) -> Way:
        WAYS.append(Way(make, programs))
        return WAYS[-1]

    return register


@ft.cache
def outcomes(p: Any) -> dict[Way, Any]:
    """What comes out of a program in each way, or the error that it raises."""
    traced, found = {}, {}
    for each in (each for each in WAYS if p in each.programs):
        fun, x = each.make(p)
        try:
            traced[each] = jax.jit(fun).trace(x), x
        except Exception as error:
            found[each] = error
    for each, (alone, x) in list(traced.items()):
        if p not in each.compiled and not holds_keys(alone.jaxpr.jaxpr):
            del traced[each]
            found[each] = outcome_or_error(run_by_numpy, alone, x)
    if not traced:
        return found
    try:
        return found | run(traced)
    except Exception:  # find out which way it is
        alone = {each: outcome_or_error(run, {each: one}) for each, one in traced.items()}
        return found | {
            each: one if isinstance(one, Exception) else one[each]
            for each, one in alone.items()
        }


def outcome_or_error(fun: Callable, *args: Any) -> Any:
    try:
        return fun(*args)
    except Exception as error:
        return error


def run_by_numpy(traced: Any, x: jax.Array) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        out = outcome_of(traced, x)
        jax.effects_barrier()
    return jax.tree.map(jnp.asarray, out)


def jit_in_turn(number: int, fun: Callable) -> Callable:
    """`jax.jit` for one number of four, and NumPy for the others."""
    jitted = jax.jit(fun)

    def run(x: Any) -> Any:
        traced = jitted.trace(x)
        return jitted(x) if holds_keys(traced.jaxpr.jaxpr) else outcome_of(traced, x)

    return jitted if FULL or number % 4 == 0 else run


def run(traced: dict[Way, tuple[Any, jax.Array]]) -> dict[Way, Any]:
    """Compile what was traced as one program, and run it twice."""

    def together(xs):
        return [
            jax.core.eval_jaxpr(each.jaxpr.jaxpr, each.jaxpr.consts, x)
            for (each, _), x in zip(traced.values(), xs, strict=True)
        ]

    # What a way leaves to be printed is not for the test that happens to ask first.
    with contextlib.redirect_stdout(io.StringIO()):
        compiled = jax.jit(together)
        first, second = (compiled([x for _, x in traced.values()]) for _ in range(2))
        jax.effects_barrier()
    assert list(map(as_bytes, first)) == list(map(as_bytes, second))
    structures = [jax.tree.structure(each.out_info) for each, _ in traced.values()]
    return dict(zip(traced, map(jax.tree.unflatten, structures, first), strict=True))


def as_bytes(arrays: Sequence[jax.Array]) -> list[bytes]:
    is_key = ft.partial(jnp.issubdtype, arg2=jax.dtypes.prng_key)
    data = (jax.random.key_data(x) if is_key(x.dtype) else x for x in arrays)
    return [np.asarray(x).tobytes() for x in data]
