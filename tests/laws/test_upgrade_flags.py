"""JAX's upgrade flags: `checkpoint` and custom rules made of hijax, and other primitives.

These programs are where an implementation with the flags on is likely to log twice, or not
at all. `make test-jax` runs all laws with the flags on.
"""

import functools as ft
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import lox
from support.delivered import assert_delivered, heard
from support.programs import Program, logged, tripled_jvp, tripled_vjp
from support.truth import (
    UPGRADES,
    assert_logs,
    assert_trees_close,
    bare,
    raises,
    records_in_grad,
    records_of_each,
    records_of_grad,
    run,
    total,
    total_of,
    upgrades_off,
)

pytestmark = [
    pytest.mark.skipif(
        not all(hasattr(jax.config, name) for name in UPGRADES),
        reason="This JAX does not have the flags.",
    ),
    pytest.mark.usefixtures("flags"),
]
X = jnp.float32(0.7)


@pytest.fixture
def flags() -> Iterator[None]:
    before = {name: getattr(jax.config, name) for name in UPGRADES}
    for name in UPGRADES:
        jax.config.update(name, True)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


# Programs whose rules log what their functions do not ---------------------------------


def ruled_jvp(key: str):
    """A sine that does not log; its rule does."""

    @jax.custom_jvp
    def fun(x):
        return jnp.sin(x)

    @fun.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        lox.log({key: x})
        return fun(x), 3 * t * jnp.cos(x)

    return fun


def ruled_vjp(forward_key: str, backward_key: str):
    """The same with a vjp."""

    @jax.custom_vjp
    def fun(x):
        return jnp.sin(x)

    def forward(x):
        return jnp.sin(logged(forward_key, x)), x

    def backward(x, g):
        lox.log({backward_key: g * x})
        return (3 * g * jnp.cos(x),)

    fun.defvjp(forward, backward)
    return fun


def function_and_rules_in_a_checkpoint(x):
    fun = tripled_vjp("x", "forward", "backward")
    return jax.checkpoint(lambda x: jnp.sin(fun(tripled_jvp("y")(jnp.sin(x)))))(x)


def rules_in_a_checkpoint_of_a_scan(x):
    fun, other = ruled_vjp("forward", "backward"), ruled_jvp("rule")
    step = lambda c, a: (fun(other(c)) + a, None)  # noqa: E731
    return jax.checkpoint(lambda x: jax.lax.scan(step, x, jnp.arange(3.0))[0])(x)


def rules_in_a_scan_of_a_checkpoint(x):
    fun, other = ruled_vjp("forward", "backward"), ruled_jvp("rule")
    block = jax.checkpoint(lambda c: fun(other(logged("c", c))))
    return jax.lax.scan(lambda c, a: (block(c) + a, None), x, jnp.arange(3.0))[0]


def rules_in_nested_checkpoints(x):
    fun, other = ruled_vjp("forward", "backward"), ruled_jvp("rule")
    inner = jax.checkpoint(lambda x: fun(other(logged("inner", x))))
    return jax.checkpoint(lambda x: jnp.sin(inner(jax.jit(other)(x))))(x)


def checkpoint_with_a_named_value(x):
    fun = tripled_jvp("x")
    policy = jax.checkpoint_policies.save_only_these_names("kept")
    block = lambda x: jnp.sin(logged("y", fun(checkpoint_name(jnp.sin(x), "kept"))))  # noqa: E731
    return jax.checkpoint(block, policy=policy)(x)


def loop_in_a_checkpoint(x):
    body = lambda i, x: jnp.sin(logged("x", x, step=i))  # noqa: E731
    return jax.checkpoint(lambda x: jax.lax.fori_loop(0, 3, body, jnp.sin(x)))(x)


def silent_rules_in_a_checkpoint(x):
    fun, other = ruled_vjp("forward", "backward"), ruled_jvp("rule")
    quiet = lox.nolog(jax.jit(lambda x: fun(other(logged("x", x)))))
    return jax.checkpoint(lambda x: quiet(x) + logged("y", x) ** 2)(x)


def vmaps_of_one_size(x):
    fun = tripled_jvp("x")
    inner = jax.custom_jvp(lambda y: jnp.sum(jax.vmap(fun)(y + jnp.arange(3.0))))
    inner.defjvp(lambda primals, tangents: (inner(*primals), tangents[0]))
    return jnp.sum(jax.vmap(inner)(x + jnp.arange(2.0)))


NATURAL = {
    function_and_rules_in_a_checkpoint: "x y forward backward",
    rules_in_a_checkpoint_of_a_scan: "",
    rules_in_a_scan_of_a_checkpoint: "",
    rules_in_nested_checkpoints: "forward backward inner",
    checkpoint_with_a_named_value: "x y",
    loop_in_a_checkpoint: "",
    silent_rules_in_a_checkpoint: "y",
    vmaps_of_one_size: "x",
}
PROGRAMS = [
    Program(fun, X, frozenset(natural.split()), frozenset(), True, None, None)
    for fun, natural in NATURAL.items()
]
each = pytest.mark.parametrize("p", PROGRAMS, ids=lambda p: p.name)


@each
def test_derivatives_log_what_the_eager_gradient_logs(p: Program):
    unknown = "function_and_rules_in_a_checkpoint", "vmaps_of_one_size"
    if jax.__version_info__[:2] == (0, 11) and p.name in unknown:
        pytest.skip("With the flags, JAX 0.11 batches custom rules in a way of its own.")
    slope, logs = jax.jit(lox.spool(jax.grad(total_of(p.fun))))(p.x)
    assert_trees_close(slope, without_flags(p, lambda f: jax.grad(total_of(f)), p.x))
    assert_logs(logs, records_of_grad(p), natural=p.is_natural)

    _, found = heard(lambda f: lox.tap(jax.jit(jax.grad(total_of(p.fun))), f), p.x)
    assert_delivered(found, records_of_grad(p))

    def fun(x):
        out, logs = lox.spool(p.fun)(x)
        return total(out), logs

    again, logs = jax.jit(jax.grad(fun, has_aux=True))(p.x)
    assert_trees_close(again, slope)
    assert_logs(logs, records_in_grad(p), natural=p.is_natural)


@each
def test_vmap_is_exact_for_each_example(p: Program):
    out, logs = jax.jit(lox.spool(jax.vmap(p.fun)))(p.xs)
    assert_trees_close(out, without_flags(p, jax.vmap, p.xs))
    assert_logs(logs, records_of_each(p), natural=p.is_natural)


def without_flags(p: Program, transform, x):
    """What the program gives without logs and without the flags."""
    with upgrades_off():
        return jax.jit(bare(p, transform))(x)


def test_second_derivatives_log_what_the_eager_run_logs():
    second = jax.grad(jax.grad(loop_in_a_checkpoint))
    slope, logs = jax.jit(lox.spool(second))(X)

    expected, logged = run(second, X)
    assert_trees_close(slope, expected)
    assert_logs(logs, logged, natural=lambda key: False)


def test_a_tangent_in_a_checkpoint_is_an_error_that_names_the_key():
    @jax.custom_jvp
    def fun(x):
        return jnp.sin(x)

    @fun.defjvp
    def _(primals, tangents):
        lox.log({"primal": primals[0], "tangent": tangents[0]})
        return fun(*primals), tangents[0] * jnp.cos(*primals)

    block = jax.checkpoint(jax.jit(fun))
    with raises(ValueError, "'tangent' contains a tangent"):
        lox.spool(jax.grad(block))(X)
    _, logs = lox.spool(ft.partial(jax.jvp, block))((X,), (2 * X,))
    assert_trees_close(logs["tangent"], 2 * X)


def test_a_checkpoint_that_does_not_log_is_left_alone():
    """And so is a function in it whose rule does not log."""

    def fun(x):
        return jax.checkpoint(lambda x: jax.nn.relu(jnp.sin(x)) * jax.nn.gelu(x))(x)

    def around(x):
        return jax.grad(fun)(x), logged("x", x)

    found = str(jax.make_jaxpr(lambda x: lox.spool(around)(x)[0])(X))
    assert "RematTraced" in found
    assert "remat2" not in found


# Other primitives of hijax ------------------------------------------------------------


def sine(*, jvp=False, vjp=False, logs="a"):
    """A primitive of hijax that logs; its derivatives are three times too large."""
    from jax.experimental.hijax import HiPrim

    class Sine(HiPrim):
        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x):
            return jnp.sin(logged(logs, x))

        def batch(self, axis, args, dims):
            return Sine(jax.typeof(args[0]))(*args), dims[0]

    def own_jvp(self, primals, tangents):
        return self(*primals), 3 * tangents[0] * jnp.cos(primals[0])

    def forward(self, nonzero, x):
        return self(x), x

    def backward(self, x, g):
        return (3 * logged("back", g) * jnp.cos(x),)

    if jvp:
        Sine.jvp = own_jvp
    if vjp:
        Sine.vjp_fwd, Sine.vjp_bwd_retval = forward, backward
    return lambda x: Sine(jax.typeof(x))(x)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_logs_in_a_primitive_of_hijax_are_collected(wrap):
    def fun(x):
        y, _ = jax.lax.scan(lambda c, _: (sine()(c), None), x, None, length=2)
        return sine(logs="b")(y)

    out, logs = wrap(lox.spool(wrap(fun)))(X)
    assert_trees_close(out, jnp.sin(jnp.sin(jnp.sin(X))))
    assert_trees_close(
        logs.data, {"a": jnp.stack([X, jnp.sin(X)]), "b": jnp.sin(jnp.sin(X))}
    )

    out, logs = wrap(lox.spool(jax.vmap(sine())))(jnp.array([X, 2 * X]))
    assert_trees_close(logs.data, {"a": jnp.array([X, 2 * X])})
    _, found = heard(lambda f: wrap(lox.tap(sine(), f)), X)
    assert [float(logs["a"]) for logs in found] == [float(X)]


def test_derivative_rules_of_a_primitive_of_hijax_stay_in_force():
    slope = 3 * jnp.cos(X)
    fun = lox.spool(sine(jvp=True))
    (out, logs), (tangent, _) = jax.jvp(fun, (X,), (jnp.float32(1),))
    assert_trees_close((out, tangent), (jnp.sin(X), slope))
    assert_trees_close(logs.data, {"a": X})

    found, logs = jax.jit(jax.grad(lox.spool(sine(jvp=True)), has_aux=True))(X)
    assert_trees_close((found, logs.data), (slope, {"a": X}))

    found, logs = jax.jit(jax.grad(lox.spool(sine(vjp=True)), has_aux=True))(X)
    assert_trees_close((found, logs.data), (slope, {"a": X}))
    found, logs = jax.jit(lox.spool(jax.grad(sine(vjp=True))))(X)
    assert_trees_close((found, logs.data), (slope, {"a": X, "back": jnp.float32(1)}))


def test_a_primitive_of_hijax_in_silence_is_silent(capsys):
    quiet = jax.jit(lox.nolog(sine(vjp=True)))
    assert_trees_close(jax.grad(quiet)(X), 3 * jnp.cos(X))
    _, logs = lox.spool(jax.grad(quiet))(X)
    assert logs == {}
    assert not capsys.readouterr().out
