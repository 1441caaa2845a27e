"""A jitted step in a Python loop is tapped without host calls, and nobody can tell."""

import functools as ft
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._stream import arrivals, handler as _handler
from lox_host import write_buffer
from support.delivered import assert_delivered, heard
from support.truth import run

X = jnp.array([0.5, -1.5, 2.0])


def step(x):
    """Logs all that can leave as an output: dtypes, trees, keys, steps and tags."""
    lox.log({"loss": x.sum(), "small": x.astype(jnp.bfloat16)}, step=x.size, tags="a")
    inner = jax.jit(lambda x: lox.log({"tree": {"w": 2 * x, "n": jnp.int4(3)}}) and x * 3)
    y = inner(x)
    lox.log({"key": jax.random.key(7), "big": jnp.tile(y, 4000)}, half=y.max())
    return y - 1


def test_the_host_gets_what_the_eager_run_logs_and_is_not_called(monkeypatch):
    calls = []
    monkeypatch.setattr(_handler, "emit", lambda *args: calls.append(args))
    jitted = jax.jit(step)
    for x in (X, X + 1):
        expected, records = run(step, x)
        out, found = heard(lambda hear: lox.tap(jitted, hear), x)
        assert np.array_equal(out, expected)
        assert_delivered(found, records)
    assert calls == []


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"argnames": "loss"}, ["loss"]),
        ({"tags": "a"}, ["loss", "small"]),
        ({"interval": 3}, ["loss", "small", "tree", "key", "big"]),
        ({"batch": 2}, ["loss", "small", "tree", "key", "big"]),
    ],
    ids=str,
)
def test_options_select_records(options, keys):
    _, records = run(step, X)
    _, found = heard(lambda hear: lox.tap(jax.jit(step), hear, **options), X)
    assert_delivered(found, [record.only(set(keys)) for record in records])


def test_a_condition_and_a_prefix():
    def large(x):
        lox.log({"x": x})
        return x

    heard = []
    tapped = lox.tap(
        jax.jit(large), heard.append, prefix="p/", when=lambda logs: logs["x"] > 2
    )
    for i in range(5):
        tapped(float(i))
    lox.barrier()
    assert heard == [{"p/x": 3.0}, {"p/x": 4.0}]


def twice(x):
    lox.log({"x": x})
    lox.log({"x": x + 1})
    return x


def in_a_loop(x):
    lox.log({"first": x})
    jax.lax.fori_loop(0, 3, lambda i, x: lox.log({"i": i}) and x, x)
    return x


def in_a_branch(x):
    jax.lax.cond(x > 0, lambda: lox.log({"positive": x}) and None, lambda: None)
    return x


def with_a_print(x):
    lox.log({"x": x})
    jax.debug.callback(lambda x: None, x)
    return x


@pytest.mark.parametrize("fun", [twice, in_a_loop, in_a_branch, with_a_print])
def test_other_programs_call_the_host(fun, monkeypatch):
    emit, calls = _handler.emit, []
    monkeypatch.setattr(_handler, "emit", lambda *args: calls.append(1) or emit(*args))
    _, records = run(fun, jnp.float32(2))
    _, found = heard(lambda hear: lox.tap(jax.jit(fun), hear), jnp.float32(2))
    assert_delivered(found, records)
    assert calls


def test_under_transformations_it_is_tapped_as_ever():
    def square(x):
        lox.log({"x": x})
        return x**2

    heard = []
    tapped = lox.tap(jax.jit(square), heard.append)
    assert jax.grad(tapped)(3.0) == 6
    assert jax.vmap(tapped)(jnp.arange(2.0)).tolist() == [0, 1]
    (out, logs) = lox.spool(lambda x: tapped(x))(5.0)
    lox.barrier()
    assert [float(logs["x"]) for logs in heard] == [3, 0, 1, 5]
    assert [logs.steps.get("example", {}).get("x") for logs in heard[1:3]] == [0, 1]
    assert (out, logs) == (25.0, {"x": 5.0})


def test_donated_and_static_arguments_and_several_threads():
    def add(state, n, *, scale):
        lox.log({"state": state, "scale": scale})
        return state + n

    jitted = jax.jit(add, donate_argnums=0, static_argnums=1, static_argnames="scale")

    def loop(start):
        heard = []
        tapped = lox.tap(jitted, lambda logs: heard.append(logs["state"].tolist()))
        state = jnp.full(3, start)
        for _ in range(20):
            state = tapped(state, 2, scale=5)
        lox.barrier()
        return heard

    with ThreadPoolExecutor(4) as pool:
        for start, heard in enumerate(pool.map(loop, range(4))):
            assert heard == [[start + 2 * i] * 3 for i in range(20)]


def looped(x, i):
    return jax.lax.scan(lambda x, i: (x, lox.log({"i": i})), x, i[None])[0]


@pytest.mark.parametrize(
    "transform",
    [
        lambda hear: lox.tap(jax.jit(looped), hear),
        lambda hear: jax.jit(lox.tap(looped, hear)),
        lambda hear: lox.tap(looped, hear),
        lambda hear: lox.tap(lambda x, i: looped(jnp.zeros(()), i) + x, hear),
    ],
    ids=["tap of jit", "jit of tap", "tap", "tap of what does not depend on it"],
)
def test_host_calls_of_later_programs_come_later(transform):
    found: list[int] = []

    def hear(logs):
        found.append(int(logs["i"]))

    step = lox.tap(jax.jit(lambda x, i: lox.log({"i": i}) and x @ x), hear)
    later = transform(hear)
    for _ in range(20):
        x = jnp.zeros((100, 100))
        for i in range(0, 20, 2):
            x = later(step(x, i), jnp.array(i + 1))
        lox.barrier()
    assert found == 20 * list(range(20))


def test_a_loop_waits_for_a_slow_logger():
    class Slow:
        def write(self, batch):
            time.sleep(0.1)

        open = flush = close = lambda self, *run: None

    logger = lox.loggers.Logger(Slow(), every=0.0)
    step = logger.tap(jax.jit(lambda x: lox.log({"x": x}) and x + 1), logger.init(0))
    x, most = jnp.zeros(2**18), 0
    for _ in range(200):  # 200 MiB
        x = step(x)
        most = max(most, logger._host.buffer._bytes)
    lox.barrier()
    assert most <= (write_buffer.ROOM * write_buffer.MAX_BYTES) + x.nbytes


def test_a_callback_that_raises_stops_the_loop():
    def fail(logs):
        raise ValueError("enough")

    tapped = lox.tap(jax.jit(twice_as_much), fail)

    def loop():
        for _ in range(1000):
            tapped(1.0)
            time.sleep(0.01)

    with pytest.raises(RuntimeError, match=r"callback of `lox\.tap` raised .*: enough"):
        loop()
    lox.barrier()  # It has been raised once.


def test_a_callback_that_fails_misses_what_was_logged_before_and_nothing_after():
    heard, may_fail = [], threading.Event()

    def fail_once(logs):
        heard.append(float(logs["x"]))
        if heard == [0]:
            may_fail.wait(10)
            raise ValueError("enough")

    tapped = lox.tap(jax.jit(twice_as_much), fail_once)
    for i in range(3):
        tapped(float(i))
    may_fail.set()
    with pytest.raises(RuntimeError, match="enough"):
        lox.barrier()
    tapped(3.0)
    tapped(4.0)
    lox.barrier()
    assert heard == [0, 3, 4]


def twice_as_much(x):
    lox.log({"x": x})
    return 2 * x


def test_loggers_write_all_rows_in_order_beside_what_python_logs(tmp_path):
    jitted = jax.jit(lambda x, i: lox.log({"x": x}, step=i) and x + 1)
    before = time.time()
    with lox.loggers.SaveLogger(tmp_path / "results") as logger:
        run = logger.init(0)
        x = jnp.float32(0)
        for i in range(50):
            x = logger.tap(jitted, run)(x, 2 * i)
            logger.log(run, {"x": -float(i)}, step=2 * i + 1)
        logs = lox.load(tmp_path / "results")
        assert logs.step["x"].tolist() == list(range(100))
        assert logs["x"][::2].tolist() == list(range(50))
        assert logs["x"][1::2].tolist() == [-i for i in range(50)]
    times = lox.scan(tmp_path / "results").sort("step").collect()["time"].to_numpy()
    assert (np.diff(times) >= 0).all()
    assert before <= times[0]
    assert times[-1] <= time.time()


def test_a_logger_that_is_to_raise_stops_the_loop():
    class Broken:
        def open(self, run):
            pass

        def write(self, batch):
            raise OSError("no room")

        flush = close = lambda self, *run: None

    logger = lox.loggers.Logger(Broken(), on_error="raise", every=0.0)
    state = logger.init(0)
    tapped = logger.tap(jax.jit(twice_as_much), state)

    def loop():
        for _ in range(1000):
            tapped(1.0)
            time.sleep(0.01)

    with pytest.warns(RuntimeWarning, match="no room"), pytest.raises(RuntimeError):
        loop()
    with pytest.raises(RuntimeError, match="no room"):
        logger.finish(state)


def test_barrier_waits_for_those_of_steps_that_callbacks_call():
    kept = []

    class Keep:
        def write(self, batch):
            kept.extend(row.values["x"].item() for row in batch.rows())

        open = flush = close = lambda self, *run: None

    def slow(x):
        y = jnp.full((300, 300), x)
        y = jax.lax.fori_loop(0, 100, lambda i, y: jnp.tanh(y @ y), y)
        lox.log({"x": x + 0 * y[0, 0]})

    logger = lox.loggers.Logger(Keep())
    tapped = logger.tap(jax.jit(slow), logger.init(0))

    def callback(data):
        tapped(data["x"])

    @jax.jit
    @ft.partial(lox.tap, callback=callback)
    def loop(xs):
        jax.lax.scan(lambda _, x: (_, lox.log({"x": x})), None, xs)

    loop(jnp.arange(3.0))
    lox.barrier()
    assert kept == [0, 1, 2]


EXIT = """
import jax, jax.numpy as jnp, lox, sys

def slow(x):
    # The process ends long before this has been computed.
    ones = jnp.full((300, 300), 1.0)
    return jax.lax.fori_loop(0, 100, lambda i, y: jnp.tanh(y @ y + x), ones)[0, 0]

logger = lox.loggers.SaveLogger(sys.argv[1])
run = logger.init(0)
step = logger.tap(jax.jit(lambda x: lox.log({"x": x, "y": slow(x)}) and x + 1), run)
x = 0
for _ in range(10):
    x = step(x)
"""


def test_the_end_of_the_process_waits_for_them(tmp_path):
    store = tmp_path / "results"
    command = [sys.executable, "-c", EXIT, str(store)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (found.returncode, found.stderr) == (0, "")
    assert lox.load(store)["x"].tolist() == list(range(10))


def test_an_interrupted_call_loses_no_record(monkeypatch):
    found = []
    tapped = lox.tap(jax.jit(twice_as_much), lambda logs: found.append(float(logs["x"])))
    tapped(0.0)

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(arrivals.arrival_thread, "submit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tapped(1.0)
    tapped(2.0)
    lox.barrier()
    assert found == [0, 1, 2]
