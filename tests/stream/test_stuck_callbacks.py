"""Callbacks that do not return, that run programs of their own, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time

import jax
import pytest

import lox
from lox._stream.arrivals import arrival_thread
from lox._stream.callbacks import callback_thread


def counting(n):
    def fun(x):
        return jax.lax.fori_loop(0, n, lambda i, c: lox.log({"i": i}) and c + 1, x)

    return fun


@pytest.mark.parametrize("jitted", [True, False])
def test_a_callback_may_run_a_tapped_program_however_full_the_queue_is(monkeypatch, jitted):
    monkeypatch.setattr(callback_thread, "max_calls", 10)
    found, outer = [], []
    inner = lox.tap(counting(300), lambda logs: found.append(int(logs["i"])))
    inner = jax.jit(inner) if jitted else inner

    def callback(logs):
        outer.append(int(logs["i"]))
        if logs["i"] == 3:
            time.sleep(0.2)  # the queue is full by now
            jax.block_until_ready(inner(0.0))

    inner(0.0)
    lox.barrier()
    start = time.monotonic()
    jax.jit(lox.tap(counting(100), callback))(0.0)
    lox.barrier()
    assert time.monotonic() - start < 10
    assert found == 2 * [*range(300)]
    assert outer == [*range(100)]


@pytest.mark.parametrize("waits", [True, False])
def test_a_callback_may_call_a_tapped_step_however_full_the_queue_is(monkeypatch, waits):
    for worker in (callback_thread, arrival_thread):
        monkeypatch.setattr(worker, "max_calls", 10)
    found, outer = [], []
    step = lox.tap(
        jax.jit(lambda i: lox.log({"i": i}) and i), lambda x: found.append(x["i"])
    )

    def callback(logs):
        outer.append(int(logs["i"]))
        if logs["i"] == 3:
            for i in range(300):
                step(i)
            if waits:
                lox.barrier()

    start = time.monotonic()
    jax.jit(lox.tap(counting(100), callback))(0.0)
    lox.barrier()
    assert time.monotonic() - start < 10
    assert found == [*range(300)]
    assert outer == [*range(100)]


LOOP = """
import signal, sys, time, jax, jax.numpy as jnp, lox
import lox._stream.callbacks
# A shell lets what it starts in the background ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
lox._stream.callbacks.PATIENCE = 1.0
def fun(n):
    def step(c, i):
        lox.log({"i": i})
        return c + 1, None
    return jax.lax.scan(step, 0.0, jnp.arange(n))[0]
def stuck(logs):
    print("called", flush=True)
    time.sleep(1000)
"""


def started(end):
    command = [sys.executable, "-c", LOOP + end]
    return subprocess.Popen(command, stdout=-1, stderr=-1, text=True, env=dict(os.environ))


def test_a_callback_that_never_returns_is_named_at_the_end():
    process = started("jax.jit(lox.tap(fun, stuck), static_argnums=0)(3)")
    _, err = process.communicate(timeout=60)
    assert "lox: The callback of `lox.tap` has not returned for 1 seconds" in err
    assert "2 records were not delivered" in err


def test_what_a_step_logs_to_a_callback_that_never_returns_is_counted():
    process = started("""
tapped = lox.tap(jax.jit(lambda x: lox.log({"x": x}) and x + 1), stuck)
for i in range(1003):
    tapped(i)
""")
    _, err = process.communicate(timeout=30)
    assert "lox: The callback of `lox.tap` has not returned for 1 seconds" in err
    assert "1002 records were not delivered" in err


ENDLESS = """
def forever(x):
    def body(x):
        lox.log({"x": x})
        return x + 1
    return jax.lax.while_loop(lambda x: x >= 0, body, x)
seen = []
def note(logs):
    if not seen: print("called", flush=True)
    seen.append(1)
try:
    WAY
except KeyboardInterrupt:
    print("interrupted", flush=True)
# The next program is not stopped.
print(lox.tap(fun, lambda logs: None)(3).item(), flush=True)
"""
WAYS = {
    "tap": "lox.tap(forever, note)(jnp.int32(0))",
    "jit": "jax.block_until_ready(jax.jit(lox.tap(forever, note))(jnp.int32(0)))",
    "stuck": "lox.tap(forever, stuck)(jnp.int32(0))",
}


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_ends_the_program_at_its_next_record(way):
    end = ENDLESS.replace("WAY", WAYS[way])
    if way == "stuck":  # nobody can be called any more
        end = end.split("# The next")[0]
    process = started(end)
    assert process.stdout is not None
    assert process.stdout.readline() == "called\n"
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out.splitlines()[:1] == ["interrupted"], err
    if way != "stuck":
        assert out.splitlines()[1:] == ["3.0"], err
