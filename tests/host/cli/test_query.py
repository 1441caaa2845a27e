"""`lox query`, compared with NumPy, and `lox compare`."""

import json

import numpy as np
import pytest

import lox
from lox_host.cli.main import main
from support.terminal import Terminal, streams

pytest.importorskip("duckdb")
RATES = [0.1, 0.2]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    truth = {}
    for i, lr in enumerate(RATES * 2):
        loss = rng.normal(size=5 + i).astype(np.float32)
        loss[2] = np.nan if i == 3 else loss[2]
        with lox.loggers.SaveLogger("s", config={"lr": lr, "env": f"e'{i}"}) as logger:
            run = logger.init(i, name=f"r{i}")
            for step, value in enumerate(loss):
                vector = np.array([step, 1.5], np.float32)
                logs = {"train/loss": value, "v": vector, "done": step > 2}
                logger.log(run, logs, step=step)
            logger.log(run, {"n": np.int32(2**30 + i)})
        truth[f"r{i}"] = lr, loss
    return truth


def asked(capsys, sql, *args):
    assert main(["query", sql, *(args or ["s"]), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows(store, capsys):
    sql = (
        'SELECT run, lr, count("train/loss") n, sum(step) s, max("train/loss") m, '
        "bool_or(done) d, max(n) big FROM rows GROUP BY ALL ORDER BY run"
    )
    for line, (name, (lr, loss)) in zip(asked(capsys, sql), store.items(), strict=True):
        assert (line["run"], line["lr"], line["n"]) == (name, lr, len(loss))
        assert line["s"] == sum(range(len(loss)))
        assert line["big"] == 2**30 + int(name[1:])
        assert line["d"] is True
        # NaN is no NULL: it is counted, and larger than any number.
        assert line["m"] is None if np.isnan(loss).any() else line["m"] == loss.max()
    bad = asked(capsys, 'SELECT run, step FROM rows WHERE isnan("train/loss")')
    assert bad == [{"run": "r3", "step": 2}]
    vectors = asked(capsys, "SELECT v FROM rows WHERE step = 3 AND run = 'r0'")
    assert vectors == [{"v": [3, 1.5]}]
    times = asked(capsys, "SELECT min(time) a, max(time) b FROM rows WHERE run = 'r0'")[0]
    assert 1.7e9 < times["a"] <= times["b"]


def test_runs(store, capsys):
    lines = asked(
        capsys, 'SELECT name, lr, env, rows, "train/loss" AS l FROM runs ORDER BY name'
    )
    for line, (name, (lr, loss)) in zip(lines, store.items(), strict=True):
        assert (line["name"], line["lr"], line["rows"]) == (name, lr, len(loss))
        assert line["env"] == f"e'{name[1:]}"
        assert np.float32(line["l"]) == loss[-1]
    assert asked(capsys, "SELECT count(*) c FROM runs", "s", "--where", "lr > 0.1") == [
        {"c": 2}
    ]
    assert asked(capsys, "SELECT count(*) c FROM runs", "s/r1", "s/#2") == [{"c": 2}]
    assert asked(capsys, "SELECT 1 + 1 AS two") == [{"two": 2}]


def test_errors_name_what_there_is_and_files_are_out_of_reach(store, capsys):
    for sql, text in [
        ("SELECT loss FROM rows", 'Referenced column "loss" not found'),
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM read_csv('/etc/passwd')", "file system operations are disabled"),
        ("COPY runs TO 'out.csv'", "file system operations are disabled"),
    ]:
        assert main(["query", sql, "s"]) == 1
        error = capsys.readouterr().err
        assert text in error
        assert "The tables are `runs` and `rows`" in error
        assert "The keys are train/loss, v, done, n." in error


def test_compare(store, capsys):
    assert main(["compare", "s/r0", "s/r3", "-k", "loss", "-k", "n"]) == 0
    lines = capsys.readouterr().out.splitlines()
    marked = {line[1:].split("  ")[1].strip(): line[:1] == "*" for line in lines[1:-1]}
    assert marked == {
        "state": False, "rows": True, "config lr": True, "config env": True,
        "last train/loss": True, "last n": True,
    }  # fmt: skip
    assert lines[-1] == "[5 of 6 lines differ, marked *]"
    assert main(["compare", "s/r0", "s/r3", "--json"]) == 0
    one, other = json.loads(capsys.readouterr().out)
    assert (one["config"]["lr"], other["config"]["lr"]) == (0.1, 0.2)
    assert np.float32(one["last"]["train/loss"]) == store["r0"][1][-1]
    assert main(["compare", "s/r0"]) == 1
    assert "s/r0 is one run. Give two runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "tables"),
    [
        ([f"a-long-name-of-a-run-that-has-number-{i}" for i in range(5)], 1),
        # Cut in the middle, too few of these differ, so they come one below the other.
        ([f"a-long-name-with-{i}-before-its-end-of-17" for i in range(5)], 5),
        ([f"run-{i}" for i in range(20)], 3),
    ],
)
def test_compare_fits_a_terminal(tmp_path, monkeypatch, names, tables):
    monkeypatch.chdir(tmp_path)
    logger = lox.loggers.SaveLogger("s")
    for i, name in enumerate(names):
        with logger.run(i, config={"lr": i / 8}, name=name) as run:
            logger.log(run, {"loss": np.float32(i)})
    terminal = Terminal(80)
    with streams(terminal):
        assert main(["compare", "s"]) == 0
    lines = [line.rstrip() for line in terminal.lines()]
    assert max(map(len, lines)) <= 80
    heads = [line.split() for line in lines if "-" in line]
    shown = [head for line in heads for head in line]
    assert len(heads) == tables
    assert len({*shown}) == len(shown) == len(names)
    last = [line.split()[3:] for line in lines if "last loss" in line]
    assert [float(x) for line in last for x in line] == [*range(len(names))]


def test_the_stores_may_come_first(store, capsys):
    sql = " select count(*) n from runs"
    assert asked(capsys, "s", sql) == asked(capsys, sql, "s") == [{"n": 4}]


def test_a_name_that_utf8_cannot_have(tmp_path, capsys):
    with lox.loggers.SaveLogger(tmp_path / "s").run(0, name="half \ud800"):
        lox.log({"x": 1.0})
    assert asked(capsys, "SELECT run FROM rows", str(tmp_path / "s")) == [
        {"run": r"half \ud800"}
    ]
