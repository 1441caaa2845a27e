"""Exact counts where JAX runs more than the program says, or less."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox


@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"]
)
@pytest.mark.parametrize(
    "what", [lambda x, c, d: x, lambda x, c, d: 1.0, lambda x, c, d: c, lambda x, c, d: d]
)
def test_a_log_that_the_loop_does_not_change_stays_in_it_under_grad(what, wrap):
    def f(x):
        def outer(c, _):
            def inner(d, _):
                lox.log({"k": what(x, c, d)})
                return jnp.sin(d), None

            return wrap(lambda c: lax.scan(inner, c, None, length=2)[0])(c), None

        return wrap(lambda x: lax.scan(outer, x, None, length=3)[0])(x)

    expected = lox.spool(f)(0.7)[1]["k"]

    for grad in (jax.grad(f), jax.jit(jax.grad(f)), lambda x: jax.linearize(f, x)[0]):
        np.testing.assert_allclose(lox.spool(grad)(0.7)[1]["k"], expected)
    assert expected.shape == (6,)


@pytest.mark.parametrize(
    "both",
    [
        jax.jit(lambda x, k: (jnp.sin(x), 2 * k)),
        jax.checkpoint(lambda x, k: (jnp.sin(x), 2 * k)),
        lambda x, k: lax.cond(k > 0, lambda: (jnp.sin(x), 2 * k), lambda: (x, k)),
        lambda x, k: lax.scan(lambda c, _: ((jnp.sin(c[0]), k + k), None), (x, k), None, 2)[
            0
        ],
        lambda x, k: lax.fori_loop(0, 2, lambda i, c: (jnp.sin(c[0]), k + k), (x, k)),
    ],
    ids=["jit", "remat", "cond", "scan", "fori_loop"],
)
def test_a_log_of_the_part_of_a_result_that_does_not_change_stays_in_the_loop(both):
    def f(x, k):
        def body(x, _):
            x, same = both(x, k)
            lox.log({"same": same})
            return x, None

        return lax.scan(body, x, None, length=3)[0]

    _, logs = lox.spool(jax.grad(f))(0.7, 2.0)
    np.testing.assert_array_equal(logs["same"], [4, 4, 4])


def test_branches_of_a_vmapped_switch_share_rows():
    def f(i, x):
        def one(x):
            lox.log({"a": x})

        def two(x):
            lox.log({"a": 2 * x})
            lox.log({"a": 3 * x})

        lox.log({"a": -x})
        lax.switch(i, [one, two, lambda x: None], x)
        lox.log({"a": -2 * x})

    index, x = jnp.array([0, 1, 2]), jnp.arange(1.0, 4.0)
    _, inside = lox.spool(jax.vmap(f))(index, x)
    _, outside = jax.vmap(lox.spool(f))(index, x)

    assert inside["a"].shape == (4, 3)
    np.testing.assert_array_equal(inside.valid["a"].T, outside.valid["a"])
    rows = [inside["a"][:, i][inside.valid["a"][:, i]].tolist() for i in range(3)]
    assert rows == [[-1, 1, -2], [-2, 4, 6, -4], [-3, -6]]


def test_branches_inside_branches_of_a_vmapped_cond_share_rows():
    def f(x):
        def ten_times():
            lox.log({"a": 10 * x})

        def last():
            lox.log({"a": x})
            lax.cond(x > 2, ten_times, lambda: None)

        def first():
            lax.cond(x < -2, ten_times, lambda: None)
            lox.log({"a": x})

        lax.cond(x > 0, last, first)

    x = jnp.array([1.0, 3.0, -1.0, -3.0])
    _, logs = lox.spool(jax.vmap(f))(x)

    assert logs["a"].shape == (2, 4)
    rows = [logs["a"][:, i][logs.valid["a"][:, i]].tolist() for i in range(4)]
    assert rows == [[1], [3, 30], [-1], [-30, -3]]


def test_nested_branches_under_one_vmap_and_under_two():
    def f(x, y):
        def inner(y):
            return lax.cond(
                y > 0, lambda: lox.log({"a": y}) and 1.0, lambda: lox.log({"a": -y}) and 2.0
            )

        return lax.cond(x > 0, lambda: inner(y), lambda: lox.log({"a": x}) and 3.0)

    x, y = jnp.array([1.0, -1.0]), jnp.array([2.0, -2.0, 3.0])
    grid = jax.vmap(jax.vmap(f, (None, 0)), (0, None))
    _, logs = lox.spool(grid)(x, y)

    assert not logs.valid
    assert logs["a"].tolist() == [[2.0, 2.0, 3.0], [-1.0, -1.0, -1.0]]
    _, logs = lox.spool(jax.vmap(f))(x, y[:2])
    assert not logs.valid
    assert logs["a"].tolist() == [2.0, -1.0]


def test_one_vmapped_branch_program_called_twice():
    @jax.jit
    def g(x):
        def both(x):
            lox.log({"a": x})
            lox.log({"a": 2 * x})
            return x

        return lax.cond(x > 0, both, lambda x: lox.log({"a": x}) and -x, x)

    f = lambda x: g(g(x) - 3)  # noqa: E731
    x = jnp.array([1.0, 5.0, -1.0, -5.0])
    _, inside = lox.spool(jax.vmap(f))(x)

    for i, single in enumerate(x):
        _, logs = lox.spool(f)(single)
        rows = inside["a"][:, i][inside.valid["a"][:, i]]
        assert rows.tolist() == logs["a"][logs.valid["a"]].tolist()


def test_a_scan_in_a_vmapped_branch():
    def f(x):
        def loop(x):
            return lax.scan(
                lambda c, i: (lox.log({"c": c}, step=i) and c + 1, None), x, jnp.arange(3)
            )[0]

        return lax.cond(x > 0, loop, lambda x: lox.log({"c": x}) and x, x)

    x = jnp.array([1.0, -1.0])
    _, inside = lox.spool(jax.vmap(f))(x)
    _, outside = jax.vmap(lox.spool(f))(x)

    np.testing.assert_array_equal(inside["c"].T[outside.valid["c"]], [1, 2, 3, -1])
    np.testing.assert_array_equal(outside["c"][outside.valid["c"]], [1, 2, 3, -1])
    np.testing.assert_array_equal(inside.valid["c"].T, outside.valid["c"])
    assert inside.step["c"][:, 0].tolist() == [0, 1, 2]
    assert inside.step.valid["c"][:, 1].tolist()[0] is False


def test_rows_of_an_unbatched_loop_beside_batched_ones():
    def f(x):
        lax.fori_loop(0, 2, lambda i, c: lox.log({"m": 2.5}) and c, 0)
        lox.log({"m": x}, at=x)

    _, logs = lox.spool(jax.vmap(f))(jnp.arange(3.0))

    assert logs["m"].tolist() == [[2.5] * 3, [2.5] * 3, [0.0, 1.0, 2.0]]
    assert logs.at["m"][2].tolist() == [0.0, 1.0, 2.0]
    assert logs.at.valid["m"].tolist() == [[False] * 3, [False] * 3, [True] * 3]


def test_a_branch_that_was_not_taken_leaves_zeros():
    def f(x):
        lax.cond(x > 0, lambda: lox.log({"a": x}, step=x) and None, lambda: None)

    _, logs = lox.spool(jax.vmap(f))(jnp.array([1.0, -1.0, 2.0]))

    assert logs["a"].tolist() == [1.0, 0.0, 2.0]
    assert logs.step["a"].tolist() == [1.0, 0.0, 2.0]
    assert logs.valid["a"].tolist() == [True, False, True]


def test_a_loop_for_its_logs_alone_is_run_in_a_checkpointed_block_under_grad():
    @jax.checkpoint
    def block(c):
        lax.scan(lambda d, _: (lox.log({"k": d}) and jnp.sin(d), None), c, None, length=2)
        return c

    def f(x):
        return lax.scan(lambda c, _: (block(c), None), x, None, length=2)[0]

    for grad in (jax.grad(f), jax.jit(jax.grad(f))):
        _, logs = lox.spool(grad)(0.7)
        np.testing.assert_allclose(logs["k"], [0.7, np.sin(0.7)] * 2, rtol=1e-6)


def test_a_function_with_its_own_backward_rule_in_a_branch_under_vmap_and_grad():
    @jax.custom_vjp
    def sine(x):
        lox.log({"sine": x})
        return jnp.sin(x)

    def forward(x):
        return sine(x), x

    sine.defvjp(forward, lambda x, cotangent: (cotangent * jnp.cos(x),))

    def double(x):
        lox.log({"double": x})
        return 2 * x

    def total(x):
        return jax.vmap(lambda x: lax.cond(x > 0, sine, double, x))(x).sum()

    x = jnp.array([1.0, -1.0])
    slopes = [np.cos(1.0), 2.0]
    for _ in range(2):
        grads, logs = lox.spool(jax.grad(total))(x)
        np.testing.assert_allclose(grads, slopes, rtol=1e-6)
        assert logs["sine"].tolist() == [1.0, 0.0]
        assert logs["double"].tolist() == [0.0, -1.0]
        assert logs.valid["sine"].tolist() == [True, False]
        assert logs.valid["double"].tolist() == [False, True]

        grads, logs = jax.grad(lox.spool(total), has_aux=True)(x)
        np.testing.assert_allclose(grads, slopes, rtol=1e-6)
        assert logs.valid["sine"].tolist() == [True, False]


def test_the_derivative_of_a_map_that_logs_can_be_differentiated():
    def body(x):
        y = jnp.tanh(x)
        lox.log({"y": y})
        return y

    def slope(x):
        return jax.jvp(lambda x: lax.map(body, x).sum(), (x,), (jnp.ones_like(x),))[1]

    x = np.array([0.5, -1.0], np.float32)
    # The slope is 1 - tanh(x)^2, so its own is -2 tanh(x) (1 - tanh(x)^2).
    expected = -2 * np.tanh(x) * (1 - np.tanh(x) ** 2)
    for _ in range(2):
        grads, logs = jax.grad(lox.spool(slope), has_aux=True)(jnp.asarray(x))
        np.testing.assert_allclose(grads, expected, rtol=1e-5)
        np.testing.assert_allclose(logs["y"], np.tanh(x), rtol=1e-6)
