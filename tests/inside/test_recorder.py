"""`lox.recorder` against a Python loop that keeps a deque."""

import collections
import itertools as it
import os
import subprocess
import sys
import textwrap
import time
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._stream.packet import Packet
from support.random_programs import Scope, random_program
from support.selection import FULL, thin
from support.truth import assert_close, raises, run, run_in_python

XS = jnp.array([3.0, 1.0, 2.0, 0.5, 4.0, -1.0, 2.5, 1.5, -2.0, 3.5])


def negative(logs):
    return jnp.stack([jnp.min(x) < 0 for x in jax.tree.leaves(logs.data)]).any()


def last_records(records, fires, keep, after):
    """What a recorder must deliver: written as a loop over a deque."""
    last, left = collections.deque(maxlen=keep), None
    for record in records:
        if left is None:
            last.append(record)
            left = after if fires(record.data) else None
            found = None if left is None else list(last)
        elif left:
            found.append(record)
            left -= 1
    return None if left is None else found


def assert_recorded(recording, expected):
    assert len(recording.records) == len(expected)
    for logs, record in zip(recording.records, expected, strict=True):
        assert list(logs) == list(record.data)
        for key, value in record.data.items():
            found, wanted = jax.tree.flatten(logs[key]), jax.tree.flatten(value)
            assert found[1] == wanted[1]
            for x, y in zip(found[0], wanted[0], strict=True):
                assert_close(key, x, y, tol=1e-3)
            assert {n for n in logs.steps if key in logs.steps[n]} == set(record.steps)
            for name, step in record.steps.items():
                assert_close(name, logs.steps[name][key], step, tol=1e-3)


def recorded(transform, *args, **options):
    """What the callback of a recorder gets."""
    found = []
    out = transform(lambda fun: lox.recorder(fun, then=found.append, **options))(*args)
    lox.barrier()
    return out, found


# Where it can be ----------------------------------------------------------------------


def two_keys(xs):
    def step(total, x):
        lox.log({"x": x, "total": total}, step=total)
        jax.lax.cond(x > 2, lambda: lox.log({"y": jnp.sqrt(x)}) and None, lambda: None)
        return total + 1, x * total

    return jax.lax.scan(step, 1.0, xs)


def in_a_while(xs):
    def body(state):
        i, total = state
        lox.log({"x": xs[i]}, i=i)

        def inner(state):
            j, total = state
            lox.log({"inner": total}, j=j)
            return j + 1, total + xs[i]

        _, total = jax.lax.while_loop(lambda s: s[0] < i % 3, inner, (0, total))
        return i + 1, total

    return jax.lax.while_loop(lambda s: s[0] < jnp.where(xs[0] > 0, 9, 8), body, (0, 1.0))


def in_blocks(xs):
    """Rows of a `checkpoint` and of a custom rule leave it all at once."""

    @jax.checkpoint
    def block(total, xs):
        def step(total, x):
            lox.log({"x": x})
            lox.log({"half": total / 2})
            return total + x, None

        return jax.lax.scan(step, total, xs)[0]

    @jax.custom_jvp
    def ruled(x):
        lox.log({"ruled": x})
        return jnp.sin(x)

    ruled.defjvp(lambda xs, ts: (ruled(*xs), jnp.cos(*xs) * ts[0]))
    total = block(0.0, xs)
    lox.log({"x": total}, step=1)
    return ruled(total) + block(total, xs)


def in_a_jit(xs):
    @jax.jit
    def step(x, i):
        lox.log({"x": x}, i=i)
        return 2 * x

    return jax.lax.fori_loop(0, len(xs), lambda i, y: y + step(xs[i], i), 0.0)


PROGRAMS = {f.__name__: f for f in (two_keys, in_a_while, in_blocks, in_a_jit)}
WAYS = {
    "eager": lambda f: lambda r: r(f),
    "jit": lambda f: lambda r: jax.jit(r(f)),
    "of jit": lambda f: lambda r: r(jax.jit(f)),
}


@pytest.mark.parametrize(
    ("way", "name"),
    [(way, name) for i, name in enumerate(PROGRAMS) for way in thin([*WAYS], 2, i)],
)
def test_it_delivers_the_last_records_and_some_more(name, way):
    fun = PROGRAMS[name]
    out, records = run(fun, XS)
    for keep, after in ((3, 2), (1, 0), (64, 8)) if way == "jit" else ((3, 2),):
        expected = last_records(records, lambda d: bool(negative(Fake(d))), keep, after)
        call = WAYS[way](fun)
        result, (recording,) = recorded(call, XS, when=negative, keep=keep, after=after)
        jax.tree.map(np.testing.assert_allclose, result, out)
        assert_recorded(recording, expected)
        assert recording.example is None


def test_many_records_in_a_row_are_kept_to_the_last_bit():
    number, keep, after = 11, 4, 2

    def value_of(i):
        values = [i / 8, jnp.bfloat16(i) / 8, jnp.float16(i) / 8, i * 1j, i % 2 == 0]
        return [*map(jnp.asarray, values), jnp.int8(i), jnp.int16(-i), jnp.uint32(i)]

    def in_a_row(fires):
        def step(i, _):
            for j in range(number):
                x = jnp.where(i + j == fires, jnp.nan, 1.0)
                lox.log({f"key {j % 3}": value_of(i + j), "x": x}, n=i + j)
            return i + number, None

        return jax.lax.scan(step, 0, length=3)[0]

    found = []
    record = lox.recorder(in_a_row, keep=keep, after=after, then=found.append)
    record = jax.jit(record)
    for fires in range(3 * number):
        record(fires)
        lox.barrier()
        recording = found.pop()
        first, last = max(0, fires - keep + 1), min(fires + after, 3 * number - 1)
        steps = [int(logs.n["x"]) for logs in recording.records]
        assert steps == list(range(first, last + 1))
        assert int(recording.fired.n["x"]) == fires
        for n, logs in zip(steps, recording.records, strict=True):
            own = logs[f"key {n % number % 3}"]
            for x, y in zip(own, value_of(jnp.asarray(n)), strict=True):
                assert x.dtype == y.dtype
                assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
    assert not found


class Fake:
    """What a condition is asked about, without lox."""

    def __init__(self, data):
        self.data = data


@pytest.mark.parametrize("name", ["two_keys", "in_a_while", "in_blocks"])
@pytest.mark.parametrize("outside", [True, False], ids=["vmap of", "of vmap"])
def test_each_example_has_a_black_box_of_its_own(name, outside):
    fun, xs = PROGRAMS[name], jnp.stack([XS, abs(XS), -XS, XS + 1.5])
    if outside:
        way = lambda r: jax.jit(jax.vmap(r(fun)))  # noqa: E731
    else:
        way = lambda r: jax.jit(r(jax.vmap(fun)))  # noqa: E731
    _, found = recorded(way, xs, when=negative, keep=5, after=2)
    by_example = {recording.example: recording for recording in found}
    assert len(by_example) == len(found)
    for i, own in enumerate(xs):
        _, records = run(fun, own)
        expected = last_records(records, lambda d: bool(negative(Fake(d))), 5, 2)
        if expected is None:
            assert i not in by_example
        elif outside or name != "in_a_while":
            assert_recorded(by_example[i], expected)


@pytest.mark.parametrize("unknown", [False, True], ids=["bounded", "with while"])
@pytest.mark.parametrize("seed", range(8 if FULL else 4))
def test_a_random_program_is_recorded_as_its_eager_run_says(seed, unknown):
    # A record of a `vmap` inside is one record for the truth, and several for an eager run.
    seeds = it.count(1000 * seed)
    programs = (random_program(seed, unknown=unknown) for seed in seeds)
    program = next(p for p in programs if "vmap" not in str(p).lower() and is_plain(p))
    fun = lambda x: program.run(x, Scope(x, jnp.int32(0), None))  # noqa: E731
    xs = jnp.array([0.7, 0.1, -0.4])
    truths = [run_in_python(fun, x)[1] for x in xs]
    scores = sorted({float(score(Fake(r.data))) for records in truths for r in records})
    gaps = np.diff(scores)
    at = int(np.argmax(gaps)) if len(gaps) else 0
    bound = scores[at] + (gaps[at] / 2 if len(gaps) else -1)
    when = lambda logs: score(logs) > bound  # noqa: E731
    way = lambda r: jax.jit(jax.vmap(r(fun)))  # noqa: E731
    _, found = recorded(way, xs, when=when, keep=4, after=3)
    by_example = {recording.example: recording for recording in found}
    for i, records in enumerate(truths):
        fires = lambda data: score(Fake(data)) > bound  # noqa: E731
        expected = last_records(records, fires, 4, 3)
        if expected is None:
            assert i not in by_example
        else:
            assert_recorded(by_example[i], expected)


def is_plain(program):
    """Whether no `while` is inside something that a box cannot be passed through."""
    text = str(program).lower()
    blocks = ("checkpoint", "custom", "grad")
    return "while" not in text or not any(block in text for block in blocks)


def score(logs):
    leaves = jax.tree.leaves(logs.data)
    return sum(jnp.sum(jnp.asarray(x, jnp.float32)) for x in leaves)


# Axes that only some records have -------------------------------------------------------


def test_a_vmap_inside_of_which_only_some_records_know_is_one_box():
    def f(xs):
        def env(x, scale):
            lox.log({"reward": x * scale})
            return x * scale

        def step(total, x):
            total = total + jax.vmap(env, (None, 0))(x, jnp.array([1.0, -2.0])).sum()
            lox.log({"total": total}, step=x)
            return total, None

        return jax.lax.scan(step, 2.0, xs)[0]

    xs = jnp.arange(3.0)
    _, (recording,) = recorded(
        lambda r: jax.jit(r(f)), xs, when=lambda logs: (logs.get("total", 1.0)) < 0, keep=3
    )
    assert recording.example is None
    assert [list(record) for record in recording.records] == [
        ["total"],
        ["reward"],
        ["total"],
    ]
    np.testing.assert_allclose(recording.logs["reward"], [[2.0, -4.0]])
    np.testing.assert_allclose(recording.logs["total"], [1.0, -1.0])
    assert recording.fired.step["total"] == 2


def test_examples_that_finish_early_record_nothing_more():
    def f(x):
        def body(state):
            i, x = state
            lox.log({"x": x}, i=i)
            return i + 1, x - 1

        return jax.lax.while_loop(lambda s: s[1] > -2.5, body, (0, x))[1]

    below = lambda logs: logs["x"] < -1.5  # noqa: E731
    xs = jnp.array([1.0, 4.0, 2.0])
    for way in (lambda r: jax.vmap(r(f)), lambda r: r(jax.vmap(f))):
        _, found = recorded(lambda r, way=way: jax.jit(way(r)), xs, when=below, keep=2)
        logs = {own.example: own.logs for own in found}
        assert {i: own.i["x"].tolist() for i, own in logs.items()} == {
            0: [2, 3],
            1: [5, 6],
            2: [3, 4],
        }
        assert all(own["x"].tolist() == [-1.0, -2.0] for own in logs.values())


# Derivatives, and other transformations -------------------------------------------------


def layers(w, x):
    @jax.checkpoint
    def layer(x, w):
        lox.log({"x": x})
        return x * w, None

    out = jax.lax.scan(layer, x, w)[0]
    lox.log({"out": out})
    return out


def test_the_forward_pass_of_a_gradient_is_recorded_once():
    w = jnp.array([2.0, 3.0, -1.0, 4.0])
    expected = np.array([1.0, 2.0, 6.0, -6.0])
    for way in (lambda r: jax.grad(r(layers)), lambda r: r(jax.grad(layers))):
        call = lambda r, way=way: jax.jit(way(r))  # noqa: E731
        slope, (recording,) = recorded(call, w, 1.0, when=negative, keep=8)
        np.testing.assert_allclose(slope, -24.0 / w)
        np.testing.assert_allclose(recording.logs["x"], expected)
        np.testing.assert_allclose(recording.logs["out"], [-24.0])


def test_logs_are_passed_on_outwards():
    w, heard = jnp.array([2.0, -3.0]), []
    f = lambda w: layers(w, 1.0)  # noqa: E731
    found = []
    inner = lox.recorder(f, when=negative, then=found.append)
    _, logs = lox.spool(jax.jit(inner))(w)
    assert list(logs["x"]) == [1.0, 2.0]
    outer = lox.recorder(lox.tap(f, heard.append), when=negative, then=found.append)
    outer(w)
    lox.barrier()
    assert [list(own) for own in heard] == [["x"], ["x"], ["out"]]
    assert len(found) == 2


def test_argnames_and_tags_select_what_is_recorded():
    def f(xs):
        def step(_, x):
            lox.log({"x": x, "y": 2 * x}, tags="a")
            lox.log({"z": x})
            return _, None

        return jax.lax.scan(step, 0, xs)[0]

    for options in ({"argnames": "x"}, {"tags": "a", "argnames": ("x", "z")}):
        _, (recording,) = recorded(lambda r: r(f), XS, when=negative, keep=3, **options)
        assert list(recording.logs) == ["x"]
        np.testing.assert_allclose(recording.logs["x"], XS[3 : 6 + 4])


# The host -------------------------------------------------------------------------------


def roots(xs):
    def step(total, x):
        lox.log({"root": jnp.sqrt(total)}, step=x)
        return total - x, None

    return jax.lax.scan(step, 6.0, xs)[0]


def host_calls(fun, *args):
    """How often a compiled program calls the host."""
    calls = []
    deliver = Packet.deliveries

    def counting(packet):
        calls.append(packet)
        return deliver(packet)

    with mock.patch.object(Packet, "deliveries", counting):
        jax.block_until_ready(fun(*args))
        lox.barrier()
    return len(calls)


def test_while_nothing_fires_the_host_is_not_called():
    found = []
    f = jax.jit(jax.vmap(lox.recorder(roots, then=found.append)))
    calm, wild = jnp.zeros((3, 500)), jnp.ones((3, 500))
    assert host_calls(f, calm) == 0
    # All three fire in the same iteration: one call.
    assert host_calls(f, wild) == 1
    assert sorted(recording.example for recording in found) == [0, 1, 2]


def test_the_program_ends_before_all_records_have_come():
    _, (recording,) = recorded(lambda r: jax.jit(r(roots)), jnp.arange(6.0), after=100)
    np.testing.assert_allclose(recording.logs.step["root"], np.arange(6.0))


@pytest.mark.parametrize("way", WAYS)
def test_raise_stops_the_program(way):
    call = WAYS[way](roots)(lambda f: lox.recorder(f, keep=2, after=0))
    xs = jnp.ones(10**7)
    start = time.perf_counter()
    if way == "jit":
        with raises(Exception, "lox.recorder. stopped the program", "step=1.0"):
            jax.block_until_ready(call(xs))
    else:
        with raises(lox.Diverged, "stopped the program: {'root': nan} step=1.0") as error:
            call(xs)
        (recording,) = error.value.recordings
        assert len(recording.records) == 2
    assert time.perf_counter() - start < 5  # the whole loop takes longer
    lox.barrier()


def test_a_path_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    f = lox.recorder(roots, keep=2, after=0, path=tmp_path / "file")
    with (
        pytest.warns(UserWarning, match="cannot write to .*file"),
        raises(lox.Diverged, "stopped the program", "could not be written to .*file'"),
    ):
        f(jnp.ones(10))
    lox.barrier()


def test_save_writes_a_store_and_goes_on(tmp_path):
    path = tmp_path / "box"
    f = jax.jit(jax.vmap(lox.recorder(roots, keep=3, after=1, then="save", path=path)))
    xs = jnp.arange(8.0)[None] * jnp.array([[1.0], [0.1], [0.7]])
    np.testing.assert_allclose(f(xs), [-22.0, 3.2, 6 - 0.7 * 28])
    lox.barrier()
    runs = {run.key: run for run in lox.runs(path)}
    assert set(runs) == {(0,), (2,)}
    assert runs[2,].tags == ("root", "step=3.5")
    logs = lox.load(path)
    np.testing.assert_allclose(logs["root"][0], [3**0.5, 0.0, np.nan, np.nan])
    np.testing.assert_allclose(logs.step["root"][0], [3, 4, 5, 6])
    # Another recording does not touch the first one.
    jax.block_until_ready(f(xs + 1))
    lox.barrier()
    assert len(lox.runs(path)) == 5


def run_python(text, *args):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(text), *map(str, args)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_process_that_is_killed_after_the_trigger_leaves_its_rows(tmp_path):
    process = run_python(
        """
        import sys, time, jax, jax.numpy as jnp, lox

        def body(state):
            i, x = state
            lox.log({"x": x}, i=i)
            return i + 1, jnp.where(i == 1000, jnp.nan, x)

        def f(x):
            lox.tap(lambda: lox.log({"now": x}), lambda _: print("start", flush=True))()
            return jax.lax.while_loop(lambda s: s[1] != 2, body, (0, x))

        jax.jit(lox.recorder(f, keep=4, after=2, then="save", path=sys.argv[1]))(1.0)
        """,
        tmp_path / "box",
    )
    try:
        deadline = time.monotonic() + 60
        while not lox_store(tmp_path / "box") and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        time.sleep(1)
        assert process.poll() is None  # the loop goes on for ever
    finally:
        process.kill()
        process.communicate()
    logs = lox.load(tmp_path / "box")
    np.testing.assert_allclose(logs["x"], [1.0, 1.0, 1.0, np.nan, np.nan, np.nan])
    assert logs.i["x"].tolist() == [998, 999, 1000, 1001, 1002, 1003]


def lox_store(path):
    return (path / "lox.json").exists()


def test_stop_ends_the_process_as_ctrl_c_does(tmp_path):
    process = run_python(
        """
        import sys, jax, jax.numpy as jnp, lox

        @jax.jit
        def f(x):
            def body(state):
                i, x = state
                lox.log({"x": x}, i=i)
                return i + 1, jnp.where(i == 5, jnp.nan, x)

            return jax.lax.while_loop(lambda s: s[1] != 2, body, (0, x))

        f = jax.jit(lox.recorder(f, then="stop", path=sys.argv[1]))
        try:
            jax.block_until_ready(f(1.0))
        except Exception as error:
            print("caught", type(error))
        """,
        tmp_path / "box",
    )
    out, errors = process.communicate(timeout=120)
    assert "caught" not in out
    assert "lox: `lox.recorder` stopped the program: {'x': nan} i=6" in errors
    assert "KeyboardInterrupt" in errors
    assert process.returncode not in (0, 1)
    assert len(lox.load(tmp_path / "box")["x"]) == 15


# Python loops ---------------------------------------------------------------------------


@jax.jit
def one_step(x):
    lox.log({"x": x})
    return x - 1


def test_each_call_has_a_black_box_of_its_own():
    found = []
    step = lox.recorder(one_step, when=negative, then=found.append)
    x = jnp.float32(2)
    for _ in range(6):
        x = step(x)
    assert [own.logs["x"].tolist() for own in found] == [[-1.0], [-2.0], [-3.0]]


def test_records_can_be_kept_from_call_to_call():
    found = []
    options = {"when": negative, "then": found.append, "keep": 3}
    step = lox.recorder(one_step, across_calls=True, **options)
    x = jnp.float32(4)
    for _ in range(8):
        x = step(x)
    assert [own.logs["x"].tolist() for own in found] == [[1.0, 0.0, -1.0]]
    plain = lox.recorder(one_step.__wrapped__, across_calls=True, **options)
    for x in (1.0, 0.0, -1.0):
        plain(x)
    assert found[1].logs["x"].tolist() == [1.0, 0.0, -1.0]
    with raises(RuntimeError, "across_calls=True", r"lox.recorder\(jax.jit\(step\)"):
        jax.jit(step)(x)


# What it refuses ------------------------------------------------------------------------


def test_wrong_options_are_named():
    with raises(ValueError, "`keep` must be at least 1, not 0."):
        lox.recorder(roots, keep=0)
    with raises(TypeError, "`keep` must be a whole number, not 1.5."):
        lox.recorder(roots, keep=1.5)
    with raises(ValueError, "`after` must be at least 0, not -1."):
        lox.recorder(roots, after=-1)
    with raises(ValueError, '"raise", "stop", "save" or a function', "not 'log'"):
        lox.recorder(roots, then="log")
    with raises(ValueError, r'`lox.recorder\(then="save"\)` needs a `path`'):
        lox.recorder(roots, then="save")
    with raises(TypeError, "`when` of `lox.recorder` takes a function", "not 3"):
        lox.recorder(roots, when=3)
    with raises(TypeError, r"`when` returns float32\[\] for the record of 'root'"):
        lox.recorder(roots, when=lambda logs: logs["root"])(jnp.ones(2))
    with raises(TypeError, r"`when` returns bool\[1\]", "must return one boolean"):
        lox.recorder(roots, when=lambda logs: logs["root"][None] > 1)(jnp.ones(2))
    with raises(KeyError, "`when` uses 'loss', which is not in the record of 'root'"):
        lox.recorder(roots, when=lambda logs: logs["loss"] > 1)(jnp.ones(2))
    with raises(TypeError, "lox.recorder"):
        lox.recorder(3)


def test_a_function_without_logs_warns():
    with pytest.warns(
        UserWarning, match="`lox.recorder` finds no call of `lox.log`"
    ) as found:
        assert lox.recorder(lambda x: 2 * x)(1.0) == 2
    assert found[0].filename == __file__


def test_a_while_in_a_checkpoint_is_refused():
    @jax.checkpoint
    def f(x):
        def body(x):
            lox.log({"x": x})
            return x - 1

        return jax.lax.while_loop(lambda x: x > 0, body, x)

    with raises(NotImplementedError, "cannot keep 'x'", "Put `lox.recorder` inside"):
        lox.recorder(f)(3.0)
