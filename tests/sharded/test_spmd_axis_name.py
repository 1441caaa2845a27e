"""`vmap(spmd_axis_name=...)` around a `shard_map`, which splits examples over devices.

The truth is a loop over examples and devices. The mesh is 2 by 2: examples are split over
"a", and the `shard_map` maps over "b". So the rows have an axis of the two devices along
"b", as a value that you return with `out_specs=P("b")` has.
"""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec as P

import lox
from support.delivered import heard
from support.programs import PROGRAMS, Program, logged
from support.selection import thin
from support.truth import assert_logs, assert_trees_close, bare, records_of_each

XS = np.arange(8, dtype=np.float32).reshape(4, 2)
# JAX 0.7 itself fails on loops in here, if it checks what varies.
VERSION = jax.__version_info__
CHECKS = [False] if VERSION < (0, 8) else [False, True]
checks = pytest.mark.parametrize(
    "check", CHECKS, ids=["unchecked", "checked"][: len(CHECKS)]
)


def body(x):
    """What each device does with a part of an example, one number."""
    lox.log({"x": x.sum()})
    # The same on all devices along "b".
    lox.log({"total": jax.lax.psum(x.sum(), "b")})

    def step(c, i):
        lox.log({"c": c.sum() + 10 * i}, step=i)
        jax.lax.cond(
            c.sum() > 3,
            lambda: (lox.log({"large": c.sum()}), None)[1],
            lambda: None,
        )
        return c + 1, None

    c, _ = jax.lax.scan(step, x, jnp.arange(3.0))
    return c * jax.jit(jax.checkpoint(lambda c: logged("y", 2 * c.sum())))(c)


def mapped(fun, check):
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = Mesh(devices, ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    return jax.shard_map(fun, mesh=mesh, in_specs=P("b"), out_specs=P("b"), check_vma=check)


over_examples = ft.partial(jax.vmap, spmd_axis_name="a")


@checks
def test_rows_have_all_examples_and_the_devices_that_share_them(check):
    fun = mapped(body, check)
    expected = XS + 3
    for of_batch, wrap in (
        (lambda x: x, lambda f: lox.spool(over_examples(f))),
        (lambda x: np.moveaxis(x, 0, 1), lambda f: over_examples(lox.spool(f))),
        (lambda x: np.moveaxis(x, 0, 1), lambda f: over_examples(jax.jit(lox.spool(f)))),
    ):
        out, logs = jax.jit(wrap(fun))(XS)
        np.testing.assert_array_equal(out, expected * 2 * expected)
        np.testing.assert_array_equal(logs["x"], XS)
        np.testing.assert_array_equal(logs["y"], 2 * expected)
        c = np.stack([XS + 11 * i for i in range(3)])
        np.testing.assert_array_equal(logs["c"], of_batch(c))
        steps = np.broadcast_to(np.arange(3.0)[:, None, None], c.shape)
        np.testing.assert_array_equal(logs.step["c"], of_batch(steps))
        large = of_batch(np.stack([XS + i for i in range(3)]))
        np.testing.assert_array_equal(logs.valid["large"], large > 3)
        np.testing.assert_array_equal(logs["large"], np.where(large > 3, large, 0))
        # JAX knows that the total is the same along "b", if it checks.
        total = XS.sum(1) if check else np.stack([XS.sum(1)] * 2, 1)
        np.testing.assert_array_equal(logs["total"], total)


@checks
def test_reductions_intervals_and_loops_of_unknown_length(check):
    fun = mapped(body, check)
    _, logs = jax.jit(lox.spool(over_examples(fun), "c", reduce="mean"))(XS)
    np.testing.assert_allclose(logs["c"], XS + 11)
    _, logs = jax.jit(over_examples(lox.spool(fun, "c", reduce="max")))(XS)
    np.testing.assert_allclose(logs["c"], XS + 22)
    _, logs = jax.jit(lox.spool(over_examples(fun), "c", interval=2))(XS)
    np.testing.assert_allclose(logs["c"], np.stack([XS, XS + 22]))
    over_devices = {"c": lox.Reduction.named("sum", devices=True)}
    _, logs = jax.jit(lox.spool(over_examples(fun), "c", reduce=over_devices))(XS)
    np.testing.assert_allclose(logs["c"], (3 * XS + 33).sum(1))


def test_a_loop_of_unknown_length():
    def loop(x):
        def step(x):
            lox.log({"x": x.sum()})
            return x + 3

        return jax.lax.while_loop(lambda x: x.sum() < 6, step, x)

    fun = mapped(loop, False)
    _, logs = jax.jit(lox.spool(over_examples(fun), capacity=2))(XS)
    logged = [[np.arange(x, 6, 3) for x in row] for row in XS]
    for i, j in np.ndindex(4, 2):
        found = np.asarray(logs["x"])[:, i, j][np.asarray(logs.valid["x"])[:, i, j]]
        np.testing.assert_array_equal(found, logged[i][j][-2:])


def test_gradients():
    # JAX itself (0.12) fails on gradients of loops in here, if it checks what varies.
    fun = mapped(body, False)

    def loss(xs):
        out, logs = lox.spool(over_examples(fun), ["x", "y"])(xs)
        return out.sum(), logs

    slope, logs = jax.jit(jax.grad(loss, has_aux=True))(XS)
    np.testing.assert_allclose(slope, 4 * (XS + 3), rtol=1e-6)
    np.testing.assert_array_equal(logs["y"], 2 * (XS + 3))
    slope, logs = jax.jit(
        lox.spool(jax.grad(lambda xs: over_examples(fun)(xs).sum()), ["x", "y"])
    )(XS)
    np.testing.assert_allclose(slope, 4 * (XS + 3), rtol=1e-6)
    np.testing.assert_array_equal(logs["x"], XS)


@checks
def test_tap_numbers_the_examples_of_all_devices(check):
    fun = mapped(body, check)
    tapped = lambda f: jax.jit(over_examples(lox.tap(fun, f, ["x", "large"])))  # noqa: E731
    _, found = heard(tapped, XS)

    def rows(key):
        """The example, the device along "b" and the value of each record."""
        own = [(logs, logs.steps) for logs in found if key in logs]
        return sorted(
            (int(steps["example"][key]), int(steps["b"][key]), float(logs[key]))
            for logs, steps in own
        )

    assert rows("x") == [(i, j, XS[i, j]) for i, j in np.ndindex(4, 2)]
    assert rows("large") == [
        (i, j, XS[i, j] + k) for i, j, k in np.ndindex(4, 2, 3) if XS[i, j] + k > 3
    ]


def test_tap_of_the_batch_calls_once_per_device_with_its_examples():
    fun = mapped(body, False)
    _, found = heard(lambda f: jax.jit(lox.tap(over_examples(fun), f, "x")), XS)
    parts = {(int(s["a"]["x"][0]), int(s["b"]["x"][0])): logs["x"].tolist()
             for logs in found for s in [logs.steps]}  # fmt: skip
    assert parts == {(a, b): XS[2 * a : 2 * a + 2, b].tolist() for a, b in np.ndindex(2, 2)}


def test_examples_under_two_vmaps():
    fun = mapped(lambda x: logged("x", x), False)
    xs = np.arange(24, dtype=np.float32).reshape(3, 4, 2)
    tapped = lambda f: jax.jit(jax.vmap(over_examples(lox.tap(fun, f))))  # noqa: E731
    _, found = heard(tapped, xs)
    for logs in found:
        i, j = logs.steps["example"]["x"].tolist()
        assert logs["x"].tolist() == [xs[i, j, int(logs.steps["b"]["x"])]]
    assert len(found) == 24
    _, logs = jax.jit(lox.spool(jax.vmap(over_examples(fun))))(xs)
    np.testing.assert_array_equal(logs["x"][..., 0], xs)


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="JAX fails on most of them")
@pytest.mark.parametrize("p", thin(PROGRAMS, 8, 3), ids=lambda p: p.name)
def test_programs_whose_examples_are_split_log_what_each_example_logs(p: Program):
    """There are as many devices as examples, and no others: there is no axis of them."""
    mesh = Mesh(np.array(jax.devices()[:3]), "e", axis_types=(AxisType.Auto,))

    def split(fun):
        mapped = jax.shard_map(fun, mesh=mesh, in_specs=P(), out_specs=P())
        return jax.vmap(mapped, spmd_axis_name="e")

    try:
        expected = jax.jit(split(bare(p)))(p.xs)
    except Exception:
        pytest.skip("JAX fails on this program without logs, too.")
    out, logs = jax.jit(lox.spool(split(p.fun)))(p.xs)
    assert_trees_close(out, expected)
    assert_logs(logs, records_of_each(p), natural=p.is_natural)
