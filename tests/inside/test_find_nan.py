"""`find_nan`: what it reports, against programs in which the NaN is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from support.planted_nans import planted
from support.selection import FULL
from support.truth import raises

# Each operation once, around it loops of all kinds, `vmap`s, branches and derivatives.
QUICK = (3, 8, 17, 44, 59)


@pytest.mark.parametrize("seed", range(200) if FULL else QUICK)
def test_a_planted_nan_is_found(seed):
    program = planted(seed)
    operation = program.operation
    report = lox.find_nan(program.fun)(program.x)
    assert report is not None
    assert (report.operation, report.culprit) == (operation.name, operation.culprit)
    assert report.line.number in program.lines
    assert report.iterations == program.iterations
    assert report.example == program.example
    assert (report.became and report.became.operation) == operation.became
    if program.is_differentiated:
        phase = (report.became or report).phase or ""
        assert ("backward" in phase) == operation.backward
    # The report holds what went in and came out.
    replayed = report.replay()
    np.testing.assert_array_equal(replayed[0], report.outputs[0])


def entropy(ps):
    def step(total, p):
        with jax.named_scope("entropy"):
            return total - p * jnp.log(p), None

    return jax.lax.scan(step, 0.0, ps)[0]


def test_a_report_says_what_and_where():
    report = lox.find_nan(jax.jit(entropy))(jnp.array([0.5, 0.25, 0.0, 0.25]))
    text = str(report).splitlines()
    assert text[0] == "first non-finite value: log of 0.0"
    assert text[1].startswith("  test_find_nan.py:")
    assert "return total - p * jnp.log(p), None    in entropy" in text[1]
    assert text[2].startswith("  scan iteration 2 (test_find_nan.py:")
    assert text[3] == "  input: float32[], min 0, max 0"
    assert "  it became NaN in mul of 0.0 and -inf" in text
    assert "report.replay() runs the failing equation again" in text[-1]
    assert report.became.culprit == (0.0, -np.inf)
    assert report.outputs[0] == -np.inf


def test_nothing_is_reported_if_everything_is_finite(capfd):
    def f(ps):
        lox.log({"total": ps.sum()})
        return entropy(ps)

    find = lox.find_nan(f)
    for _ in range(2):
        assert find(jnp.array([0.5, 0.5])) is None
    lox.barrier()
    # The program has run, with its logs.
    assert capfd.readouterr().out == "{'total': 1.0}\n" * 2


@pytest.mark.parametrize(
    ("x", "options"), [(jnp.nan, {}), (1e9, {}), (1e9, {"infinities": 1})]
)
def test_a_program_that_runs_several_times_logs_once(capfd, x, options):
    def f(x):
        lox.log({"x": 1})
        lox.tap(lambda: lox.log({"tapped": 1}), lambda logs: print("tapped"))()
        return jnp.exp(x)

    # An argument that is NaN, and an infinity that is returned.
    assert lox.find_nan(f, **options)(x) is not None
    lox.barrier()
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "tapped", "{'x': 1}"]


def attention(scores, mask):
    scores = jnp.where(mask, scores, -jnp.inf)
    weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_infinities_count_if_they_become_nan():
    scores, mask = jnp.ones((2, 3)), jnp.array([[True] * 3, [True, False, False]])
    assert lox.find_nan(attention)(scores, mask) is None
    # A row in which everything is masked: -inf - -inf.
    report = lox.find_nan(attention)(scores, mask.at[1].set(False))
    assert report.operation == "sub"
    assert report.culprit == (-np.inf, -np.inf)
    assert report.index == (1, 0)
    assert report.became is None


def test_infinities_count_if_they_are_returned_or_asked_for():
    def f(x):
        return 1 / jnp.exp(x)

    assert lox.find_nan(f)(jnp.array([0.0, 1000.0])) is None
    report = lox.find_nan(f, infinities=True)(jnp.array([0.0, 1000.0]))
    assert (report.operation, report.culprit, report.index) == ("exp", (1000.0,), (1,))
    report = lox.find_nan(jnp.exp)(jnp.array([0.0, 1000.0]))
    assert (report.operation, report.culprit) == ("exp", (1000.0,))


def test_a_nan_that_is_dropped_later_counts_unless_it_is_ignored():
    def f(x):
        safe = jnp.where(x > 0, jnp.log(x), 0.0)
        return safe.sum() + jnp.sqrt(x).sum()

    x = jnp.array([1.0, -1.0])
    report = lox.find_nan(f)(x)
    assert report.operation == "log"
    for line in (str(report.line), f"{report.line.file}:{report.line.number}"):
        assert lox.find_nan(f, ignore=line)(x).operation == "sqrt"
    assert lox.find_nan(lambda x: f(x), ignore=str(report.line))(x[:1]) is None
    # Here a NaN is returned.
    assert report.note == ""


def test_a_report_says_if_nothing_that_is_returned_is_nan():
    def f(x):
        y = jnp.where(x > 0, jnp.log(x), 0.0)
        return jnp.where(x > 0, x * jnp.sqrt(y), 1.0)

    x = jnp.array([2.0, -1.0])
    report = lox.find_nan(f)(x)
    assert "The function does not return this NaN." in str(report)
    assert f'`lox.find_nan(f, ignore="{report.line}")`' in str(report)
    assert lox.find_nan(f, ignore=str(report.line))(x) is None


def test_what_functions_of_jax_drop_themselves_does_not_count():
    # `xlogy` computes `0 * log(0)`, and returns 0.
    f = lambda x: jax.scipy.special.xlogy(x, x).sum()  # noqa: E731
    assert lox.find_nan(f)(jnp.zeros(2)) is None
    assert lox.find_nan(f, infinities=True)(jnp.zeros(2)) is None
    # What they return does, and is found inside.
    report = lox.find_nan(lambda x: jnp.linalg.norm(x) + jax.nn.softmax(x).sum())(
        jnp.array([1.0, jnp.inf])
    )
    assert (report.operation, report.culprit) == ("sub", (jnp.inf, jnp.inf))
    assert report.line.source.startswith("report = lox.find_nan(lambda x:")


def test_values_that_are_nan_from_the_start():
    report = lox.find_nan(lambda batch: batch["x"].sum())({"x": jnp.array([1.0, jnp.nan])})
    assert (report.operation, report.culprit) == ("argument", ("0['x']",))
    assert "The argument 0['x'] already contains NaN" in str(report)
    with raises(ValueError, "There is no equation to run again: argument 0"):
        report.replay()
    # What appears later is found in spite of it.
    report = lox.find_nan(lambda x, y: jnp.nansum(x) + jnp.log(y))(
        jnp.array([1.0, jnp.nan]), -1.0
    )
    assert (report.operation, report.culprit) == ("log", (-1.0,))
    report = lox.find_nan(lambda x: jnp.where(x > 0, x, jnp.nan).sum())(jnp.zeros(2))
    assert "A constant of the program is not finite to begin with" in str(report)
    assert report.operation == "select_n"


def test_what_is_computed_from_constants_counts():
    hidden = jnp.array([1.0, -1.0])

    # Neither NaN is returned.
    def dropped():
        return jnp.where(hidden > 0, jnp.log(hidden), 0.0).sum()

    def logged(x):
        lox.log({"x": jnp.log(x)})

    for f, args in ((dropped, ()), (logged, (-1.0,))):
        report = lox.find_nan(f)(*args)
        assert (report.operation, report.culprit) == ("log", (-1.0,))
    # A constant that is NaN, and is dropped, is intended.
    f = lambda x: jnp.where(x > 0, x, jnp.full(2, jnp.nan))  # noqa: E731
    assert lox.find_nan(lambda x: jnp.nansum(f(x)))(jnp.ones(2)) is None


def test_debug_nans_does_not_come_first():
    with jax.debug_nans(True), jax.debug_infs(True):
        assert lox.find_nan(jax.jit(jnp.log))(jnp.zeros(2)).operation == "log"
        assert lox.find_nan(lambda x: x / x)(jnp.zeros(2)).operation == "div"
        with pytest.raises(FloatingPointError):
            jnp.log(jnp.zeros(2))


def test_arguments_stay_as_they_are():
    step = jax.jit(lambda x: x / 0, donate_argnums=0)
    x = jnp.zeros(3)
    assert lox.find_nan(step)(x).culprit == (0.0, 0.0)
    np.testing.assert_array_equal(x, np.zeros(3))


def test_a_jitted_function_is_compiled_once(caplog):
    find = lox.find_nan(jax.jit(lambda x: jnp.log(x).sum()))
    assert find(jnp.ones(3)) is None
    with jax.log_compiles():
        assert find(jnp.full(3, 2.0)) is None
    assert "Compiling evaluate" not in caplog.text
    with jax.log_compiles():
        assert find(jnp.ones(4)) is None
    assert "Compiling" in caplog.text
    assert find(-jnp.ones(3)).operation == "log"


def test_errors():
    with raises(TypeError, "`lox.find_nan` takes a function, not `int`"):
        lox.find_nan(3)
    with raises(TypeError, "cannot be called inside `jit`, `vmap`, `grad` or a JAX loop"):
        jax.jit(lox.find_nan(jnp.log))(1.0)
    with raises(TypeError, "ignore"):
        lox.find_nan(jnp.log, ignore=3)
    gone = jnp.ones(3)
    gone.delete()
    with raises(ValueError, "The argument 0 has been deleted: an earlier call donated it"):
        lox.find_nan(jnp.log)(gone)
    with raises(ZeroDivisionError):
        lox.find_nan(lambda x: x / (1 // 0))(1.0)


# Branches that an example does not take -------------------------------------------------


def branching(x, y):
    def wrong(y):
        total = jnp.sum(jax.nn.relu(y) + jax.jit(jnp.log)(y))
        return jax.lax.scan(lambda t, z: (t + jnp.sqrt(z), None), total, y)[0]

    return jax.lax.cond(x > 0, wrong, jnp.sum, y)


def test_a_branch_that_an_example_does_not_take_does_not_count():
    x, y = jnp.array([-1.0, 1.0, -1.0]), jnp.array([[-1.0, 1.0], [2.0, 3.0], [-1.0, -1.0]])
    assert lox.find_nan(jax.vmap(branching))(x, y) is None
    assert lox.find_nan(jax.vmap(jax.grad(branching, 1)))(x, y) is None
    assert (
        lox.find_nan(jax.vmap(jax.vmap(branching, (None, 0)), (0, None)))(x, y[1:2]) is None
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("grad", [False, True])
def test_the_example_is_one_that_takes_the_branch(axis, grad):
    x, y = jnp.array([-1.0, 1.0, 1.0]), jnp.array([[-1.0, 1.0], [2.0, 3.0], [2.0, -3.0]])
    fun = jax.grad(branching, 1) if grad else branching
    report = lox.find_nan(jax.vmap(fun, (0, axis)))(x, y if axis == 0 else y.T)
    # The gradient does not need the logarithm.
    operation = "sqrt" if grad else "log"
    assert (report.operation, report.culprit, report.example) == (operation, (-3.0,), 2)


def test_iterations_are_those_of_examples_that_take_the_branch():
    def fun(x, ys):
        def step(total, y):
            big = jax.lax.cond(y > x, jnp.log, lambda y: y, y - 2)
            return total + jax.vmap(lambda z: z * big)(jnp.ones(2)).sum(), None

        return jax.lax.scan(step, 0.0, ys)[0]

    xs, ys = jnp.array([9.0, 0.5, 3.5]), jnp.arange(5.0)
    for around in (jax.vmap(fun, (0, None)), jax.jit(jax.vmap(fun, (0, None)))):
        report = lox.find_nan(around)(xs, ys)
        assert (report.culprit, report.iterations, report.example) == ((-1.0,), (1,), 1)


def roots(n, x):
    """Take roots in a loop in a loop, `n` times or until one is negative, and return it."""

    def iteration(carry):
        i, x = carry
        x, _ = jax.lax.scan(lambda x, y: (jnp.sqrt(x) - y, None), x, jnp.array([0.5, 0.2]))
        # A branch that depends on the example, too.
        return i + 1, jax.lax.cond(i % 2 == 0, lambda x: x, lambda x: x + 0.3, x)

    return jax.lax.while_loop(lambda carry: carry[0] < n, iteration, (0, x))[1]


def first_root_of_a_negative_number(n, x):
    """The iterations of both loops, computed by NumPy."""
    for i in range(n):
        for j, y in enumerate((0.5, 0.2)):
            if x < 0:
                return i, j
            x = np.sqrt(np.float32(x)) - np.float32(y)
        x += np.float32(0.3) * (i % 2)
    return None


def test_examples_that_have_finished_do_not_count():
    """A loop runs for all examples until the last one has finished."""
    find = lox.find_nan(jax.jit(jax.vmap(roots)))
    for ns, xs in [
        ([0, 1, 7], [-1.0, 0.2, 30.0]),  # the first one would be NaN, but never starts
        ([0, 5, 6], [-1.0, 2.0, 30.0]),
        ([1, 1, 2], [0.3, 0.5, 30.0]),  # only finished ones would become NaN
        ([3, 0, 2], [-2.0, -1.0, 2.0]),
    ]:
        found = [first_root_of_a_negative_number(n, x) for n, x in zip(ns, xs, strict=True)]
        at = [(place, i) for i, place in enumerate(found) if place is not None]
        report = find(jnp.array(ns), jnp.array(xs))
        if not at:
            assert report is None
        else:
            assert (report.iterations, report.example) == min(at)
            assert report.operation == "sqrt"


def test_a_loop_in_a_branch_that_an_example_does_not_take_does_not_count():
    def fun(is_taken, x):
        roots = lambda x, y: (jnp.sqrt(x) - y, None)  # noqa: E731
        in_turn = lambda x: jax.lax.scan(roots, x, jnp.array([0.5, 0.2]))[0]  # noqa: E731
        return jax.lax.cond(is_taken, in_turn, lambda x: x, x)

    find = lox.find_nan(jax.vmap(fun))
    report = find(jnp.array([False, True]), jnp.array([-1.0, 0.2]))
    assert (report.iterations, report.example) == ((1,), 1)
    assert find(jnp.array([False, True]), jnp.array([-1.0, 2.0])) is None


def test_a_predicate_that_ends_a_loop_before_it_starts():
    def fun(x):
        return jax.lax.while_loop(lambda x: jnp.log(x) < 1, lambda x: 2 * x, x)

    report = lox.find_nan(fun)(jnp.float32(-1.0))
    assert (report.operation, report.culprit, report.iterations) == ("log", (-1.0,), (0,))
    assert "does not return this NaN" in str(report)
    several = lox.find_nan(lambda xs: jax.lax.map(fun, xs))
    report = several(jnp.array([2.0, 0.5, -1.0]))
    assert (report.operation, report.culprit, report.iterations) == ("log", (-1.0,), (2, 0))
