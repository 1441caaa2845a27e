"""Logs inside flax linen's `nn.scan`, as in recurrent policies: no change in the model.

The truth is a Python loop over the cells, with the same parameters.
"""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

nn = pytest.importorskip("flax.linen")

XS = jax.random.normal(jax.random.key(1), (5, 2, 3))
CARRY = jnp.zeros((2, 4))


@pytest.fixture(autouse=True, scope="module")
def _as_flax_needs_it():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


scanned = ft.partial(
    nn.scan,
    variable_broadcast="params",
    in_axes=0,
    out_axes=0,
    split_rngs={"params": False},
)


class Cell(nn.Module):
    """A cell that logs, on the way and in a branch of a nested `jit`."""

    @nn.compact
    def __call__(self, carry, x):
        carry, y = nn.GRUCell(features=4)(carry, x)
        lox.log({"size": jnp.abs(carry).mean()})

        @jax.jit
        def inner(y):
            lox.log({"large": y.max()})
            return 2 * y

        return carry, inner(y)


class Recurrent(nn.Module):
    @scanned
    @nn.compact
    def __call__(self, carry, x):
        return Cell(name="cell")(carry, x)


class Bare(nn.Module):
    """The same without logs."""

    @scanned
    @nn.compact
    def __call__(self, carry, x):
        class Cell(nn.Module):
            @nn.compact
            def __call__(self, carry, x):
                carry, y = nn.GRUCell(features=4)(carry, x)
                return carry, 2 * y

        return Cell(name="cell")(carry, x)


@pytest.fixture(scope="module")
def variables():
    return Bare().init(jax.random.key(0), CARRY, XS)


@pytest.fixture(scope="module")
def expected(variables):
    """What each iteration logs, by a Python loop."""
    cell = nn.GRUCell(features=4)
    own = {"params": variables["params"]["cell"]["GRUCell_0"]}
    carry, rows = CARRY, []
    for x in XS:
        carry, y = cell.apply(own, carry, x)
        rows.append((float(jnp.abs(carry).mean()), float(y.max())))
    return np.array(rows, np.float32).T


def assert_rows(logs, expected) -> None:
    assert np.allclose(logs["size"], expected[0], rtol=1e-5)
    assert np.allclose(logs["large"], expected[1], rtol=1e-5)


def test_init_makes_the_same_parameters_and_logs_each_iteration(variables, expected):
    made, logs = lox.spool(Recurrent().init)(jax.random.key(0), CARRY, XS)
    assert jax.tree.structure(made) == jax.tree.structure(variables)
    for x, y in zip(jax.tree.leaves(made), jax.tree.leaves(variables), strict=True):
        assert np.array_equal(x, y)
    assert_rows(logs, expected)


@pytest.mark.parametrize("jit", [jax.jit, lambda fun: fun])
def test_apply_returns_the_same_and_logs_each_iteration(jit, variables, expected):
    plain = jit(Bare().apply)(variables, CARRY, XS)
    for _ in range(2):
        out, logs = jit(lox.spool(Recurrent().apply))(variables, CARRY, XS)
        for x, y in zip(jax.tree.leaves(out), jax.tree.leaves(plain), strict=True):
            assert np.array_equal(x, y)
        assert_rows(logs, expected)


def test_tap_delivers_each_iteration(variables, expected):
    heard: list = []
    jax.jit(lox.tap(Recurrent().apply, heard.append))(variables, CARRY, XS)
    lox.barrier()
    sizes = [float(logs["size"]) for logs in heard if "size" in logs]
    assert np.allclose(sizes, expected[0], rtol=1e-5)


def test_the_gradient_is_the_same(variables, expected):
    def loss(model, variables):
        return model.apply(variables, CARRY, XS)[1].sum()

    plain = jax.jit(jax.grad(ft.partial(loss, Bare())))(variables)
    spooled = lox.spool(jax.grad(ft.partial(loss, Recurrent())))
    gradient, logs = jax.jit(spooled)(variables)
    for x, y in zip(jax.tree.leaves(gradient), jax.tree.leaves(plain), strict=True):
        assert np.array_equal(x, y)
    assert_rows(logs, expected)


def test_under_vmap_each_example_logs_its_own(variables, expected):
    inputs = jnp.stack([XS, 2 * XS])
    run = lox.spool(lambda xs: Recurrent().apply(variables, CARRY, xs))
    _, logs = jax.jit(jax.vmap(run))(inputs)
    assert logs["size"].shape == (2, 5)
    assert np.allclose(logs["size"][0], expected[0], rtol=1e-5)


def test_without_a_transformation_each_iteration_is_printed(variables, capsys):
    jax.block_until_ready(jax.jit(Recurrent().apply)(variables, CARRY, XS))
    lox.barrier()
    assert capsys.readouterr().out.count("size") == len(XS)
