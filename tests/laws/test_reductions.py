"""Every reduction in every construct, against NumPy over the rows of the eager run."""

import functools as ft

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox
from support.compiled import jit_in_turn
from support.programs import PROGRAMS, Program, logged
from support.reductions import (
    DISTINCT,
    NAMES,
    asked,
    assert_reduced,
    every_reduction,
    named,
    possible,
    reduce_rows,
    reductions_of,
)
from support.selection import FULL, covering, thin
from support.truth import (
    assert_close,
    assert_logs,
    assert_trees_close,
    by_key,
    raises,
    records,
    records_in_grad,
    records_of_each,
    records_of_grad,
    total,
    total_of,
)

# Keys that some path logs fewer times, but every path at least once.
SURE = {
    "jit_that_is_shared_by_a_scan_and_a_branch": {"x"},
    "cond_with_different_numbers": {"x"},
    "cond_with_a_log_around": {"x"},
    "cond_with_a_scan_inside": {"x"},
    "vmap_of_a_cond_with_different_logs": {"x"},
}


# Every construct ----------------------------------------------------------------------


def manifold(p: Program) -> bool:
    """Whether each key can be logged under more keys: no inner filter looks at them."""
    return "filters" not in p.name


every = pytest.mark.parametrize(
    "p", [p for p in PROGRAMS if manifold(p)], ids=lambda p: p.name
)
some = pytest.mark.parametrize(
    "p", covering([p for p in PROGRAMS if manifold(p)], 4), ids=lambda p: p.name
)


@every
def test_all_reductions_at_once(p: Program):
    """Some of the programs under `spool(jit)`, the others under `jit(spool)`."""
    number, names = PROGRAMS.index(p), some_or_all(p)
    if number % (2 if FULL else 4) == 1:
        fun = spooled(p, names, jax.jit)
    else:
        fun = jit_in_turn(number, spooled(p, names))
    with every_reduction(names):
        _, logs = fun(p.x)
    check(p, logs, records(p))
    with every_reduction(names):
        _, again = fun(p.x)
    check(p, again, records(p))


@some
def test_reductions_under_vmap(p: Program):
    def vmap_of_spool(names):
        return jax.vmap(spooled(p, names))

    def spool_of_vmap(names):
        return spooled(p, names, jax.vmap)

    ways = [(vmap_of_spool, three(p, 0)), (spool_of_vmap, three(p, 1))]
    for make, names in thin(ways, 2, start=PROGRAMS.index(p)):
        fun = make(names)
        with every_reduction(names):
            _, logs = jit_in_turn(PROGRAMS.index(p) // 2, fun)(p.xs)
        check(p, logs, records_of_each(p), rows=False)


@pytest.mark.parametrize(
    "p",
    covering([p for p in PROGRAMS if p.grad and manifold(p)], 4, start=1),
    ids=lambda p: p.name,
)
def test_reductions_under_grad(p: Program):
    def grad_of_spool(names):
        fun = jax.grad(aux_of(spooled(p, names)), has_aux=True)
        with every_reduction(names):
            _, logs = jit_in_turn(PROGRAMS.index(p) // 4, fun)(p.x)
        check(p, logs, records_in_grad(p))

    def spool_of_grad(names):
        fun = spooled(p, names, lambda fun: jax.grad(total_of(fun)))
        with every_reduction(names):
            _, logs = jit_in_turn(PROGRAMS.index(p) // 4, fun)(p.x)
        assert_reduced(only_reduced(logs), records_of_grad(p), named)

    ways = [(grad_of_spool, three(p, 2)), (spool_of_grad, three(p, 3))]
    for run, names in thin(ways, 2, start=PROGRAMS.index(p) // 2):
        run(names)


@pytest.mark.parametrize("p", thin(PROGRAMS, 2), ids=lambda p: p.name)
def test_one_reduction_for_all_keys(p: Program):
    """Each reduction meets many programs."""
    reduce = set.intersection(
        {*NAMES},
        *(set(possible_names(r.data[key])) for r in records(p) for key in r.data),
    )
    names = sorted(reduce)
    for name in thin(names, len(names), start=PROGRAMS.index(p) // 2):
        spool = lox.spool(p.fun, reduce=asked(name))
        _, logs = jit_in_turn(PROGRAMS.index(p) // 2, spool)(p.x)
        assert set(by_key(records(p))) <= set(logs)
        assert_reduced(logs, records(p), name)
        assert_valid_where_there_may_be_no_row(p, logs)


@pytest.mark.parametrize("p", thin(PROGRAMS, 7), ids=lambda p: p.name)
def test_append_keeps_all_rows(p: Program):
    _, logs = lox.spool(p.fun, reduce="append")(p.x)
    assert_logs(logs, records(p), natural=p.is_natural)


@pytest.mark.parametrize("p", thin(PROGRAMS, 12), ids=lambda p: p.name)
def test_reducing_leaves_the_result_and_outer_transformations_alone(p: Program):
    plain, _ = jax.jit(lox.spool(p.fun))(p.x)
    out, _ = jax.jit(lox.spool(p.fun, reduce="count"))(p.x)
    assert_trees_close(out, plain)
    (out, logs), outer = lox.spool(lox.spool(p.fun, keep_logs=True, reduce="count"))(p.x)
    assert_trees_close(out, plain)
    assert_reduced(logs, records(p), "count")
    assert_logs(outer, records(p), natural=p.is_natural)


def three(p: Program, turn: int) -> list[str]:
    """What takes long to compile meets three of them in turn, one that any dtype has."""
    names, i = ["mean", "sum", "min", "std", "fading"], PROGRAMS.index(p) + turn
    return [names[i % 5], names[(i + 2) % 5], ["first", "last", "count"][i // 3 % 3]]


def some_or_all(p: Program) -> list[str]:
    large = ("scans_nested_four_deep", "training", "actor_and_critic")
    in_turn = FULL or PROGRAMS.index(p) % 3 == 0
    return DISTINCT if in_turn and p.name not in large else three(p, 4)


def spooled(p: Program, names: list[str], transform=lambda fun: fun):
    """The program as a new function, which JAX has not traced with another `log` yet."""
    renewed = lambda: transform(lambda x: p.fun(x))  # noqa: E731
    with every_reduction(names):
        reduce = reductions_of(renewed(), p.xs if transform is jax.vmap else p.x)
    return lox.spool(renewed(), reduce=reduce)


def check(p: Program, logs, expected, rows=True) -> None:
    kept = logs.filter(lambda key, _: not named(key)[1])
    if rows:
        assert_logs(kept, expected, natural=p.is_natural)
    assert_reduced(only_reduced(logs), expected, named)
    for key in by_key(expected):
        found = [key for key in logs if ":" in key]
        assert {named(k)[1] for k in found if named(k)[0] == key}
    assert_valid_where_there_may_be_no_row(p, only_reduced(logs))


def assert_valid_where_there_may_be_no_row(p: Program, logs) -> None:
    masked = p.masked - SURE.get(p.name, set())
    if p.name != "scan_of_length_0":
        assert {named(key)[0] for key in logs.valid} == masked & {named(k)[0] for k in logs}


def only_reduced(logs):
    return logs.filter(lambda key, _: named(key)[1])


def possible_names(value) -> list[str]:
    """As `possible`; what the truth holds of a PRNG key is its data."""
    if any(np.asarray(leaf).dtype == np.uint32 for leaf in jax.tree.leaves(value)):
        return ["first", "last", "replace", "count"]
    return possible(value)


def aux_of(fun):
    def with_logs(x):
        out, logs = fun(x)
        return total(out), logs

    return with_logs


# Values -------------------------------------------------------------------------------


def reduced(rows, name, **options):
    """Reduce rows while they are logged: in a scan, one by one, and in both."""
    return reduced_at_once(rows, [name], **options)[name]


def reduced_at_once(rows, names, *, only_in_a_scan=False):
    """The same for several reductions, all in one program.

    Long rows would be many log calls one by one.
    """

    def log(row):
        lox.log(dict.fromkeys(names, row))

    def in_a_scan(rows):
        jax.lax.scan(lambda _, row: (None, log(row)), None, rows)

    def one_by_one(rows):
        for row in rows:
            log(row)

    def in_both(rows):
        one_by_one(rows[:1])
        in_a_scan(rows[1:-1])
        one_by_one(rows[-1:])

    reduce = {name: asked(name) for name in names}
    funs = [in_a_scan] if only_in_a_scan else [in_a_scan, one_by_one, in_both]
    spools = [lox.spool(fun, reduce=reduce) for fun in funs]
    found = jax.jit(lambda rows: [spool(rows)[1] for spool in spools])(rows)
    return {name: [np.asarray(logs[name]) for logs in found] for name in names}


# Most of them have no infinity, and a NaN in place of it.
EIGHT_BITS = {
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
}
DTYPES = {
    "bool": jnp.array([True, False, True, True]),
    "int8": jnp.array([100, 100, 100, -3], jnp.int8),
    "uint8": jnp.array([200, 255, 100, 0], jnp.uint8),
    "int16": jnp.array([30000, 30000, -5, 7], jnp.int16),
    "int32": jnp.array([4, -7, 1, 2], jnp.int32),
    "uint32": jnp.array([4, 7, 2**31, 2], jnp.uint32),
    **{
        name: jnp.array([1.5, -2, 6, 0.25], dtype)
        for name, dtype in vars(ml_dtypes).items()
        if name in EIGHT_BITS
    },
    "float16": jnp.array([1.5, -2, 300, 0.25], jnp.float16),
    "bfloat16": jnp.array([1.5, -2, 300, 0.25], jnp.bfloat16),
    "float32": jnp.array([[1.5, 2], [-2, 7], [300, 1], [0.25, 3]], jnp.float32),
    "complex64": jnp.array([1 + 2j, -3j, 4, 2 - 1j], jnp.complex64),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_values_are_those_of_numpy(dtype):
    rows = DTYPES[dtype]
    for name, values in reduced_at_once(rows, possible(rows)).items():
        expected = reduce_rows(name, np.asarray(rows))
        for found in values:
            assert_close(f"{name} of {dtype}", found, expected, tol=1e-5)


def test_eight_bits_are_reduced_alike_when_they_are_rows():
    rows = {name: DTYPES[name] for name in sorted(EIGHT_BITS)}
    _, logs = lox.spool(jax.lax.map)(lambda row: lox.log(row), rows)
    for name in ("min", "max"):
        again = logs.reduce(name)
        for dtype, own in rows.items():
            assert_close(f"{name} of {dtype}", again[dtype], reduce_rows(name, own))


@pytest.mark.skipif(not hasattr(jnp, "float8_e8m0fnu"), reason="JAX does not have it.")
def test_a_float_without_sign_has_extremes():
    rows = jnp.array([2, 8, 0.5], jnp.float8_e8m0fnu)
    for name, expected in {"min": 0.5, "max": 8}.items():
        fun = lambda: jax.lax.map(lambda x: lox.log({"x": x}) and None, rows)  # noqa: E731
        assert float(lox.spool(fun, reduce=name)()[1]["x"]) == expected
        assert float(lox.spool(fun)()[1].reduce(name)["x"]) == expected


def test_sixteen_bits_accumulate_in_thirty_two():
    """One by one in 16 bits, the sum would stop at 256 or 2048, or overflow."""
    for dtype in (jnp.bfloat16, jnp.float16):
        names = {"mean": 1, "sum": 4096, "std": 0}
        values = reduced_at_once(jnp.ones(4096, dtype)[:, None], names, only_in_a_scan=True)
        for name, expected in names.items():
            (found,) = values[name]
            assert found.dtype == dtype
            assert found == expected
    (found,) = reduced(jnp.full((64, 1), 6e4, jnp.float16), "mean", only_in_a_scan=True)
    assert found == jnp.float16(6e4)


def test_integers_sum_without_rounding():
    rows = jnp.array([2**24, 1, 1, 1, 2**24 + 1], jnp.int32)
    assert [int(x) for x in reduced(rows, "sum")] == 3 * [2**25 + 4]
    assert [bool(x) for x in reduced(jnp.array([True] * 4), "max")] == 3 * [True]


def test_nan_and_infinities_are_as_numpy_has_them():
    nan, inf = np.nan, np.inf
    cases = [
        [1, nan, 2],
        [nan, 1, 2],
        [1, 2, nan],
        [1, inf, 2],
        [inf, 1, 2],
        [1, 2, inf],
        [-inf, 1, 2],
        [inf, -inf, 1],
        [1, inf, -inf],
        [inf, inf, inf],
        [-inf, -inf, nan],
        [inf, nan, 1],
    ]
    rows = np.array(cases, np.float32).T
    for name, values in reduced_at_once(jnp.asarray(rows), NAMES).items():
        for found in values:
            assert_close(name, found, reduce_rows(name, rows))
    for dtype in (jnp.bfloat16, jnp.float16):
        for name, values in reduced_at_once(jnp.asarray(rows, dtype), NAMES).items():
            expected = np.asarray(reduce_rows(name, rows), np.float32)
            for found in values:
                assert_close(name, np.asarray(found, np.float32), expected, tol=1e-2)


def test_a_sum_that_overflows_is_infinite_as_in_numpy():
    rows = jnp.array([3e38, 3e38, -3e38], jnp.float32)
    for values in reduced_at_once(rows, ["sum", "mean"]).values():
        assert all(np.isinf(found) for found in values)


def test_extremes_of_a_single_infinity_or_bound_are_kept():
    """What an empty accumulator holds must not win over a row."""
    for row in (jnp.float32(jnp.inf), jnp.float32(-jnp.inf), jnp.int8(127), jnp.int8(-128)):
        for values in reduced_at_once(jnp.stack([row, row]), ["min", "max"]).values():
            assert all(found == row for found in values)


def test_min_and_max_of_negative_values_and_of_bools():
    assert [float(x) for x in reduced(jnp.array([-3.0, -1, -2]), "max")] == 3 * [-1]
    assert [float(x) for x in reduced(jnp.array([3.0, 1, 2]), "min")] == 3 * [1]
    assert [bool(x) for x in reduced(jnp.array([False] * 3), "max")] == 3 * [False]
    assert [bool(x) for x in reduced(jnp.array([True] * 3), "min")] == 3 * [True]


@pytest.mark.parametrize("flag", ["jax_debug_nans", "jax_debug_infs"])
def test_a_key_without_rows_is_nothing_to_debug(flag):
    """JAX looks at every output, and outside of `jit` at that of every operation."""

    def fun(xs):
        jax.lax.scan(lambda _, x: (None, log_all(x)), None, xs)
        jax.lax.cond(xs.sum() > 9, lambda: log_all(xs.sum()), lambda: None)
        if len(xs):
            log_all(xs[-1])

    def log_all(x):
        lox.log(dict.fromkeys(names, x))

    names = [name for name in NAMES if name != "fading"]
    kept, reduced = lox.spool(fun), lox.spool(fun, reduce={name: name for name in names})
    set_flag = ft.partial(jax.config.update, flag)
    rows = {0: [], 3: [1.0, 4.0, -2.0, -2.0]}
    set_flag(True)
    try:
        for wrap in (lambda f: f, jax.jit):
            for length, expected in rows.items():
                _, logs = wrap(reduced)(jnp.array([1.0, 4.0, -2.0])[:length])
                for name in names:
                    assert logs.valid.get(name, True) == (length > 0)
                    if expected:
                        truth = reduce_rows(name, np.float32(expected))
                        np.testing.assert_allclose(logs[name], truth, rtol=1e-5)
        _, logs = kept(jnp.zeros(0))
        for name in names:
            assert not logs.reduce(name).valid[name]
        _, logs = jax.vmap(reduced)(jnp.zeros((2, 0)))
        assert not any(logs.valid[name].any() for name in names)
    finally:
        set_flag(False)


@pytest.mark.usefixtures("optimized")
def test_ten_million_values_around_10_000_are_right_to_one_percent():
    """float32 has a resolution of 0.001 there, and a plain sum stops growing."""

    def noise(key, _):
        key, sub = jax.random.split(key)
        block = 1e4 + jax.random.normal(sub, (1000,))
        jax.lax.scan(lambda _, x: (None, log_all(x)), None, block)
        return key, (block.min(), block.max())

    def log_all(x):
        lox.log({"mean": x, "std": x, "var": x, "sum": x, "min": x, "max": x})

    def fun(key):
        return jax.lax.scan(noise, key, None, length=10_000)[1]

    reduce = {name: name for name in ("mean", "std", "var", "sum", "min", "max")}
    (low, high), logs = jax.jit(lox.spool(fun, reduce=reduce))(jax.random.key(0))
    assert abs(logs["mean"] - 1e4) < 0.01  # 1 % of the deviation
    assert abs(logs["std"] - 1) < 0.01
    assert abs(logs["var"] - 1) < 0.01
    assert abs(float(logs["sum"]) / 1e11 - 1) < 1e-6
    assert logs["min"] == low.min()
    assert logs["max"] == high.max()


def test_a_long_constant_has_no_deviation_and_its_own_mean():
    rows = jnp.full(100_000, 0.1)
    expected = {"mean": 0.1, "std": 0, "var": 0, "sum": 1e4}
    for name, (found,) in reduced_at_once(rows, expected, only_in_a_scan=True).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-6)


def test_reductions_are_over_time_only():
    _, logs = lox.spool(lambda x: (logged("x", x), logged("x", 3 * x)), reduce="mean")(
        jnp.arange(6.0).reshape(2, 3)
    )
    assert logs["x"].tolist() == (2 * np.arange(6.0).reshape(2, 3)).tolist()


def test_prng_keys_have_a_first_and_a_last_and_a_number():
    def fun(key):
        return jax.lax.scan(lambda k, i: (next_key(k, i), None), key, jnp.arange(3))[0]

    def next_key(key, i):
        lox.log({"key": key}, step=i)
        return jax.random.fold_in(key, i)

    key = jax.random.key(1)
    _, rows = lox.spool(fun)(key)
    for name, index in (("first", 0), ("last", -1), ("replace", -1)):
        _, logs = lox.spool(fun, reduce=name)(key)
        assert logs["key"] == rows["key"][index]
        assert logs.step["key"] == (0 if name == "first" else 2)
    assert lox.spool(fun, reduce="count")(key)[1]["key"] == 3


def test_a_pytree_is_reduced_leaf_by_leaf():
    def fun():
        for i in range(3):
            lox.log({"tree": {"i": i, "f": (2.0 * i, i > 0)}}, step=i)

    _, logs = lox.spool(fun, reduce="mean")()
    np.testing.assert_allclose(logs["tree"]["i"], 1)
    np.testing.assert_allclose(logs["tree"]["f"][0], 2)
    np.testing.assert_allclose(logs["tree"]["f"][1], 2 / 3, rtol=1e-6)
    assert logs.step["tree"] == 2


# Who decides --------------------------------------------------------------------------


def two_keys(xs, how="mean"):
    def step(carry, x):
        lox.log({"a": x}, reduce=how, step=x)
        lox.log({"b": x, "c": 2 * x})
        return carry + x, None

    return jax.lax.scan(step, 0.0, xs)[0]


XS = jnp.array([1.0, 2.0, 6.0])


def test_a_log_call_can_ask_for_a_reduction():
    for wrap in (lambda f: f, jax.jit):
        _, logs = wrap(lox.spool(two_keys))(XS)
        assert logs["a"] == 3
        assert logs.step["a"] == 6
        assert logs["b"].tolist() == XS.tolist()
    _, logs = lox.spool(ft.partial(two_keys, how="append"))(XS)
    assert logs["a"].tolist() == XS.tolist()
    _, logs = jax.vmap(lox.spool(two_keys))(jnp.stack([XS, 2 * XS]))
    assert logs["a"].tolist() == [3, 6]


def test_the_word_of_spool_overrides_that_of_the_log_call():
    assert lox.spool(two_keys, reduce="sum")(XS)[1].data == {"a": 9, "b": 9, "c": 18}
    _, logs = lox.spool(two_keys, reduce="append")(XS)
    assert logs["a"].tolist() == XS.tolist()


def test_a_mapping_decides_for_its_keys_alone():
    _, logs = lox.spool(two_keys, reduce={"b": "max"})(XS)
    assert logs["a"] == 3
    assert logs["b"] == 6
    assert logs["c"].tolist() == [2, 4, 12]
    _, logs = lox.spool(two_keys, reduce={"a": "append", "c": FIRST})(XS)
    assert logs["a"].tolist() == XS.tolist()
    assert logs["c"] == 2


FIRST = lox.Reduction(
    empty=lambda row: (jnp.zeros_like(row), jnp.zeros((), bool)),
    lift=lambda row: (row, jnp.ones((), bool)),
    combine=lambda a, b: (jnp.where(a[1], a[0], b[0]), a[1] | b[1]),
    finish=lambda acc: acc[0],
)


def test_keys_stay_in_the_order_of_the_first_log():
    _, logs = lox.spool(two_keys, reduce={"b": "max"})(XS)
    assert list(logs) == ["a", "b", "c"]
    _, logs = lox.spool(two_keys, reduce={"c": "max", "a": "append"})(XS)
    assert list(logs) == ["a", "b", "c"]


def test_filters_and_prefix_go_with_reductions():
    _, logs = lox.spool(two_keys, argnames="c", reduce="mean", prefix="p/")(XS)
    assert logs.data == {"p/c": 6}


def test_what_is_kept_goes_on_unreduced():
    inner = lox.spool(two_keys, reduce="sum", keep_logs=True)
    (_, logs), outer = lox.spool(inner, reduce={"a": "append"})(XS)
    assert logs.data == {"a": 9, "b": 9, "c": 18}
    assert outer["a"].tolist() == XS.tolist()
    (_, _), outer = lox.spool(inner)(XS)
    assert outer["a"] == 3  # as the log call asks


def test_a_reduced_key_of_a_scan_of_length_0_is_not_valid():
    for name in NAMES:
        _, logs = lox.spool(two_keys, reduce=asked(name))(jnp.zeros(0))
        assert not any(logs.valid[key] for key in "abc")
        assert not logs.compact()
        _, logs = lox.spool(two_keys, reduce=asked(name))(XS)
        assert not logs.valid


def test_a_branch_that_does_not_log_contributes_nothing():
    def fun(xs):
        def step(carry, x):
            jax.lax.cond(x > 1, lambda: log_it(x), lambda: None)
            return carry, None

        return jax.lax.scan(step, 0.0, xs)[0]

    def log_it(x):
        lox.log({"x": x}, step=x)

    for name in NAMES:
        spooled = jax.jit(lox.spool(fun, reduce=asked(name)))
        _, logs = spooled(XS)
        assert logs.valid["x"]
        expected = reduce_rows(name, np.array([2, 6], np.float32))
        assert_close(name, logs["x"], expected)
        assert logs.step["x"] == (2 if name == "first" else 6)
        _, logs = spooled(XS / 10)
        assert not logs.valid["x"]
        _, logs = jax.vmap(spooled)(jnp.stack([XS, XS / 10, -XS, XS[::-1]]))
        assert logs.valid["x"].tolist() == [True, False, False, True]
        assert_close(name, logs["x"][0], expected)
        assert logs.step["x"][::3].tolist() == ([2, 6] if name == "first" else [6, 2])


def test_a_step_that_the_last_row_lacks_is_masked():
    def fun(x):
        lox.log({"x": x}, step=1)
        lox.log({"x": x})

    _, logs = lox.spool(fun, reduce="sum")(1.0)
    assert logs["x"] == 2
    assert not logs.step.valid["x"]

    def other(x):
        lox.log({"x": x})
        lox.log({"x": x}, step=1)

    _, logs = lox.spool(other, reduce="sum")(1.0)
    assert logs.step["x"] == 1
    assert logs.step.valid.get("x", True)


def test_tags_of_all_rows_are_kept():
    def fun(x):
        lox.log({"x": x}, tags="a")
        lox.log({"x": x}, tags="b")

    _, logs = lox.spool(fun, reduce="sum")(1.0)
    assert set(logs.tags["x"]) == {"a", "b"}


def test_reduced_logs_can_be_used_in_the_program():
    def fun(xs):
        out, logs = lox.spool(two_keys, reduce="mean")(xs)
        return out + logs["b"]

    assert jax.jit(fun)(XS) == 12
    assert jax.grad(fun)(XS).tolist() == [1, 1, 1]  # logs carry no derivatives


def test_a_log_that_is_reduced_never_turns_a_gradient_into_nan():
    def fun(x):
        def step(carry, a):
            lox.log(dict.fromkeys(NAMES, jnp.sqrt(jnp.sum(x * x))))
            return carry + jnp.sum(x * a), None

        return jax.lax.scan(step, 0.0, jnp.arange(3.0))[0]

    reduce = {name: asked(name) for name in NAMES}
    inside = jax.jit(jax.grad(lox.spool(fun, reduce=reduce), has_aux=True))
    for spooled in (inside, lox.spool(jax.grad(fun), reduce=reduce)):
        slope, logs = spooled(jnp.zeros(2))
        assert slope.tolist() == [3, 3]
        assert logs.data == {name: 3 if name == "count" else 0 for name in NAMES}


# Bad input ----------------------------------------------------------------------------


def test_an_unknown_reduction_is_an_error_that_names_the_known_ones():
    for wrong in ("median", 3, len, ["mean"]):
        with raises(ValueError, "median|3|len|mean", "'mean'", "'std'", "lox.Reduction"):
            lox.spool(two_keys, reduce=wrong)
        with raises(ValueError, "'mean'", "lox.Reduction"):
            lox.spool(two_keys, reduce={"a": wrong})
        with raises(ValueError, "'mean'", "lox.Reduction"):
            lox.log({"a": 1}, reduce=wrong)


def twice(first, second):
    def fun(x):
        lox.log({"k": x}, reduce=first)
        jax.lax.scan(lambda c, i: (c, log_again(i)), 0, x + jnp.arange(2.0))

    def log_again(i):
        lox.log({"k": i}, reduce=second)

    return fun


def in_branches(first, second):
    def fun(x):
        jax.lax.cond(x > 0, lambda: log_it(x, first), lambda: log_it(x, second))

    def log_it(x, how):
        lox.log({"k": x}, reduce=how)

    return fun


@pytest.mark.parametrize("make", [twice, in_branches])
def test_two_reductions_of_one_key_are_an_error_unless_spool_decides(make):
    for wrap in (lambda f: f, jax.jit):
        with raises(ValueError, "'k'", "'(mean|sum)'", "'(mean|sum)'", "reduce="):
            lox.spool(wrap(make("mean", "sum")))(1.0)
    _, logs = lox.spool(make("mean", "sum"), reduce="count")(1.0)
    assert logs["k"] == (3 if make is twice else 1)
    lox.spool(make("mean", "sum"), reduce={"k": "min"})(1.0)
    lox.spool(make("mean", "mean"))(1.0)
    lox.spool(make("last", "replace"))(1.0)


@pytest.mark.parametrize("make", [twice, in_branches])
def test_a_key_that_is_reduced_here_and_keeps_its_rows_there_is_an_error(make):
    for first, second in (("mean", None), (None, "mean"), ("append", "mean")):
        with raises(ValueError, "'k'", "'mean'", "rows"):
            lox.spool(make(first, second))(1.0)
    lox.spool(make("mean", None), reduce="append")(1.0)
    lox.spool(make("append", None))(1.0)


def test_reductions_that_a_dtype_does_not_have_are_errors_that_name_the_key():
    z, key = jnp.complex64(1j), jax.random.key(0)
    for name in ("min", "max"):
        with raises(TypeError, "'z'", f"'{name}'", "complex"):
            lox.spool(lambda z: logged("z", z), reduce=name)(z)
    for name in ("min", "max", "mean", "sum", "std", "var"):
        with raises(TypeError, "'key'", f"'{name}'", "PRNG"):
            lox.spool(lambda key: lox.log({"key": key}) and None, reduce=name)(key)
        with raises(TypeError, "'key'", f"'{name}'", "PRNG"):
            jax.jit(lambda key: lox.spool(scan_of_keys, reduce=name)(key))(key)


def scan_of_keys(key):
    keys = jax.random.split(key, 3)
    jax.lax.scan(lambda _, key: (None, lox.log({"key": key}) and None), None, keys)


@pytest.mark.parametrize("option", ["interval", "capacity"])
def test_an_interval_or_capacity_below_1_is_an_error(option):
    for number in (0, -1):
        with raises(ValueError, option, "at least 1", str(number)):
            lox.spool(two_keys, **{option: number})
    for number in (2.0, "2", True):
        with raises(TypeError, f"`{option}` must be a whole number, not {number!r}"):
            lox.spool(two_keys, **{option: number})
    lox.spool(two_keys, **{option: np.int32(2)})(XS)


def test_rows_of_two_shapes_are_an_error_also_where_they_are_reduced():
    def fun(x):
        lox.log({"k": x})
        lox.log({"k": jnp.stack([x, x])})

    with raises(ValueError, "'k'", r"float32\[\]", r"float32\[2\]"):
        lox.spool(fun, reduce="mean")(jnp.float32(1))


def test_reduced_logs_cannot_be_added():
    _, logs = lox.spool(two_keys, reduce="mean")(XS)
    with raises(ValueError, "'a'", "reduce"):
        logs + logs
