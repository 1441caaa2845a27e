"""How far a program is, against how often its loops really run."""

import os
import pty
import subprocess
import sys
from typing import ClassVar
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

import lox
from lox_host.display import progress_bar as _bar
from lox_host.display.progress_bar import Bar
from support.programs import PROGRAMS, Program, logged
from support.selection import thin
from support.truth import assert_trees_close, result, result_of_each


class Noted:
    """Stands in for a bar, and writes down how it moves."""

    made: ClassVar[list["Noted"]] = []

    def __init__(self, title, total):
        self.title, self.total, self.moves = title, total, []
        Noted.made.append(self)

    def begin(self, number):
        self.moves = ["begin"]

    def advance(self, number):
        self.moves.append(number)

    def end(self, number):
        self.moves.append("end")

    @property
    def done(self):
        begin, *moves, end = self.moves
        assert (begin, end) == ("begin", "end")
        return sum(moves)


@pytest.fixture
def bars(monkeypatch):
    monkeypatch.setattr("lox._stream.progress.Bar", Noted)
    Noted.made = []
    return Noted.made


def shown(fun, *args, bars):
    for bar in bars:
        bar.moves = []
    out = fun(*args)
    lox.barrier()
    (bar,) = [bar for bar in bars if bar.moves]
    return out, bar


def body(c, i):
    return jnp.sin(c), i


def scan(n):
    return lambda x: jax.lax.scan(body, x, jnp.arange(n))[0]


def nested(x):
    return jax.lax.scan(lambda c, i: (scan(50)(c), None), x, jnp.arange(3))[0]


def branch(x):
    return jax.lax.cond(x > 0, scan(30), lambda x: x, x)


@pytest.mark.parametrize(
    ("fun", "total", "done", "most"),
    [
        (scan(7), 7, 7, 7),
        (scan(1000), 1000, 1000, 100),
        (scan(1050), 1050, 1050, 106),
        (nested, 150, 150, 150),
        (lambda x: scan(40)(nested(x)), 190, 190, 190),
        (jax.jit(scan(200)), 200, 200, 100),
        (jax.grad(scan(200)), 400, 400, 200),
        (lambda x: jax.checkpoint(scan(200))(x), 200, 200, 100),
        (branch, 30, 30, 30),
        (lambda x: branch(-x), 30, 0, 0),
        (lambda x: jax.lax.fori_loop(0, 300, lambda i, x: x / 2, x), 300, 300, 100),
    ],
)
def test_the_iterations_of_all_loops_count(fun, total, done, most, bars):
    expected = jax.jit(fun)(1.0)
    for wrap in (lambda f: f, jax.jit):
        out, bar = shown(wrap(lox.progress(fun)), 1.0, bars=bars)
        assert_trees_close(out, expected)
        assert (bar.total, bar.done) == (total, done)
        assert len(bar.moves) <= most + 2


def test_loops_of_unknown_length_count_as_they_run(bars):
    def count(x):
        return jax.lax.while_loop(lambda c: c < x, lambda c: c + 1, 0.0)

    _, bar = shown(lox.progress(count), 250.0, bars=bars)
    assert bar.total == float("inf")
    assert bar.moves == ["begin", 100, 100, 50, "end"]
    _, bar = shown(
        jax.jit(jax.vmap(lox.progress(count))), jnp.array([3.0, 150.0]), bars=bars
    )
    assert bar.done == 150
    _, bar = shown(
        jax.jit(lox.progress(jax.vmap(count))), jnp.array([3.0, 150.0]), bars=bars
    )
    assert bar.done == 150


def test_a_program_without_loops_has_no_bar(bars):
    assert lox.progress(jnp.sin)(0.0) == 0
    lox.barrier()
    assert not any(bar.moves for bar in bars)


def test_loops_in_what_has_no_rule_are_left_alone(bars):
    inner = jax.lax.composite(scan(300), "lox.test")
    assert_trees_close(lox.progress(jax.jit(inner))(1.0), jax.jit(scan(300))(1.0))
    _, bar = shown(lox.progress(lambda x: scan(7)(inner(x))), 1.0, bars=bars)
    assert (bar.total, bar.done) == (7, 7)


def test_each_run_begins_anew(bars):
    fun = lox.progress(jax.jit(scan(7)))
    for _ in range(3):
        fun(1.0)
    assert [bar.moves for bar in bars] == [["begin", *[1] * 7, "end"]]


def test_under_grad_the_forward_loops_count(bars):
    _, bar = shown(jax.jit(jax.grad(lox.progress(scan(200)))), 1.0, bars=bars)
    assert bar.done == 200


@pytest.mark.parametrize("p", thin(PROGRAMS, 6), ids=lambda p: p.name)
def test_the_result_is_the_same(p: Program, bars):
    out = jax.jit(lox.nolog(lox.progress(p.fun)))(p.x)
    assert_trees_close(out, result(p))
    out = jax.jit(lox.nolog(jax.vmap(lox.progress(p.fun))))(p.xs)
    assert_trees_close(out, result_of_each(p))


def test_logs_go_on_to_whoever_is_around(bars):
    def fun(x):
        return jax.lax.scan(lambda c, i: (c + 1, lox.log({"i": i})["i"]), x, jnp.arange(3))

    _, logs = jax.jit(lox.spool(lox.progress(fun)))(0)
    assert logs["i"].tolist() == [0, 1, 2]


def test_what_the_program_logs_is_not_printed(bars, capsys):
    def fun(x):
        lox.log({"x": x})
        return jax.lax.map(lambda i: logged("i", x + i), jnp.arange(3.0))

    for f in (fun, jax.jit(fun)):
        for _ in range(2):
            lox.progress(f)(1.0)
            jax.jit(lox.progress(f))(1.0)
    _, logs = lox.spool(lox.progress(fun))(1.0)
    lox.barrier()
    assert capsys.readouterr().out == ""
    assert logs["i"].tolist() == [1, 2, 3]
    fun(1.0)
    lox.barrier()
    assert capsys.readouterr().out.startswith("{'x': 1.0}\n{'i': 1.0}\n")


def test_the_title_is_the_name_of_the_function(bars):
    def train(x):
        return scan(3)(x)

    assert shown(lox.progress(jax.jit(train)), 1.0, bars=bars)[1].title == "train"
    assert shown(lox.progress(train, title="A"), 1.0, bars=bars)[1].title == "A"


def test_it_takes_a_function():
    with pytest.raises(TypeError, match=r"`lox\.progress` takes a function"):
        lox.progress(3)  # pyright: ignore[reportArgumentType]


# What is shown ------------------------------------------------------------------------


def test_without_a_terminal_there_is_a_line_every_ten_seconds(capsys):
    bar = Bar("train", 200)
    with mock.patch.object(_bar.time, "monotonic") as clock:
        clock.return_value = 100.0
        bar.begin(0)
        for second in range(1, 21):
            clock.return_value = 100.0 + 2 * second
            bar.advance(10)
        bar.end(0)
    assert capsys.readouterr().err == (
        "train: 25%, 50/200 iterations, 5/s, 0:30 left\n"
        "train: 50%, 100/200 iterations, 5/s, 0:20 left\n"
        "train: 75%, 150/200 iterations, 5/s, 0:10 left\n"
        "train: 100%, 200/200 iterations, 5/s, in 0:40\n"
    )


def test_a_loop_of_unknown_length_has_no_end_in_sight(capsys):
    bar = Bar("solve", float("inf"))
    with mock.patch.object(_bar.time, "monotonic") as clock:
        clock.return_value = 0.0
        bar.begin(0)
        clock.return_value = 4000.0
        bar.advance(10)
        bar.advance(10)
        bar.end(0)
    assert capsys.readouterr().err == (
        "solve: 10 iterations, 0.0025/s\nsolve: 20 iterations, 0.005/s\n"
    )


def test_long_times_are_in_hours(capsys):
    bar = Bar("train", 1000)
    with mock.patch.object(_bar.time, "monotonic") as clock:
        clock.return_value = 0.0
        bar.begin(0)
        clock.return_value = 20.0
        bar.advance(1)
    assert "5:33:00 left" in capsys.readouterr().err


def test_a_short_program_says_nothing(capsys):
    lox.progress(jax.jit(scan(100)))(1.0)
    assert capsys.readouterr() == ("", "")


PROGRAM = """
import jax, lox
def train(x):
    return jax.lax.fori_loop(0, 500, lambda i, x: x / 2, x)
lox.progress(jax.jit(train))(1.0)
"""


def test_on_a_terminal_there_is_a_bar():
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert process.wait(60) == 0
    screen = text.decode()
    assert "train" in screen
    assert "500/500" in screen
    assert "100%" in screen
    assert screen.rstrip().endswith("\x1b[?25h")  # the cursor is back
