"""Watching every equation of a program changes neither its result nor its own logs.

The truth is the eager run of the catalogue, as for the other laws.
"""

import jax
import numpy as np
import pytest

import lox
from support.programs import PROGRAMS, Program
from support.selection import thin
from support.truth import (
    assert_logs,
    assert_trees_close,
    records,
    records_of_grad,
    result,
    slope_of,
    total_of,
)

# It streams nothing, so there is no place for the rows of a loop of unknown length.
UNBOUNDED = {"while_loop_without_logs"}
WATCHED = [p for p in PROGRAMS if p.name not in UNBOUNDED]
DIFFERENTIABLE = [p for p in WATCHED if p.grad]


def is_plain(eqn) -> bool:
    return not eqn.primitive.name.startswith("lox_")


def watched(fun):
    return lox.watch(fun, is_plain, stats={"watched": lambda x: x.sum()}, loops="iteration")


def own(logs: lox.logdict) -> lox.logdict:
    return logs.filter(lambda key, *_: not key.endswith("/watched"))


@pytest.mark.filterwarnings("ignore:`scopes` of `lox.watch` selects no equation")
@pytest.mark.parametrize("p", thin(WATCHED, 12), ids=lambda p: p.name)
def test_of_the_program_itself(p: Program):
    out, logs = lox.spool(watched(p.fun))(p.x)
    assert_trees_close(out, result(p))
    assert_logs(own(logs), records(p), natural=p.is_natural)


@pytest.mark.filterwarnings("ignore:`scopes` of `lox.watch` selects no equation")
@pytest.mark.parametrize("p", thin(DIFFERENTIABLE, 12, 3), ids=lambda p: p.name)
def test_inside_and_outside_of_its_gradient(p: Program):
    inside = lox.spool(jax.grad(watched(total_of(p.fun))))
    outside = lox.spool(watched(jax.grad(total_of(p.fun))))
    for f in (inside, outside):
        slope, logs = f(p.x)
        assert_trees_close(slope, slope_of(p))
        assert_logs(own(logs), records_of_grad(p), natural=p.is_natural)
    # What is differentiated is watched in the same way from both sides.
    found = [
        {key: np.asarray(rows) for key, rows in f(p.x)[1].items() if "/out/" in key}
        for f in (inside, outside)
    ]
    for key, rows in found[0].items():
        np.testing.assert_allclose(found[1][key], rows, rtol=1e-4, atol=1e-5)
