"""What logs turn into: reductions, NumPy, tables, xarray and pictures."""

import functools as ft
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.selection import thin

REDUCTIONS = ["mean", "sum", "min", "max", "first", "last", "count", "std", "var"]
BY_HAND = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "first": lambda x, axis: x[0],
    "last": lambda x, axis: x[-1],
    "count": lambda x, axis: len(x),
    "std": np.std,
    "var": np.var,
}
XS = np.array([3.0, -1.0, 4.0, 1.5, -5.0], np.float32)


def loop(x):
    """Logs `loss` each time, `rare` in a branch, `total` once."""

    def step(x, i):
        lox.log({"loss": x}, step=i, tags="metric")
        rare = lambda: lox.log({"rare": x * jnp.arange(2.0)}, episode=i) and None  # noqa: E731
        jax.lax.cond(x > 4, rare, lambda: None)
        return x * 2, None

    x, _ = jax.lax.scan(step, x, jnp.arange(4))
    lox.log({"total": x})
    return x


def spooled(f=loop, x=1.0):
    return lox.spool(f)(x)[1]


@pytest.fixture
def plt():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def assert_same(a, b):
    assert list(a) == list(b)
    assert a.steps.keys() == b.steps.keys()
    for name in a.steps:
        assert_trees_close(dict(a.steps[name]), dict(b.steps[name]))
    assert_trees_close(a.valid, b.valid)
    assert_trees_close(a.data, b.data)


def assert_trees_close(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-6)


# reduce


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduce_is_over_time(name):
    def f(xs):
        jax.lax.scan(lambda c, x: (c, lox.log({"x": x}, step=x.sum()) and None), 0, xs)

    xs = jnp.stack([XS, 2 * XS, XS + 1])
    _, logs = lox.spool(f)(xs)
    for _ in range(2):
        reduced = logs.reduce(name)

    expected = BY_HAND[name](np.asarray(xs), axis=0)
    np.testing.assert_allclose(reduced["x"], expected, rtol=1e-5)
    step = xs[0 if name == "first" else -1].sum()
    np.testing.assert_allclose(reduced.step["x"], step, rtol=1e-6)
    assert not reduced.valid


WAYS = {
    "plain": (lambda spool: spool(loop), ()),
    "outside": (lambda spool: jax.vmap(spool(loop)), (3,)),
    "inside": (lambda spool: spool(jax.vmap(loop)), (3,)),
    "both": (lambda spool: jax.jit(jax.vmap(spool(jax.vmap(loop)))), (2, 3)),
}


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for i, name in enumerate(REDUCTIONS) for way in thin([*WAYS], 4, start=i)],
)
def test_reduce_is_what_spool_reduces_to(name, way):
    assert_same(kept(way).reduce(name), kept(way, reduce=name))


@ft.cache
def kept(way, **options):
    wrap, shape = WAYS[way]
    x = jnp.resize(jnp.asarray([1.0, 0.1, 9.0]), shape)
    return wrap(lambda f: lox.spool(f, **options))(x)[1]


def test_reduce_under_jit():
    logs = spooled()

    assert_same(jax.jit(lambda logs: logs.reduce("std"))(logs), logs.reduce("std"))


def test_reduce_skips_rows_that_were_not_logged():
    logs = jax.vmap(lox.spool(loop))(jnp.asarray([0.1, 1.0, 9.0]))[1]
    means = logs.reduce("mean")

    assert means.valid["rare"].tolist() == [False, True, True]
    np.testing.assert_allclose(means["rare"][1:], [[0, 8], [0, 33.75]])
    assert means.episode["rare"][1:].tolist() == [3, 3]
    assert means.tags["loss"] == ("metric",)


def test_reduce_by_mapping_and_by_hand():
    product = lox.Reduction(jnp.ones_like, lambda x: x, lambda a, b: a * b, lambda x: x)
    logs = spooled()
    reduced = logs.reduce({"loss": product, "total": "append", "nowhere": "mean"})

    assert reduced["loss"] == 1 * 2 * 4 * 8
    assert reduced["rare"].shape == (4, 2)
    assert reduced["total"] == 16
    assert logs.reduce("append")["loss"].shape == (4,)


def test_a_single_row_is_one_row():
    logs = lox.logdict({"x": 3, "y": [1.0, jnp.arange(2)]}, step={"x": 7})
    reduced = logs.reduce("mean")

    assert reduced["x"] == 3.0
    assert reduced["x"].dtype == jnp.float32
    assert reduced.step["x"] == 7
    assert reduced["y"][1].tolist() == [0.0, 1.0]
    assert logs.reduce("count").reduce("mean")["x"] == 1


def test_no_rows_at_all():
    empty = spooled().slice[:0].reduce("sum")

    assert empty["loss"] == 0
    assert not empty.valid["loss"]
    assert lox.logdict().reduce("mean") == {}


def test_the_steps_that_the_last_row_lacks_are_masked():
    def f():
        lox.log({"x": 1.0, "y": 1.0}, step=5)
        lox.log({"x": 2.0})

    logs = spooled(lambda _: f()).reduce("sum")

    assert logs["x"] == 3
    assert not logs.step.valid["x"]
    assert list(logs.step.valid) == ["x"]


def test_reduce_forgets_how_many_rows_there_were():
    def f(n):
        jax.lax.while_loop(
            lambda i: i < n, lambda i: (lox.log({"i": i}), i + 1)[1], jnp.int32(0)
        )

    _, logs = lox.spool(f, capacity=3)(jnp.int32(5))

    assert logs.count["i"] == 5
    assert logs.reduce("sum")["i"] == 2 + 3 + 4
    assert not logs.reduce("sum").count


def test_what_cannot_be_reduced():
    logs = lox.logdict({"z": 1j, "k": jax.random.key(0)})

    with pytest.raises(TypeError, match="'z' cannot be reduced by 'min': complex values"):
        logs.reduce({"z": "min"})
    with pytest.raises(TypeError, match="'k' cannot be reduced by 'mean': PRNG keys"):
        logs.reduce({"k": "mean"})
    with pytest.raises(ValueError, match="no reduction 'median'"):
        lox.logdict().reduce("median")
    assert logs.reduce("last")["k"] == logs["k"]


def test_altered_rows_cannot_be_added():
    logs = spooled()
    thinned = lox.spool(loop, interval=2)(1.0)[1]

    with pytest.raises(
        ValueError,
        match=r"'loss', .* been reduced.*afterwards.*`\(a \+ b\)\.reduce",
    ):
        logs.reduce("mean") + logs
    with pytest.raises(ValueError, match=r"'loss', .* already been thinned.*slice\[::k\]"):
        logs + thinned
    other = lox.logdict({"other": 1.0})
    assert list(logs.reduce("mean") + other) == ["loss", "rare", "total", "other"]
    both = (logs + logs).reduce({"loss": "sum"})
    assert both["loss"] == 30


# to_numpy


def test_to_numpy_keeps_everything_else():
    logs = jax.vmap(lox.spool(loop))(jnp.ones(3))[1]
    arrays = logs.to_numpy()

    assert all(type(x) is np.ndarray for x in jax.tree.leaves(arrays))
    assert_same(arrays, logs)
    assert arrays.tags == logs.tags
    assert arrays.slice[1:]["loss"].shape == (3, 3)
    assert arrays.compact()["rare"].shape == (3, 1, 2)


def test_to_numpy_of_keys_and_small_floats():
    keys = jax.random.split(jax.random.key(0), 3)

    def f(key):
        for i in range(2):
            lox.log({"key": key, "half": jnp.bfloat16(i)})

    logs = jax.vmap(lox.spool(f))(keys)[1].to_numpy()

    assert logs["key"].shape == (3, 2, 2)
    assert logs["key"][:, 0].tolist() == jax.random.key_data(keys).tolist()
    assert logs["half"].dtype == jnp.bfloat16
    assert logs.slice[1:]["key"].shape == (3, 1, 2)
    assert lox.logdict({"nothing": None}).to_numpy() == {"nothing": None}


def test_to_numpy_keeps_counts():
    def f(n):
        jax.lax.while_loop(
            lambda i: i < n, lambda i: (lox.log({"i": i}), i + 1)[1], jnp.int32(0)
        )

    logs = lox.spool(f, capacity=3)(jnp.int32(5))[1].to_numpy()

    assert type(logs.count["i"]) is np.ndarray
    assert logs.count["i"] == 5


@pytest.mark.parametrize("method", ["to_numpy", "to_pandas", "to_xarray"])
def test_not_under_jit(method):
    pytest.importorskip("pandas")
    pytest.importorskip("xarray")

    with pytest.raises(TypeError, match=rf"`logs.{method}\(\)` was called under `jit`"):
        jax.jit(lambda x: getattr(lox.logdict({"x": x}), method)())(1.0)


@pytest.mark.parametrize(
    ("method", "module", "extra"),
    [
        ("to_pandas", "pandas", "pandas"),
        ("to_polars", "polars", "polars"),
        ("to_xarray", "xarray", "xarray"),
        ("plot", "matplotlib.pyplot", "plot"),
    ],
)
def test_what_is_missing_is_named(monkeypatch, method, module, extra):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(
        ModuleNotFoundError,
        match=rf"`logs.{method}\(\)` needs `pip install 'jax-lox\[{extra}\]'`",
    ):
        getattr(spooled(), method)()


# to_pandas, to_polars


def lines(logs):
    """The table as a list of mappings, without what is missing, from both libraries."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("polars")

    def plain(x):
        return x.tolist() if hasattr(x, "tolist") else x

    def there(x):
        return isinstance(x, np.ndarray) or not pandas.isna(x)

    frame = logs.to_pandas()
    assert list(frame.index) == list(range(len(frame)))
    rows = frame.to_dict("records")
    first = [{k: plain(v) for k, v in row.items() if there(v)} for row in rows]
    polars = logs.to_polars()
    assert polars.columns == list(frame.columns)
    second = [{k: v for k, v in row.items() if v is not None} for row in polars.to_dicts()]
    assert first == second
    return first


def test_keys_with_the_same_steps_stand_side_by_side():
    def f(x):
        for i in range(3):
            lox.log({"a": x * i, "b": i}, step=i)
        lox.log({"c": True}, step=2)

    for _ in range(2):
        assert lines(spooled(f)) == [
            {"step": 0, "a": 0.0, "b": 0},
            {"step": 1, "a": 1.0, "b": 1},
            {"step": 2, "a": 2.0, "b": 2, "c": True},
        ]


def test_steps_in_between_are_sorted_in():
    def f(x):
        for i in (0, 10, 20):
            lox.log({"train": x * i}, step=i)
        for i in (5, 10):
            lox.log({"test": i}, step=i)

    assert lines(spooled(f)) == [
        {"step": 0, "train": 0.0},
        {"step": 5, "test": 5},
        {"step": 10, "train": 10.0, "test": 10},
        {"step": 20, "train": 20.0},
    ]


def test_steps_that_start_again_stay_in_the_order_of_logging():
    def f(x):
        for value, i in enumerate((0, 1, 0, 1)):
            lox.log({"a": value}, step=i)
            lox.log({"b": value}, step=i)
        lox.log({"c": 1.0}, step=0)

    assert lines(spooled(f)) == [
        {"step": 0, "a": 0, "b": 0, "c": 1.0},
        {"step": 1, "a": 1, "b": 1},
        {"step": 0, "a": 2, "b": 2},
        {"step": 1, "a": 3, "b": 3},
    ]


def test_rows_without_steps_are_numbered():
    def f(x):
        for i in range(2):
            lox.log({"a": i})
        lox.log({"b": x})
        lox.log({"c": x}, step=3)

    assert lines(spooled(f)) == [
        {"step": 3, "c": 1.0},
        {"row": 0, "a": 0, "b": 1.0},
        {"row": 1, "a": 1},
    ]


def test_steps_that_some_rows_lack():
    def f(x):
        lox.log({"a": 1}, step=5)
        lox.log({"a": 2})
        lox.log({"a": 3}, step=6, epoch=1)

    assert lines(spooled(f)) == [
        {"step": 5, "a": 1},
        {"row": 0, "a": 2},
        {"step": 6, "epoch": 1, "a": 3},
    ]


@pytest.mark.parametrize("batched", [jax.vmap(lox.spool(loop)), lox.spool(jax.vmap(loop))])
def test_batches_and_rows_that_were_not_logged(batched):
    logs = batched(jnp.asarray([0.5, 2.0]))[1]

    assert lines(logs) == [
        {"batch": 0, "step": 0, "loss": 0.5},
        {"batch": 0, "step": 1, "loss": 1.0},
        {"batch": 0, "step": 2, "loss": 2.0},
        {"batch": 0, "step": 3, "loss": 4.0},
        {"batch": 0, "total": 8.0},
        {"batch": 1, "step": 0, "loss": 2.0},
        {"batch": 1, "step": 1, "loss": 4.0},
        {"batch": 1, "step": 2, "loss": 8.0},
        {"batch": 1, "step": 3, "loss": 16.0},
        {"batch": 1, "episode": 2, "rare": [0.0, 8.0]},
        {"batch": 1, "episode": 3, "rare": [0.0, 16.0]},
        {"batch": 1, "total": 32.0},
    ]


def test_several_batch_axes():
    def f(x):
        jax.vmap(lambda y: lox.log({"both": x + y}) and None)(jnp.arange(2.0))
        lox.log({"one": x})
        lox.log({"none": 1.0})

    found = lines(lox.spool(jax.vmap(f))(jnp.arange(3.0))[1])

    # A line that lacks an index comes after those that have it.
    assert found == [
        {"batch_0": 0, "batch_1": 0, "both": 0.0},
        {"batch_0": 0, "batch_1": 1, "both": 1.0},
        {"batch_0": 0, "one": 0.0},
        {"batch_0": 1, "batch_1": 0, "both": 1.0},
        {"batch_0": 1, "batch_1": 1, "both": 2.0},
        {"batch_0": 1, "one": 1.0},
        {"batch_0": 2, "batch_1": 0, "both": 2.0},
        {"batch_0": 2, "batch_1": 1, "both": 3.0},
        {"batch_0": 2, "one": 2.0},
        {"none": 1.0},
    ]


def test_axes_that_cannot_be_told_apart_have_names_of_their_own():
    def f(x):
        jax.vmap(lambda y: lox.log({"both": x + y}) and None)(jnp.arange(2.0))
        lox.log({"one": x})

    frame = lines(lox.spool(jax.vmap(f))(jnp.arange(2.0))[1])

    assert {"batch_one": 1, "one": 1.0} in frame
    assert {"batch_0": 1, "batch_1": 1, "both": 2.0} in frame
    square = jax.vmap(jax.vmap(lambda x: lox.log({"x": x})))
    cube = jax.vmap(jax.vmap(jax.vmap(lambda x: lox.log({"y": x}))))
    both = lox.spool(lambda: (square(jnp.ones((2, 2))), cube(jnp.ones((2, 2, 2)))))
    assert {"batch_x_0": 1, "batch_x_1": 0, "x": 1.0} in lines(both()[1])


def test_trees_keys_and_small_numbers():
    key = jax.random.key(3)

    def f(x):
        tree = {"a": [jnp.bfloat16(1.5), jnp.float16(2)], "b": jnp.ones((1, 2), jnp.int8)}
        lox.log({"tree": tree, "key": key, "int": jnp.asarray([-3], jnp.int4)})
        lox.log({"uint": jnp.asarray([3], jnp.uint4)})

    assert lines(spooled(f)) == [
        {
            "tree/a/0": 1.5,
            "tree/a/1": 2.0,
            "tree/b": [[1, 1]],
            "key": jax.random.key_data(key).tolist(),
            "int": [-3],
            "uint": [3],
        }
    ]


def test_dtypes_survive_what_is_missing():
    pandas = pytest.importorskip("pandas")

    def f(x):
        for i in range(2):
            lox.log({"all": i}, step=i)
        last = {
            "int": 1,
            "bool": True,
            "float": x,
            "complex": x.astype(jnp.complex64),
            "array": x[None],
        }
        lox.log(last, step=1)

    frame = spooled(f, jnp.float32(2)).to_pandas()

    assert {name: str(dtype) for name, dtype in frame.dtypes.items()} == {
        "step": "int32",
        "all": "int32",
        "int": "Int32",
        "bool": "boolean",
        "float": "float32",
        "complex": "complex64",
        "array": "object",
    }
    assert frame.drop(columns=["step", "all"]).iloc[0].isna().all()
    assert frame["complex"][1] == 2
    assert isinstance(frame, pandas.DataFrame)


def test_complex_numbers_in_polars():
    pytest.importorskip("polars")

    def f(x):
        lox.log({"x": x}, step=0)
        lox.log({"z": 1j * x, "zs": jnp.asarray([1j])}, step=1)

    table = spooled(f).to_polars()

    assert table["z"].to_list() == [None, {"real": 0.0, "imag": 1.0}]
    assert table["zs"].to_list() == [None, {"real": [0.0], "imag": [1.0]}]


def test_steps_that_are_arrays():
    def f(x):
        lox.log({"a": 1.0}, at=jnp.asarray([1, 2]))
        lox.log({"b": 2.0}, at=jnp.asarray([1, 2]))

    assert lines(spooled(f)) == [{"at": [1, 2], "a": 1.0, "b": 2.0}]
    logs = lox.logdict({"a": 1.0, "b": 2.0}, at={"a": np.arange(2), "b": 3})
    with pytest.raises(ValueError, match="step 'at' has different shapes"):
        logs.to_pandas()


def test_empty_tables():
    logs = spooled().filter(lambda key, value: key != "total").slice[:0]

    assert lines(lox.logdict()) == []
    assert lines(logs) == []
    assert list(logs.to_pandas()) == ["step", "episode", "loss", "rare"]
    assert lines(lox.logdict({"word": "hello"})) == [{"word": "hello"}]


def test_columns_need_different_names():
    logs = lox.logdict({"step": 1.0}, step={"step": 3})

    assert lines(logs.prefix("log/")) == [{"step": 3, "log/step": 1.0}]
    with pytest.raises(ValueError, match=r"two columns called 'step'.*logs.prefix"):
        logs.to_pandas()


# to_xarray


def dataset(logs):
    pytest.importorskip("xarray")
    return logs.to_xarray()


def test_keys_with_the_same_rows_share_time():
    def f(x):
        for i in range(3):
            lox.log({"a": x * i, "b": jnp.arange(2) * i}, step=10 * i, tags="metric")

    for _ in range(2):
        data = dataset(jax.vmap(lox.spool(f))(jnp.ones(4))[1])

    assert dict(data.sizes) == {"batch": 4, "time": 3, "b_0": 2}
    assert data["a"].dims == ("batch", "time")
    assert data["b"].dims == ("batch", "time", "b_0")
    assert data["step"].dims == ("time",)
    assert data["step"].values.tolist() == [0, 10, 20]
    assert data["a"].values.tolist() == [[0.0, 1.0, 2.0]] * 4
    assert data["a"].attrs == {"tags": ["metric"]}


def test_different_rows_have_times_of_their_own():
    data = dataset(spooled(loop, 2.0))

    assert data["loss"].dims == ("time_loss",)
    assert data["rare"].dims == ("time_rare", "rare_0")
    assert data["total"].dims == ()
    assert data["step"].values.tolist() == [0, 1, 2, 3]
    assert data["valid_rare"].values.tolist() == [False, False, True, True]
    np.testing.assert_array_equal(data["rare"][:, 1], [np.nan, np.nan, 8, 16])
    np.testing.assert_array_equal(data["episode"], [np.nan, np.nan, 2, 3])


def test_steps_of_the_same_name_are_named_after_the_key():
    def f(x):
        for i in range(2):
            lox.log({"a": i, "b": {"c": jnp.bfloat16(i)}}, step=i)
            lox.log({"d": i}, step=i + 1)
            lox.log({"e": i}, epoch=i)
        lox.log({"f": 1.0}, step=4)

    data = dataset(spooled(f))

    assert data["b/c"].dims == data["a"].dims == ("time_a",)
    assert data["b/c"].dtype == np.float32
    assert data["step_a"].values.tolist() == [0, 1]
    assert data["step_d"].values.tolist() == [1, 2]
    assert data["epoch"].dims == ("time_e",)
    assert data["step_f"].values == 4


def test_steps_that_differ_in_the_batch():
    def f(x):
        for i in range(2):
            lox.log({"a": x}, step=i + x.astype(jnp.int32), at=jnp.arange(3))

    data = dataset(lox.spool(jax.vmap(f))(jnp.arange(2.0))[1])

    assert data["step"].dims == ("time", "batch")
    assert data["step"].values.tolist() == [[0, 1], [1, 2]]
    assert data["at"].dims == ("time", "at_0")


def test_rows_that_cannot_be_nan_keep_their_mask():
    def f(x):
        jax.lax.cond(x > 0, lambda: None, lambda: lox.log({"i": 3}, step=4) and None)

    data = dataset(spooled(f))

    assert data["i"].dtype == np.int32
    assert not data["valid_i"]
    assert np.isnan(data["step"])


def test_a_step_called_time_is_an_index():
    def f(x):
        for i in range(2):
            lox.log({"a": x}, time=i + 5)

    assert dataset(spooled(f))["a"].sel(time=6) == 1.0
    with pytest.raises(ValueError, match="two columns called 'time'"):
        dataset(spooled(f) | {"time": 1.0})


def test_empty_datasets():
    data = dataset(jax.vmap(lox.spool(loop))(jnp.ones(3))[1].slice[:0])

    assert data["loss"].shape == (3, 0)
    assert not dataset(lox.logdict())
    none = jax.vmap(lox.spool(loop))(jnp.ones(0))[1]
    assert dataset(none)["loss"].shape == (0, 4)
    assert lines(none) == []


# plot


def line(ax):
    return [ax.lines[0].get_xdata().tolist(), ax.lines[0].get_ydata().tolist()]


def test_plot_draws_a_panel_for_each_scalar(plt):
    def f(x):
        for i in range(4):
            tree = {"a": i, "b": jnp.ones(2), "c": i > 1}
            lox.log({"loss": x * i, "tree": tree, "z": 1j}, step=10 * i)
            lox.log({"plain": jnp.bfloat16(i)})
        lox.log({"once": x})

    for _ in range(2):
        figure = spooled(f).plot()

    labels = [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes]
    assert labels == [
        ("step", "loss"),
        ("step", "tree/a"),
        ("step", "tree/c"),
        ("row", "plain"),
    ]
    assert line(figure.axes[0]) == [[0, 10, 20, 30], [0, 1, 2, 3]]
    assert line(figure.axes[2]) == [[0, 10, 20, 30], [0, 0, 1, 1]]
    assert line(figure.axes[3]) == [[0, 1, 2, 3], [0, 1, 2, 3]]


@pytest.mark.parametrize("batched", [jax.vmap, lambda f: lox.spool(jax.vmap(loop))])
def test_plot_of_a_batch(plt, batched):
    xs = np.asarray([1.0, 3.0, np.nan], np.float32)
    logs = batched(lox.spool(loop))(jnp.asarray(xs))[1]

    (ax,) = logs.plot("loss").axes
    assert line(ax) == [[0, 1, 2, 3], [2, 4, 8, 16]]
    edges = ax.collections[0].get_paths()[0].vertices
    assert edges[:, 1].min() == 1
    assert edges[:, 1].max() == 24
    assert ax.get_title("right") == "mean and std of 2 of 3 examples, 1 diverged"
    (ax,) = logs.plot("loss", band="range").axes
    assert ax.collections[0].get_paths()[0].vertices[:, 1].max() == 24
    (ax,) = logs.plot("loss", band="80%").axes
    reach = np.nanquantile(xs * 8, 0.9)
    edges = ax.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(edges[:, 1].max(), reach, rtol=1e-6)
    (ax,) = logs.plot("loss", band=None).axes
    assert [one.get_ydata().tolist() for one in ax.lines[:2]] == [
        [1, 2, 4, 8],
        [3, 6, 12, 24],
    ]


def test_plot_of_rows_at_different_steps(plt):
    def f(x):
        def step(_, i):
            def log():
                lox.log({"x": i.astype(jnp.float32), "i": i}, step=i, other=-i)

            jax.lax.cond(i % x == 0, log, lambda: None)
            return _, None

        jax.lax.scan(step, 0, jnp.arange(5))

    logs = jax.vmap(lox.spool(f))(jnp.asarray([2, 3]))[1]

    assert line(logs.plot("x").axes[0]) == [[0, 2, 3, 4], [0, 2, 3, 4]]
    assert line(logs.plot("i", "row").axes[0]) == [[0, 1, 2], [0, 2.5, 4]]
    assert line(logs.plot(["x"], x="other").axes[0]) == [[-4, -3, -2, 0], [4, 3, 2, 0]]


def test_plot_of_many_steps_and_of_no_rows(plt):
    def f(x):
        jax.lax.scan(
            lambda c, i: (c, lox.log({"x": i}, step=2 * i + x) and None),
            0,
            jnp.arange(1500),
        )

    (ax,) = jax.vmap(lox.spool(f))(jnp.arange(2))[1].plot().axes
    assert len(ax.lines[0].get_xdata()) == 2000
    logs = spooled(lambda x: f(jnp.int32(x)))
    assert len(logs.plot().axes[0].lines[0].get_xdata()) == 1500
    empty = jax.vmap(lox.spool(f))(jnp.arange(2))[1].slice[:0]
    assert not empty.plot().axes[0].lines


def test_plot_with_partial_steps_and_single_rows(plt):
    def f(x):
        lox.log({"a": 1.0}, step=5)
        lox.log({"a": 2.0})
        lox.log({"a": 3.0}, step=7, vector=jnp.arange(2))
        lox.log({"once": x}, step=3)

    logs = spooled(f)

    assert line(logs.plot().axes[0]) == [[5, 7], [1, 3]]
    assert line(logs.plot("once").axes[0]) == [[3], [1]]
    with pytest.raises(
        ValueError, match=r"'a' has no step 'vector'. Its steps are \['step'\]"
    ):
        logs.plot("a", "vector")


def test_plot_into_axes(plt):
    logs = spooled(lambda x: (loop(x), [lox.log({"y": x * i}) for i in range(3)])[0])
    figure, (left, right) = plt.subplots(1, 2)

    assert logs.plot(["loss", "y"], axes=left) is figure
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["loss", "y"]
    assert logs.plot(["loss", "y"], axes=[left, right]) is figure
    assert right.get_ylabel() == "y"
    with pytest.raises(ValueError, match="There are 1 curves, but 2 axes"):
        logs.plot("loss", axes=[left, right])


def test_bad_plots(plt):
    logs = spooled()

    with pytest.raises(ValueError, match=r"no key 'lost'. The keys are"):
        logs.plot("lost")
    with pytest.raises(ValueError, match=r"'loss' has no step 'epoch'. .*\['step'\]"):
        logs.plot(["loss"], "epoch")
    with pytest.raises(
        ValueError, match=r"no curves in these logs.* with the step 'epoch'"
    ):
        logs.plot(x="epoch")
    with pytest.raises(ValueError, match=r"no curves in the keys \['rare'\]"):
        logs.plot("rare")
    with pytest.raises(
        ValueError, match=r"be 'sem'. Choose from 'std', 'range', '80%', 'ci', 'iqm'"
    ):
        logs.plot(band="sem")
