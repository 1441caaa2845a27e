"""`stats`, `histogram` and `reduce="histogram"`, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.truth import raises

RNG = np.random.default_rng(0)
ARRAYS = {
    "normal": RNG.normal(size=(7, 5)).astype(np.float32),
    "integers": np.array([[3, 0, -2], [0, 7, 7]], np.int32),
    "bools": np.array([True, False, True]),
    "half": RNG.normal(size=20).astype(np.float16),
    "one": np.float32(2.5),
    "zeros": np.zeros(4, np.float32),
    "huge": np.array([3e38, -1e38, 2e38], np.float32),
    "tiny": np.array([1e-30, -3e-30, 0], np.float32),
    "nan": np.array([1.0, np.nan, -np.inf, 0.0], np.float32),
    "infinite": np.array([np.inf, np.nan], np.float32),
}
each = pytest.mark.parametrize("x", ARRAYS.values(), ids=ARRAYS)


@each
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_stats_are_those_of_numpy(x):
    wide = np.asarray(x, np.float64)
    expected = {
        "mean": wide.mean(),
        "std": wide.std(),
        "rms": np.sqrt((wide**2).mean()),
        "min": wide.min(),
        "max": wide.max(),
        "zeros": (wide == 0).mean(),
        "nonfinite": (~np.isfinite(wide)).mean(),
    }
    # Compiled by itself, a division by one number becomes a product.
    for described in (lox.stats, jax.jit(lox.stats)):
        found = described(x)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert found[name].shape == ()
            assert found[name].dtype == jnp.float32
            np.testing.assert_allclose(found[name], value, rtol=2e-6, err_msg=name)


def test_stats_are_logged_as_scalars_by_name():
    def fun(x):
        lox.log({"h": lox.stats(x)}, step=1)

    _, logs = jax.jit(lox.spool(fun))(jnp.arange(4.0))
    assert logs["h"]["max"] == 3
    table = logs.to_pandas()
    assert {"h/mean", "h/rms", "h/nonfinite"} <= set(table.columns)


def test_stats_of_what_cannot_be_described_are_errors():
    with raises(TypeError, "`lox.stats` takes an array", "dict", "tree.map"):
        lox.stats({"a": 1.0})
    with raises(TypeError, "complex64", "abs"):
        lox.stats(jnp.ones(2, jnp.complex64))
    with raises(ValueError, r"\(0,\)", "no values"):
        lox.stats(jnp.ones(0))


def counted(x, edges):
    """The counts of NumPy, with open bins at both ends, and what is not finite."""
    flat = np.asarray(x).reshape(-1).astype(edges.dtype)
    finite = flat[np.isfinite(flat)]
    places = np.clip(np.searchsorted(edges, finite, side="right") - 1, 0, len(edges) - 2)
    return np.bincount(places, minlength=len(edges) - 1), flat.size - finite.size


@each
@pytest.mark.parametrize("edges", ["data", "symlog", (-2.0, -0.5, 0.0, 1.0)], ids=str)
def test_histograms_count_every_value(x, edges):
    options = {"edges": edges} if edges == "symlog" else {"bins": 5, "edges": edges}
    found = jax.jit(lambda x: lox.histogram(x, **options))(x)
    counts, nonfinite = counted(x, np.asarray(found.edges))
    assert found.counts.tolist() == counts.tolist()
    assert found.nonfinite == nonfinite
    assert found.counts.sum() + found.nonfinite == np.size(x)
    finite = np.asarray(x, np.float32)[np.isfinite(np.asarray(x, np.float32))]
    if edges == "data" and finite.size and finite.min() < finite.max():
        expected = np.linspace(float(finite.min()), float(finite.max()), 6)
        scale = np.abs(finite).max()
        actual = np.asarray(found.edges, np.float64)
        np.testing.assert_allclose(actual / scale, expected / scale, atol=1e-6)


@pytest.mark.parametrize("width", [1, 3, 64, 500])
@pytest.mark.parametrize("low", [5e8, -1e3, 3.4e38])
def test_values_that_differ_in_their_last_bits_have_edges_in_order(low, width):
    x = np.float32(low) - np.arange(width + 1) * np.spacing(np.float32(low))
    found = lox.histogram(x)
    edges = np.asarray(found.edges)
    assert np.isfinite(edges).all()
    assert (np.diff(edges) > 0).all()
    assert edges[0] <= x.min()
    assert edges[-1] >= x.max()
    assert found.counts.tolist() == counted(x, edges)[0].tolist()


def test_edges_may_be_computed_in_a_jitted_function():
    def fun(x):
        return lox.histogram(x, edges=jnp.linspace(-1, 1, 5)).counts

    x = jnp.array([-0.9, 0.1, 0.2, 7.0])
    assert jax.jit(fun)(x).tolist() == fun(x).tolist() == [1, 0, 2, 1]
    with raises(ValueError, "`edges`", "two numbers", r"float32\[1\]"):
        jax.jit(lambda edges: lox.histogram(x, edges=edges))(jnp.ones(1))


def test_symmetric_edges_are_symmetric():
    for bins in (1, 2, 5, 64):
        edges = np.asarray(lox.histogram(jnp.ones(3), bins, edges="symlog").edges)
        assert len(edges) == bins + 1
        np.testing.assert_allclose(edges, -edges[::-1])
        assert (np.diff(edges) > 0).all()


def test_a_histogram_is_a_value_to_log():
    def fun(xs):
        def step(_, x):
            lox.log({"h": lox.histogram(x, edges=[0, 1, 2, 3])}, step=x[0])
            return _, None

        jax.lax.scan(step, None, xs)

    xs = jnp.array([[0.5, 1.5], [2.5, 2.6]])
    for _ in range(2):
        _, logs = jax.jit(lox.spool(fun))(xs)
        assert isinstance(logs["h"], lox.Histogram)
        assert logs["h"].counts.tolist() == [[1, 1, 0], [0, 0, 2]]
        assert logs["h"].merged().counts.tolist() == [1, 1, 2]
        found = []
        lox.tap(fun, found.append)(xs)
        assert found[1]["h"].counts.tolist() == [0, 0, 2]
    _, logs = jax.vmap(lox.spool(fun))(jnp.stack([xs, xs]))
    assert logs["h"].merged().counts.tolist() == [2, 2, 4]


def test_histograms_with_different_edges_cannot_be_merged():
    both = jax.vmap(lox.histogram)(jnp.array([[0.0, 1.0], [0.0, 2.0]]))
    with raises(ValueError, "different edges", "symlog"):
        both.merged()


# As a reduction -----------------------------------------------------------------------


def logs_rows(xs):
    def step(i, x):
        lox.log({"x": x}, step=i)
        return i + 1, None

    return jax.lax.scan(step, 0, xs)[0]


def test_a_reduction_counts_all_rows():
    xs = jnp.asarray(RNG.normal(size=(9, 4)).astype(np.float32)).at[2, 1].set(jnp.nan)
    for spooled in (
        lox.spool(logs_rows, reduce="histogram"),
        jax.jit(lox.spool(logs_rows, reduce={"x": "histogram"})),
    ):
        _, logs = spooled(xs)
        found = logs["x"]
        counts, nonfinite = counted(xs, np.asarray(found.edges))
        assert isinstance(found, lox.Histogram)
        assert found.counts.tolist() == counts.tolist()
        assert (found.nonfinite, nonfinite) == (1, 1)
        assert logs.step["x"] == 8
    _, kept = lox.spool(logs_rows)(xs)
    reduced = kept.reduce("histogram")["x"]
    assert reduced.counts.tolist() == counts.tolist()


def test_a_reduction_in_branches_batches_and_loops_of_unknown_length():
    def fun(n):
        def body(i):
            jax.lax.cond(i % 2 == 0, lambda: lox.log({"i": i}) and None, lambda: None)
            return i + 1

        return jax.lax.while_loop(lambda i: i < n, body, 0)

    reduction = lox.Histogram.reduction(edges=[0, 3, 6, 9])
    _, logs = jax.jit(lox.spool(fun, reduce=reduction))(9)
    assert logs["i"].counts.tolist() == [2, 1, 2]
    _, logs = jax.jit(jax.vmap(lox.spool(fun, reduce=reduction)))(jnp.array([0, 4, 9]))
    assert logs["i"].counts.tolist() == [[0, 0, 0], [2, 0, 0], [2, 1, 2]]
    assert logs.valid["i"].tolist() == [False, True, True]
    _, logs = jax.jit(lox.spool(jax.vmap(fun), reduce=reduction))(jnp.array([0, 4, 9]))
    assert logs["i"].merged().counts.tolist() == [4, 1, 2]


def test_a_reduction_counts_beyond_32_bits():
    reduction = lox.Histogram.reduction(edges=[0, 1, 2])
    many = reduction.lift(jnp.zeros(2**20))
    for _ in range(20):
        many = reduction.combine(many, many)
    assert reduction.finish(many).counts.tolist() == [2.0**40, 0]


@pytest.mark.usefixtures("optimized")
def test_a_reduction_takes_constant_memory():
    def size(length):
        fun = jax.jit(lox.spool(logs_rows, reduce="histogram"))
        return fun.lower(jnp.zeros((length, 4))).compile().memory_analysis()

    small, large = size(10), size(1000)
    assert small.temp_size_in_bytes == large.temp_size_in_bytes
    assert small.output_size_in_bytes == large.output_size_in_bytes


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lox.histogram(X, bins=0), ["`bins`", "at least 1", "0"]),
        (lambda: lox.histogram(X, edges="log"), ["'log'", "'data'", "'symlog'"]),
        (lambda: lox.histogram(X, edges=[0, 2, 1]), ["`edges`", "increasing order"]),
        (lambda: lox.histogram(X, edges=[1]), ["`edges`", "two numbers"]),
        (lambda: lox.Histogram.reduction(edges="data"), ["before it has seen", "symlog"]),
    ],
)
def test_bad_edges_are_errors(make, words):
    with raises(ValueError, *words):
        make()


X = jnp.ones(3)


def test_a_histogram_of_what_has_no_order_is_an_error():
    with raises(TypeError, "real numbers", "complex64"):
        lox.histogram(jnp.ones(2, jnp.complex64))
    fun = lambda: lox.log({"z": jnp.ones(2, jnp.complex64)})  # noqa: E731
    with raises(TypeError, "'z'", "'histogram'", "real numbers"):
        lox.spool(fun, reduce="histogram")()


def test_a_histogram_of_histograms_is_an_error():
    def fun(x):
        lox.log({"x": x, "h": lox.histogram(x, edges=[0, 1, 2, 3])})

    x = jnp.array([0.5, 1.5])
    said = "'h'", "'histogram'", "`lox.Histogram`", "`lox.Histogram.merged`"
    for _ in range(2):
        with raises(TypeError, "'h'", "test_statistics.py", *said[1:]):
            lox.spool(fun, reduce="histogram")(x)
        with raises(TypeError, *said):
            lox.spool(fun, reduce={"h": lox.Histogram.reduction(edges=[0, 1])})(x)
        _, logs = jax.jit(lox.spool(fun))(x)
        with raises(TypeError, *said):
            logs.reduce("histogram")
        # Nothing is counted twice where the values themselves are reduced.
        _, logs = lox.spool(fun, reduce={"x": "histogram"})(x)
        assert logs["x"].counts.sum() == 2
        assert logs["h"].counts.tolist() == [1, 1, 0]
