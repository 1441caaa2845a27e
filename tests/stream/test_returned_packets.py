"""A jitted step in a Python loop is tapped without host calls, and nobody can tell."""

import contextlib
import functools as ft
import gc
import os
import pathlib
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
from lox._stream import arrivals, callbacks, handler as _handler
from lox_host import write_buffer
from support.delivered import assert_delivered, heard
from support.slow import slow
from support.truth import run

X = jnp.array([0.5, -1.5, 2.0])
TESTS = str(pathlib.Path(__file__).parents[1])


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


TWO_DEVICES = """
import time
import jax, jax.numpy as jnp, lox
from support.slow import slow

def looped(x):
    return jax.lax.fori_loop(0, 1, lambda i, x: lox.log({"x": x}) and x + 1, x)

found = []
def hear(logs):
    if logs["x"] == -1:
        raise ValueError("enough")
    found.append(int(logs["x"]))

late = lox.tap(jax.jit(lambda x: lox.log({"x": x + slow(x)})), lambda logs: hear(logs))
step = lox.tap(jax.jit(lambda x: lox.log({"x": x}) and x + 1), hear)
later = jax.jit(lox.tap(looped, hear))
far = jax.device_put(jnp.float32(100), jax.devices()[1])
late(far), later(step(0.0))
lox.barrier()
found.clear()
"""
IN_ORDER = """
for _ in range(5):
    late(far)
    x = jnp.float32(0)
    for _ in range(3):
        x = later(step(x))
    lox.barrier()
assert found == 5 * [100, 0, 1, 2, 3, 4, 5], found
"""
AFTER_A_FAILURE = """
step(-1.0)
time.sleep(0.2)
late(far)
try:
    step(0.0)
    found.append("no error")
except RuntimeError:
    jax.block_until_ready(later(1.0))
lox.barrier()
assert found == [100, 1], found
"""


@pytest.mark.parametrize("program", [IN_ORDER, AFTER_A_FAILURE])
def test_records_of_two_devices_come_in_the_order_of_the_calls(program):
    command = [sys.executable, "-c", TWO_DEVICES + program]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "2", "PYTHONPATH": TESTS}
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100
    )
    assert (found.returncode, found.stderr) == (0, "")


class Keep:
    """A writer that keeps the values of `x`."""

    def __init__(self):
        self.kept = []

    def write(self, batch):
        self.kept.extend(row.values["x"].item() for row in batch.rows())

    open = flush = close = lambda self, *run: None


def logs_late(x):
    lox.log({"x": x + slow(x)})
    return x + 1


def fail(*args):
    raise ValueError("no luck")


def call_the_host():
    """Before JAX 0.12, `effects_barrier` raises an error again until this is done."""
    jax.jit(lambda x: jax.debug.callback(lambda x: None, x))(0.0)
    jax.effects_barrier()


def slower(x):
    return slow(x, steps=300)


@pytest.mark.parametrize("end", ["finish", "with", "barrier"])
def test_none_is_lost_where_another_program_has_failed(end):
    logger = lox.loggers.Logger(writer := Keep())
    run = logger.init(0)
    step = logger.tap(jax.jit(logs_late), run)
    errors: list[Exception] = []
    # JAX raises now, or if it has to wait for the input, later.
    with caught(errors):
        jax.jit(lambda x: jax.debug.callback(fail, x))(jax.jit(slower)(1.0))
    x = jnp.float32(0)
    for _ in range(5):
        x = step(x)
    ways = {
        "finish": lambda: logger.finish(run),
        "with": lambda: logger.__exit__(None),
        "barrier": lox.barrier,
    }
    with caught(errors):
        ways[end]()
    call_the_host()
    assert ["no luck" in str(error) for error in errors] == [True]
    assert writer.kept == [0, 1, 2, 3, 4]


@contextlib.contextmanager
def caught(errors):
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        errors.append(error)


def test_a_program_that_fails_is_reported():
    found = []
    step = lox.tap(jax.jit(twice_as_much), lambda logs: found.append(float(logs["x"])))
    errors: list[Exception] = []
    with caught(errors):
        x = jax.jit(lambda x: jax.pure_callback(fail, x, x))(jax.jit(slower)(1.0))
        for _ in range(10):
            x = step(x)
    with caught(errors):
        lox.barrier()
    # One from the call that JAX refused, if it did, and one for the records of the others.
    assert {"no luck" in str(error) for error in errors} == {True}
    assert len(errors) <= 2
    call_the_host()
    lox.barrier()
    step(2.0)
    lox.barrier()
    assert found == [2]


def lose_packets(step, calls):
    """Call a step, and delete what it returns before that has been computed."""
    before = jax.live_arrays()
    for _ in range(calls):
        step(1.0)
    for x in jax.live_arrays():
        if not any(x is other for other in before):
            x.delete()


def test_packets_that_cannot_be_read_are_reported_once(capfd):
    found = []
    step = lox.tap(jax.jit(logs_late), lambda logs: found.append(float(logs["x"])))
    lose_packets(step, 5)
    with pytest.raises(RuntimeError, match="deleted") as error:
        lox.barrier()
    assert error.value.__notes__ == ["The records of a program that failed are missing."]
    lox.barrier()
    step(2.0)
    lox.barrier()
    assert found == [2]
    assert "Traceback" not in capfd.readouterr().err


def test_barrier_does_not_wait_for_what_other_threads_log_meanwhile():
    has_ended = threading.Event()
    step = lox.tap(jax.jit(logs_late), lambda logs: None)
    seconds = []

    def endless():
        x = jnp.float32(0)
        while not has_ended.is_set():
            x = step(x)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(endless)
        try:
            for _ in range(10):
                time.sleep(0.05)
                start = time.monotonic()
                lox.barrier()
                seconds.append(time.monotonic() - start)
        finally:
            has_ended.set()
        future.result()
    assert max(seconds) < 5


def test_a_callback_gets_arrays_that_it_may_change():
    found = []

    def double(logs):
        logs["x"] *= 2
        found.append(logs["x"].tolist())

    lox.tap(jax.jit(twice_as_much), double)(X)
    lox.barrier()
    assert found == [[1, -3, 4]]


@pytest.mark.parametrize("flag", ["jax_debug_nans", "jax_debug_infs"])
def test_values_that_jax_is_to_find_may_be_logged(flag):
    found = []
    step = lox.tap(jax.jit(lambda x: lox.log({"x": x}) and 0.0), found.append)
    jax.config.update(flag, True)
    try:
        step(jnp.nan)
        step(jnp.inf)
        lox.barrier()
    finally:
        jax.config.update(flag, False)
    assert str([float(logs["x"]) for logs in found]) == "[nan, inf]"


def test_all_kinds_of_values_in_one_record():
    def log(x):
        values = {
            "bool": x > 0,
            "complex": jax.lax.complex(x, -x),
            "int4": x.astype(jnp.int4),
            "float8": x.astype(jnp.float8_e4m3fn),
            "uint8": jnp.uint8(250) + x.astype(jnp.uint8),
            "key": jax.random.split(jax.random.key(3), 2),
            "tree": [x, {"empty": x[:0]}],
        }
        lox.log(values, step=x.size)

    x = jnp.array([1.0, 2.0, 3.0])
    _, records = run(log, x)
    _, found = heard(lambda hear: lox.tap(jax.jit(log), hear), x)
    assert_delivered(found, records)


class Hangs(Keep):
    """A writer that does not return until it is let go."""

    def __init__(self):
        super().__init__()
        self.may_return, self.is_called = threading.Event(), threading.Event()

    def write(self, batch):
        self.is_called.set()
        self.may_return.wait(60)
        super().write(batch)


def test_a_logger_that_hangs_does_not_hold_up_callbacks(monkeypatch):
    monkeypatch.setattr(write_buffer, "MAX_ROWS", 10)
    logger = lox.loggers.Logger(writer := Hangs(), every=0.0)
    run = logger.init(0)
    step = logger.tap(jax.jit(twice_as_much), run)
    seconds, found = [], []
    looped = jax.jit(
        lox.tap(
            lambda x: jax.lax.fori_loop(0, 3, lambda i, x: lox.log({"x": x}) and x, x),
            lambda logs: found.append(float(logs["x"])),
        )
    )

    def loop():
        for i in range(5000):
            step(float(i))

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(loop)
        assert writer.is_called.wait(10)
        for i in range(10):
            start = time.monotonic()
            jax.block_until_ready(looped(float(i)))
            seconds.append(time.monotonic() - start)
        is_waiting = not future.done()
        writer.may_return.set()
        future.result()
    logger.finish(run)
    assert is_waiting
    assert max(seconds) < 5
    assert found == [i for i in range(10) for _ in range(3)]
    assert writer.kept == [*range(5000)]


def test_a_writer_may_call_tapped_functions(monkeypatch):
    monkeypatch.setattr(write_buffer, "MAX_ROWS", 10)

    class Calls(Keep):
        def write(self, batch):
            time.sleep(0.01)
            lox.tap(jax.jit(logs_late), lambda logs: None)(0.0)
            lox.tap(logs_late, lambda logs: None)(0.0)
            super().write(batch)

    logger = lox.loggers.Logger(writer := Calls(), every=0.0)
    run = logger.init(0)
    step = logger.tap(jax.jit(twice_as_much), run)
    start = time.monotonic()
    for i in range(200):
        step(float(i))
    logger.finish(run)
    assert time.monotonic() - start < 20
    assert writer.kept == [*range(200)]


@pytest.mark.parametrize("way", ["tap", "tap of jit"])
def test_a_writer_does_not_wait_for_programs_that_wait_for_it(way, monkeypatch):
    monkeypatch.setattr(write_buffer, "MAX_ROWS", 10)
    monkeypatch.setattr(arrivals.arrival_thread, "max_calls", 10)
    plain = lox.tap(twice_as_much, lambda logs: None)
    step = lox.tap(jax.jit(twice_as_much), lambda logs: None)

    class Calls(Keep):
        def write(self, batch):
            time.sleep(0.05)
            (plain if way == "tap" else step)(0.0)
            super().write(batch)

    logger = lox.loggers.Logger(writer := Calls(), every=0.0, patience=5.0)
    host = jax.jit(logger.tap(counting, logger.init(0)))
    x = jax.block_until_ready(step(host(jnp.float32(0))))
    lox.barrier()
    writer.kept.clear()
    x = jax.jit(slow)(x)  # JAX returns at once, also from the calls below
    for _ in range(3):
        x = host(x)
        for _ in range(20):
            x = step(0 * x)
    jax.block_until_ready(x)
    lox.barrier()
    assert writer.kept == [*range(200), *range(200), *range(200)]


def counting(x):
    def body(i, x):
        lox.log({"x": x})
        return x + 1

    return jax.lax.fori_loop(0, 200, body, x)


def test_a_callback_may_wait_for_a_program_that_needs_a_step(monkeypatch):
    monkeypatch.setattr(callbacks.callback_thread, "max_calls", 10)
    found = []
    inner = jax.jit(lox.tap(counting, lambda logs: found.append(float(logs["x"]))))
    step = lox.tap(jax.jit(lambda x: lox.log({"x": x}) and slow(x)), lambda logs: None)

    def callback(logs):
        if logs["x"] == 3:
            time.sleep(0.2)  # the queue is full by now
            jax.block_until_ready(inner(step(0.0)))

    start = time.monotonic()
    jax.jit(lox.tap(counting, callback))(0.0)
    lox.barrier()
    assert time.monotonic() - start < 20
    assert found == [*range(200)]


def test_a_program_that_fails_is_not_the_error_of_other_threads():
    def calls_another(logs):
        lox.tap(twice_as_much, lambda logs: None)(0.0)
        found.append(float(logs["x"]))

    class Calls(Keep):
        def write(self, batch):
            lox.tap(twice_as_much, lambda logs: None)(0.0)
            super().write(batch)

    found: list[float] = []
    logger = lox.loggers.Logger(writer := Calls(), every=0.0)
    run = logger.init(0)
    lose_packets(lox.tap(jax.jit(logs_late), lambda logs: None), 1)
    for i in range(5):
        lox.tap(jax.jit(twice_as_much), calls_another)(float(i))
        logger.tap(jax.jit(twice_as_much), run)(float(i))
        time.sleep(0.05)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lox.tap(twice_as_much, lambda logs: None), 0.0).result()
    with pytest.raises(RuntimeError, match="deleted"):
        lox.barrier()
    logger.finish(run)
    assert (found, writer.kept) == ([*range(5)], [*range(5)])


def test_a_finalizer_may_call_barrier(monkeypatch):
    submit = callbacks.callback_thread.submit

    def collect_and_submit(*args):
        gc.collect(0)
        submit(*args)

    class Trainer:
        def __init__(self):
            self.itself = self

        def __del__(self):
            threads.add(threading.current_thread().name)
            lox.barrier()

    threads: set[str] = set()
    found = []
    step = lox.tap(jax.jit(logs_next), lambda logs: found.append(int(logs["x"])))
    x = jnp.float32(0)
    monkeypatch.setattr(callbacks.callback_thread, "submit", collect_and_submit)
    for _ in range(300):
        Trainer()
        x = step(x)
    lox.barrier()
    assert found == [*range(300)]
    assert "lox-arrivals" in threads


def logs_next(x):
    lox.log({"x": x})
    return x + 1


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
    # In the buffer is also what was on its way when it was full.
    most_there = write_buffer.ROOM * write_buffer.MAX_BYTES
    assert most <= most_there + arrivals.arrival_thread.max_bytes + x.nbytes


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


def test_after_a_failure_another_error_is_not_hidden():
    def may_fail(logs):
        if logs["x"] == 1:
            raise ValueError("enough")

    step = lox.tap(jax.jit(twice_as_much), may_fail)
    step(1.0)
    while not callbacks._failures._muted:
        time.sleep(0.01)
    with pytest.raises(RuntimeError, match="enough"):
        step(2.0)

    def broken(x):
        lox.log({"x": x})
        raise KeyError("another")

    with pytest.raises(KeyError, match="another"):
        lox.tap(broken, may_fail)(3.0)


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


IN_A_HOST_CALL = """
import jax, jax.numpy as jnp, lox
from support.slow import slow

def looped(x):
    return jax.lax.fori_loop(0, 3, lambda i, x: lox.log({"x": x}) and x + 1, x)

found = []
inner = jax.jit(lox.tap(looped, lambda logs: found.append(float(logs["x"]))))
step = lox.tap(jax.jit(lambda x: lox.log({"x": x})), lambda logs: None)
inner(0.0), step(0.0)
lox.barrier()

def call(x):
    jax.block_until_ready(inner(x))
    lox.barrier()

@jax.jit
def program(x):
    jax.debug.callback(call, x)
    return x + slow(x)

# JAX returns at once, as each program waits for the one before.
step(program(jax.jit(lambda x: x + slow(x, steps=300))(1.0)))
lox.barrier()
assert found == [0, 1, 2, 1, 2, 3], found
"""


def test_a_host_call_does_not_wait_for_what_waits_for_it():
    command = [sys.executable, "-c", IN_A_HOST_CALL]
    environment = {**os.environ, "PYTHONPATH": TESTS}
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stderr) == (0, "")


STILL_LOOPING = """
import threading, time, jax, jax.numpy as jnp, lox

def takes_a_moment(x):
    ones = jnp.full((200, 200), 1.0)
    y = jax.lax.fori_loop(0, 5, lambda i, y: jnp.tanh(y @ y + x), ones)
    lox.log({"x": x + 0 * y[0, 0]})
    return x + 1

step = lox.tap(jax.jit(takes_a_moment), lambda logs: None)

def loop():
    x = jnp.float32(0)
    while True:
        x = step(x)

threading.Thread(target=loop, daemon=True).start()
time.sleep(1)
print("end", flush=True)
"""


def test_the_process_ends_although_a_thread_goes_on_for_ever():
    # JAX may abort it: the thread is inside a program when Python ends.
    command = [sys.executable, "-c", STILL_LOOPING]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.stdout == "end\n"


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
