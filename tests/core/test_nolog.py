"""`lox.nolog` reaches also what runs later."""

import jax
import jax.numpy as jnp
import pytest

import lox


@jax.custom_vjp
def reverse(x):
    lox.log({"primal": x})
    return jnp.sin(x)


def _forward(x):
    lox.log({"forward": x})
    return reverse(x), x


def _backward(x, g):
    lox.log({"backward": g})
    return (g * jnp.cos(x),)


reverse.defvjp(_forward, _backward)


@jax.custom_jvp
def forward(x):
    lox.log({"primal": x})
    return jnp.sin(x)


@forward.defjvp
def _(primals, tangents):
    lox.log({"rule": primals[0]})
    return forward(*primals), tangents[0] * jnp.cos(primals[0])


@pytest.mark.parametrize("fun", [reverse, forward], ids=["vjp", "jvp"])
@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"]
)
def test_the_rules_of_a_silent_function_are_silent(fun, wrap, capsys):
    def f(x):
        def step(c, _):
            return lox.nolog(wrap(fun))(c), None

        return lox.nolog(wrap(fun))(x) + jax.lax.scan(step, x, None, length=2)[0]

    expected = jax.grad(lambda x: jnp.sin(x) + jnp.sin(jnp.sin(x)))(0.7)

    for _ in range(2):
        slope, logs = lox.spool(jax.grad(f))(0.7)
        assert jnp.allclose(slope, expected)
        assert not logs
        jax.jit(jax.grad(f))(0.7)
    jax.effects_barrier()
    assert capsys.readouterr().out == ""


def test_a_function_logs_again_where_it_is_not_silent():
    assert not lox.spool(jax.grad(lox.nolog(reverse)))(0.7)[1]
    assert list(lox.spool(jax.grad(reverse))(0.7)[1]) == ["forward", "primal", "backward"]
    assert not lox.spool(jax.grad(lox.nolog(reverse)))(0.7)[1]


def test_what_was_traced_in_silence_holds_no_logs():
    f = jax.jit(lambda x: lox.log({"x": x}) and x)
    with lox.silent():
        compiled = f.lower(1.0).compile()
        jaxpr = jax.make_jaxpr(f)(1.0)
        _, linear = jax.linearize(f, 1.0)

    assert not lox.spool(jax.extend.core.jaxpr_as_fun(jaxpr))(1.0)[1]
    assert not lox.spool(linear)(1.0)[1]
    assert compiled(1.0) == 1.0
