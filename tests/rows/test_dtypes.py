"""One key that is logged with several dtypes: promoted as JAX promotes arrays."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox
from support import truth


def in_a_row(x):
    lox.log({"x": jnp.int32(3), "other": x}, step=1)
    lox.log({"x": x}, step=2.5)
    lox.log({"x": x > 0, "other": 2}, step=3)


def around_a_scan(x):
    lox.log({"x": 7})
    jax.lax.scan(lambda c, i: (c, lox.log({"x": i * x}) and None), 0, jnp.arange(3.0))
    lox.log({"x": True})


def inside_a_scan(x):
    def body(count, _):
        lox.log({"x": count}, step=count)
        lox.log({"x": x * count.astype(x.dtype)}, step=x)
        return count + 1, None

    jax.lax.scan(body, jnp.int32(0), length=3)


def in_branches(x):
    def low():
        lox.log({"x": jnp.int32(1)}, step=jnp.uint8(1))
        lox.log({"x": jnp.int32(2)}, step=jnp.uint8(2))

    jax.lax.cond(x > 0, lambda: lox.log({"x": x}, step=5) and None, low)


def in_a_branch_and_after(x):
    jax.lax.cond(x > 0, lambda: lox.log({"x": 2**30}) and None, lambda: None)
    lox.log({"x": x + 2e10})


def in_half_precision(x):
    lox.log({"x": {"a": x.astype(jnp.bfloat16), "b": jnp.int8(3)}})
    lox.log({"x": {"a": x.astype(jnp.float16), "b": jnp.uint8(4)}})


PROGRAMS = [
    in_a_row,
    around_a_scan,
    inside_a_scan,
    in_branches,
    in_a_branch_and_after,
    in_half_precision,
]
every = pytest.mark.parametrize("fun", PROGRAMS, ids=lambda fun: fun.__name__)


XS = (jnp.float32(1.5), jnp.float32(-0.5))


def logged(fun, x):
    """Return the rows that an eager run logs, by key, and its steps, by key and name.

    They are promoted by JAX. Branches that were not taken have their say in that.
    """
    rows, *others = [eager(fun, x) for x in (x, *XS)]
    return {name: stacked(rows[name], others, name) for name in rows}


def stacked(rows, others, name):
    every = [*rows, *(row for other in others for row in other.get(name, ()))]
    with jax.numpy_dtype_promotion("standard"):
        return jax.tree.map(lambda *xs: np.asarray(jnp.stack(xs)[: len(rows)]), *every)


def eager(fun, x):
    found = {}
    for record in truth.run(fun, x)[1]:
        for key, value in record.data.items():
            found.setdefault(key, []).append(value)
            for name, step in record.steps.items():
                found.setdefault((key, name), []).append(step)
    return found


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(
            x.astype(np.float64), y.astype(np.float64), rtol=1e-6, atol=1e-6
        )


@every
def test_rows_are_promoted_as_those_of_an_eager_run(fun):
    ways = lox.spool(fun), jax.jit(lox.spool(fun)), lox.spool(jax.jit(fun))
    for x in XS:
        expected = logged(fun, x)
        for spooled in ways:
            logs = spooled(x)[1].compact().to_numpy()
            steps = logs.steps.items()
            found = {(key, name): step[key] for name, step in steps for key in step}
            found |= logs
            assert found.keys() == expected.keys()
            for name, rows in expected.items():
                assert_same(found[name], rows)


@every
def test_each_example_of_a_batch_has_its_rows(fun):
    xs = jnp.array([1.5, -0.5, 3.0], jnp.float32)
    of_vmap = jax.jit(lox.spool(jax.vmap(fun)))(xs)[1].to_numpy()
    vmapped = jax.jit(jax.vmap(lox.spool(fun)))(xs)[1].to_numpy()

    for i, x in enumerate(xs):
        for key, rows in logged(fun, x).items():
            if isinstance(key, tuple):
                continue
            for logs, axis in (of_vmap, 1), (vmapped, 0):
                mine = jax.tree.map(lambda a: example(a, i, axis), logs[key])
                if key in logs.valid:
                    mask = example(logs.valid[key], i, axis)
                    mine = jax.tree.map(lambda a: a[mask], mine)
                assert_same(mine, rows)


def example(rows, i, axis):
    # What no example depends on has no axis of examples.
    return rows.take(i, axis) if rows.ndim > 1 else rows


REDUCTIONS = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "std": np.std,
    "first": lambda rows: rows[0],
    "last": lambda rows: rows[-1],
    "count": len,
}


@pytest.mark.parametrize("fun", PROGRAMS[1:5], ids=lambda fun: fun.__name__)
def test_reduced_rows_are_promoted(fun):
    names = list(REDUCTIONS)

    def under_every_name(x):
        def log(data, **steps):
            return real_log(dict.fromkeys(names, data["x"]), **steps)

        real_log = lox.log
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lox, "log", log)
            fun(x)

    spooled = jax.jit(lox.spool(under_every_name, reduce={name: name for name in names}))
    for x in XS:
        rows = logged(fun, x)["x"].astype(np.float64)
        for _ in range(2):
            _, logs = spooled(x)
            for name, of_rows in REDUCTIONS.items():
                expected = of_rows(rows)
                assert logs[name].dtype == (np.int32 if name == "count" else np.float32)
                np.testing.assert_allclose(logs[name], expected, rtol=1e-6, err_msg=name)


def least(dtype):
    return np.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.integer) else np.inf


MINIMUM = lox.Reduction(
    empty=lambda row: jnp.full(row.shape, least(row.dtype), row.dtype),
    lift=lambda row: row,
    combine=jnp.minimum,
    finish=lambda smallest: smallest,
)


@pytest.mark.parametrize("reduce", ["min", MINIMUM], ids=["min", "own"])
def test_a_branch_without_rows_has_no_say_in_a_promoted_minimum(reduce):
    """The neutral element of int32 is no neutral element of float32."""

    def fun(x):
        jax.lax.cond(x > 0, lambda: lox.log({"x": jnp.int32(1)}) and None, lambda: None)
        lox.log({"x": x + 2e10})

    for wrap in (lambda f: f, jax.vmap):
        x = jnp.array([-0.5, -1.5]) if wrap is jax.vmap else jnp.float32(-0.5)
        _, logs = lox.spool(wrap(fun), reduce=reduce)(x)
        np.testing.assert_array_equal(logs["x"], np.asarray(x) + np.float32(2e10))


@pytest.mark.parametrize("options", [{"capacity": 8}, {"reduce": "sum"}], ids=str)
def test_rows_of_a_while_loop_are_promoted(options):
    def fun(n):
        def body(i):
            lox.log({"x": i})
            lox.log({"x": i.astype(jnp.float32) / 2})
            return i + 1

        jax.lax.while_loop(lambda i: i < n, body, jnp.int32(0))
        lox.log({"x": False})

    _, logs = jax.jit(lox.spool(fun, **options))(3)
    rows = np.array([0, 0, 1, 0.5, 2, 1, 0], np.float32)

    assert logs["x"].dtype == np.float32
    if "reduce" in options:
        assert logs["x"] == rows.sum()
    else:
        np.testing.assert_array_equal(logs.compact()["x"], rows)


@pytest.mark.parametrize("fun", [inside_a_scan, in_branches], ids=lambda f: f.__name__)
def test_a_batch_of_tapped_rows_is_promoted(fun):
    def in_a_loop(x):
        jax.lax.while_loop(lambda i: i < 2, lambda i: (fun(x), i + 1)[1], 0)

    for x in XS:
        expected = logged(in_a_loop, x)
        calls = []
        tapped = jax.jit(lox.tap(in_a_loop, calls.append, batch=4))
        for _ in range(2):
            calls.clear()
            tapped(x)
            lox.barrier()
            delivered = [logs.compact() for logs in calls]
            assert_same(np.concatenate([logs["x"] for logs in delivered]), expected["x"])
            found = np.concatenate([logs.step["x"] for logs in delivered])
            assert_same(found, expected["x", "step"])


def test_tapped_records_keep_their_dtypes():
    calls = []
    lox.tap(in_a_row, calls.append)(jnp.float32(1.5))
    lox.barrier()
    assert [str(logs["x"].dtype) for logs in calls] == ["int32", "float32", "bool"]


def test_the_sum_of_two_logs_is_promoted():
    whole = lox.spool(lambda: lox.log({"x": jnp.arange(2)}, step=1) and None)()[1]
    real = lox.spool(lambda: lox.log({"x": jnp.ones(2)}, step=jnp.float16(2)) and None)()[1]

    for logs, rows in (
        ((whole + real), [[0, 1], [1, 1]]),
        ((real + whole), [[1, 1], [0, 1]]),
    ):
        assert logs["x"].dtype == jnp.float32
        assert logs["x"].tolist() == rows
        assert logs.step["x"].dtype == jnp.float16
    assert (lox.logdict({"x": 1}) + lox.logdict({"x": 2.5}))["x"].tolist() == [1.0, 2.5]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.ones((), ml_dtypes.float8_e4m3fn), np.float32(1)),
        (jax.random.key(0), np.uint32(1)),
        (jax.random.key(0), jax.random.key(0, impl="rbg")),
    ],
    ids=["float8", "key", "keys"],
)
@pytest.mark.parametrize("options", [{}, {"reduce": "last"}], ids=str)
def test_dtypes_without_a_common_one_are_refused(first, second, options):
    def values(x):
        lox.log({"y": x, "x": first})
        lox.log({"y": x, "x": second})

    def steps(x):
        lox.log({"x": x}, step=first)
        lox.log({"x": x}, step=second)

    one, two = jnp.asarray(first).dtype, jnp.asarray(second).dtype
    place = r"at .*test_dtypes.py:\d+"
    with truth.raises(
        ValueError,
        rf"'x' is logged as {one}\[\] {place}",
        rf"and as {two}\[\] {place}",
        "no common dtype .*: use another key, or `astype` the value",
    ):
        lox.spool(values, **options)(1.0)
    with truth.raises(
        ValueError,
        rf"The step 'step' of 'x' is {one}\[\] {place}",
        rf"and {two}\[\] {place}",
        "no common dtype",
    ):
        lox.spool(steps, **options)(1.0)


@pytest.mark.parametrize("options", [{}, {"reduce": "last"}], ids=str)
def test_steps_of_one_key_must_have_one_shape(options):
    def fun(x):
        lox.log({"x": x}, step=1)
        lox.log({"x": x}, step=jnp.arange(2))

    place = r"at .*test_dtypes.py:\d+"
    with truth.raises(
        ValueError,
        rf"The step 'step' of 'x' is int32\[\] {place}",
        rf"and int32\[2\] {place}.*one shape",
    ):
        lox.spool(fun, **options)(1.0)
