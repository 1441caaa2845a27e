"""Logs inside of modules, optimizers, solvers and environments of other libraries.

The truth is an eager run, which writes down every log call, or a loop in NumPy. A library
is skipped where it is not installed: `make test-libraries` has all of them.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.truth import by_key, run

X = jnp.linspace(-0.5, 1.5, 12).reshape(4, 3)
SCALE = jnp.float32(1.5)


@pytest.fixture(autouse=True)
def _as_libraries_need_it():
    """They promote dtypes and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def check(fun: Callable, *args: Any, truth: Callable | None = None, **options: Any) -> None:
    """Check that `fun` returns the same, and that its logs are those of an eager run.

    Examples are logged side by side, and stand behind each other in the truth, which is a
    loop over them.
    """
    expected = values_of(run(truth or fun, *args)[1])
    plain = jax.jit(lox.nolog(fun))(*args)
    spooled = jax.jit(lox.spool(fun, **options))
    for _ in range(2):
        out, logs = spooled(*args)
        assert_close(out, plain)
        assert_values(rows(logs), expected)
    out, tapped = delivered(fun, *args)
    assert_close(out, plain)
    assert_values(tapped, expected)


def values_of(records: list) -> dict[str, np.ndarray]:
    return {
        key: np.stack([record.data[key] for record in own])
        for key, own in by_key(records).items()
    }


def rows(logs: lox.logdict) -> dict[str, np.ndarray]:
    """The rows that were really logged."""
    arrays = {key: np.asarray(value) for key, value in logs.items()}
    masks = {key: np.asarray(mask) for key, mask in logs.valid.items()}
    return {key: a[masks[key]] if key in masks else a for key, a in arrays.items()}


def delivered(fun: Callable, *args: Any) -> tuple[Any, dict[str, np.ndarray]]:
    found: dict[str, list] = {}

    def callback(logs):
        for key, value in rows(logs).items():
            found.setdefault(key, []).append(value)

    out = jax.block_until_ready(jax.jit(lox.tap(fun, callback))(*args))
    lox.barrier()
    return out, {key: np.stack(values) for key, values in found.items()}


def assert_values(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key].size == values.size, f"{key!r}: {found[key]} for {values}"
        assert_close(found[key].reshape(values.shape), values)


def assert_close(found: Any, expected: Any) -> None:
    jax.tree.map(
        ft.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), found, expected
    )


# optax --------------------------------------------------------------------------------


def loss(params, target):
    value = jnp.sum((params["a"] * params["b"] - target) ** 2)
    lox.log({"loss": value})
    return value


def watch(name):
    import optax

    def update(updates, state, params=None):
        lox.log({name: optax.tree.norm(updates)})
        return updates, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def descend(optimizer, params, scale, of=lambda params: params):
    def step(state, i):
        params, own = state
        gradient = jax.grad(loss)(of(params), i * scale)
        updates, own = optimizer.update(gradient, own, params)
        return (jax.tree.map(jnp.add, params, updates), own), None

    start = params, optimizer.init(params)
    return jax.lax.scan(step, start, jnp.arange(6.0))[0][0]


def params():
    return {"a": jnp.ones(3), "b": jnp.float32(2)}


def test_gradient_transformations_of_optax():
    optax = pytest.importorskip("optax")
    clip = optax.clip_by_global_norm(1.0)
    optimizer = optax.chain(watch("before"), clip, watch("after"), optax.adam(0.1))
    check(ft.partial(descend, optimizer, params()), SCALE)


def test_optax_runs_a_transformation_now_and_then():
    optax = pytest.importorskip("optax")
    now_and_then = optax.conditionally_transform(watch("g"), lambda step: step % 2 == 0)
    inner = optax.chain(now_and_then, optax.sgd(0.1))
    check(ft.partial(descend, optax.MultiSteps(inner, 2), params()), SCALE)


def test_lookahead_of_optax():
    optax = pytest.importorskip("optax")
    inner = optax.chain(watch("g"), optax.sgd(0.1))
    optimizer = optax.lookahead(inner, sync_period=2, slow_step_size=0.5)
    start = optax.LookaheadParams.init_synced(params())
    check(lambda scale: descend(optimizer, start, scale, lambda params: params.fast), SCALE)


def test_the_line_search_of_optax_is_a_loop_of_unknown_length():
    optax = pytest.importorskip("optax")
    optimizer = optax.lbfgs()

    def fit(scale):
        objective = ft.partial(loss, target=scale)
        value_and_grad = optax.value_and_grad_from_state(objective)

        def step(state, _):
            params, own = state
            value, grad = value_and_grad(params, state=own)
            updates, own = optimizer.update(
                grad, own, params, value=value, grad=grad, value_fn=objective
            )
            return (optax.apply_updates(params, updates), own), None

        start = params(), optimizer.init(params())
        return jax.lax.scan(step, start, length=3)[0][0]

    check(fit, SCALE, capacity=50)


# equinox ------------------------------------------------------------------------------


def equinox_network():
    import equinox as eqx

    class Layer(eqx.Module):
        weights: jax.Array
        name: str = eqx.field(static=True)

        def __call__(self, x):
            x = jnp.tanh(self.weights @ x)
            lox.log({self.name: x})
            return x

    return eqx.nn.Sequential(
        [eqx.nn.Lambda(Layer(jnp.eye(3) * s, f"layer {s}")) for s in (1, 2)]
    )


def test_modules_of_equinox():
    eqx = pytest.importorskip("equinox")
    network = equinox_network()
    weights, others = eqx.partition(network, eqx.is_array)

    def train(weights, xs, over=eqx.filter_vmap):
        @eqx.filter_jit
        @eqx.filter_grad
        def gradient(network, xs):
            return jnp.mean(over(eqx.filter_checkpoint(network))(xs) ** 2)

        return eqx.filter(gradient(eqx.combine(weights, others), xs), eqx.is_array)

    def each(weights, xs):
        for x in xs:
            eqx.combine(weights, others)(x)

    check(train, weights, X, truth=each)


def test_spool_inside_of_the_wrappers_of_equinox():
    eqx = pytest.importorskip("equinox")
    network = equinox_network()

    @eqx.filter_jit
    @ft.partial(eqx.filter_vmap, in_axes=(None, 0))
    def spooled(network, x):
        return lox.spool(network)(x)

    _, logs = spooled(network, X)

    assert_values(rows(logs), values_of(run(lambda: [network(x) for x in X])[1]))


@pytest.mark.parametrize("kind", ["lax", "checkpointed", "bounded"])
def test_loops_of_equinox(kind):
    eqx = pytest.importorskip("equinox")

    def grow(x, kind=kind):
        def body(x):
            lox.log({"x": x})
            return x * 1.5

        return eqx.internal.while_loop(
            lambda x: x < 20, body, x, max_steps=16, kind=kind, checkpoints=3
        )

    truth = ft.partial(grow, kind="lax")
    check(grow, SCALE, truth=truth, capacity=20)
    if kind != "lax":
        logs = jax.grad(lox.spool(grow, capacity=20), has_aux=True)(SCALE)[1]
        assert_values(rows(logs), values_of(run(truth, SCALE)[1]))


def test_custom_derivatives_of_equinox():
    eqx = pytest.importorskip("equinox")

    @eqx.filter_custom_vjp
    def square(x):
        lox.log({"x": x})
        return x**2

    @square.def_fwd
    def _(_, x):
        lox.log({"x": x})
        return x**2, x

    @square.def_bwd
    def _(x, g, _, __):
        lox.log({"cotangent": g})
        return 3 * x * g  # not the derivative: it is seen that this is what counts

    check(square, SCALE)
    check(jax.grad(lambda x: 5 * square(x)), SCALE)


def test_what_equinox_does_not_inline_logs_to_whoever_is_around_when_it_runs(capfd):
    """It hides its program from JAX, and so from lox."""
    eqx = pytest.importorskip("equinox")
    hidden = eqx.internal.noinline(lambda x: (lox.log({"x": x}), 2 * x)[1])

    y, logs = jax.jit(lox.spool(hidden))(SCALE)
    jax.block_until_ready(y)
    lox.barrier()

    assert not logs
    assert capfd.readouterr().out == "{'x': 1.5}\n"


# diffrax and optimistix ---------------------------------------------------------------


def solve_ode(rate, adjoint=None):
    import diffrax

    def field(t, y, rate):
        lox.log({"y": y}, t=t)
        return -rate * y

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Heun(),
        t0=0.0,
        t1=1.0,
        dt0=0.3,
        y0=jnp.float32(1),
        args=rate,
        stepsize_controller=diffrax.PIDController(rtol=1e-2, atol=1e-2),
        adjoint=adjoint or diffrax.RecursiveCheckpointAdjoint(),
        max_steps=32,
    )
    return solution.ys[-1]


def true_field(rate):
    """What the vector field logs, from a solver whose loop is a plain `while_loop`."""
    import diffrax

    return values_of(run(ft.partial(solve_ode, adjoint=diffrax.ForwardMode()), rate)[1])


def test_vector_fields_of_diffrax():
    diffrax = pytest.importorskip("diffrax")
    truth = ft.partial(solve_ode, adjoint=diffrax.ForwardMode())
    check(solve_ode, SCALE, truth=truth, capacity=50)


@pytest.mark.parametrize("name", ["RecursiveCheckpointAdjoint", "DirectAdjoint"])
def test_vector_fields_of_diffrax_under_grad(name):
    diffrax = pytest.importorskip("diffrax")
    solve = ft.partial(solve_ode, adjoint=getattr(diffrax, name)())

    slope, logs = jax.jit(jax.grad(lox.spool(solve, capacity=50), has_aux=True))(SCALE)

    assert_close(slope, jax.grad(lox.nolog(solve))(SCALE))
    assert_values(rows(logs), true_field(SCALE))


def test_under_vmap_diffrax_evaluates_all_fields_until_the_last_is_done():
    """Its loop runs for all examples, and hides from JAX which of them are done."""
    pytest.importorskip("diffrax")
    rates = jnp.array([0.5, 4.0])

    _, logs = jax.jit(jax.vmap(lox.spool(solve_ode, capacity=50)))(rates)

    expected = [true_field(rate)["y"] for rate in rates]
    found = [rows(jax.tree.map(lambda leaf, i=i: leaf[i], logs))["y"] for i in range(2)]
    assert len(expected[0]) < len(expected[1]) == len(found[0]) == len(found[1])
    for own, truth in zip(found, expected, strict=True):
        assert_close(own[: len(truth)], truth)


def test_solvers_of_optimistix():
    optx = pytest.importorskip("optimistix")

    def cosine(y, scale):
        lox.log({"y": y})
        return jnp.cos(scale * y)

    def equation(y, scale):
        value = y**2 - scale
        lox.log({"value": value})
        return value

    def solve(scale):
        tolerances = {"rtol": 1e-3, "atol": 1e-3}
        fixed = optx.fixed_point(
            cosine, optx.FixedPointIteration(**tolerances), jnp.float32(0.3), scale / 3
        )
        root = optx.root_find(equation, optx.Newton(**tolerances), jnp.float32(2), scale)
        return (fixed.value, root.value), (fixed.stats, root.stats)

    (_, stats), logs = jax.jit(lox.spool(solve, capacity=50))(SCALE)
    found = rows(logs)
    _, tapped = delivered(solve, SCALE)

    y, root = 0.3, 2.0
    expected: dict[str, list] = {"y": [], "value": []}
    for _ in range(int(stats[0]["num_steps"])):
        expected["y"].append(y)
        y = np.cos(float(SCALE) / 3 * y)
    for _ in range(int(stats[1]["num_steps"])):
        expected["value"].append(root**2 - float(SCALE))
        root -= expected["value"][-1] / (2 * root)
    truth = {key: np.array(values) for key, values in expected.items()}
    assert min(map(len, expected.values())) > 2
    assert_values(found, truth)
    assert_values(tapped, truth)


# flax ---------------------------------------------------------------------------------


def linen_layers(**options):
    from flax import linen as nn

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            active = nn.tanh(nn.Dense(3)(x))
            lox.log({"active": active})
            return x + active, None

    class Layers(nn.Module):
        wrap: Callable = nn.remat

        @nn.compact
        def __call__(self, x):
            layers = nn.scan(
                self.wrap(Layer),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=3,
                **options,
            )
            return jnp.sum(layers(name="layers")(x, None)[0] ** 2)

    return Layers


def test_scanned_layers_of_linen():
    pytest.importorskip("flax")
    Layers = linen_layers()
    variables = lox.nolog(Layers().init)(jax.random.key(0), X)
    # Where nothing is traced, flax cannot check that variables are constant.
    Eager = linen_layers(check_constancy_invariants=False)
    eager = jax.grad(Eager(wrap=lambda layer: layer).apply)

    check(jax.grad(Layers().apply), variables, X, truth=eager)


def test_vmapped_and_jitted_modules_of_linen():
    nn = pytest.importorskip("flax.linen")

    class Member(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))
            mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(3))
            mean.value = mean.value + x.mean(0)
            lox.log({"mean": mean.value})
            return x

    axes = {"params": 0, "batch_stats": 0}
    split = {"params": True, "dropout": True}
    Members = nn.vmap(
        nn.jit(Member), in_axes=None, axis_size=2, variable_axes=axes, split_rngs=split
    )
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = lox.nolog(Members().init)(keys, X)

    def apply(variables, x):
        keys = {"dropout": jax.random.key(2)}
        return Members().apply(variables, x, mutable=["batch_stats"], rngs=keys)

    (_, after), logs = jax.jit(lox.spool(apply))(variables, X)
    assert_values(rows(logs), {"mean": np.asarray(after["batch_stats"]["mean"])})
    _, tapped = delivered(apply, variables, X)
    assert_values(tapped, {"mean": np.asarray(after["batch_stats"]["mean"])})


def nnx_layer():
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(3, 3, rngs=rngs)
            self.calls = nnx.BatchStat(jnp.zeros(()))

        def __call__(self, x):
            active = jnp.tanh(self.linear(x))
            lox.log({"active": active, "calls": self.calls[...]})
            self.calls[...] += 1
            return x + active

    return Layer


def own(state):
    """Copy the variables, which eager functions change in place."""
    return jax.tree.map(jnp.copy, state)


def nnx_training():
    import optax
    from flax import nnx

    layer = nnx_layer()(nnx.Rngs(0))
    chain = optax.chain(watch("gradient"), optax.sgd(0.1))
    optimizer = nnx.Optimizer(layer, chain, wrt=nnx.Param)

    @nnx.jit
    def step(layer, optimizer, x):
        value, gradient = nnx.value_and_grad(lambda layer: jnp.mean(layer(x) ** 2))(layer)
        lox.log({"loss": value})
        optimizer.update(layer, gradient)
        return value

    return (layer, optimizer), step


def test_training_with_nnx():
    nnx = pytest.importorskip("flax.nnx")
    pytest.importorskip("optax")
    objects, step = nnx_training()
    form, state = nnx.split(objects)

    def train(state, x):
        layer, optimizer = nnx.merge(form, own(state))
        for _ in range(2):
            step(layer, optimizer, x)
        return nnx.state((layer, optimizer))

    check(train, state, X)


def test_loops_and_branches_of_nnx():
    nnx = pytest.importorskip("flax.nnx")
    Layer = nnx_layer()
    make = nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: Layer(rngs)))
    form, state = nnx.split(make(nnx.Rngs(0)))

    def run_all(state, x, remat=nnx.remat):
        layers = nnx.merge(form, own(state))
        carry = {"in_axes": (nnx.Carry, 0), "out_axes": nnx.Carry}

        def total(layers):
            body = remat(lambda x, layer: layer(x))
            return jnp.sum(nnx.scan(body, **carry)(x, layers))

        gradient = nnx.grad(total)(layers)
        layer = nnx.merge(form, jax.tree.map(lambda leaf: leaf[0], nnx.state(layers)))
        x = nnx.cond(x[0, 0] < 0, lambda m, x: m(x), lambda m, x: x, layer, x)
        nnx.fori_loop(0, 2, lambda i, both: (both[0], both[0](both[1])), (layer, x))
        return gradient

    check(run_all, state, X, truth=ft.partial(run_all, remat=lambda fun: fun))


def test_an_ensemble_of_nnx():
    nnx = pytest.importorskip("flax.nnx")
    Layer = nnx_layer()
    make = nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: Layer(rngs)))
    form, state = nnx.split(make(nnx.Rngs(0)))

    def of_all(state, x):
        return nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))(
            nnx.merge(form, state), x
        )

    def each(state, x):
        for i in range(3):
            nnx.merge(form, jax.tree.map(lambda leaf, i=i: leaf[i], state))(x)

    check(of_all, state, X, truth=each)


# distrax and gymnax -------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_distributions_and_bijectors_of_distrax():
    distrax = pytest.importorskip("distrax")

    class Scale(distrax.Bijector):
        def __init__(self, scale):
            super().__init__(event_ndims_in=0)
            self.scale = scale

        def forward_and_log_det(self, x):
            lox.log({"forward": x})
            return self.scale * x, jnp.log(self.scale) * jnp.ones_like(x)

        def inverse_and_log_det(self, y):
            lox.log({"inverse": y})
            return y / self.scale, -jnp.log(self.scale) * jnp.ones_like(y)

    class Normal(distrax.Normal):
        def log_prob(self, value):
            result = super().log_prob(value)
            lox.log({"log_prob": result})
            return result

    def walk(scale):
        def step(place, key):
            distribution = distrax.Transformed(Normal(place, 1.0), Scale(scale))
            place = distribution.sample(seed=key)
            return place, jax.grad(distribution.log_prob)(place)

        keys = jax.random.split(jax.random.key(0), 4)
        return jax.lax.scan(step, jnp.float32(0), keys)

    check(walk, SCALE)
    scales = jnp.array([0.5, 2.0])
    _, logs = jax.jit(jax.vmap(lox.spool(walk)))(scales)
    for i, scale in enumerate(scales):
        own = jax.tree.map(lambda leaf, i=i: leaf[i], logs)
        assert_values(rows(own), values_of(run(walk, scale)[1]))


def test_environments_of_gymnax():
    cartpole = pytest.importorskip("gymnax.environments.classic_control.cartpole")

    class CartPole(cartpole.CartPole):
        def step_env(self, key, state, action, params):
            obs, state, reward, ended, info = super().step_env(key, state, action, params)
            lox.log({"angle": state.theta}, step=state.time)

            def log_end(time):
                lox.log({"length": time})

            jax.lax.cond(ended, log_end, lambda time: None, state.time)
            return obs, state, reward, ended, info

    env = CartPole()

    def play(key):
        _, state = env.reset(key, env.default_params)

        def step(state, key):
            _, state, reward, *_ = env.step(key, state, 1, env.default_params)
            return state, reward

        return jax.lax.scan(step, state, jax.random.split(key, 25))[1]

    check(play, jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 3)
    _, logs = jax.jit(jax.vmap(lox.spool(play)))(keys)
    for i, key in enumerate(keys):
        own = rows(jax.tree.map(lambda leaf, i=i: leaf[i], logs))
        assert len(own["length"]) >= 2
        assert_values(own, values_of(run(play, key)[1]))
