"""What `lox.log` takes, refuses, returns and prints."""

import importlib.metadata
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import lox


def spooled(data, **options):
    return lox.spool(lambda: lox.log(data, **options) and None)()[1]


def printed(capsys) -> list[str]:
    jax.effects_barrier()
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (True, jnp.bool_),
        (3, jnp.int32),
        (0.5, jnp.float32),
        (1 + 2j, jnp.complex64),
        (np.float64(0.5), jnp.float32),
        (np.arange(3, dtype=np.uint8), jnp.uint8),
        (jnp.ones(2, jnp.bfloat16), jnp.bfloat16),
        (jnp.ones(2, jnp.float8_e4m3fn), jnp.float8_e4m3fn),
        (jnp.ones(2, jnp.int4), jnp.int4),
        (np.ones(2, ml_dtypes.bfloat16), jnp.bfloat16),
        (jax.random.key(0), jax.random.key(0).dtype),
    ],
    ids=str,
)
def test_any_dtype_of_jax_is_logged(value, dtype):
    logs = spooled({"x": value})

    assert logs["x"].dtype == dtype
    assert not jax.typeof(logs["x"]).weak_type
    assert logs["x"].shape == np.shape(value)


def test_pytrees_keep_their_structure():
    value = {"w": jnp.ones(2), "b": [1.0, (2, None)]}

    logs = spooled({"params": value})

    assert jax.tree.structure(logs["params"]) == jax.tree.structure(value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": "text"}, r"The value of 'x' is or contains `str` \('text'\)"),
        ({"x": None}, "The value of 'x' is `None`, but"),
        ({"x": {}}, "The value of 'x' is `{}`, but"),
        ({"x": object()}, "The value of 'x' is or contains `object`"),
        ({"x": [1.0, "a"]}, r"The value of 'x' is or contains `str` \('a'\)"),
        ({"x": np.array(["a"])}, "The value of 'x' is or contains an array of <U1"),
        ({3: 1.0}, "The key 3 is `int`, but keys of `lox.log` are strings"),
        (1.0, r'such as `lox.log\(\{"loss": loss\}\)`, not `float`'),
    ],
    ids=range(8),
)
@pytest.mark.parametrize("silent", [False, True])
def test_what_is_not_a_log_is_refused(data, message, silent):
    with (
        lox.silent() if silent else jax.disable_jit(),
        pytest.raises(TypeError, match=message),
    ):
        lox.log(data)


@pytest.mark.parametrize(
    "name", ["data", "items", "filter", "steps", "valid", "keys", "slice", "_rows", "_x"]
)
def test_a_step_may_not_hide_an_attribute(name):
    with pytest.raises(ValueError, match=f"A step cannot be called '{name}'"):
        lox.log({"x": 1.0}, **{name: 3})


@pytest.mark.parametrize("value", [None, [None], {"a": []}])
def test_a_value_that_holds_nothing_is_shown(value):
    shown = re.escape(f"The value of 'bad' is `{value!r}`, but `lox.log` takes numbers")
    with pytest.raises(TypeError, match=shown):
        lox.log({"good": 1, "bad": value})


def test_a_step_is_a_number():
    with pytest.raises(
        TypeError, match=r"The step 'step' is `str` .*, but steps are numbers"
    ):
        lox.log({"x": 1.0}, step="first")


@pytest.mark.parametrize("number", [2**40, -(2**70)])
def test_a_number_that_does_not_fit_is_refused(number):
    with pytest.raises(OverflowError, match=rf"The value of 'n' is {number}, .* int32"):
        lox.log({"n": number})
    with pytest.raises(OverflowError, match=rf"The step 'step' is {number}, .* int32"):
        lox.log({"n": 1}, step=number)


def test_a_numpy_array_may_be_changed_afterwards():
    def f():
        buffer = np.zeros(2, np.float32)
        for i in range(3):
            buffer[:] = i
            lox.log({"b": buffer}, step=buffer[0])

    _, logs = lox.spool(f)()

    assert logs["b"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert logs.step["b"].tolist() == [0, 1, 2]


def test_tags_and_prefix_are_strings():
    with pytest.raises(TypeError, match="`tags` takes strings, not `int`"):
        lox.log({"x": 1.0}, tags=[3])
    with pytest.raises(TypeError, match="`tags` takes a string or several, not `int`"):
        lox.log({"x": 1.0}, tags=3)
    with pytest.raises(TypeError, match="`prefix` must be a string, not `int`"):
        lox.log({"x": 1.0}, prefix=3)


@pytest.mark.parametrize("options", [{}, {"prefix": "a\0"}], ids=str)
def test_a_null_character_is_refused(options):
    with pytest.raises(ValueError, match=r"x00b?x' contains a null character"):
        lox.log({"bx" if options else "\0x": 1.0}, **options)


def test_one_tag_may_be_a_string():
    assert spooled({"x": 1.0}, tags="metric").tags == {"x": ("metric",)}
    assert spooled({"x": 1.0}, tags=["a", "b"]).tags == {"x": ("a", "b")}


@pytest.mark.parametrize("silent", [False, True])
def test_the_record_is_returned(silent, capsys):
    context = lox.silent() if silent else jax.disable_jit()
    with context:
        record = lox.log({"x": 1.5, "y": 2}, prefix="a/", step=7)

    assert record == {"a/x": 1.5, "a/y": 2}
    assert record.step == {"a/x": 7, "a/y": 7}


def test_a_record_that_nobody_hears_is_printed_in_one_line(capsys):
    def f(x):
        lox.log({"x": x, "y": {"a": 2 * x}}, step=3, prefix="p/")
        return x

    f(jnp.float32(1.5))
    jax.jit(f)(jnp.float32(1.5))

    assert printed(capsys) == ["{'p/x': 1.5, 'p/y': {'a': 3.0}} step=3"] * 2


def test_a_batch_is_printed_in_one_line(capsys):
    def f(x):
        lox.log({"x": x}, step=1)
        return x

    jax.jit(jax.vmap(f))(jnp.arange(3.0))
    jax.vmap(f)(jnp.arange(3.0))

    assert printed(capsys) == ["{'x': [0.0, 1.0, 2.0]} step=[1, 1, 1]"] * 2


def test_only_the_examples_that_logged_are_printed(capsys):
    def f(x):
        return jax.lax.cond(x > 0, lambda: lox.log({"x": x}) and x, lambda: -x)

    jax.jit(jax.vmap(f))(jnp.array([1.0, -2.0, 3.0]))
    jax.jit(jax.vmap(jax.vmap(f)))(jnp.array([[1.0, -2.0], [-3.0, 4.0]]))
    jax.jit(jax.vmap(f))(-jnp.ones(3))

    assert printed(capsys) == [
        "{'x': [1.0, 3.0]} example=[0, 2]",
        "{'x': [1.0, 4.0]} example=[[0, 0], [1, 1]]",
    ]


def test_finished_examples_of_a_while_loop_print_nothing(capsys):
    def f(x):
        return jax.lax.while_loop(lambda x: x < 3, lambda x: lox.log({"x": x}) and x + 1, x)

    out = jax.jit(jax.vmap(f))(jnp.array([0, 2, 5]))

    assert out.tolist() == [3, 3, 5]
    assert printed(capsys) == [
        "{'x': [0, 2]} example=[0, 1]",
        "{'x': [1]} example=[0]",
        "{'x': [2]} example=[0]",
    ]


def test_the_predicate_of_a_vmapped_while_loop_is_asked_as_often_as_ever(capsys):
    def f(x):
        def ask(i):
            lox.log({"asked": i})
            return i < x

        return jax.lax.while_loop(ask, lambda i: lox.log({"i": i}) and i + 1, x - x)

    jax.jit(jax.vmap(f))(jnp.array([1, 2]))

    assert sorted(printed(capsys)) == [
        "{'asked': [0, 0]}",
        "{'asked': [1, 1]} example=[0, 1]",
        "{'asked': [2]} example=[1]",
        "{'i': [0, 0]} example=[0, 1]",
        "{'i': [1]} example=[1]",
    ]


def test_an_unbatched_while_loop_under_vmap_prints_every_iteration(capsys):
    def f(x):
        def body(carry):
            i, y = carry
            lox.log({"i": i})
            return i + 1, y * x

        return jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))

    jax.jit(jax.vmap(f))(jnp.arange(2.0))

    assert printed(capsys) == ["{'i': 0}", "{'i': 1}", "{'i': 2}"]


def test_a_remat_prints_once(capsys):
    @jax.checkpoint
    def f(x):
        lox.log({"x": x})
        return jnp.sin(x) ** 2

    jax.jit(jax.grad(f))(1.0)

    assert printed(capsys) == ["{'x': 1.0}"]


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint32", "bfloat16", "float16", "complex64"]
)
def test_dtypes_reach_the_host(dtype, capsys):
    jax.jit(lambda x: lox.log({"x": x}) and None)(jnp.ones(2, dtype))

    one = str(np.ones((), dtype)[()])
    assert printed(capsys) == [f"{{'x': [{one}, {one}]}}"]


def test_keys_and_empty_arrays_reach_the_host(capsys):
    key = jax.random.key(3)
    jax.jit(lambda k, x: lox.log({"k": k, "x": x}) and None)(key, jnp.zeros((0, 2)))

    assert printed(capsys) == [f"{{'k': {[*map(int, jax.random.key_data(key))]}, 'x': []}}"]


def test_a_program_on_several_devices_prints_the_whole_value_once():
    program = """
import jax, jax.numpy as jnp, lox
from jax.sharding import NamedSharding, PartitionSpec
mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("i")))
jax.jit(lambda x: lox.log({"x": x}) and 2 * x)(x)
jax.effects_barrier()
"""
    flags = "--xla_force_host_platform_device_count=4"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )

    assert run.stdout == f"{{'x': {[float(i) for i in range(8)]}}}\n", run.stderr


def test_nothing_is_printed_in_silence(capsys):
    f = jax.jit(lambda x: lox.log({"x": x}) and x)

    f(1.0)
    with lox.silent():
        f(1.0)
        lox.log({"y": 2.0})
    f(1.0)

    assert printed(capsys) == ["{'x': 1.0}"] * 2


def test_the_environment_sets_the_default():
    program = "import lox; lox.log({'x': 1.0})"

    def run(value):
        environment = {**os.environ, "LOX_DEFAULT": value}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert run("silent").stdout == ""
    assert run("print").stdout == "{'x': 1.0}\n"
    assert "LOX_DEFAULT is 'quiet'. It says what happens" in run("quiet").stderr


def test_importing_lox_imports_jax_and_numpy_only():
    program = """
import sys, jax, numpy
before = set(sys.modules)
import lox
after = {name.partition(".")[0] for name in set(sys.modules) - before}
print(after - sys.stdlib_module_names)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert eval(run.stdout) <= {"lox", "lox_host", "jax", "jaxlib", "numpy"}, run.stderr


def test_a_log_that_is_run_on_its_own_is_an_error():
    def f(x):
        with jax.ensure_compile_time_eval():
            lox.log({"inside": jnp.ones(2)})
        return x

    with pytest.raises(RuntimeError, match="The record of 'inside' reached the compiler"):
        lox.spool(f)(1.0)


def test_a_log_that_is_compiled_on_its_own_is_an_error():
    def f(x):
        jax.jit(lambda x: lox.log({"inside": x}) and x).lower(1.0)
        return x

    with pytest.raises(RuntimeError, match="The record of 'inside' reached the compiler"):
        lox.spool(f)(1.0)


def test_prints_of_one_program_come_in_order(capsys):
    @jax.jit
    def f(x):
        def step(x, i):
            lox.log({"before": i})
            x = jnp.tanh(x @ x)
            lox.log({"after": i, "sum": x.sum()})
            return x, None

        x, _ = jax.lax.scan(step, x, jnp.arange(5))
        lox.log({"end": 0})
        return x

    for _ in range(20):
        f(jnp.ones((100, 100)))
    lox.barrier()
    keys = [line[2:].split("'")[0] for line in capsys.readouterr().out.splitlines()]
    assert keys == [*["before", "after"] * 5, "end"] * 20


def test_wrong_arguments_are_explained():
    mapping = r"`lox\.log` takes one mapping from keys to values, such as "
    with pytest.raises(TypeError, match=mapping + r'`lox\.log\(\{"loss": .*`str` \(\'loss'):
        lox.log("loss", 1.0)  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(TypeError, match=r'`lox\.log\(\{"loss": .*\'loss\' would be a step'):
        lox.log(loss=1.0)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match=r'`lox\.log\(\{"loss": .*not nothing'):
        lox.log()  # pyright: ignore[reportCallIssue]


def test_the_version_is_that_of_the_package():
    assert lox.__version__ == importlib.metadata.version("jax-lox")


def test_prints_come_in_order_around_calls_branches_and_loops(capsys):
    """Each record prints its number in the order of execution."""
    table = np.arange(20, dtype=np.int32)  # a constant of the program

    def show(i):
        lox.log({"i": jnp.asarray(table)[i]})

    @jax.jit
    def call(i):
        show(i)
        jax.lax.cond(i > 0, lambda: show(i + 1), lambda: None)

    @jax.custom_jvp
    def custom(x):
        show(10)
        return jnp.sin(x)

    custom.defjvp(lambda primals, tangents: (custom(*primals), tangents[0]))

    def repeat(i):
        jax.checkpoint(lambda: show(i))()
        return i + 1

    def fun(x):
        show(0)
        call(1)
        jax.checkpoint(call)(3)
        jax.lax.scan(lambda _, i: (None, call(i)), None, jnp.array([5, 7]))
        show(9)
        y = custom(x)
        jax.lax.while_loop(lambda i: i < 14, repeat, 11)
        show(14)
        return y

    expected = "".join(f"{{'i': {i}}}\n" for i in range(15))
    lowered = jax.jit(lambda x: fun(x)).lower(1.0).compile()
    for run in (
        jax.jit(fun),
        jax.jit(jax.grad(fun)),
        lowered,
        jax.jit(fun, donate_argnums=0),
    ):
        for _ in range(2):
            run(jnp.float32(1))
            lox.barrier()
            assert capsys.readouterr().out == expected
    out, slope = jax.jit(jax.value_and_grad(fun))(1.0)
    assert (out, slope) == (jnp.sin(1.0), 1)
    lox.barrier()
    capsys.readouterr()
    jax.jit(jax.vmap(lambda x: (fun(x), lox.log({"x": x})) and x))(jnp.arange(2.0))
    lox.barrier()
    assert capsys.readouterr().out.splitlines()[-1] == "{'x': [0.0, 1.0]}"


# Branches that return records ---------------------------------------------------------


def test_a_branch_that_returns_a_record_and_one_that_returns_a_value_are_an_error():
    other = lambda: 2.0  # noqa: E731
    branches = [lambda: lox.log({"a": 1.0}), other]
    for order in (branches, branches[::-1]):
        with pytest.raises(TypeError, match=r"`lambda: lox.log\(\.\.\.\) and None`"):
            lox.spool(lambda x: jax.lax.cond(x > 0, *order))(1.0)
        with pytest.raises(TypeError, match=r"the record.*a `def` without `return`"):
            lox.spool(lambda i: jax.lax.switch(i, [*order, other]))(1)
    # Errors that have nothing to do with logs stay as they are.
    with pytest.raises(TypeError) as raised:
        jax.lax.cond(True, lambda: None, lambda: 2.0)
    assert "lox.log" not in str(raised.value)


def test_a_whole_branch_may_return_its_record_or_nothing():
    def fun(x):
        out = [
            jax.lax.cond(x > 0, lambda: lox.log({"a": x}, step=1), lambda: None),
            jax.lax.cond(
                x > 0, lambda x: lox.log({"a": x}), lambda x: lox.log({"b": x}), x
            ),
            jax.lax.cond(x < 0, true_fun=lambda: lox.log({"c": x}), false_fun=lambda: None),
            jax.lax.switch(
                jnp.int32(x),
                [
                    lambda: None,
                    lambda: lox.log({"d": x}),
                    lambda: lox.log({"d": 0, "e": x}),
                ],
            ),
        ]
        assert out == [None] * 4
        return jnp.sin(x)

    for wrap in (lambda f: f, jax.jit):
        out, logs = wrap(lox.spool(fun))(1.0)
        assert out == jnp.sin(1.0)
        assert {key: value.tolist() for key, value in logs.compact().items()} == {
            "a": [1, 1],
            "d": 1,
        }
    _, logs = lox.spool(jax.vmap(fun))(jnp.array([1.0, -1.0]))
    assert logs.valid["a"].tolist() == [[True, False], [True, False]]
    assert logs.valid["c"].tolist() == [False, True]


def test_branches_that_return_the_same_record_give_it():
    def fun(x):
        same = jax.lax.cond(x > 0, lambda: lox.log({"a": x}), lambda: lox.log({"a": -x}))
        return same["a"]

    assert lox.nolog(fun)(-2.0) == 2


def test_branches_that_return_other_logs_are_an_error_that_says_what_to_write():
    def spooled(key):
        return lambda: lox.spool(lambda: lox.log({key: 1.0}) and None)()[1]

    for other in (spooled("b"), lambda: None):
        with pytest.raises(TypeError, match=r"`lambda: lox.log\(\.\.\.\) and None`"):
            jax.lax.cond(jnp.bool_(True), spooled("a"), other)
