"""`lox.watch` against a network written by hand that returns what it computes.

The truth has no scopes, no `scan` and no logs: a Python loop over the layers, which adds a
perturbation of zero to each activation. The gradient with respect to the perturbations are
the cotangents.
"""

import functools as ft
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import lox

LAYERS, BATCH, WIDTH = 3, 4, 5
KEYS = jax.random.split(jax.random.key(0), 3)
WEIGHTS = {
    "mix": jax.random.normal(KEYS[0], (LAYERS, WIDTH, WIDTH)) / 2,
    "mlp": jax.random.normal(KEYS[1], (LAYERS, WIDTH, WIDTH)) / 2,
    "head": jnp.ones(WIDTH),
}
X = jax.random.normal(KEYS[2], (BATCH, WIDTH))
VALUE = {"value": lambda x: x}


def block(h, w):
    """One layer: in `block/mlp`, `h` is read, and in `block`, what leaves `mlp`."""
    with jax.named_scope("block"):
        h = h + checkpoint_name(jnp.tanh(h @ w["mix"]), "mixed")
        with jax.named_scope("mlp"):
            hidden = jax.nn.relu(h @ w["mlp"])
            out = hidden * jnp.cos(hidden)
        return h + out, None


def loss(weights, x):
    layers = {"mix": weights["mix"], "mlp": weights["mlp"]}
    h, _ = jax.lax.scan(jax.checkpoint(block), x, layers)
    with jax.named_scope("head"):
        y = h @ weights["head"]
    return (y**2).mean()


def by_hand(weights, x, zeros):
    """Return the loss, and the activations in the order in which they are computed."""
    activations, h, zero = [], x, iter(zeros)

    def keep(value):
        activations.append(value + next(zero))
        return activations[-1]

    for i in range(LAYERS):
        mixed = keep(jnp.tanh(h @ weights["mix"][i]))
        h = h + mixed
        hidden = jax.nn.relu(h @ weights["mlp"][i])
        h = keep(h + keep(hidden * jnp.cos(hidden)))
    y = keep(h @ weights["head"])
    return (y**2).mean(), activations


def truth(x=X):
    """Return activations and cotangents: of `mixed`, `mlp` and `block`, and of `head`."""
    shape = (LAYERS, 3, *x.shape)
    zeros = [*jnp.zeros(shape).reshape(-1, *x.shape), jnp.zeros(x.shape[0])]
    found = jax.grad(by_hand, argnums=2, has_aux=True)(WEIGHTS, x, zeros)

    def named(values):
        layers = np.stack(values[:-1]).reshape(shape)
        names = "block/mixed", "block/mlp", "block"
        return {name: layers[:, i] for i, name in enumerate(names)} | {"head": values[-1]}

    return named(found[1]), named(found[0])


def same(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module")
def watched():
    f = lox.spool(jax.value_and_grad(lox.watch(loss, stats=VALUE, epoch=7)))
    result, logs = jax.jit(f)(WEIGHTS, X)
    return result, logs


def test_activations_and_cotangents_are_those_of_a_network_written_by_hand(watched):
    _, logs = watched
    activations, cotangents = truth()
    assert set(logs) == {
        f"{name}/{kind}/value" for name in activations for kind in ("out", "grad")
    }
    for name, expected in activations.items():
        same(logs[f"{name}/out/value"], expected)
    for name, expected in cotangents.items():
        # The backward pass comes to the last layer first.
        order = slice(None, None, None if name == "head" else -1)
        same(logs[f"{name}/grad/value"], expected[order])


def test_a_scan_gives_rows_a_step(watched):
    _, logs = watched
    np.testing.assert_array_equal(logs.layer["block/mlp/out/value"], [0, 1, 2])
    np.testing.assert_array_equal(logs.layer["block/mlp/grad/value"], [2, 1, 0])
    assert "head/out/value" not in logs.layer  # it is in no loop
    assert (logs.epoch["block/out/value"] == 7).all()
    assert logs.epoch["head/out/value"] == 7


def test_results_and_gradients_are_the_same_to_the_last_bit(watched):
    result, _ = watched
    plain = jax.jit(jax.value_and_grad(loss))(WEIGHTS, X)
    jax.tree.map(np.testing.assert_array_equal, result, plain)


def test_statistics_are_those_of_stats():
    f = lox.spool(
        jax.grad(lox.watch(loss, "*/mlp", stats=("rms", "norm", "max", "finite")))
    )
    _, logs = jax.jit(f)(WEIGHTS, X)
    activations, cotangents = truth()
    for kind, values in (
        ("out", activations["block/mlp"]),
        ("grad", cotangents["block/mlp"][::-1]),
    ):
        flat = np.asarray(values).reshape(LAYERS, -1)
        key = f"block/mlp/{kind}"
        same(logs[f"{key}/rms"], np.sqrt((flat**2).mean(1)))
        same(logs[f"{key}/norm"], np.linalg.norm(flat, axis=1))
        same(logs[f"{key}/max"], flat.max(1))
        same(logs[f"{key}/finite"], np.ones(LAYERS))
    assert set(logs) == {
        f"block/mlp/{kind}/{stat}"
        for kind in ("out", "grad")
        for stat in ("rms", "norm", "max", "finite")
    }


def test_what_a_scope_reads_is_numbered_in_the_order_of_reading():
    f = lox.watch(loss, "*/mlp", "in", VALUE)
    _, logs = lox.spool(f)(WEIGHTS, X)
    activations, _ = truth()
    before = np.stack([X, *activations["block"][:-1]])
    same(logs["block/mlp/in/0/value"], before + activations["block/mixed"])
    same(logs["block/mlp/in/1/value"], WEIGHTS["mlp"])


def test_without_a_gradient_there_are_no_cotangents():
    y, logs = lox.spool(lox.watch(loss, "head"))(WEIGHTS, X)
    assert set(logs) == {"head/out/rms", "head/out/max", "head/out/finite"}
    assert y == loss(WEIGHTS, X)


def test_a_predicate_selects_equations():
    def is_dot(eqn):
        return eqn.primitive.name == "dot_general"

    _, logs = lox.spool(lox.watch(loss, is_dot, "out", VALUE))(WEIGHTS, X)
    assert set(logs) == {
        "block/dot_general/out/value",
        "block/mlp/dot_general/out/value",
        "head/dot_general/out/value",
    }
    same(logs["head/dot_general/out/value"], truth()[0]["head"])


def test_under_vmap_each_example_is_described_by_itself():
    watch = ft.partial(lox.watch, scopes="*/mlp", stats="max")
    xs = jnp.stack([X, 2 * X])
    inside = jax.vmap(lox.spool(jax.grad(watch(loss))), (None, 0))(WEIGHTS, xs)[1]
    batched = jax.vmap(jax.grad(watch(loss)), (None, 0))
    outside = lox.spool(batched)(WEIGHTS, xs)[1]
    for i, x in enumerate(xs):
        activations, cotangents = truth(x)
        for kind, values in (("out", activations), ("grad", cotangents)):
            key = f"block/mlp/{kind}/max"
            expected = values["block/mlp"].max((1, 2))[:: -1 if kind == "grad" else 1]
            same(inside[key][i], expected)
            same(outside[key][:, i], expected)


def test_the_gradient_of_a_watched_vmap_is_described_as_a_whole():
    def mean(weights, xs):
        return jax.vmap(loss, (None, 0))(weights, xs).mean()

    f = lox.spool(jax.grad(lox.watch(mean, "*/mlp", stats="max")))
    _, logs = f(WEIGHTS, jnp.stack([X, 2 * X]))
    each = [truth(x)[1]["block/mlp"].max((1, 2)) / 2 for x in (X, 2 * X)]
    same(logs["block/mlp/grad/max"], np.max(each, 0)[::-1])


def test_branches_log_only_where_they_are_taken():
    def f(x, flag):
        def left(x):
            with jax.named_scope("left"):
                return jnp.sin(x)

        def right(x):
            with jax.named_scope("right"):
                return jnp.cos(x)

        return jax.lax.cond(flag, left, right, x)

    g = lox.spool(jax.value_and_grad(lox.watch(f, stats=VALUE)))
    _, logs = jax.jit(jax.vmap(g))(jnp.array([0.5, 1.0]), jnp.array([True, False]))
    logs = jax.tree.map(np.asarray, logs)
    np.testing.assert_array_equal(logs.valid["left/out/value"], [True, False])
    np.testing.assert_array_equal(logs.valid["right/grad/value"], [False, True])
    same(logs["left/out/value"][0], np.sin(0.5))
    same(logs["right/out/value"][1], np.cos(1.0))
    same(logs["right/grad/value"][1], 1.0)


def test_a_while_loop_streams_its_rows():
    def f(x):
        def body(state):
            i, x = state
            with jax.named_scope("half"):
                return i + 1, x / 2

        return jax.lax.while_loop(lambda s: s[0] < 3, body, (0, x))[1]

    rows = []
    jax.jit(lox.tap(lox.watch(f, stats=VALUE), lambda logs: rows.append(logs)))(8.0)
    lox.barrier()
    assert [float(row["half/out/value"]) for row in rows] == [4.0, 2.0, 1.0]


def test_several_loops_count_from_the_innermost():
    def f(x):
        def outer(x, _):
            def inner(x, _):
                with jax.named_scope("twice"):
                    return 2 * x, None

            return jax.lax.scan(inner, x, None, 2)[0], None

        return jax.lax.scan(outer, x, None, 3)[0]

    watch = ft.partial(lox.watch, f, stats=VALUE)
    _, logs = lox.spool(watch())(1.0)
    np.testing.assert_array_equal(logs.layer["twice/out/value"], [0, 1] * 3)
    np.testing.assert_array_equal(logs["twice/out/value"], 2.0 ** np.arange(1, 7))
    _, logs = lox.spool(watch(loops=("layer", "time")))(1.0)
    np.testing.assert_array_equal(logs.layer["twice/out/value"], [0, 1] * 3)
    np.testing.assert_array_equal(logs.time["twice/out/value"], [0, 0, 1, 1, 2, 2])


def test_several_arrays_are_numbered_and_integers_left_out():
    def f(x):
        with jax.named_scope("pair"):
            a, b, i = jnp.sin(x), jnp.cos(x), x.astype(int)
        return a * b * i.astype(float)

    _, logs = lox.spool(lox.watch(f, stats=VALUE))(jnp.arange(2.0))
    assert set(logs) == {"pair/out/0/value", "pair/out/1/value"}
    same(logs["pair/out/1/value"], np.cos([0, 1]))


def test_logs_of_the_function_are_passed_on():
    def f(x):
        with jax.named_scope("square"):
            lox.log({"x": x}, i=3)
            y = x * x
        return y + 1

    _, logs = lox.spool(lox.watch(f, stats="max"))(jnp.ones(2))
    assert set(logs) == {"x", "square/out/max"}
    assert logs.i["x"] == 3


def test_complex_numbers_are_described_by_their_absolute_values():
    def f(x):
        with jax.named_scope("fft"):
            y = jnp.fft.fft(x)
        return jnp.abs(y).sum()

    _, logs = lox.spool(jax.grad(lox.watch(f, stats="max")))(jnp.ones(4))
    assert logs["fft/out/max"] == 4
    assert logs["fft/grad/max"] == 1


def test_functions_with_custom_derivatives_are_opaque():
    @jax.custom_vjp
    def double_sine(x):
        with jax.named_scope("inside"):
            y = jnp.sin(x)
        return 2 * y

    def forward(x):
        with jax.named_scope("forward"):
            residual = jnp.cos(x)
        return double_sine(x), residual

    def backward(residual, cotangent):
        return (2 * residual * cotangent,)

    double_sine.defvjp(forward, backward)

    def f(x):
        with jax.named_scope("around"):
            y = double_sine(x)
        return y * y

    for g in (
        jax.value_and_grad(lox.watch(f, stats=VALUE)),
        lox.watch(jax.value_and_grad(f), stats=VALUE),
    ):
        (value, slope), logs = lox.spool(g)(0.3)
        same(value, (2 * np.sin(0.3)) ** 2)
        same(slope, 8 * np.sin(0.3) * np.cos(0.3))
        assert set(logs) == {"around/out/value", "around/grad/value"}
        same(logs["around/out/value"], 2 * np.sin(0.3))
        same(logs["around/grad/value"], 4 * np.sin(0.3))


def test_statistics_of_your_own_may_be_histograms():
    def histogram(x):
        return lox.histogram(x, edges=[-10, 0, 10])

    f = lox.watch(loss, "*/mlp", stats={"histogram": histogram})
    _, logs = lox.spool(jax.grad(f))(WEIGHTS, X)
    _, cotangents = truth()
    expected = (cotangents["block/mlp"][::-1] < 0).sum((1, 2))
    np.testing.assert_array_equal(logs["block/mlp/grad/histogram"].counts[:, 0], expected)


def test_a_logger_stores_what_is_watched(tmp_path):
    logger = lox.loggers.SaveLogger(tmp_path)
    state = logger.init(jax.random.key(0))
    train = jax.grad(lox.watch(loss, "*/mlp", stats="norm"))
    jax.jit(lambda weights, x: logger.tap(train, state)(weights, x))(WEIGHTS, X)
    logger.finish(state)
    logs = lox.load(tmp_path)
    flat = truth()[1]["block/mlp"].reshape(LAYERS, -1)
    same(logs["block/mlp/grad/norm"].reshape(-1), np.linalg.norm(flat, axis=1)[::-1])


def test_interval_when_and_tags_select_rows():
    f = lox.watch(loss, "*/mlp", "out", "max", tags="inside")
    _, logs = lox.spool(f, interval=2, tags="inside")(WEIGHTS, X)
    np.testing.assert_array_equal(logs.layer["block/mlp/out/max"], [0, 2])
    assert (
        not lox.spool(f, when=lox.nonfinite)(WEIGHTS, X)[1].valid["block/mlp/out/max"].any()
    )


def test_in_silence_nothing_is_added():
    plain = jax.make_jaxpr(loss)(WEIGHTS, X)
    silent = jax.make_jaxpr(lox.nolog(lox.watch(loss)))(WEIGHTS, X)
    assert str(silent) == str(plain)


def test_a_jitted_function_stays_jitted_and_is_traced_once():
    traced = []

    @jax.jit
    def f(x):
        traced.append(None)
        with jax.named_scope("s"):
            return jnp.sin(x)

    g = lox.spool(lox.watch(f, stats="max"))
    for _ in range(3):
        _, logs = g(jnp.ones(2))
    assert len(traced) == 1
    assert set(logs) == {"s/out/max"}


@pytest.mark.usefixtures("optimized")
def test_spooling_costs_what_the_same_statistics_cost_by_hand():
    def layer(h, w):
        h, _ = block(h, w)
        stats = lox.stats(h)
        return h, (stats["rms"], stats["max"])

    def logged(weights, x):
        layers = {"mix": weights["mix"], "mlp": weights["mlp"]}
        h, rows = jax.lax.scan(jax.checkpoint(layer), x, layers)
        return ((h @ weights["head"]) ** 2).mean(), rows

    def flops(f):
        return jax.jit(f).lower(WEIGHTS, X).compile().cost_analysis()["flops"]

    watched = lox.spool(lox.watch(loss, "block", "out", ("rms", "max")))
    assert flops(watched) == pytest.approx(flops(logged), rel=0.01)
    # And with the gradient, where the layers are computed again.
    by_hand = jax.value_and_grad(logged, has_aux=True)
    watched = lox.spool(jax.value_and_grad(lox.watch(loss, "block", "out", ("rms", "max"))))
    assert flops(watched) == pytest.approx(flops(by_hand), rel=0.01)


# Mistakes -----------------------------------------------------------------------------


def test_a_pattern_that_matches_nothing_lists_what_there_is():
    with pytest.warns(UserWarning, match="match nothing") as found:
        lox.spool(lox.watch(loss, "*/mpl"))(WEIGHTS, X)
    assert str(found[0].message) == (
        "`scopes` ['*/mpl'] of `lox.watch` match nothing. The program has the scopes "
        "'block', 'block/mixed', 'block/mlp', 'head'."
    )
    assert found[0].filename == __file__
    with pytest.warns(
        UserWarning, match=r"`scopes` \['mpl'\] of `lox.watch` match nothing"
    ):
        lox.spool(lox.watch(loss, ("head", "mpl")))(WEIGHTS, X)
    with pytest.warns(UserWarning, match="finds no name scopes in the program, so it logs"):
        lox.spool(lox.watch(jnp.sin))(1.0)
    with pytest.warns(UserWarning, match="selects no equation of the program"):
        lox.spool(lox.watch(jnp.sin, lambda eqn: False))(1.0)


def test_several_patterns_that_match_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, logs = lox.spool(lox.watch(loss, ("head", "*/mlp"), stats="max"))(WEIGHTS, X)
    assert set(logs) == {"head/out/max", "block/mlp/out/max"}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"values": "grads"},
            ValueError,
            "has no values 'grads'. Choose from 'in', 'out', 'grad'",
        ),
        (
            {"stats": ("rms", "median")},
            ValueError,
            "has no stats 'median'. Choose from 'mean'",
        ),
        (
            {"stats": {"median": 3}},
            TypeError,
            "must map names to functions of an array, but it ",
        ),
        ({"values": ()}, ValueError, "`values` of `lox.watch` is empty"),
        ({"scopes": []}, ValueError, "`scopes` of `lox.watch` is empty"),
        ({"scopes": 3}, TypeError, "`scopes` takes a string or several, not `int`"),
        (
            {"layer": 3},
            ValueError,
            "The step 'layer' of `lox.watch` has the same name as the step",
        ),
    ],
)
def test_wrong_options_are_named(options, error, text):
    with pytest.raises(error, match=text):
        lox.watch(loss, **options)


def test_a_statistic_that_cannot_be_logged_is_named():
    def f(x):
        with jax.named_scope("sine"):
            return jnp.sin(x)

    for wrong in (lambda x: None, lambda x: "text"):
        with pytest.raises(TypeError, match="The value of 'sine/out/mine' is"):
            lox.watch(f, stats={"mine": wrong})(1.0)
