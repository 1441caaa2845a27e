"""The laws of lox over the catalogue of programs."""

import functools as ft
import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.export
import jax.numpy as jnp
import pytest

import lox
from support.compiled import way
from support.programs import PROGRAMS, Program, logged
from support.selection import covering, half, thin
from support.truth import (
    assert_logs,
    assert_trees_close,
    bare,
    by_key,
    raises,
    records,
    records_in_grad,
    records_of_each,
    records_of_each_in_grad,
    records_of_grad,
    result,
    result_of_each,
    slope_of,
    total,
    total_of,
)

every = pytest.mark.parametrize("p", PROGRAMS, ids=lambda p: p.name)
DIFFERENTIABLE = [p for p in PROGRAMS if p.grad]
some = pytest.mark.parametrize("p", thin(PROGRAMS, 5), ids=lambda p: p.name)
few = pytest.mark.parametrize("p", thin(PROGRAMS, 12, start=1), ids=lambda p: p.name)
# An eager run compiles each loop and branch of a program by itself.
eager = pytest.mark.parametrize("p", covering(PROGRAMS, 6), ids=lambda p: p.name)


# 1, 2: the result is the same, the rows are those of the eager run --------------------


@eager
def test_spool_gives_what_the_eager_run_logs(p: Program, capsys):
    check(p, *lox.spool(p.fun)(p.x))
    assert not printed(capsys)


@eager
def test_nolog_leaves_the_eager_result_alone_and_prints_nothing(p: Program, capsys):
    out = lox.nolog(p.fun)(p.x)

    assert not printed(capsys)
    assert_trees_close(out, result(p))


@way(covering(PROGRAMS, 3, start=1))
def spools_of_kept_logs(p: Program):
    return lox.spool(lox.spool(lox.spool(p.fun, keep_logs=True))), p.x


@spools_of_kept_logs.every
def test_kept_logs_are_heard_twice_and_then_nothing_is_left(p: Program):
    ((out, first), second), third = spools_of_kept_logs(p)

    check(p, out, first)
    check(p, out, second)
    assert not third


# 3: vmap ------------------------------------------------------------------------------


@way(thin(PROGRAMS, 2))
def spool_of_vmap(p: Program):
    return lox.spool(jax.vmap(p.fun)), p.xs


@spool_of_vmap.every
def test_spool_of_vmap_gives_what_each_example_logs(p: Program):
    out, logs = spool_of_vmap(p)

    assert_trees_close(out, result_of_each(p))
    assert_logs(logs, records_of_each(p), natural=p.is_natural)
    if jax.__version_info__[:2] == (0, 11) and p.name == "custom_root":
        pytest.skip("JAX 0.11 hides the batch from lox, which adds a mask to be safe.")
    assert set(logs.valid) == p.masked


@way(thin(PROGRAMS, 2, start=1))
def vmap_of_spool(p: Program):
    return jax.vmap(lox.spool(p.fun)), p.xs


@vmap_of_spool.every
def test_vmap_of_spool_gives_what_each_example_logs(p: Program):
    out, logs = vmap_of_spool(p)

    assert_trees_close(out, result_of_each(p))
    assert_logs(logs, records_of_each(p), natural=p.is_natural, batch_first=True)
    assert set(logs.valid) == p.masked


# 4: grad ------------------------------------------------------------------------------


@way(half(DIFFERENTIABLE, 0))
def spool_of_grad(p: Program):
    return lox.spool(jax.grad(total_of(p.fun))), p.x


@spool_of_grad.every
def test_spool_of_grad_gives_what_the_eager_gradient_logs(p: Program):
    slope, logs = spool_of_grad(p)

    assert_trees_close(slope, slope_of(p))
    assert_logs(logs, records_of_grad(p), natural=p.is_natural)


@way(half(DIFFERENTIABLE, 1))
def grad_of_spool(p: Program):
    def fun(x):
        out, logs = lox.spool(p.fun)(x)
        return total(out), (out, logs)

    return jax.grad(fun, has_aux=True), p.x


@grad_of_spool.every
def test_grad_of_spool_gives_the_primal_records_and_the_same_slope(p: Program):
    slope, (out, logs) = grad_of_spool(p)

    assert_trees_close(slope, slope_of(p))
    check(p, out, logs, records_in_grad(p))


@way(covering(DIFFERENTIABLE, 6))
def jvp_of_spool(p: Program):
    return jvp_of(lox.spool(p.fun)), p.x


@way(jvp_of_spool.programs)
def jvp(p: Program):
    return jvp_of(bare(p)), p.x


def jvp_of(fun):
    return lambda x: jax.jvp(fun, (x,), (jnp.ones_like(x),))


@jvp_of_spool.every
def test_jvp_and_linearize_of_spool_give_the_primal_records(p: Program):
    (out, logs), push = jax.linearize(lox.spool(p.fun), p.x)
    check(p, out, logs, records_in_grad(p))
    try:
        _, expected = jvp(p)
    except TypeError:  # a custom vjp
        return
    assert_trees_close(push(jnp.ones_like(p.x))[0], expected)
    (out, logs), (found, _) = jvp_of_spool(p)
    check(p, out, logs, records_in_grad(p))
    assert_trees_close(found, expected)


@way(covering(DIFFERENTIABLE, 6, start=1))
def grad_of_vmap_of_spool(p: Program):
    def fun(xs):
        out, logs = jax.vmap(lox.spool(p.fun))(xs)
        return total(out), logs

    return jax.grad(fun, has_aux=True), p.xs


@grad_of_vmap_of_spool.every
def test_grad_of_vmap_of_spool_gives_the_primal_records(p: Program):
    _, logs = grad_of_vmap_of_spool(p)

    expected = records_of_each_in_grad(p)
    assert_logs(logs, expected, natural=p.is_natural, batch_first=True)


def test_a_log_never_turns_a_gradient_into_nan():
    """Logs carry no derivatives: that of the norm at 0 is infinite."""

    def fun(x):
        def step(carry, a):
            lox.log({"norm": jnp.sqrt(jnp.sum(x * x))})
            return carry + jnp.sum(x * a), None

        return jax.lax.scan(step, 0.0, jnp.arange(3.0))[0]

    slope, logs = jax.jit(jax.grad(lox.spool(fun), has_aux=True))(jnp.zeros(2))
    assert list(slope) == [3, 3]
    assert list(logs["norm"]) == [0, 0, 0]
    slope, logs = lox.spool(jax.grad(fun))(jnp.zeros(2))
    assert list(slope) == [3, 3]
    assert list(logs["norm"]) == [0, 0, 0]


# 5: jit -------------------------------------------------------------------------------


@every
def test_jit_after_spool_gives_what_the_eager_run_logs(p: Program):
    """And so does `jit` before it, among calls of other kinds: see law 8."""
    check(p, *jit_of_spool(p))


@way(PROGRAMS)
def jit_of_spool(p: Program):
    return lox.spool(p.fun), p.x


# 7: a record is delivered, or an error names it ---------------------------------------


def test_a_log_in_a_while_loop_is_an_error_that_names_the_key():
    def fun(x):
        return jax.lax.while_loop(lambda x: x < 9, lambda x: logged("k", 2 * x), x)

    for spooled in (lox.spool(fun), jax.jit(lox.spool(fun)), lox.spool(jax.jit(fun))):
        with raises(Exception, "k.*while_loop|while_loop.*k"):
            spooled(1.0)
    assert jax.jit(lox.nolog(fun))(1.0) == 16


def test_a_log_in_the_condition_of_a_while_loop_is_an_error():
    def fun(x):
        return jax.lax.while_loop(lambda x: logged("k", x) < 9, lambda x: 2 * x, x)

    with raises(Exception, "'k'"):
        lox.spool(fun)(1.0)


def test_a_log_in_a_loop_with_dynamic_bounds_is_an_error_that_names_the_key():
    def fun(n):
        return jax.lax.fori_loop(0, n, lambda i, x: logged("k", 2 * x), 1.0)

    with raises(Exception, "'k'"):
        jax.jit(lox.spool(fun))(3)


def test_a_log_in_a_vmapped_while_loop_is_an_error():
    def fun(x):
        return jax.lax.while_loop(lambda x: x < 9, lambda x: logged("k", 2 * x), x)

    with raises(Exception, "'k'"):
        lox.spool(jax.vmap(fun))(jnp.arange(1.0, 3.0))


def test_a_log_in_a_primitive_without_a_rule_is_an_error_that_names_both():
    fun = jax.lax.composite(lambda x: 2 * logged("k", x), name="my.double")

    with raises(NotImplementedError, "composite"):
        lox.spool(fun)(1.0)
    with raises(NotImplementedError, "'k'"):
        jax.jit(lox.spool(fun))(1.0)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_tangent_that_is_logged_under_grad_is_an_error_that_names_the_key(wrap):
    with raises(Exception, "'tangent'"):
        lox.spool(jax.grad(wrap(tangent_logger())))(1.0)
    with raises(Exception, "'tangent'"):
        jax.jit(lox.spool(jax.grad(wrap(tangent_logger()))))(1.0)


def test_a_tangent_can_be_logged_under_jvp():
    fun = ft.partial(jax.jvp, tangent_logger())
    for spooled in (lox.spool(fun), jax.jit(lox.spool(fun))):
        _, logs = spooled((jnp.float32(1.0),), (jnp.float32(2.0),))
        assert logs.data == {"x": 1, "tangent": 2}


def test_what_is_traced_while_silent_holds_no_logs():
    with lox.silent():
        jaxpr = jax.make_jaxpr(ft.partial(logged, "x"))(1.0)

    run_again = lambda x: jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, x)  # noqa: E731
    _, logs = lox.spool(run_again)(jnp.float32(1.0))
    assert not logs


def test_one_key_with_two_shapes_is_an_error_that_names_both():
    def fun(x):
        lox.log({"k": x})
        lox.log({"k": jnp.stack([x, x])})

    with raises(Exception, "'k'", r"float32\[\]", r"float32\[2\]"):
        lox.spool(fun)(jnp.float32(1))


def test_branches_that_log_one_key_in_two_shapes_are_an_error_that_names_both():
    def fun(x):
        one, two = (lambda x: logged("k", x), lambda x: logged("k", x[None])[0])
        return jax.lax.cond(x > 0, one, two, x)

    with raises(Exception, "'k'", r"float32\[1?\]", r"float32\[1?\]"):
        lox.spool(fun)(jnp.float32(1))


# 8: twice, in any order, from several threads; nothing cached is changed --------------


@some
def test_calls_of_any_kind_do_not_disturb_each_other(p: Program, capsys):
    jitted = jax.jit(p.fun)
    before = str(jax.make_jaxpr(jitted)(p.x))
    spooled, silent = lox.spool(jitted), lox.nolog(jitted)

    check(p, *spooled(p.x))
    assert not printed(capsys)
    assert_trees_close(jitted(p.x), result(p))
    if not p.name.startswith("inner_spool_that"):  # who filters or keeps prints nothing
        assert bool(printed(capsys)) == any(record.data for record in records(p))
    assert_trees_close(silent(p.x), result(p))
    check(p, *spooled(p.x))
    assert not printed(capsys)
    check(p, *lox.spool(jitted)(p.x))
    if p.grad and p in thin(PROGRAMS, 10):
        grad = jax.grad(total_of(jitted))
        with lox.silent():
            assert_trees_close(grad(p.x), slope_of(p))
        lox.spool(grad)(p.x)
        with lox.silent():
            assert_trees_close(grad(p.x), slope_of(p))
        check(p, *spooled(p.x))
    assert str(jax.make_jaxpr(jitted)(p.x)) == before


@few
def test_two_threads_do_not_disturb_each_other(p: Program):
    jitted = jax.jit(p.fun)
    records(p)

    def work(thread):
        for turn in range(3):
            if (thread + turn) % 2:
                check(p, *lox.spool(jitted)(p.x))
                check(p, *lox.spool(p.fun)(p.x))
            else:
                assert_trees_close(lox.nolog(jitted)(p.x), result(p))
                check(p, *jax.jit(lox.spool(p.fun))(p.x))

    result(p)  # made here: it replaces `lox.log` for a moment
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))


# Shapes, structure, ahead of time -----------------------------------------------------


@every
def test_keys_come_in_the_order_of_the_first_log_and_have_the_stated_tags(p: Program):
    _, logs = jit_of_spool(p)

    expected = by_key(records(p))
    if not p.masked:
        assert list(logs) == list(expected) or p.name == "scan_of_length_0"
    for key, found in expected.items():
        if key not in p.masked:
            assert set(logs.tags[key]) == {tag for r in found for tag in r.tags}


@every
def test_eval_shape_agrees_with_the_run_and_prints_nothing(p: Program, capsys):
    shapes = jax.eval_shape(lox.spool(p.fun), p.x)
    assert not printed(capsys)
    real = jit_of_spool(p)

    assert jax.tree.structure(shapes) == jax.tree.structure(real)
    as_shape = lambda a: (jnp.shape(a), jnp.asarray(a).dtype)  # noqa: E731
    found = jax.tree.map(lambda a: (a.shape, a.dtype), shapes)
    assert found == jax.tree.map(as_shape, real)


@some
def test_it_compiles_ahead_of_time(p: Program):
    check(p, *jax.jit(lox.spool(p.fun)).lower(p.x).compile()(p.x))
    compiled = jax.jit(lox.nolog(p.fun)).lower(p.x).compile()
    assert_trees_close(compiled(p.x), result(p))


def exportable(p: Program) -> bool:
    return p.name != "a_callback_of_the_program"  # JAX cannot export host calls


@pytest.mark.parametrize(
    "p", thin([p for p in PROGRAMS if exportable(p)], 6, start=2), ids=lambda p: p.name
)
def test_it_can_be_exported(p: Program):
    exported = jax.export.export(jax.jit(lox.spool(p.fun)))(p.x)
    bare = jax.export.export(jax.jit(lox.nolog(p.fun)))(p.x)
    spooled, out = jax.jit(lambda x: (exported.call(x), bare.call(x)))(p.x)

    check(p, *spooled)
    assert_trees_close(out, result(p))


@some
def test_logs_can_be_pickled(p: Program):
    out, logs = jit_of_spool(p)
    if any(jnp.issubdtype(a.dtype, jax.dtypes.prng_key) for a in jax.tree.leaves(logs)):
        pytest.skip("JAX does not pickle typed PRNG keys.")

    check(p, out, pickle.loads(pickle.dumps(logs)))


# Helpers ------------------------------------------------------------------------------


def check(p: Program, out, logs, expected=None) -> None:
    """The result is that of `p` without logs, the logs are those of its eager run."""
    assert_trees_close(out, result(p))
    assert_logs(logs, records(p) if expected is None else expected, natural=p.is_natural)
    assert set(logs.valid) == p.masked


def printed(capsys) -> str:
    """What has been printed since the last time."""
    jax.effects_barrier()
    return capsys.readouterr().out


def tangent_logger():
    @jax.custom_jvp
    def fun(x):
        return jnp.sin(x)

    @fun.defjvp
    def _(primals, tangents):
        (x,), (t,) = primals, tangents
        lox.log({"x": x})
        lox.log({"tangent": t})
        return fun(x), t * jnp.cos(x)

    return fun
