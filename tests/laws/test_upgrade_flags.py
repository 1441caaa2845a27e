"""The laws with JAX's upgrade flags on: `checkpoint` and custom rules made of `hijax`.

With `LOX_FULL=1` each flag is also on by itself. `make test-jax` runs all laws with them.
"""

import functools as ft
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import pytest

import lox
from support.delivered import assert_delivered, heard
from support.programs import PROGRAMS, Program, logged, tripled_jvp, tripled_vjp
from support.selection import FULL
from support.truth import (
    UPGRADES,
    assert_logs,
    assert_trees_close,
    bare,
    raises,
    records,
    records_of_each,
    records_of_grad,
    run,
    total,
    total_of,
    upgrades_off,
)

MISSING = [name for name in UPGRADES if not hasattr(jax.config, name)]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason="This JAX does not have the flags."),
    pytest.mark.usefixtures("quick_compilation", "flags"),
]

TOGETHER = ",".join(UPGRADES)
CHOICES = [TOGETHER, *UPGRADES] if FULL else [TOGETHER]


@pytest.fixture(params=CHOICES)
def flags(request: pytest.FixtureRequest) -> Iterator[None]:
    before = {name: getattr(jax.config, name) for name in UPGRADES}
    for name in UPGRADES:
        jax.config.update(name, name in request.param.split(","))
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


def jvp_rule_in_a_checkpoint(x):
    fun = ruled_jvp("rule")
    return jax.checkpoint(lambda x: jnp.sin(fun(jnp.sin(x))))(x)


def vjp_rule_in_a_checkpoint(x):
    fun = ruled_vjp("forward", "backward")
    return jax.checkpoint(lambda x: jnp.sin(fun(jnp.sin(x))))(x)


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


def rules_in_a_checkpoint_with_a_policy(x):
    fun, other = ruled_vjp("forward", "backward"), ruled_jvp("rule")
    policy = jax.checkpoint_policies.dots_saveable
    return jax.checkpoint(lambda x: jnp.sin(other(fun(logged("x", x)))), policy=policy)(x)


def checkpoint_that_saves_everything(x):
    policy = jax.checkpoint_policies.everything_saveable
    fun = tripled_jvp("x")
    return jax.checkpoint(lambda x: jnp.sin(logged("y", fun(x))), policy=policy)(x)


def loop_of_known_length_in_a_checkpoint(x):
    body = lambda i, x: jnp.sin(logged("x", x, step=i))  # noqa: E731
    return jax.checkpoint(lambda x: jax.lax.fori_loop(0, 3, body, jnp.sin(x)))(x)


def silent_rules_in_a_checkpoint(x):
    fun, other = ruled_vjp("forward", "backward"), ruled_jvp("rule")
    quiet = lox.nolog(lambda x: fun(other(logged("x", x))))
    return jax.checkpoint(lambda x: quiet(x) + logged("y", x) ** 2)(x)


def spool_in_a_checkpoint(x):
    fun = ruled_vjp("forward", "backward")

    def block(x):
        y, _ = lox.spool(lambda x: fun(logged("inner", x)), "inner")(x)
        return y + logged("after", x)

    return jax.checkpoint(block)(x)


def vmaps_of_one_size(x):
    fun = tripled_jvp("x")
    inner = jax.custom_jvp(lambda y: jnp.sum(jax.vmap(fun)(y + jnp.arange(3.0))))
    inner.defjvp(lambda primals, tangents: (inner(*primals), tangents[0]))
    return jnp.sum(jax.vmap(inner)(x + jnp.arange(2.0)))


X = jnp.float32(0.7)
TIMED = {
    "rules_in_a_checkpoint_of_a_scan": "forward backward rule",
    "rules_in_a_scan_of_a_checkpoint": "forward backward rule c",
    "rules_in_nested_checkpoints": "rule",
    "loop_of_known_length_in_a_checkpoint": "x",
    "vmaps_of_one_size": "",
}
KEYS = frozenset(["x", "y", "c", "rule", "forward", "backward", "inner", "after"])
MORE = [
    Program(fun, X, KEYS - frozenset(TIMED.get(fun.__name__, "").split()), frozenset(),
            True, None, None)
    for fun in (
        jvp_rule_in_a_checkpoint,
        vjp_rule_in_a_checkpoint,
        function_and_rules_in_a_checkpoint,
        rules_in_a_checkpoint_of_a_scan,
        rules_in_a_scan_of_a_checkpoint,
        rules_in_nested_checkpoints,
        rules_in_a_checkpoint_with_a_policy,
        checkpoint_that_saves_everything,
        loop_of_known_length_in_a_checkpoint,
        silent_rules_in_a_checkpoint,
        spool_in_a_checkpoint,
        vmaps_of_one_size,
    )
]  # fmt: skip
WORDS = ("checkpoint", "custom", "backward", "pullback", "activations")
RULED = [p for p in PROGRAMS if any(word in p.name for word in WORDS)]
every = pytest.mark.parametrize("p", [*RULED, *MORE], ids=lambda p: p.name)
differentiable = pytest.mark.parametrize(
    "p", [p for p in [*RULED, *MORE] if p.grad], ids=lambda p: p.name
)


# The laws -----------------------------------------------------------------------------


@every
def test_spool_gives_what_the_eager_run_logs(p: Program):
    for out, logs in (lox.spool(p.fun)(p.x), jax.jit(lox.spool(p.fun))(p.x)):
        assert_trees_close(out, result(p))
        assert_logs(logs, records(p), natural=p.is_natural)


@every
def test_vmap_is_exact_for_each_example(p: Program):
    out, logs = jax.jit(lox.spool(jax.vmap(p.fun)))(p.xs)
    assert_trees_close(out, result_of_each(p))
    assert_logs(logs, records_of_each(p), natural=p.is_natural)

    out, logs = jax.jit(jax.vmap(lox.spool(p.fun)))(p.xs)
    assert_trees_close(out, result_of_each(p))
    assert_logs(logs, records_of_each(p), natural=p.is_natural, batch_first=True)


@differentiable
def test_spool_of_grad_gives_what_the_eager_gradient_logs(p: Program):
    slope, logs = jax.jit(lox.spool(jax.grad(total_of(p.fun))))(p.x)

    assert_trees_close(slope, slope_of(p))
    assert_logs(logs, records_of_grad(p), natural=p.is_natural)


@differentiable
def test_grad_of_spool_gives_the_primal_records_and_the_same_slope(p: Program):
    def fun(x):
        out, logs = lox.spool(p.fun)(x)
        return total(out), (out, logs)

    slope, (out, logs) = jax.jit(jax.grad(fun, has_aux=True))(p.x)

    assert_trees_close(slope, slope_of(p))
    assert_trees_close(out, result(p))
    assert_logs(logs, records(p), natural=p.is_natural)


@differentiable
def test_tap_of_grad_delivers_in_the_order_of_the_eager_gradient(p: Program):
    slope, found = heard(lambda f: lox.tap(jax.jit(jax.grad(total_of(p.fun))), f), p.x)

    assert_trees_close(slope, slope_of(p))
    assert_delivered(found, records_of_grad(p))


# What is special ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "fun", [jvp_rule_in_a_checkpoint, loop_of_known_length_in_a_checkpoint]
)
def test_second_derivatives_log_what_the_eager_run_logs(fun):
    second = jax.grad(jax.grad(fun))
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

    for wrap in (jax.checkpoint, lambda f: jax.jit(jax.checkpoint(jax.jit(f)))):
        with raises(ValueError, "'tangent' holds a tangent"):
            lox.spool(jax.grad(wrap(fun)))(X)
        _, logs = lox.spool(ft.partial(jax.jvp, wrap(fun)))((X,), (2 * X,))
        assert_trees_close(logs["tangent"], 2 * X)


def test_a_checkpoint_that_does_not_log_is_left_alone():
    """And so is a function in it whose rule does not log."""

    def fun(x):
        return jax.checkpoint(lambda x: jax.nn.relu(jnp.sin(x)) * jax.nn.gelu(x))(x)

    def around(x):
        with lox.silent():
            return fun(x)

    found = str(jax.make_jaxpr(lox.spool(jax.grad(fun)))(X))
    assert found == str(jax.make_jaxpr(lambda x: (jax.grad(around)(x), ()))(X))


# Helpers ------------------------------------------------------------------------------


@ft.cache
def result(p: Program):
    return without_flags(bare(p), p.x)


@ft.cache
def result_of_each(p: Program):
    return without_flags(bare(p, jax.vmap), p.xs)


@ft.cache
def slope_of(p: Program):
    return without_flags(bare(p, lambda fun: jax.grad(total_of(fun))), p.x)


def without_flags(fun, x):
    """What the same program gives without logs and without the flags."""
    with upgrades_off():
        return jax.jit(fun)(x)
