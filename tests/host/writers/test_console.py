"""What a console shows: on a terminal, which is replayed, and elsewhere."""

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from rich.console import Console

from lox.loggers import Batch
from lox.loggers.console import ConsoleLogger
from lox_host.display import run_table
from lox_host.display.progress_bar import Bar
from lox_host.display.statistics import POINTS, Trend
from lox_host.display.summary import Summary
from lox_host.display.terminal import Region, can_move, divide_lines, region
from lox_host.display.text import clean, digits, duration, sparkline, speed
from lox_host.writers import console as _console
from lox_host.writers.console import ConsoleWriter
from support.blocks import block, run, written
from support.terminal import Terminal, streams

NAN, INF = float("nan"), float("inf")


def summary(*blocks, start=0.0, now=1.0):
    made = Summary(start)
    for each in blocks:
        made.add(each, now)
    return made


def text(made, *, now=2.0, width=100, lines=40, title="lox"):
    """The table as it stands on a terminal, without colours."""
    console = Console(file=io.StringIO(), width=width, height=50)
    console.print(run_table.table(made, now, title=title, width=width, lines=lines))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def line(made, *, now=2.0, title="lox", most=40):
    return made.line(now, title=title, most=most)


# Statistics ---------------------------------------------------------------------------


@pytest.mark.parametrize("major", ["runs", "steps"])
def test_statistics_are_those_of_numpy(major):
    values = np.random.default_rng(0).normal(size=(7, 50))  # (runs, steps)
    runs, array = np.repeat(np.arange(7) * 3, 50), values
    if major == "steps":
        runs, array = np.tile(np.arange(7) * 3, 50), values.T
    made = summary()
    for part in np.array_split(np.arange(350), 6):
        made.add(block({"x": array.ravel()[part]}, runs=runs[part]), 1.0)
    series = made.statistics["x"]
    assert series.last == values[-1, -1]
    assert (series.low, series.high) == (values.min(), values.max())
    np.testing.assert_allclose(
        series.spread(), (values[:, -1].mean(), values[:, -1].std(), 0)
    )
    np.testing.assert_allclose(series.trend.points(100), values.mean(0))


def test_an_array_counts_as_its_mean_and_ends():
    values = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
    series = summary(block({"x": values})).statistics["x"]
    assert series.note == "3×4"
    np.testing.assert_allclose(series.last, values[-1].mean(), rtol=1e-5)
    assert (series.low, series.high) == (values.min(), values.max())


@pytest.mark.parametrize(
    "dtype",
    [
        bool, np.int8, np.uint64, np.float16, ml_dtypes.bfloat16, ml_dtypes.int4,
        ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.complex64,
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 0)])
def test_every_type_can_be_shown(dtype, shape):
    made = summary(block({"x": np.ones(shape, dtype)}))
    series = made.statistics["x"]
    assert bool(series) == (shape != (4, 0))
    assert (series.last, series.low, series.high) == (1, 1, 1) or not series
    assert any("x" in row for row in text(made))
    assert line(made).startswith("lox: 1 run")


def test_nan_and_infinity_are_said_and_do_not_spread():
    values = np.array([1.0, NAN, 3.0, 5.0, 7.0, NAN])
    made = summary(block({"x": values}, runs=[0, 1, 2, 0, 2, 1]))
    series = made.statistics["x"]
    assert series.spread() == (6.0, 1.0, 1)
    assert (series.low, series.high) == (1.0, 7.0)
    assert "± 1 (1 of 3 diverged)" in text(made)[-1]
    assert "x 6.000 (1 of 3 diverged)" in line(made)
    assert series.health() == "2 not finite, the first at row 0"
    made = summary(block({"x": np.full(3, NAN), "y": np.full((3, 2), NAN)}))
    assert text(made)[-1].split()[:3] == ["y", "2", "nan"]
    made = summary(block({"x": np.array([INF, 1.0])}, runs=[0, 1]))
    assert "1.000 ± 0 (1 of 2 diverged)" in " ".join(text(made)[-1].split())


def test_sums_that_overflow_are_no_warnings():
    huge = np.tile([1.7e308, 1.7e308, -1.7e308, -1.7e308], POINTS)
    made = summary(block({"x": huge}), block({"x": huge}))
    assert "x  -1.700e308" in text(made)[2]


def test_examples_that_did_not_log_do_not_count():
    values = np.array([[[1.0], [9.0]], [[9.0], [9.0]], [[2.0], [4.0]]])
    every = block({"x": values}, valid={"x": np.ones((3, 2), bool)})
    assert summary(every).statistics["x"].low == 1.0
    valid = np.array([[True, False], [False, False], [True, True]])
    made = summary(block({"x": values}, valid={"x": valid}))
    series = made.statistics["x"]
    assert (series.low, series.high, series.last) == (1.0, 4.0, 3.0)
    np.testing.assert_allclose(series.trend.points(9), [1.0, 3.0])
    made = summary(block({"x": values[:1]}, valid={"x": valid[1:2]}))
    assert not made.statistics["x"]


def test_trees_are_shown_by_their_leaves_and_keys_of_jax_as_what_they_are():
    tree = {"w": np.ones((2, 3)), "key": np.zeros((2, 2), np.uint32)}
    made = summary(block({"p": tree}, runs=[0, 0], keys=[(1, "fry")]))
    rows = text(made)
    assert rows[2].startswith("p/w 3")
    assert rows[3].strip() == "p/key fry key"
    assert "key" not in line(made)


def test_memory_does_not_grow_with_rows():
    trend = Trend()
    for start in range(0, 10 * POINTS**2, 1000):
        times = np.arange(start, start + 1000)
        trend.add(times, times.astype(float))
    points = trend.points(16)
    assert trend._spans.shape == (1, POINTS)
    assert len(points) == 16
    assert np.all(np.diff(points) > 0)
    np.testing.assert_allclose(np.diff(points), np.diff(points).mean(), rtol=0.1)


def test_a_large_block_of_many_runs_is_quick():
    runs = np.tile(np.arange(256), 1000)
    large = block({"x": np.zeros(256_000, np.float32)}, runs=runs)
    start = time.perf_counter()
    made = summary(large)
    assert time.perf_counter() - start < 1
    assert made.runs == 256


# Progress -----------------------------------------------------------------------------


def test_rows_of_those_expected():
    a = block({"x": np.zeros(8)}, runs=[0, 1] * 4, expected=10)
    assert "40%, 8/20 rows, 4/s, 0:03 left" in line(summary(a))
    assert "40%  8/20 rows  4/s  0:03 left" in text(summary(a))[0]
    assert "80%" in text(summary(a, a))[0]
    done = block({"x": np.zeros(20)}, runs=[0, 1] * 10, expected=10)
    assert text(summary(done))[0].endswith("100%  20/20 rows  10/s  0:02")
    assert "100%, 20/20 rows, 10/s, in 0:02 |" in line(summary(done))


def test_there_is_a_bar_on_a_narrow_terminal():
    rows = np.arange(4000) % 8
    steps = {"step": 123456 + np.arange(4000)}
    many = block({"x": rows * 1.0}, runs=rows, steps=steps, expected=1000)
    wide, medium, narrow = (text(summary(many), width=w)[0] for w in (100, 70, 55))
    assert wide.endswith("50%  4000/8000 rows  2000/s  0:02 left")
    assert medium.endswith("50%  4000/8000 rows  0:02 left")
    assert narrow.endswith("50%  0:02 left")
    for head in (wide, medium, narrow):
        assert "━━━━" in head


def test_of_several_runs_the_mean_is_shown_and_no_single_value():
    made = summary(block({"x": np.array([1.0, 3.0])}, runs=[0, 1]))
    assert text(made)[1].split() == ["mean", "±", "std", "min", "max", "trend"]
    assert text(made)[2].split()[:2] == ["x", "2.000"]


def test_a_program_that_is_called_again_starts_again():
    a = block({"x": np.zeros(10)}, expected=10)
    half = block({"x": np.zeros(5)}, expected=10)
    other = block({"x": np.zeros(2)}, expected=4)
    assert summary(a, a).progress.done(1) == (10, 10)
    assert summary(a, a, half).progress.done(1) == (5, 10)
    assert summary(half, a).progress.done(1) == (5, 10)
    assert summary(a, other).progress.done(1) == (2, 4)


@pytest.mark.parametrize("expected", [None, 1])
def test_nobody_knows_how_many_there_will_be(expected):
    made = summary(*5 * [block({"x": np.zeros(1)}, expected=expected)])
    assert "5 rows, 2.5/s" in line(made)
    assert text(made)[0] == "lox  1 run  5 rows  2.5/s  0:02"


def test_the_keys_with_most_rows_say_how_far_it_is():
    often = block({"loss": np.zeros(50)}, expected=100)
    seldom = block({"score": np.zeros(1)}, expected=2)
    assert "50%, 50/100 rows" in line(summary(often, seldom))


def test_the_rate_is_that_of_late():
    made = Summary(0.0)
    for second in range(1, 200):
        made.add(block({"x": np.zeros(1 if second < 100 else 10)}), float(second))
    assert made.progress.rate(199.0) == pytest.approx(10)


def test_nothing_logged_yet():
    assert text(Summary(0.0)) == ["lox  0 runs  0 rows  0/s  0:02"]
    made = summary(block({"x": np.zeros(0)}, runs=[]))
    assert made.runs == 0


# Words --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "kind", "expected"),
    [
        (0.12345, "f", "0.1235"),
        (0.0, "f", "0.000"),
        (-12.5, "f", "-12.50"),
        (999.96, "f", "1000"),
        (12345.6, "f", "12346"),
        (123456789.0, "f", "1.235e8"),
        (1.5e-7, "f", "1.500e-7"),
        (42.0, "i", "42"),
        (1e15, "u", "1.000e15"),
        (1.0, "b", "True"),
        (NAN, "f", "nan"),
        (-INF, "i", "-inf"),
    ],
)
def test_numbers_have_four_digits(number, kind, expected):
    assert digits(number, kind) == expected


def test_curves_of_one_line():
    assert sparkline(np.arange(8.0)) == "▁▂▃▄▅▆▇█"
    assert sparkline(np.array([2.0, 2.0])) == "▁▁"
    assert sparkline(np.array([-1e308, 1e308])) == "▁▁"
    assert sparkline(np.zeros(0)) == ""


def test_names_do_not_move_the_cursor():
    assert clean("a\x1b[31mb\r\n") == "a\\x1b[31mb\\r\\n"
    made = summary(block({"[red]\x1b[2J": np.ones(1)}))
    assert text(made, title="[b]\n")[2].startswith("[red]\\x1b[2J")
    assert "\x1b" not in line(made, title="\x1b")


def test_speeds():
    assert [speed(r) for r in (0.0, 0.0025, 99.5, 1671.3)] == [
        "0",
        "0.0025",
        "99.5",
        "1671",
    ]


def test_durations():
    assert [duration(s) for s in (0, 59.7, 3725, INF)] == [
        "0:00",
        "1:00",
        "1:02:05",
        "unknown",
    ]


# Room ---------------------------------------------------------------------------------

MANY = {f"key_number_{i}": np.full(16, 1.5 * i) for i in range(30)}


@pytest.mark.parametrize("lines", [1, 2, 3, 4, 10, 31, 32, 40])
def test_tall_tables_are_capped(lines):
    rows = text(summary(block(MANY)), lines=lines)
    assert len(rows) <= lines
    shown = sum(row.startswith("key") for row in rows)
    assert (shown == 30) == (lines >= 32)
    if 1 < lines < 32:
        assert rows[-1] == f"… and {30 - shown} more keys"


@pytest.mark.parametrize("runs", [1, 2])
def test_no_digits_are_cut_off(runs):
    made = summary(block(MANY, runs=[i % runs for i in range(16)], expected=99))
    for width in (30, 40, 57, 80, 81, 100, 120, 200):
        rows = text(made, width=width)
        assert max(map(len, rows)) <= width
        assert "43.50" in rows[-1]
        assert not any("…" in row.partition(" ")[2] for row in rows[1:])


def test_long_names_give_way():
    made = summary(block({"long/" * 40: np.ones(3)}))
    assert "… " in text(made)[2]
    assert "1.000" in text(made)[2]


def test_lines_are_divided():
    assert divide_lines([1, 30], 20) == [1, 19]
    assert divide_lines([30, 1, 30], 21) == [10, 1, 10]
    assert divide_lines([5, 6], 40) == [5, 6]
    assert divide_lines([9, 9], 1) == [1, 1]
    assert divide_lines([], 10) == []


# Where there is no terminal -----------------------------------------------------------


def test_a_line_every_ten_seconds_and_one_at_the_end(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    writer = ConsoleWriter()
    both = block({"loss": np.array([1.0, 2.0])}, runs=[0, 1], steps={"step": [7, 7]})
    with mock.patch.object(_console.time, "monotonic") as clock:
        clock.return_value = 100.0
        writer.open(run(0))
        writer.open(run(1))
        for half in range(50):
            clock.return_value = 100.0 + half / 2
            writer.write(Batch([both]))
            writer.flush()
        writer.flush()
        writer.close(run(0))
        assert len(capsys.readouterr().err.splitlines()) == 2
        writer.close(run(1))
    assert capsys.readouterr() == (
        "",
        "lox: 2 runs, step 7, 100 rows, 4.08/s | loss 1.500\n",
    )


def test_a_quiet_program_says_nothing_new():
    file = io.StringIO()
    writer = ConsoleWriter(every=0.0, file=file, title="A")
    writer.flush()
    writer.open(run())
    writer.flush()
    assert file.getvalue() == ""
    writer.write(Batch([block({"x": np.ones(1)})]))
    writer.flush()
    writer.flush()
    assert file.getvalue().count("\n") == 1
    assert file.getvalue().startswith("A: 1 run, 1 rows")


def test_many_keys_in_a_line_are_capped():
    assert line(summary(block(MANY)), most=2).endswith(
        "| key_number_0 0.000, key_number_1 1.500, 28 more"
    )


def test_a_file_in_ascii_takes_any_name():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    written(ConsoleWriter(file=file), block({"α": np.ones(1)}))
    assert b"\\u03b1 1.000\n" in raw.getvalue()


def test_when_all_runs_are_closed_the_next_begins_anew():
    file = io.StringIO()
    writer = ConsoleWriter(file=file)
    for value in (1.0, 2.0):
        written(writer, block({"x": np.array([value])}))
    first, second = file.getvalue().splitlines()
    assert first.endswith("x 1.000")
    assert second.endswith("x 2.000")
    assert "1 rows" in second


def test_a_closed_run_still_counts():
    file = io.StringIO()
    writer = ConsoleWriter(file=file)
    writer.open(run(0))
    writer.open(run(1))
    writer.write(Batch([block({"x": np.array([1.0, 2.0])}, runs=[0, 1])]))
    writer.close(run(0))
    writer.write(Batch([block({"x": np.array([4.0])}, runs=[1])]))
    writer.close(run(1))
    assert "2 runs" in file.getvalue()
    assert file.getvalue().endswith("x 2.500\n")


def test_what_cannot_be_shown_is_an_error():
    with pytest.raises(ValueError, match=r"`max_keys` must be at least 1, not 0"):
        ConsoleWriter(max_keys=0)


def test_the_logger_takes_the_options_of_its_writer():
    logger = ConsoleLogger(every=1.0, file=io.StringIO(), max_keys=3, title="A", config={})
    assert isinstance(logger, ConsoleLogger)


# On a terminal ------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    return Terminal()


def write(writer, key, value, id=0):
    writer.write(Batch([block({key: np.array([value])}, runs=[id], expected=50)]))
    writer.flush()


def test_two_consoles_a_bar_and_prints_share_the_terminal(terminal):
    with streams(terminal) as before:
        first, second = ConsoleWriter(title="first"), ConsoleWriter(title="second")
        bar = Bar("bar", 50)
        first.open(run(0))
        for i in range(50):
            write(first, "loss", i / 2)
            if i in (10, 30):
                write(first, f"late_{i}", i)
            if i == 5:
                second.open(run(1))
                bar.begin(0)
            if i >= 5:
                write(second, "score", i, 1)
                bar.advance(1)
            print("printed", i)
            print("error", i, file=sys.stderr)
            time.sleep(0.02)
        bar.end(0)
        first.close(run(0))
        print("between")
        time.sleep(0.3)
        second.close(run(1))
        assert (sys.stdout, sys.stderr) == before
        print("after")

    lines = terminal.lines()
    assert terminal.has_cursor
    prints = [row for row in lines if row.startswith(("printed", "error"))]
    assert prints == [f"{word} {i}" for i in range(50) for word in ("printed", "error")]
    bar, *rest = [row for row in lines if row not in prints]
    assert "45/45" in bar
    assert rest[0].startswith("first  1 run  ━")
    assert "100%  50/50 rows" in rest[0]
    assert rest[1].split() == ["last", "min", "max", "trend"]
    assert [row.split()[:2] for row in rest[2:5]] == [
        ["loss", "24.50"],
        ["late_10", "10"],
        ["late_30", "30"],
    ]
    assert rest[5] == "between"
    assert "90%  45/50 rows" in rest[6]
    assert rest[8].split()[:4] == ["score", "49", "5", "49"]
    assert rest[9:] == ["after"]
    assert b"\x1b[?25l" in terminal.raw  # the cursor was hidden


def test_what_is_printed_comes_out_as_it_is(terminal):
    with streams(terminal) as (stdout, _):
        writer = ConsoleWriter()
        writer.open(run(0))
        stand_in = sys.stdout
        assert stand_in.isatty()
        assert stand_in.fileno() == terminal.theirs
        assert (stand_in.encoding, stand_in.errors) == (stdout.encoding, "strict")
        assert stand_in.name == stdout.name
        assert stand_in.write("[red]no markup[/red]\n\n") == 22
        print("x" * 150)
        print("flushed", end="", flush=True)
        sys.stdout.writelines(["i", "n "])
        print("parts\nand the rest", end="")
        with contextlib.redirect_stdout(io.StringIO()):
            writer.close(run(0))
        print("", file=stand_in)
        print("later", file=stand_in)
        stand_in.flush()
    assert terminal.lines() == [
        "[red]no markup[/red]",
        "",
        "x" * 100,
        "x" * 50,
        "flushed",
        "in parts",
        "lox  1 run  0 rows  0/s  0:00",
        "and the rest",
        "later",
    ]


# Programs of their own ----------------------------------------------------------------


def on_terminal(program, terminal, *, stdout=None, interrupt=False):
    """Run a program on a terminal. `stdout` may be elsewhere."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=terminal.theirs,
        stdout=terminal.theirs if stdout is None else stdout,
        stderr=terminal.theirs,
        env={**os.environ, "PYTHONPATH": path},
    )
    os.close(terminal.theirs)
    if interrupt:
        while b"waiting" not in terminal.raw:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
    return process.wait(60)


LEFT = """
import sys, time
import numpy as np
from support.blocks import block, run
from lox.loggers import Batch
from lox_host.writers.console import ConsoleWriter

writer = ConsoleWriter()
writer.open(run(0))
writer.write(Batch([block({"loss": np.array([0.5])})]))
"""


FORK = """
import os, warnings
warnings.simplefilter("ignore")
assert not type(sys.stderr) is type(sys.stdout)
if not (child := os.fork()):
    os._exit(type(sys.stderr) is not type(sys.stdout))
assert os.waitpid(child, 0)[1] == 0
"""


def test_an_interrupted_program_leaves_the_terminal_whole(terminal):
    program = LEFT + "print('waiting'); time.sleep(60)"
    assert on_terminal(program, terminal, interrupt=True) != 0
    first, *_, error, head, _, loss = terminal.lines()
    assert terminal.has_cursor
    assert (first, error) == ("waiting", "KeyboardInterrupt")
    assert head.startswith("lox  1 run")
    assert loss.startswith("loss  0.5000")


def test_so_does_one_that_ends_and_what_goes_to_a_file_goes_there(terminal, tmp_path):
    with (tmp_path / "out").open("wb") as out:
        assert on_terminal(LEFT + FORK + "print('a result')", terminal, stdout=out) == 0
    assert (tmp_path / "out").read_text() == "a result\n"
    assert [row.split()[0] for row in terminal.lines()] == ["lox", "last", "loss"]
    assert terminal.has_cursor


def test_it_is_drawn_by_itself(terminal):
    with open(terminal.theirs, "w") as file:
        writer = ConsoleWriter(file=file)
        writer.open(run())
        writer.write(Batch([block({"x": np.ones(3)})]))
        while b"3" not in terminal.raw:
            time.sleep(0.05)
        frames = terminal.raw.count(b"rows")
        time.sleep(1.0)
        assert terminal.raw.count(b"rows") - frames <= 5
        writer.close(run())
    assert terminal.lines()[2].startswith("x  1.000")


@pytest.mark.parametrize(
    ("name", "encoding", "expected"),
    [("xterm", "utf-8", True), ("dumb", "utf-8", False), ("xterm", "ascii", False)],
)
def test_a_poor_terminal_gets_lines(monkeypatch, name, encoding, expected):
    monkeypatch.setenv("TERM", name)
    ours, theirs = pty.openpty()
    with open(ours, "rb"), open(theirs, "w", encoding=encoding) as file:
        assert can_move(file) is expected
    assert not can_move(file)  # it is closed


def test_what_has_left_may_leave_again():
    Region().leave(mock.Mock())
    region.end()


def test_one_process_of_two_goes_on():
    view, fork = mock.Mock(), Region()
    with mock.patch.object(fork, "_begin"):
        fork.show(view)
    for is_child in (False, True):
        fork.fork()
        fork.forked(is_child=is_child)
        assert (view in fork._views) != is_child


def test_rows_that_come_before_a_run_are_nobodys():
    writer = ConsoleWriter()
    writer.write(Batch([block({"x": np.ones(1)})]))
    writer.close(run())
