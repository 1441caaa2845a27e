"""`log_grad`: what is special to it. That it is right everywhere is a law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.truth import raises

X = jnp.array([0.5, -1.0, 2.0])


def loss(x):
    h = lox.log_grad(jnp.sin(x), "h", step=3, tags="grads")
    return (h**2).sum()


def cotangent(x):
    return 2 * np.sin(x)


def test_it_is_a_record_like_any_other():
    for _ in range(2):
        slope, logs = lox.spool(jax.grad(loss))(X)
        np.testing.assert_allclose(slope, 2 * np.sin(X) * np.cos(X), rtol=1e-6)
        np.testing.assert_allclose(logs["h"], cotangent(X), rtol=1e-6)
        assert logs.step["h"] == 3
        assert logs.tags["h"] == ("grads",)
        assert not lox.spool(loss)(X)[1]
    found = []
    lox.tap(jax.value_and_grad(loss), found.append, tags="grads")(X)
    np.testing.assert_allclose(found[0]["h"], cotangent(X), rtol=1e-6)


def test_without_a_listener_a_cotangent_prints_one_line(capsys):
    def printed():
        jax.effects_barrier()
        return capsys.readouterr().out

    grad = jax.grad(jax.jit(lambda x: lox.log_grad(x, "h", step=1) * 2))
    for fun in (grad, jax.jit(grad), grad):
        fun(1.0)
        assert printed() == "{'h': 2.0} step=1\n"
        lox.nolog(fun)(1.0)
        with lox.silent():
            fun(1.0)
        assert not printed()
    jax.jit(lambda x: lox.log_grad(x, "h"))(1.0)
    jax.jvp(lambda x: lox.log_grad(x, "h"), (1.0,), (1.0,))
    assert not printed()


def test_silence_in_the_forward_pass_is_silence_in_the_backward_pass(capsys):
    jax.grad(lox.nolog(loss))(X)
    assert not lox.spool(jax.grad(lox.nolog(loss)))(X)[1]
    jax.effects_barrier()
    assert not capsys.readouterr().out


def test_the_record_belongs_to_whatever_is_around_grad(capsys):
    _, pull = jax.vjp(loss, X)
    _, logs = lox.spool(pull)(1.0)
    np.testing.assert_allclose(logs["h"], cotangent(X), rtol=1e-6)
    _, logs = jax.grad(lox.spool(loss), has_aux=True)(X)
    assert not logs
    jax.effects_barrier()
    assert capsys.readouterr().out.startswith("{'h': ")


def test_records_come_in_the_order_of_the_backward_pass():
    def fun(x):
        for i in range(3):
            x = lox.log_grad(jnp.sin(x), "h", layer=i)
            lox.log({"x": x}, layer=i)
        return x

    _, logs = jax.jit(lox.spool(jax.grad(fun)))(0.5)
    assert list(logs.layer["h"]) == [2, 1, 0]
    assert list(logs.layer["x"]) == [0, 1, 2]
    found = []
    jax.jit(lox.tap(jax.grad(fun), found.append))(0.5)
    lox.barrier()
    order = [(key, int(logs.layer[key])) for logs in found for key in logs]
    assert order == [("x", 0), ("x", 1), ("x", 2), ("h", 2), ("h", 1), ("h", 0)]


def test_pytrees_and_dtypes():
    def fun(x):
        tree = {"a": x, "b": (x.astype(jnp.bfloat16), jax.lax.complex(x, x))}
        tree = lox.log_grad(tree, "tree")
        b, c = tree["b"]
        return (tree["a"] * 2 + b.astype(jnp.float32) * 3 + c.imag).sum()

    _, logs = lox.spool(jax.grad(fun))(X)
    tree = logs["tree"]
    assert [a.dtype for a in jax.tree.leaves(tree)] == ["float32", "bfloat16", "complex64"]
    assert list(tree["a"]) == [2, 2, 2]
    assert list(tree["b"][0]) == [3, 3, 3]
    assert list(tree["b"][1]) == [-1j, -1j, -1j]


def test_reductions():
    def fun(x):
        step = lambda h, _: (lox.log_grad(2 * h, "h", reduce="max"), None)  # noqa: E731
        return jax.lax.scan(step, x, length=3)[0]

    assert lox.spool(jax.grad(fun))(1.0)[1]["h"] == 4
    assert lox.spool(jax.grad(fun), reduce="sum")(1.0)[1]["h"] == 7


@jax.custom_vjp
def cut(x):
    return x


cut.defvjp(lambda x: (x, None), lambda _, g: (None,))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_cotangent_that_is_symbolically_zero_logs_zeros(wrap):
    fun = lambda x: cut(lox.log_grad(x, "h")).sum() + x.sum()  # noqa: E731
    slope, logs = lox.spool(jax.grad(wrap(fun)))(X)
    assert list(slope) == [1, 1, 1]
    assert list(logs["h"]) == [0, 0, 0]
    fun = lambda x: lox.log_grad({"a": x, "b": 2 * x}, "h")["a"].sum()  # noqa: E731
    _, logs = lox.spool(jax.grad(wrap(fun)))(X)
    assert list(logs["h"]["b"]) == [0, 0, 0]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_value_that_the_loss_does_not_depend_on_logs_nothing(wrap):
    def fun(x):
        lox.log_grad(x, "unused")
        return jax.lax.stop_gradient(lox.log_grad(x, "stopped")).sum() + x.sum()

    assert not lox.spool(jax.grad(wrap(fun)))(X)[1]


def test_a_part_of_a_pytree_that_does_not_depend_on_the_argument_has_its_cotangent():
    def fun(x):
        a, b = lox.log_grad((x, jnp.ones(3)), "h")
        return (a * b * b).sum()

    _, logs = jax.jit(lox.spool(jax.grad(fun)))(X)
    assert list(logs["h"][0]) == [1, 1, 1]
    np.testing.assert_allclose(logs["h"][1], 2 * X)


def test_second_derivatives():
    cube = lambda x: lox.log_grad(x, "h") ** 3  # noqa: E731
    for wrap in (lambda f: f, jax.jit, jax.checkpoint):
        slope, logs = lox.spool(jax.hessian(wrap(cube)))(2.0)
        assert (slope, logs["h"].item()) == (12, 12)
        # Reverse mode comes by twice: first with 3 x², then with 6 x.
        slope, logs = lox.spool(jax.grad(jax.grad(wrap(cube))))(2.0)
        assert (slope, list(logs["h"])) == (12, [12, 12])
        # What flows back into the tangent of `h` is not the cotangent of `h`.
        wrapped = wrap(cube)
        tangent = lambda x: jax.jvp(wrapped, (x,), (1.0,))[1]  # noqa: E731
        slope, logs = lox.spool(jax.grad(tangent))(3.0)
        assert (slope, logs["h"].item()) == (18, 18)
        assert not lox.spool(tangent)(3.0)[1]


def test_a_rule_that_differentiates_its_function():
    @jax.custom_jvp
    def fun(x):
        return lox.log_grad(jnp.sin(x), "h") ** 2

    @fun.defjvp
    def _(primals, tangents):
        return jax.jvp(lambda x: lox.log_grad(jnp.sin(x), "h") ** 2, primals, tangents)

    slope, logs = jax.jit(lox.spool(jax.grad(fun)))(0.5)
    np.testing.assert_allclose(slope, 2 * np.sin(0.5) * np.cos(0.5), rtol=1e-6)
    np.testing.assert_allclose(logs["h"], 2 * np.sin(0.5), rtol=1e-6)


def test_what_examples_share_has_one_cotangent():
    def total(w):
        return jax.vmap(lambda x: lox.log_grad(w, "w") * x)(X).sum()

    _, logs = lox.spool(jax.grad(total))(2.0)
    assert logs["w"] == X.sum()

    def total(w):
        one = lambda i, x: lox.log_grad(w, "w", example_number=i) * x  # noqa: E731
        return jax.vmap(one)(jnp.arange(3), X).sum()

    _, logs = lox.spool(jax.grad(total))(2.0)
    assert list(logs["w"]) == list(X)


def test_a_branch_that_an_example_does_not_take_logs_nothing_for_it():
    def one(x):
        log = lambda x: lox.log_grad(x, "h") ** 2  # noqa: E731
        return jax.lax.cond(x > 0, jax.jit(log), lambda x: 3 * x, x)

    for fun in (jax.grad(lambda xs: jax.vmap(one)(xs).sum()), jax.vmap(jax.grad(one))):
        for spooled in (lox.spool(fun), jax.jit(lox.spool(fun))):
            slope, logs = spooled(X)
            assert list(slope) == [1, 3, 4]
            assert list(logs.valid["h"]) == [True, False, True]
            assert list(logs["h"][jnp.array([0, 2])]) == [1, 4]


def test_it_keeps_weak_types_and_shapes():
    out = jax.eval_shape(lambda x: lox.log_grad(x, "h"), 1.0)
    assert (out.shape, out.weak_type) == ((), True)
    assert lox.log_grad(2.0, "h") == 2.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, ["'h'", "`int`", "no cotangent"]),
        (jnp.arange(3), ["'h'", "int32"]),
        ({"a": X, "b": jnp.array(True)}, ["'h'", "bool", "floats"]),
        (jax.random.key(0), ["'h'", "key<fry>"]),
        ({}, ["'h'", "no arrays"]),
        ("text", ["'h'", "`str`"]),
    ],
)
def test_what_has_no_cotangent_is_an_error(value, words):
    with raises(TypeError, *words):
        lox.log_grad(value, "h")
    with lox.silent(), raises(TypeError, *words):
        lox.log_grad(value, "h")


def test_bad_options_are_errors():
    with raises(TypeError, r"log_grad\(h, \"h\"\)", "string"):
        lox.log_grad(X, 3)
    with raises(ValueError, "step cannot be called 'valid'"):
        lox.log_grad(X, "h", valid=3)
    with raises(ValueError, "no reduction 'nope'"):
        lox.log_grad(X, "h", reduce="nope")
    with raises(ValueError, "step of 'h'", "linear_transpose"):
        fun = lambda x: lox.log_grad(x, "h", at=x)  # noqa: E731
        jax.linear_transpose(fun, 1.0)(1.0)


def test_linear_transpose_logs_what_flows_back():
    fun = lambda x: 3 * lox.log_grad(2 * x, "h")  # noqa: E731
    out, logs = lox.spool(jax.linear_transpose(fun, 1.0))(1.0)
    assert (out, logs["h"]) == ((6,), 3)
