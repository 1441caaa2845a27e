"""What is delivered while the program runs: law 6 over the catalogue."""

import functools as ft

import jax
import pytest
from delivered import assert_delivered, heard
from programs import PROGRAMS, Program
from test_laws import records, records_of_each, result, result_of_each, slope_of, total_of
from truth import assert_trees_close, run

import lox

pytestmark = pytest.mark.usefixtures("quick_compilation")
every = pytest.mark.parametrize("p", PROGRAMS, ids=lambda p: p.name)
differentiable = pytest.mark.parametrize(
    "p", [p for p in PROGRAMS if p.grad], ids=lambda p: p.name
)


@every
def test_tap_delivers_what_the_eager_run_logs_in_its_order(p: Program, capsys):
    for transform in (
        lambda listen: lox.tap(p.fun, listen),
        lambda listen: jax.jit(lox.tap(p.fun, listen)),
        lambda listen: lox.tap(jax.jit(p.fun), listen),
    ):
        out, found = heard(transform, p.x)
        assert_trees_close(out, result(p))
        assert_delivered(found, records(p))
    assert capsys.readouterr().out == ""


@every
def test_vmap_of_tap_delivers_what_each_example_logs(p: Program):
    out, found = heard(lambda listen: jax.jit(jax.vmap(lox.tap(p.fun, listen))), p.xs)
    assert_trees_close(out, result_of_each(p))
    assert_delivered(found, records_of_each(p))


@every
def test_tap_of_vmap_delivers_what_each_example_logs(p: Program):
    out, found = heard(lambda listen: jax.jit(lox.tap(jax.vmap(p.fun), listen)), p.xs)
    assert_trees_close(out, result_of_each(p))
    assert_delivered(found, records_of_each(p))


@differentiable
def test_grad_of_tap_delivers_the_primal_records(p: Program):
    slope, found = heard(
        lambda listen: jax.jit(jax.grad(total_of(lox.tap(p.fun, listen)))), p.x
    )
    assert_trees_close(slope, slope_of(p))
    assert_delivered(found, records(p))


@differentiable
def test_tap_of_grad_delivers_what_the_eager_gradient_logs(p: Program):
    _, expected = run(jax.grad(total_of(p.truth)), p.x)
    slope, found = heard(
        lambda listen: jax.jit(lox.tap(jax.grad(total_of(p.fun)), listen)), p.x
    )
    assert_trees_close(slope, slope_of(p))
    assert_delivered(found, expected)


@every
def test_batches_hold_the_rows_of_each_key_in_order(p: Program):
    for batch in (3, 1000):
        tapping = ft.partial(lox.tap, p.fun, batch=batch)
        out, found = heard(lambda listen, tapping=tapping: jax.jit(tapping(listen)), p.x)
        assert_trees_close(out, result(p))
        assert_delivered(found, records(p), by_key=True)


@every
def test_batches_of_each_example_are_complete(p: Program):
    for transform in (
        lambda listen: jax.jit(jax.vmap(lox.tap(p.fun, listen, batch=3))),
        lambda listen: jax.jit(lox.tap(jax.vmap(p.fun), listen, batch=3)),
    ):
        out, found = heard(transform, p.xs)
        assert_trees_close(out, result_of_each(p))
        assert_delivered(found, records_of_each(p), by_key=True)
