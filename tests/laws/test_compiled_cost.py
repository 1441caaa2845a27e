"""What lox costs, asked of the compiler and not of the clock."""

import functools as ft

import jax
import jax.numpy as jnp
import pytest
from reduced import add_to_mean, empty_mean, mean_of

import lox
from support.loop_bodies import whole_array_operations
from support.programs import PROGRAMS, Program
from support.selection import FULL, covering, thin
from support.truth import without_logs
from support.while_programs import (
    XS as TIMES_OF_EACH,
    X as TIMES,
    collatz,
    cond_in_a_while,
    scan_in_a_while,
    while_in_a_cond_in_a_while,
    while_in_a_scan_in_a_while,
    while_in_a_while,
)

pytestmark = pytest.mark.usefixtures("optimized")
# A program that computes with its own logs cannot be without them.
LOGGING = [p for p in PROGRAMS if p.equivalent is None]
IN_ALL = pytest.mark.parametrize("p", LOGGING, ids=lambda p: p.name)


# nolog is free ------------------------------------------------------------------------


@IN_ALL
def test_nolog_is_the_program_without_log_calls(p: Program):
    assert_same_program(lox.nolog(p.fun), without_logs(p.fun), p.x)


@IN_ALL
def test_nolog_of_jit_is_the_program_without_log_calls(p: Program):
    silent = lox.nolog(jax.jit(renewed(p.fun)))
    bare = without_logs(jax.jit(renewed(p.fun)))
    assert_same_program(silent, bare, p.x)


@IN_ALL
def test_nolog_under_vmap_and_grad_is_the_program_without_log_calls(p: Program):
    ways = [
        (jax.vmap(lox.nolog(p.fun)), jax.vmap, p.xs),
        (lox.nolog(jax.vmap(p.fun)), jax.vmap, p.xs),
    ]
    if p.grad:
        ways.append((lox.nolog(slope(p.fun)), slope, p.x))
    # What a backward rule logs belongs to whoever is around `grad`.
    if p.grad and "backward" not in p.name:
        ways.append((slope(lox.nolog(p.fun)), slope, p.x))
    for fun, transform, x in thin(ways, 4, LOGGING.index(p)):
        assert_same_program(fun, without_logs(transform(p.fun)), x)


@IN_ALL
def test_nolog_leaves_no_effect_that_would_leave_the_fast_dispatch_path(p: Program):
    """Any effect takes a jitted call off JAX's C++ path."""
    if p.name == "a_callback_of_the_program":
        pytest.skip("It has an effect of its own.")

    traced = jax.jit(lox.nolog(p.fun)).trace(p.x)
    assert not traced.jaxpr.effects
    if p in covering(LOGGING, 6):
        lowered = traced.lower().as_text()
        assert "callback" not in lowered
        assert "token" not in lowered


def assert_same_program(fun, other, x) -> None:
    """Check that two functions lower to the same text, which equal jaxprs surely do."""
    traced, expected = (jax.jit(renewed(f)).trace(x) for f in (fun, other))
    if FULL or not same_jaxprs(traced.jaxpr, expected.jaxpr):
        assert traced.lower().as_text() == expected.lower().as_text()


def same_jaxprs(jaxpr, other) -> bool:
    if str(jaxpr) != str(other):
        return False
    return all(map(jnp.array_equal, jaxpr.consts, other.consts))


def renewed(fun):
    """A function that JAX has not seen before, so that nothing of it is cached."""

    def program(x):
        return fun(x)

    return program


def slope(fun):
    def total(x):
        leaves = jax.tree.leaves(fun(x))
        floats = [a for a in leaves if jnp.issubdtype(a.dtype, jnp.floating)]
        return sum((jnp.sum(a) for a in floats), start=jnp.float32(0))

    return jax.grad(total)


# spool costs what metrics carried by hand cost ----------------------------------------
# By hand a step is carried once for each key, as logs have it.


def scan(x):
    def step(carry, a):
        carry = jnp.tanh(carry @ carry + a)
        lox.log({"mean": jnp.mean(carry), "norm": jnp.sum(carry**2)}, step=a)
        return carry, None

    return jax.lax.scan(step, x, jnp.arange(100.0))[0]


def scan_by_hand(x):
    def step(carry, a):
        carry = jnp.tanh(carry @ carry + a)
        return carry, (jnp.mean(carry), jnp.sum(carry**2), a, a)

    return jax.lax.scan(step, x, jnp.arange(100.0))


def nested_scan(x):
    def outer(carry, a):
        def inner(carry, b):
            carry = jnp.tanh(carry @ carry + b)
            lox.log({"mean": jnp.mean(carry)})
            return carry, None

        carry, _ = jax.lax.scan(inner, carry + a, jnp.arange(10.0))
        lox.log({"norm": jnp.sum(carry**2)}, step=a)
        return carry, None

    return jax.lax.scan(outer, x, jnp.arange(20.0))[0]


def nested_scan_by_hand(x):
    def outer(carry, a):
        def inner(carry, b):
            carry = jnp.tanh(carry @ carry + b)
            return carry, jnp.mean(carry)

        carry, means = jax.lax.scan(inner, carry + a, jnp.arange(10.0))
        return carry, (means, jnp.sum(carry**2), a)

    y, (means, norms, steps) = jax.lax.scan(outer, x, jnp.arange(20.0))
    return y, (means.reshape(-1), norms, steps)


def grad_in_a_scan(x):
    def loss_of(w):
        hidden = jnp.tanh(x @ w)
        lox.log({"hidden": jnp.mean(hidden)})
        return jnp.mean((hidden - 0.5) ** 2)

    def update(w, i):
        loss, grads = jax.value_and_grad(loss_of)(w)
        lox.log({"loss": loss, "norm": jnp.sum(grads**2)}, step=i)
        return w - 0.1 * grads, None

    return jax.lax.scan(update, jnp.eye(16), jnp.arange(50))[0]


def grad_in_a_scan_by_hand(x):
    def loss_of(w):
        hidden = jnp.tanh(x @ w)
        return jnp.mean((hidden - 0.5) ** 2), jnp.mean(hidden)

    def update(w, i):
        (loss, mean), grads = jax.value_and_grad(loss_of, has_aux=True)(w)
        return w - 0.1 * grads, (mean, loss, jnp.sum(grads**2), i, i)

    return jax.lax.scan(update, jnp.eye(16), jnp.arange(50))


def grad_in_a_scan_of_seeds_by_hand(x):
    def loss_of(w, x):
        hidden = jnp.tanh(x @ w)
        return jnp.mean((hidden - 0.5) ** 2), jnp.mean(hidden)

    def update(w, i):
        value_and_grad = jax.vmap(jax.value_and_grad(loss_of, has_aux=True))
        (loss, mean), grads = value_and_grad(w, x)
        steps = jnp.broadcast_to(i, loss.shape)
        return w - 0.1 * grads, (mean, loss, jnp.sum(grads**2, (1, 2)), steps, steps)

    start = jnp.broadcast_to(jnp.eye(16), x.shape)
    return jax.lax.scan(update, start, jnp.arange(50))


X = jnp.linspace(0.0, 1.0, 256).reshape(16, 16)
SEEDS = jnp.stack([X + k for k in range(4)])
PAIRS = {
    "scan": (lox.spool(scan), scan_by_hand, X),
    "nested scan": (lox.spool(nested_scan), nested_scan_by_hand, X),
    "grad in a scan": (lox.spool(grad_in_a_scan), grad_in_a_scan_by_hand, X),
    "vmap over seeds, outside": (
        jax.vmap(lox.spool(grad_in_a_scan)),
        jax.vmap(grad_in_a_scan_by_hand),
        SEEDS,
    ),
    "vmap over seeds, inside": (
        lox.spool(jax.vmap(grad_in_a_scan)),
        grad_in_a_scan_of_seeds_by_hand,
        SEEDS,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_spool_costs_what_metrics_carried_by_hand_cost(name):
    spooled, by_hand, x = PAIRS[name]
    found, expected = costs(spooled, x), costs(by_hand, x)

    for what, cost in expected.items():
        assert found[what] <= 1.01 * cost, f"{what}: {found} for {expected}"


def costs(fun, x) -> dict[str, float]:
    compiled = jax.jit(fun).lower(x).compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    return {
        "flops": cost["flops"],
        "bytes": cost["bytes accessed"],
        "output": memory.output_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
    }


# Reductions and intervals cost what accumulators carried by hand cost -----------------


def long_scan(length):
    def fun(x):
        def step(carry, _):
            x, i = carry
            lox.log({"x": x}, step=i)
            return (jnp.sin(3 * x), i + 1), None

        return jax.lax.scan(step, (x, 0), None, length=length)[0]

    return fun


MANY, FEW = 10**6, 10**3


@pytest.mark.parametrize("how", ["mean", "std", "max", "last"])
def test_the_memory_of_a_reduction_does_not_depend_on_the_length(how):
    few, many = (
        costs(lox.spool(long_scan(length), reduce=how), X) for length in (FEW, MANY)
    )
    assert many["output"] == few["output"]
    assert many["temporary"] == few["temporary"]


@pytest.mark.parametrize("k", [10, 1000])
def test_an_interval_holds_one_in_k_rows(k):
    """Their values and steps; nothing else grows with the length."""
    bare = costs(lox.nolog(long_scan(MANY)), X)
    found = costs(lox.spool(long_scan(MANY), interval=k), X)
    rows = MANY // k * (X.nbytes + 4)
    assert found["output"] - bare["output"] <= 1.01 * rows + 1000
    assert found["temporary"] - bare["temporary"] <= 1.1 * rows + 10 * X.nbytes


def mean_by_hand(x):
    """A compensated sum in the carry of a loop that does hardly anything else."""

    def step(carry, a):
        x, accumulator, _ = carry
        return (jnp.sin(x), add_to_mean(accumulator, x, a), a), None

    start = x, empty_mean(100), jnp.zeros(())
    (y, accumulator, a), _ = jax.lax.scan(step, start, jnp.arange(100.0))
    return y, (mean_of(accumulator), a)


def mean_by_lox(x):
    def step(x, a):
        lox.log({"x": x}, step=a)
        return jnp.sin(x), None

    return jax.lax.scan(step, x, jnp.arange(100.0))[0]


def test_an_interval_writes_the_row_of_all_examples_at_once():
    def fun(xs):
        def step(x, _):
            jax.vmap(lambda x: lox.log({"a": x, "b": -x}))(x)
            return jnp.sin(x), None

        return jax.lax.scan(step, xs, length=30)[0]

    compiled = jax.jit(lox.spool(fun, interval=3)).lower(jnp.arange(8.0)).compile()
    # The loop itself, and none that goes through the examples.
    assert compiled.as_text().count(" while(") == 1


def test_a_mean_costs_what_a_compensated_sum_by_hand_costs():
    x, spooled = jnp.float32(1), lox.spool(mean_by_lox, reduce="mean")
    (out, logs), (other, (mean, _)) = jax.jit(spooled)(x), jax.jit(mean_by_hand)(x)
    assert jnp.allclose(out, other)
    assert jnp.allclose(logs["x"], mean)
    found, expected = costs(spooled, x), costs(mean_by_hand, x)
    assert found["flops"] <= 1.05 * expected["flops"], f"{found} for {expected}"
    assert found["output"] <= expected["output"]
    assert found["temporary"] <= 1.05 * expected["temporary"] + 64


# Streaming ----------------------------------------------------------------------------


def test_a_large_array_is_not_copied_on_its_way_to_the_host():
    def fun(x):
        lox.log({"image": x, "mean": x.mean()})
        return x.sum()

    x = jnp.ones((512, 512))
    found = costs(lox.tap(fun, lambda logs: None), x)
    assert found["temporary"] < 0.1 * x.nbytes, found


# Loops of unknown length --------------------------------------------------------------

ROOM = 1009  # a number that is found nowhere else in these programs


@pytest.mark.parametrize(
    "fun",
    [
        collatz,
        scan_in_a_while,
        cond_in_a_while,
        while_in_a_while,
        while_in_a_cond_in_a_while,
        while_in_a_scan_in_a_while,
    ],
    ids=lambda fun: fun.__name__,
)
def test_no_loop_goes_through_a_whole_buffer(fun):
    """Nothing selects, copies or initialises it: rows are written where they belong."""
    spool = ft.partial(lox.spool, capacity=ROOM)
    ways = [
        (spool(fun), TIMES),
        (jax.vmap(spool(fun)), TIMES_OF_EACH),
        (spool(jax.vmap(fun)), TIMES_OF_EACH),
        (lambda x: jax.jvp(spool(fun), (x,), (x,)), TIMES),
    ]
    if fun is while_in_a_cond_in_a_while and jax.__version_info__ < (0, 12):
        # XLA copied what went through a conditional, by hand as well; `vmap` leaves none.
        ways = ways[1:3]
    for spooled, x in ways:
        assert whole_array_operations(spooled, ROOM, x) == []


def test_a_loop_that_selects_a_buffer_is_found():
    def by_hand(x):
        def body(state):
            x, rows = state
            return x + 1, rows.at[x.astype(int)].set(x)

        return jax.lax.while_loop(lambda s: s[0] < 3, body, (x, jnp.zeros(ROOM)))

    assert whole_array_operations(by_hand, ROOM, TIMES) == []
    selected = whole_array_operations(jax.vmap(by_hand), ROOM, TIMES_OF_EACH)
    assert any("select" in line for line in selected)


@pytest.mark.parametrize(
    ("wrap", "x"),
    [(lambda f: f, TIMES), (jax.vmap, TIMES_OF_EACH)],
    ids=["plain", "vmapped"],
)
def test_a_program_goes_through_its_buffers_before_and_after_its_loops_only(wrap, x):
    def bytes_of(capacity):
        def spooled(x):
            return lox.spool(while_in_a_while, capacity=capacity)(x)[1].count

        analysis = jax.jit(wrap(spooled)).lower(x).compile().cost_analysis()
        return analysis["bytes accessed"]

    # Both keys have a number, one of them one step, and the other two.
    row = 4 * (2 + 3) * x.size
    # The body of a loop counts once, however often it runs. Here nobody asks for the rows.
    assert bytes_of(4 * ROOM) - bytes_of(ROOM) <= 2 * row * 3 * ROOM
