"""What is special to `lox.spool`: selection, jitted functions, arguments, errors."""

import functools as ft
import gc
import math
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental import jet
from jax.sharding import NamedSharding, PartitionSpec

import logify
import lox
from support.programs import logged


def f(x):
    lox.log({"x": x}, tags="input")
    lox.log({"y": 2 * x, "z": 3 * x}, tags=["output", "metric"])
    return 2 * x


def printed(capsys) -> str:
    jax.effects_barrier()
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"argnames": "x"}, ["x"]),
        ({"argnames": ["z", "x"]}, ["x", "z"]),
        ({"tags": "metric"}, ["y", "z"]),
        ({"tags": ["input", "metric"]}, ["x", "y", "z"]),
        ({"tags": "metric", "argnames": ["x", "y"]}, ["y"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("jit", [False, True])
def test_a_filter_keeps_what_matches_and_passes_on_the_rest(options, keys, jit, capsys):
    fun = jax.jit(f) if jit else f

    _, logs = lox.spool(fun, **options)(1.0)

    assert list(logs) == keys
    assert printed(capsys) == ""
    (_, logs), others = lox.spool(lox.spool(fun, **options))(1.0)
    assert list(logs) == keys
    assert list(others) == [key for key in "xyz" if key not in keys]


def test_an_argname_is_a_whole_key():
    _, logs = lox.spool(lambda x: lox.log({"xy": x, "x": x}) and None, argnames="xy")(1.0)

    assert list(logs) == ["xy"]


def test_a_filter_that_matches_nothing_warns():
    with pytest.warns(
        UserWarning, match=r"`argnames` \['w'\] .* Logged were \['x', 'y', 'z'\]"
    ) as w:
        lox.spool(f, argnames=["x", "w"])(1.0)
    assert w[0].filename == __file__
    with pytest.warns(
        UserWarning,
        match=r"`tags` \['debug'\] .* Logged were \['input', 'metric', 'output'\]",
    ):
        lox.spool(f, tags="debug")(1.0)


def test_a_reduction_of_a_key_that_is_not_logged_warns():
    for fun in (f, jax.jit(f)):
        with pytest.warns(
            UserWarning, match=r"`reduce` \['v', 'w'\] .* Logged were \['x', 'y', 'z'\]"
        ) as w:
            _, logs = lox.spool(fun, reduce={"w": "sum", "x": "sum", "v": "sum"})(1.0)
        assert list(logs) == ["x", "y", "z"]
        assert len(w) == 1


def test_kept_logs_are_heard_outside_but_not_printed(capsys):
    assert list(lox.spool(f, keep_logs=True)(1.0)[1]) == ["x", "y", "z"]
    assert printed(capsys) == ""
    (_, inner), outer = lox.spool(lox.spool(f, keep_logs=True, argnames="x"))(1.0)
    assert list(inner) == ["x"]
    assert list(outer) == ["x", "y", "z"]


def test_prefix_is_put_before_the_keys():
    assert list(lox.spool(f, prefix="a/")(1.0)[1]) == ["a/x", "a/y", "a/z"]


def test_arrays_are_traced_and_the_rest_stays_what_it_is():
    seen = {}

    def fun(x, n, name, g, nothing, *, flag):
        seen.update(x=x, n=n, name=name, g=g, nothing=nothing, flag=flag)
        lox.log({"x": g(x)})
        return {"n": n + 1, "name": name, "x": x, "nothing": nothing}

    out, logs = lox.spool(fun)(np.ones(2), 3, "abc", jnp.sin, None, flag=True)

    assert isinstance(seen.pop("x"), jax.core.Tracer)
    assert seen == {"n": 3, "name": "abc", "g": jnp.sin, "nothing": None, "flag": True}
    assert out["n"] == 4
    assert isinstance(out["n"], int)
    assert out["name"] == "abc"
    np.testing.assert_allclose(logs["x"], np.sin(np.ones(2)), rtol=1e-6)


def test_texts_in_numpy_arrays_stay_what_they_are():
    text = np.array(["a"])

    out, logs = lox.spool(lambda s, x: lox.log({"x": x}) and s)(text, 1.0)

    assert out is text
    assert logs["x"] == 1.0


def test_a_logged_array_may_be_donated_later():
    double = jax.jit(lambda x: 2 * x, donate_argnums=0)

    def f(x):
        for _ in range(3):
            lox.log({"x": x})
            x = double(x)
        return x

    out, logs = lox.spool(f)(jnp.ones(2))

    assert out.tolist() == [8.0, 8.0]
    assert logs["x"].tolist() == [[1, 1], [2, 2], [4, 4]]
    single = lambda x: double(lox.log({"x": x + 1})["x"])  # noqa: E731
    assert lox.spool(single)(jnp.ones(2))[1]["x"].tolist() == [2, 2]


def test_arguments_may_be_changed_inside():
    def fun(batch):
        y = batch.pop("y")
        lox.log({"y": y})
        return batch["x"] + y

    batch = {"x": 1.0, "y": 2.0}

    assert lox.spool(fun)(batch)[0] == 3.0
    assert batch == {"x": 1.0, "y": 2.0}


def test_logging_a_key_does_not_use_it_up():
    def draw(key):
        lox.log({"key": key})
        return jax.random.normal(key)

    with jax.debug_key_reuse(True):
        lox.spool(draw)(jax.random.key(0))
        jax.jit(lox.spool(draw))(jax.random.key(0))
        jax.jit(draw)(jax.random.key(0))


def test_no_tracer_leaks():
    with jax.check_tracer_leaks():
        out, logs = lox.spool(jax.grad(lambda x: f(x).sum()))(jnp.ones(2))

    assert out.tolist() == [2.0, 2.0]
    assert list(logs) == ["x", "y", "z"]


def test_no_tracer_leaks_in_loops_under_grad():
    @jax.checkpoint
    def step(x, i):
        lox.log({"x": x}, i=i)
        return lox.log_grad(2 * x, "slope"), None

    def last(x):
        return jax.lax.scan(step, x, jnp.arange(3))[0]

    with jax.check_tracer_leaks():
        out, logs = lox.spool(jax.grad(last))(1.0)
    assert out == 8
    assert logs["x"].tolist() == [1, 2, 4]
    assert logs["slope"].tolist() == [1, 2, 4]


def test_numbers_of_64_bits_stay_what_they_are():
    enable_x64 = (
        jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    )

    def fun(x):
        with enable_x64(True):
            lox.log({"big": 2**40})
        return x

    _, logs = lox.spool(fun)(jnp.float32(1))

    assert int(logs["big"]) == 2**40


def test_a_symbolic_length_is_exported():
    def fun(xs):
        def step(c, x):
            lox.log({"c": c})
            lox.log({"c": x})
            return c + x, None

        return jax.lax.scan(step, jnp.float32(0), xs)[0]

    (n,) = export.symbolic_shape("n")
    spooled = jax.jit(lambda xs: lox.spool(fun)(xs)[1].data)
    exported = export.export(spooled)(jax.ShapeDtypeStruct((n,), jnp.float32))

    assert exported.call(jnp.arange(3.0))["c"].tolist() == [0, 0, 0, 1, 1, 2]


def test_an_exported_program_comes_back_with_its_logs():
    def fun(x):
        jax.lax.cond(x[0] > 0, lambda: lox.log({"y": x}, tags="a") and None, lambda: None)
        lox.log({"z": x}, step=1)
        lox.log({"z": x}, step=2)

    x = jnp.ones(2)
    exported = export.export(jax.jit(jax.vmap(lox.spool(fun))))(jnp.stack([x, -x]))
    _, logs = export.deserialize(exported.serialize()).call(jnp.stack([x, -x]))

    assert logs.valid["y"].tolist() == [True, False]
    assert logs.tags["y"] == ("a",)
    assert logs.slice[:1]["z"].shape == (2, 1, 2)
    assert logs.step["z"].tolist() == [[1, 2], [1, 2]]


def test_a_result_that_does_not_depend_on_the_trace_is_the_same_object():
    table = jnp.arange(3)

    out, _ = lox.spool(lambda x: (table, 2.0, lox.log({"x": x}) and None))(1.0)

    assert out[0] is table
    assert out[1] == 2.0
    assert isinstance(out[1], float)


def test_functions_may_close_over_tracers():
    def outer(x):
        return lox.spool(lambda y: lox.log({"s": x + y}) and x * y)(2.0)

    out, logs = jax.jit(outer)(3.0)
    assert (out, logs["s"]) == (6.0, 5.0)
    slope, logs = jax.grad(outer, has_aux=True)(3.0)
    assert (slope, logs["s"]) == (2.0, 5.0)


def test_a_gradient_in_which_a_number_is_added():
    def fun(x):
        return jax.checkpoint(lambda x: lox.log({"x": x}) and jnp.sin(x))(x) + x

    slope, logs = lox.spool(jax.grad(fun))(0.0)

    assert (slope, logs["x"]) == (2, 0)


def test_a_log_with_an_infinite_derivative_does_not_spoil_the_gradient():
    def loss(x):
        def step(c, _):
            lox.log({"norm": jnp.linalg.norm(c - c)})
            return jnp.sin(c), None

        return jax.lax.scan(step, x, None, length=2)[0].sum()

    x = jnp.ones(2)
    expected = jax.grad(lox.nolog(loss))(x)

    slope, logs = jax.grad(lox.spool(loss), has_aux=True)(x)
    np.testing.assert_allclose(slope, expected)
    assert logs["norm"].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(lox.spool(jax.grad(loss))(x)[0], expected)


def test_logs_carry_no_derivatives():
    def logged(x):
        _, logs = lox.spool(lambda x: lox.log({"x": x, "y": x**2}) and None)(x)
        return logs["x"], logs["y"]

    assert jax.jacfwd(logged)(3.0) == (0.0, 0.0)
    assert jax.jacrev(logged)(3.0) == (0.0, 0.0)


class Compilations:
    """Counts what XLA compiles inside the `with` block."""

    total = 0

    def __enter__(self):
        self._start = Compilations.total
        return self

    def __exit__(self, *_):
        self.count = Compilations.total - self._start


@jax.monitoring.register_event_duration_secs_listener
def _count(event, duration, **_):
    Compilations.total += event == "/jax/core/compile/backend_compile_duration"


def test_spooling_a_jitted_function_compiles_once():
    jitted = jax.jit(f)
    x = jnp.float32(1.0)
    with lox.silent():
        jitted(x)
    with Compilations() as first:
        lox.spool(jitted)(x)
    with Compilations() as later:
        for _ in range(3):
            lox.spool(jitted)(x)
        with lox.silent():
            jitted(x)

    assert (first.count, later.count) == (1, 0)


def test_a_jitted_function_inside_compiles_once():
    jitted = jax.jit(f)
    x = jnp.float32(1.0)
    lox.spool(lambda x: jitted(x))(x)
    with Compilations() as later:
        lox.spool(lambda x: jitted(x))(x)

    assert later.count == 0


def test_spooling_keeps_the_options_of_jit():
    mesh = jax.make_mesh((1,), ("i",))
    sharding = NamedSharding(mesh, PartitionSpec("i"))

    def fun(x, y, n):
        lox.log({"x": x.sum()})
        return (x + y) * n

    jitted = jax.jit(
        fun,
        static_argnums=2,
        donate_argnums=0,
        in_shardings=(sharding, sharding),
        out_shardings=sharding,
    )
    for spool in (lox.spool(jitted), lox.spool(lambda *args: jitted(*args))):
        x, y = (
            jax.device_put(jnp.ones(4), sharding),
            jax.device_put(jnp.ones(4), sharding),
        )

        out, logs = spool(x, y, 6)

        assert logs["x"] == 4.0
        assert out.tolist() == [12.0] * 4
        assert out.sharding.spec == PartitionSpec("i")
        assert x.is_deleted()
        assert not y.is_deleted()


def test_static_and_other_arguments_go_where_jit_puts_them():
    @ft.partial(jax.jit, static_argnames="m")
    def fun(x, y=2.0, *, m):
        lox.log({"y": y})
        return x * y * len(m)

    for m, y in (("ab", 3.0), ("abc", 4), ("abc", 5)):
        out, logs = lox.spool(fun)(1.0, y=y, m=m)

        assert (out, logs["y"]) == (y * len(m), y)


def test_the_name_of_a_jitted_function_stays():
    jitted = jax.jit(f)

    assert lox.spool(jitted).__name__ == "f"
    assert lox.spool(jitted).__wrapped__ is jitted
    inside = jax.make_jaxpr(lambda x: lox.spool(lambda x: jitted(x))(x))(1.0)
    assert inside.eqns[0].params["name"] == "f"


def test_a_jitted_function_may_be_dropped():
    spooled = lox.spool(jax.jit(f))
    gc.collect()
    assert spooled(1.0)[1]["y"] == 2.0

    jitted = jax.jit(lambda x: lox.log({"x": x}) and x)
    lox.spool(jitted)(1.0)
    reference = weakref.ref(jitted)
    del jitted
    gc.collect()
    assert reference() is None


def test_two_threads_spool_at_once():
    jitted = jax.jit(f)
    results = {}

    def work(i):
        for _ in range(20):
            results[i] = lox.spool(jitted)(float(i))[1]["y"]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {i: float(y) for i, y in results.items()} == {i: 2.0 * i for i in range(4)}


def test_what_is_not_a_function_is_refused():
    with pytest.raises(TypeError, match=r"`lox.spool` takes a function, not `int`"):
        lox.spool(3)
    with pytest.raises(TypeError, match=r"`lox.nolog` takes a function, not `None`"):
        lox.nolog(None)
    with pytest.raises(TypeError, match="`prefix` must be a string, not 3"):
        lox.spool(f, prefix=3)


def test_rows_of_one_key_must_have_one_shape():
    def shapes(x):
        lox.log({"x": x})
        lox.log({"x": jnp.ones(3)})

    def branches(x):
        jax.lax.cond(
            x > 0,
            lambda: lox.log({"x": 1.0}) and None,
            lambda: lox.log({"x": np.ones(2, np.int32)}) and None,
        )

    def trees(x):
        lox.log({"x": {"a": x}})
        lox.log({"x": {"b": x}})

    def steps(x):
        lox.log({"x": x}, step=1)
        lox.log({"x": x}, step=np.ones(2, np.float32))

    place = r"at .*test_spool.py:\d+"
    for fun, message in (
        (
            shapes,
            rf"'x' is logged as float32\[\] {place}.* and as float32\[3\] {place}",
        ),
        (branches, rf"'x' is logged as int32\[2\] {place}.* and as float32\[\] {place}"),
        (trees, r"'x' is logged as \{a: float32\[\]\} .* and as \{b: float32\[\]\}"),
        (
            steps,
            rf"The step 'step' of 'x' is int32\[\] {place}.* and float32\[2\] {place}",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            lox.spool(fun)(1.0)


def test_vmaps_that_cannot_be_told_apart():
    def outer(a):
        def inner(b):
            lox.log({"y": a})
            lox.log({"y": b})
            return a * b

        return jax.vmap(inner)(jnp.arange(2.0))

    with pytest.raises(
        ValueError, match=r"'y' depends on `vmap`s of size .* cannot tell which"
    ):
        lox.spool(jax.vmap(outer))(jnp.arange(3.0))


def test_rows_in_a_while_loop_are_refused():
    def loop(x):
        return jax.lax.while_loop(
            lambda x: x < 3, lambda x: lox.log({"inner": x}) and x + 1, x
        )

    def dynamic(n):
        return jax.lax.fori_loop(0, n, lambda i, x: lox.log({"inner": x}) and x + 1, 0)

    def predicate(x):
        return jax.lax.while_loop(
            lambda x: bool(lox.log({"inner": x})) & (x < 3), lambda x: x + 1, x
        )

    for fun in (loop, dynamic, predicate):
        with pytest.raises(
            ValueError,
            match=r"rows of 'inner', logged at .*test_spool.py.* `while_loop`",
        ):
            lox.spool(fun)(jnp.int32(0))


def test_a_while_loop_passes_on_what_is_not_selected(capsys):
    def loop(x):
        lox.log({"outer": x})
        return jax.lax.while_loop(
            lambda x: x < 2, lambda x: lox.log({"inner": x}) and x + 1, x
        )

    calls = []
    spooled = lox.spool(loop, argnames="outer")
    out, logs = lox.tap(spooled, calls.append)(jnp.int32(0))

    assert (out, list(logs)) == (2, ["outer"])
    assert [logs["inner"].item() for logs in calls] == [0, 1]
    assert printed(capsys) == ""


def test_constants_come_as_arrays_of_jax():
    def f(x):
        lox.log({"number": 1.5, "array": np.arange(3.0, dtype=np.float32), "x": x})

    for x in (2.0, jnp.float32(2)):
        _, logs = lox.spool(f)(x)
        assert logs["array"].tolist() == [0, 1, 2]
        for value in logs.values():
            assert isinstance(value, jax.Array)


def test_what_has_no_rule_is_refused_by_name():
    def composite(x):
        return jax.lax.composite(lambda x: lox.log({"inner": x}) and x, "my.function")(x)

    def hidden(x):
        return jax.jit(composite)(x)

    for fun in (composite, hidden):
        with pytest.raises(
            NotImplementedError, match=r"`composite`, which logs 'inner' .*nolog"
        ):
            lox.spool(fun)(jnp.ones(2))
        lox.spool(lox.nolog(fun))(jnp.ones(2))


def test_a_tangent_is_logged_under_jvp_and_refused_under_grad():
    @jax.custom_jvp
    def g(x):
        return x**2

    @g.defjvp
    def _(primals, tangents):
        lox.log({"tangent": tangents[0]})
        return g(*primals), 2 * primals[0] * tangents[0]

    _, logs = lox.spool(lambda x: jax.jvp(g, (x,), (3.0,)))(2.0)
    assert logs["tangent"] == 3.0
    for fun in (
        g,
        jax.jit(g),
        lambda x: jax.lax.scan(lambda c, _: (g(c), None), x, None, length=2)[0],
    ):
        with pytest.raises(
            ValueError, match="'tangent' contains a tangent, logged in a `custom_jvp`"
        ):
            lox.spool(jax.grad(fun))(2.0)
        with pytest.raises(
            ValueError, match="'tangent' contains a tangent, logged in a `custom_jvp`"
        ):
            jax.grad(fun)(2.0)


@pytest.mark.parametrize("fun", [lambda x: jnp.searchsorted(x, 1.0), jnp.sort])
def test_what_jax_writes_in_terms_of_its_own_extensions_compiles(fun):
    def logging(x):
        lox.log({"first": x[0]})
        return fun(x)

    x = jnp.arange(3.0)
    for transform in (
        lambda f: jax.jit(lox.spool(f)),
        lambda f: lox.spool(jax.jit(f)),
        lambda f: jax.jit(lox.spool(jax.jit(f))),
    ):
        out, logs = transform(logging)(x)
        assert (out == fun(x)).all()
        assert logs.data == {"first": 0}


def test_a_backward_rule_may_run_a_program_that_was_traced_in_the_forward_pass():
    """What it logs belongs to whoever is around `grad`, as all that such a rule logs."""

    def f(x):
        def sine(x):
            lox.log({"x": x})
            return jnp.sin(x), jnp.int32(x)

        program = jax.make_jaxpr(sine)(x)
        run = ft.partial(jax.core.eval_jaxpr, program.jaxpr, program.consts)
        fun = jax.custom_vjp(lambda x: tuple(run(x)))
        fun.defvjp(lambda x: (tuple(run(x)), x), lambda x, g: (g[0] * run(2 * x)[0],))
        return fun(x)[0]

    inside, around = [], []
    slope = jax.grad(lambda x: lox.tap(f, inside.append)(x))
    for _ in range(2):
        _, logs = jax.grad(lox.spool(f), has_aux=True)(1.0)
        assert logs["x"] == 1
        np.testing.assert_allclose(lox.tap(slope, around.append)(1.0), np.sin(2.0))
        _, logs = lox.spool(jax.grad(f))(1.0)
        np.testing.assert_array_equal(logs["x"], [1, 2])
    assert [float(logs["x"]) for logs in inside] == [1, 1]
    assert [float(logs["x"]) for logs in around] == [1, 2] * 2


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["plain", "jit"])
@pytest.mark.parametrize(
    ("inner", "heard"),
    [
        (lambda f: lambda x: lox.spool(f)(x)[0], ["cotangent"]),
        (lambda f: lox.tap(f, lambda logs: None), ["x", "cotangent"]),
    ],
    ids=["spool", "tap"],
)
def test_what_a_backward_rule_logs_is_heard_around_the_derivative(inner, heard, jit):
    """The transformation inside has ended when the rule runs."""

    @jax.custom_vjp
    def sine(x):
        lox.log({"x": x})
        return jnp.sin(x)

    def backward(x, cotangent):
        lox.log({"cotangent": cotangent})
        return (cotangent * jnp.cos(x),)

    sine.defvjp(lambda x: (sine(x), x), backward)

    def three_times(x):
        return jax.lax.scan(lambda x, _: (jit(sine)(x), None), x, None, length=3)[0]

    for _ in range(2):
        _, logs = lox.spool(jax.grad(inner(three_times)))(0.5)
        xs = np.array([0.5, np.sin(0.5), np.sin(np.sin(0.5))])
        rows = {"x": xs, "cotangent": [1, np.cos(xs[2]), np.cos(xs[2]) * np.cos(xs[1])]}
        assert list(logs) == heard
        for key in heard:
            np.testing.assert_allclose(logs[key], rows[key], rtol=1e-6)


def test_second_derivatives_of_a_custom_vjp_in_a_loop_that_logs_a_constant():
    @jax.custom_vjp
    def shifted(v):
        def each(u):
            lox.log({"s": u.sum()}, step=3)
            return u

        return jax.vmap(each)(jnp.stack([v, v + 1])).mean(0)

    shifted.defvjp(lambda v: (shifted(v), v), lambda v, g: (0.5 * g * jnp.cos(v),))

    def fun(v):
        return jax.lax.scan(lambda v, _: (shifted(v), None), v, None, 1)[0].sum()

    slope = jax.grad(lambda v: jnp.tanh(jax.value_and_grad(fun)(v)[0]))
    x = np.array([0.5, 0.7], np.float32)
    # The derivative of tanh(sum(shifted(x))), with the backward rule of `shifted`.
    by_hand = (1 - np.tanh(2 * 0.5 + x.sum()) ** 2) * 0.5 * np.cos(x)
    for spooled in (lox.spool(slope), jax.jit(lox.spool(slope))):
        out, logs = spooled(x)
        assert np.allclose(out, by_hand)
        assert np.allclose(logs["s"], [[x.sum(), x.sum() + 2]])


def test_grad_of_nested_loops_in_a_custom_jvp():
    def plain(x):
        def inner(c, u):
            u = 2 * u + 1
            lox.log({"u": u})
            return c, u

        def outer(v, _):
            v = jnp.sin(v)
            return v + jax.lax.scan(inner, 0, jnp.stack([v, v]))[1].sum(), None

        return jax.lax.scan(outer, x, None, 2)[0]

    fun = jax.custom_jvp(plain)
    fun.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
    slope, logs = jax.jit(jax.grad(lox.spool(fun), has_aux=True))(1.0)
    # v -> 5 sin(v) + 2, twice
    first = math.sin(1.0)
    second = math.sin(5 * first + 2)
    assert math.isclose(slope, 25 * math.cos(1.0) * math.cos(5 * first + 2), rel_tol=1e-4)
    expected = [2 * v + 1 for v in (first, first, second, second)]
    assert np.allclose(logs["u"], expected, rtol=1e-4)


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="This JAX has no `jax.new_ref`.")
@pytest.mark.parametrize("transform", [lox.spool, lox.tap, lox.nolog, lox.progress])
def test_a_ref_among_the_arguments_is_updated(transform, capsys):
    def count(ref, xs):
        def body(_, x):
            ref[...] = ref[...] + x
            lox.log({"total": ref[...]})
            return None, None

        return jax.lax.scan(body, None, xs)[1]

    for fun in (transform(count), transform(jax.jit(count)), jax.jit(transform(count))):
        ref = jax.new_ref(jnp.float32(1.0))
        out = fun(ref, jnp.arange(4.0))
        assert float(ref[...]) == 7.0
        if transform is lox.spool:
            assert out[1]["total"].tolist() == [1.0, 2.0, 4.0, 7.0]
    lox.barrier()


def test_results_come_back_as_the_function_returns_them():
    """A constant of the program is an array for the user, too."""
    outer = jnp.arange(3.0)

    def fun(x):
        lox.log({"x": x})
        arrays = jnp.ones(()), jnp.arange(3), jnp.array([1, 2]), outer, outer + 1
        numbers = [jnp.asarray(number) for number in (x, 1.0, 3, True, 1j, np.int8(2))]
        return arrays, numbers, jnp.sin(x), jax.random.key(0), x, 1.0, np.ones(2), None, "s"

    def kinds(tree):
        kind = lambda x: (type(x), getattr(x, "dtype", None), getattr(x, "weak_type", None))  # noqa: E731
        return jax.tree.map(kind, tree)

    with lox.silent():
        expected = kinds(fun(1.0))
    for _ in range(2):
        assert kinds(lox.spool(fun)(1.0)[0]) == expected
        assert kinds(lox.tap(fun, lambda logs: None)(1.0)) == expected
        assert kinds(lox.progress(fun)(1.0)) == expected
        assert kinds(logify.logify(fun)(1.0)[0]) == expected


def test_a_function_is_not_run_where_its_rule_takes_its_place():
    """As in an eager run: what the rule does not log has not happened."""
    calls = []

    def primal(x):
        jax.debug.callback(calls.append, x)
        return jnp.sin(logged("y", logged("x", x) + 1))

    by_jvp, by_vjp = jax.custom_jvp(primal), jax.custom_vjp(primal)
    by_jvp.defjvp(lambda x, t: (jnp.sin(logged("x", *x)), 3 * t[0]))
    by_vjp.defvjp(lambda x: (jnp.sin(logged("x", x)), None), lambda _, g: (3 * g,))
    for fun in (by_jvp, by_vjp):
        spooled = lox.spool(fun)
        _, logs = spooled(jnp.float32(1))
        assert logs.data == {"x": 1, "y": 2}
        assert logs.valid["y"]
        assert "x" not in logs.valid
        jax.effects_barrier()
        calls.clear()

        _, expected = lox.spool(jax.grad(fun))(jnp.float32(1))
        for differentiated in (
            jax.grad(spooled, has_aux=True),
            jax.jit(jax.grad(jax.jit(spooled), has_aux=True)),
        ):
            for _ in range(2):
                slope, logs = differentiated(jnp.float32(1))
                assert slope == 3
                assert logs.compact().data == expected.data == {"x": 1}
        _, logs = jax.grad(lox.spool(fun, reduce="mean"), has_aux=True)(jnp.float32(1))
        assert logs["x"] == 1
        assert not logs.valid["y"]
        found = []
        jax.grad(lox.tap(fun, lambda logs: found.append(dict(logs))))(jnp.float32(1))
        lox.barrier()
        assert found == [{"x": 1}]
        jax.effects_barrier()
        assert not calls


def test_a_custom_vmap_function_is_not_run_where_its_rule_takes_its_place():
    @jax.custom_batching.custom_vmap
    def fun(x):
        return jnp.sin(logged("y", logged("x", x) + 1))

    @fun.def_vmap
    def _(axis_size, in_batched, x):
        return jax.vmap(lambda x: jnp.sin(logged("x", x)))(x), True

    xs = jnp.arange(3.0)
    _, logs = lox.spool(fun)(xs[1])
    assert logs.data == {"x": 1, "y": 2}
    assert logs.valid["y"]
    for spooled in (
        lox.spool(jax.vmap(fun)),
        jax.vmap(lox.spool(fun)),
        jax.jit(jax.vmap(jax.jit(lox.spool(fun)))),
    ):
        _, logs = spooled(xs)
        assert list(logs["x"]) == [0, 1, 2]
        assert not np.any(logs.valid.get("y", False))
    found = []
    jax.vmap(lox.tap(fun, lambda logs: found.append(dict(logs))))(xs)
    lox.barrier()
    assert found == [{"x": 0}, {"x": 1}, {"x": 2}]


def test_a_rule_that_logs_less_for_some_arguments_is_an_error_that_names_the_key():
    @jax.custom_vjp
    def fun(x, y):
        return logged("k", x) * y

    def forward(x, y):
        if y.perturbed:
            lox.log({"k": x.value})
        return x.value * y.value, (x.value, y.value)

    fun.defvjp(forward, lambda xy, g: (g * xy[1], g * xy[0]), symbolic_zeros=True)
    spooled, x = lox.spool(fun), jnp.float32(2)
    assert jax.grad(spooled, argnums=(0, 1), has_aux=True)(x, x)[1].data == {"k": 2}
    with pytest.raises(
        NotImplementedError, match="'k' is logged by a function with a custom rule"
    ):
        jax.grad(spooled, has_aux=True)(x, x)


MATRIX = np.array([[2, 0.5], [0.5, 4]], np.float32)


def products_of_conjugate_gradients(b) -> list:
    """What a solver by hand multiplies with the matrix, from 0 on."""
    x, r = np.zeros_like(b), b
    p, rows = r, [x]
    for _ in range(2):
        rows.append(p)
        a = (r @ r) / (p @ (MATRIX @ p))
        x, new = x + a * p, r - a * (MATRIX @ p)
        p, r = new + (new @ new) / (r @ r) * p, new
    return rows


def solving(solver):
    def fun(b):
        return solver(lambda y: MATRIX @ logged("y", y), b, maxiter=2)[0].sum()

    return fun


def test_the_operator_of_conjugate_gradients_logs():
    b = np.array([1, 3], np.float32)
    fun, expected = solving(jax.scipy.sparse.linalg.cg), products_of_conjugate_gradients(b)
    again = products_of_conjugate_gradients(np.ones(2, np.float32))
    spool = ft.partial(lox.spool, capacity=8)
    for spooled in (spool(fun), jax.jit(spool(fun))):
        _, logs = spooled(b)
        np.testing.assert_allclose(logs.compact()["y"], expected, rtol=1e-5)
    slope, logs = jax.grad(spool(fun), has_aux=True)(b)
    np.testing.assert_allclose(slope, np.linalg.solve(MATRIX, np.ones(2)), rtol=1e-4)
    np.testing.assert_allclose(logs.compact()["y"], expected, rtol=1e-5)
    _, logs = jax.jit(spool(jax.grad(fun)))(b)
    np.testing.assert_allclose(logs.compact()["y"], [*expected, *again], rtol=1e-5)
    found = []
    lox.tap(fun, lambda logs: found.append(logs["y"]))(b)
    lox.barrier()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["gmres", "bicgstab"])
def test_an_operator_that_jax_transposes_logs_what_it_is_called_with(name, capsys):
    """Its transpose does not log: the input has no value there."""
    fun, b = solving(getattr(jax.scipy.sparse.linalg, name)), np.array([1, 3], np.float32)
    expected = lox.nolog(fun)(b)
    assert fun(b) == expected
    jax.effects_barrier()
    number = capsys.readouterr().out.count("y")
    _, logs = lox.spool(fun, capacity=9)(b)
    assert logs.count["y"] == number > 2
    # From 0 on, so the first direction is that of the right-hand side.
    rows = logs.compact()["y"]
    np.testing.assert_allclose(rows[0], [0, 0])
    np.testing.assert_allclose(rows[1] * b[0], rows[1][0] * b, rtol=1e-5)
    slope, logs = jax.jit(lox.spool(jax.grad(fun), capacity=9))(b)
    np.testing.assert_allclose(slope, np.linalg.solve(MATRIX.T, np.ones(2)), rtol=1e-4)
    assert logs.count["y"] == number


def test_the_function_whose_root_is_found_logs_in_derivatives_too():
    def fun(x):
        def solve(f, y):
            return jax.lax.fori_loop(0, 3, lambda _, y: y - f(y) / (2 * y), y)

        residual = lambda y: logged("y", y) ** 2 - x - 1  # noqa: E731
        return jax.lax.custom_root(residual, jnp.ones(()), solve, lambda g, y: y / g(1.0))

    x, iterates = jnp.float32(0.7), [1.0]
    for _ in range(3):
        iterates.append(iterates[-1] - (iterates[-1] ** 2 - 1.7) / (2 * iterates[-1]))
    _, logs = lox.spool(fun)(x)
    np.testing.assert_allclose(logs["y"], iterates[:3], rtol=1e-5)
    slope, logs = jax.grad(lox.spool(fun), has_aux=True)(x)
    np.testing.assert_allclose(slope, 0.5 / np.sqrt(1.7), rtol=1e-4)
    np.testing.assert_allclose(logs["y"], iterates[:3], rtol=1e-5)
    for spooled in (lox.spool(jax.grad(fun)), jax.jit(lox.spool(jax.grad(fun)))):
        slope, logs = spooled(x)
        np.testing.assert_allclose(slope, 0.5 / np.sqrt(1.7), rtol=1e-4)
        # The derivative evaluates it at the root, for its parameters and for its unknown.
        np.testing.assert_allclose(logs["y"][:3], iterates[:3], rtol=1e-5)
        np.testing.assert_allclose(logs["y"][3:], np.sqrt(1.7), rtol=1e-4)
        assert len(logs["y"]) > 3
    (_, slope), logs = lox.spool(ft.partial(jax.jvp, fun))((x,), (x,))
    np.testing.assert_allclose(slope, 0.35 / np.sqrt(1.7), rtol=1e-4)
    np.testing.assert_allclose(logs["y"][:3], iterates[:3], rtol=1e-5)


def test_a_taylor_expansion_logs_its_primals():
    def fun(x):
        y = jnp.sin(logged("x", x))
        return jax.jit(lambda y: 2 * logged("y", y))(y)

    x, series = jnp.float32(0.5), ((jnp.float32(1), jnp.float32(0)),)
    expansion = lambda x: jet.jet(fun, (x,), series)  # noqa: E731
    expected = lox.nolog(expansion)(x)
    for spooled in (lox.spool(expansion), jax.jit(lox.spool(expansion))):
        out, logs = spooled(x)
        np.testing.assert_allclose(
            jax.tree.leaves(out), jax.tree.leaves(expected), rtol=1e-6
        )
        np.testing.assert_allclose([logs["x"], logs["y"]], [0.5, np.sin(0.5)], rtol=1e-6)
    found = []
    lox.tap(expansion, lambda logs: found.append(list(logs)))(x)
    lox.barrier()
    assert found == [["x"], ["y"]]


def test_rows_of_an_associative_scan_that_differ_in_length_are_an_error_that_says_why():
    def combine(a, b):
        return jax.vmap(lambda a, b: logged("a", a) * b)(a, b)

    fun = ft.partial(jax.lax.associative_scan, combine)
    with pytest.raises(ValueError, match=r"(?s)'a' depends.*An `associative_scan` calls"):
        lox.spool(fun)(jnp.arange(5.0))
    found = []
    lox.tap(fun, lambda logs: found.append(logs["a"]))(jnp.arange(5.0))
    lox.barrier()
    assert [len(a) for a in found] == [2, 1, 0, 2]
