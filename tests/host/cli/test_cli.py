"""The command line: what it prints, on a terminal and elsewhere, and how it ends."""

import csv
import doctest
import importlib.metadata
import importlib.util
import itertools as it
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import lox
from lox.loggers import Batch, Block, Form, Run
from lox_host.cli import plot as _plot
from lox_host.cli.main import main
from lox_host.reading.select import select_runs
from lox_host.store import Follower, begin_session, folder as _folder
from lox_host.store.format.journal import decode, encode
from lox_host.writers.save import SaveWriter
from support.completion import complete
from support.storing import block, values
from support.terminal import Terminal, streams

PAGE = Path(__file__).parents[3] / "docs" / "command-line.md"
SEEDS, ROWS = [7, 8, 9], 40


def logged(seed):
    """What a seed logs, one more row for each."""
    steps = np.arange(ROWS + seed)
    noise = np.random.default_rng(seed).normal(size=(len(steps), 3))
    return steps, {
        "loss": (np.exp(-steps / 10) + noise[:, 0] / 9).astype(np.float32),
        "half": noise[:, 1].astype(ml_dtypes.bfloat16),
        "λ": {"w": noise, "n": steps.astype(np.int64)},
    }


def rows_of(own, steps, id):
    forms = {key: Form(time=True) for key in own}
    return Block(np.full(len(steps), id, np.int32), {"step": steps}, own, forms)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Two runs of one name, and a session with three runs, in `a store`."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        writer = SaveWriter("a store")
        run = Run(0, "0-1", (0, 1), {"lr": number}, 1e9, f"g{number}")
        writer.open(run)
        writer.write(Batch([block(np.arange(10 * number))]))
        writer.close(run)
    writer = SaveWriter("a store")
    runs = [Run(i, f"{i}{i}", (i, i), {}, time.time(), "h") for i in SEEDS]
    for run in runs:
        writer.open(run)
    for run in runs:
        steps, own = logged(run.id)
        writer.write(Batch([rows_of(own, steps, run.id)]))
    for run in runs:
        writer.close(run)
    return "a store"


def said(capsys, *args, code=0):
    """What a command prints: to standard output, or to standard error if it fails."""
    assert main(args) == code
    out, err = capsys.readouterr()
    assert not (err if code == 0 else out)
    return err if code else out


def told(capsys, *args):
    return json.loads(said(capsys, *args, "--json"))


# What it prints -----------------------------------------------------------------------


def times_aside(text):
    text = re.sub(r"[A-Z][a-z]{2} \d\d \d\d:\d\d +\d:\d\d", "Nov 16 09:00  0:00", text)
    text = re.sub(r"(started +).*", r"\g<1>2026-11-16 09:00:00", text)
    text = re.sub(r" \d:\d\d$", " 0:00", text, flags=re.MULTILINE)
    return re.sub(r"(took +).*", r"\g<1>0:00", text)


def test_the_page_shows_what_a_terminal_does(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    seconds = it.count(1794819600)
    clock = types.SimpleNamespace(
        time_ns=lambda: next(seconds) * 10**9, strftime=time.strftime, gmtime=time.gmtime
    )
    monkeypatch.setattr(_folder, "time", clock)
    text, names = PAGE.read_text(), {}
    for example in doctest.DocTestParser().get_examples(text):
        exec(compile(example.source, PAGE, "single"), names)
    blocks = re.findall(r"```console\n\$ lox (.*)\n((?:.*\n)*?)```", text)
    assert len(blocks) == text.count("```console")
    for command, expected in blocks:
        terminal = Terminal(80)
        with streams(terminal):
            main(shlex.split(command))
        shown = times_aside("\n".join(terminal.lines()) + "\n")
        assert shown == expected, command


def test_ls(store, capsys):
    runs = told(capsys, "ls", store)
    names = [run["run"] for run in runs]
    assert names == [f"a store/{name}" for name in ("0-1@1", "0-1@2", "77", "88", "99")]
    assert [run["rows"] for run in runs] == [10, 20, 47, 48, 49]
    assert [run["config"] for run in runs] == [{"lr": 1}, {"lr": 2}, {}, {}, {}]
    assert {run["state"] for run in runs} == {"ended"}
    assert runs[1]["session"] == lox.runs(store)[1].session
    for run, seed in zip(runs[2:], SEEDS, strict=True):
        own = logged(seed)[1]
        assert run["keys"] == list(own)
        assert run["values"].keys() == {"loss", "half"}
        assert np.float32(run["values"]["loss"]) == own["loss"][-1]
        assert ml_dtypes.bfloat16(run["values"]["half"]) == own["half"][-1]
    head, first, second, *seeds = said(capsys, "ls", store).splitlines()
    shown = ["RUN", "#", "STATE", "lr", "loss", "half", "x", "ROWS", "STARTED", "TOOK"]
    assert head.split() == shown
    assert shlex.split(first)[:4] == ["a store/0-1@1", "0", "ended", "1"]
    assert shlex.split(second)[3] == "2"
    lasts = [logged(seed)[1]["loss"][-1].astype(float) for seed in SEEDS]
    found = [float(shlex.split(line)[3]) for line in seeds]
    np.testing.assert_allclose(found, lasts, rtol=1e-3)
    heads = said(capsys, "ls", store, "-k", "x").splitlines()[0].split()
    assert heads == ["RUN", "#", "STATE", "lr", "x", "ROWS", "STARTED", "TOOK"]
    assert said(capsys, "ls", store, "-c").splitlines()[0].split() == ["RUN", "lr"]
    _, *groups = said(capsys, "ls", store, "--group-by", "session").splitlines()[:-1]
    mean, deviation = re.search(r"(\S+) ± (\S+)", groups[2]).groups()
    np.testing.assert_allclose(float(mean), np.mean(lasts), rtol=1e-3)
    np.testing.assert_allclose(float(deviation), np.std(lasts), rtol=5e-2)
    assert groups[2].endswith(" 47-49")


def test_how_a_session_stands(tmp_path, monkeypatch, capsys):
    writer, run = SaveWriter(tmp_path), Run(5, "5", (5,), {}, time.time() - 300, "g")
    writer.open(run)
    (journal,) = tmp_path.glob("*/journal")
    assert re.search(r" live .* 5:00\n", said(capsys, "ls", str(tmp_path)))
    os.utime(journal, (0, run.start + 100))
    listed = said(capsys, "ls", str(tmp_path))
    assert re.search(r" unfinished .* 1:40\n\[1 run, 1 unfinished\]\n", listed)
    assert told(capsys, "ls", str(tmp_path))[0]["state"] == "unfinished"
    writer.close(run)
    os.utime(journal, (0, 0))
    assert said(capsys, "ls", str(tmp_path)).endswith(" 5:00\n")
    # Sessions of earlier versions do not say when they ended.
    journal.write_bytes(
        encode([*decode(journal.read_bytes()).entries[:2], {"n": 2, "end": True}])
    )
    os.utime(journal, (0, run.start + 61))
    assert said(capsys, "ls", str(tmp_path)).endswith(" 1:01\n")


def test_what_ls_prints_can_be_typed(store, capsys):
    for line in said(capsys, "ls", store).splitlines()[1:]:
        address, index = shlex.split(line)[:2]
        shown = said(capsys, "show", address)
        assert said(capsys, "show", f"{store}/#{index}") == shown
        assert said(capsys, "ls", address)


def test_show(store, capsys):
    shown = told(capsys, "show", f"{store}/88")
    steps, own = logged(8)
    assert shown["runs"][0]["run"] == "a store/88"
    assert shown["steps"] == {"step": steps[-1]}
    names = {"loss": own["loss"], "half": own["half"], "λ/w": own["λ"]["w"]}
    assert list(shown["keys"]) == [*names, "λ/n"]
    for name, array in names.items():
        found, array = shown["keys"][name], array.astype(float)
        assert found["rows"] == 48
        for what, number in [("last", array[-1].mean()), ("min", array.min())]:
            np.testing.assert_allclose(found[what], number, rtol=1e-6)
        np.testing.assert_allclose(found["max"], array.max(), rtol=1e-6)
    lines = said(capsys, "show", f"{store}/88", "-k", "λ").splitlines()
    assert lines[-1].split() == ["λ/n", "48", "47", "0", "47"]
    assert lines[-2].split()[:3] == ["λ/w", "3", "48"]
    assert not re.search("[▁-█]", "".join(lines))
    assert "session 1 of 2" in said(capsys, "show", f"{store}/0-1@1")


def test_show_several(store, capsys):
    session = told(capsys, "ls", store)[-1]["session"]
    shown = told(capsys, "show", f"{store}/{session}")
    lasts = [logged(seed)[1]["loss"][-1].astype(float) for seed in SEEDS]
    found = shown["keys"]["loss"]
    assert found["rows"] == sum(ROWS + seed for seed in SEEDS)
    np.testing.assert_allclose(found["mean"], np.mean(lasts))
    np.testing.assert_allclose(found["std"], np.std(lasts))
    every = told(capsys, "show", store)
    assert [run["name"] for run in every["runs"]] == ["0-1", "0-1", "77", "88", "99"]
    assert every["keys"]["x"]["rows"] == 30
    twice = told(capsys, "show", store, f"{store}/88")
    assert len(twice["runs"]) == 5
    assert said(capsys, "show", store).startswith("5 runs in a store\n")


def test_odd_values(tmp_path, capsys):
    import jax

    logs = {
        "nan": np.nan, "key": jax.random.key(3), "z": 1 + 2j, "ok": True, "v": np.ones(9),
    }  # fmt: skip
    lox.save(lox.logdict(logs), tmp_path)
    *lines, empty, health = said(capsys, "show", str(tmp_path)).splitlines()[-7:]
    assert (empty, health) == ("", "nan: 1 not finite, the first at row 0")
    assert lines[0].split() == ["nan", "1", "nan"]
    assert lines[1].split() == ["key", "threefry2x32", "key", "1"]
    assert lines[2].split()[:3] == ["z", "|z|", "1"]
    assert lines[3].split()[2:] == ["True", "True", "True"]
    shown = told(capsys, "show", str(tmp_path))["keys"]
    assert (shown["nan"]["last"], shown["ok"]["last"]) == (None, 1.0)
    tail = said(capsys, "tail", str(tmp_path), "--no-follow")
    long = "v float64[9] [1.0, 1.0, ..., 1.0, 1.0]"
    assert tail == f"nan nan  key [0, 3]  z (1+2j)  ok True  {long}\n"


@pytest.mark.parametrize("number", [0, 3, 1000])
def test_tail(store, capsys, number):
    args = ["tail", f"{store}/0-1", "--no-follow", "-n", str(number)]
    lines = said(capsys, *args, "--json").splitlines()
    steps = range(max(0, 20 - number), 20)
    assert [json.loads(line)["steps"]["step"] for line in lines] == list(steps)
    for line, step in zip(lines, steps, strict=True):
        found, own = json.loads(line), values(np.array(step))
        assert found["run"] == "0-1@2"
        assert np.float32(found["values"]["x"]) == own["x"]
        assert found["values"]["y"] == own["y"].tolist()
    lines = said(capsys, *args, "-k", "y").splitlines()
    assert lines == [f"step {i}  y [{i}, {-i}]" for i in steps]
    together = said(capsys, "tail", store, "-k", "half", *args[2:]).splitlines()
    names = [str(seed) * 2 for seed in SEEDS for _ in range(ROWS + seed)]
    assert [line.split()[0] for line in together] == names[max(0, len(names) - number) :]


# Errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("ls", r"No such folder: '\.lox'. There are stores in a st"),
        ("ls 'a sore'", r"Did you mean 'a store'\?"),
        (
            "ls empty",
            r"There is no store in 'empty': it has no file 'lox.json'. A store is",
        ),
        ("ls 'a store' --where 'lr > 9'", r"5 runs found, but none matches lr > 9"),
        (
            "ls 'a store' --where 'lt > 9'",
            r".*'lt', neither in its config nor as a last va",
        ),
        ("ls 'a store' --where 'lr = 9'", r".*not an expression; to compare, write `==`"),
        ("ls 'a store' --sort los", r"No run has 'los'.* Did you mean 'loss'\?"),
        ("show 'a store/#9'", r"The store in 'a store' has no run '#9'. Runs go up to #4"),
        ("show 'a store/0-2'", r"has no run '0-2'. Did you mean '0-1'\? It has 0-1, 77,"),
        ("show 'a store/2'", r"'2' in 'a store' could be 2\d+-.*, 2\d+-.*. Type more of"),
        ("show 'a store/0-1@3'", r"has no session @3. It has those from @1 to @2"),
        ("show 'a store/77@x'", r"has no session @x. It has only one, which is @1"),
        ("show 'a store/77' -k los", r"'a store/77' has no key 'los'. It has loss, .*mean"),
        ("ls 'a store' -k z", r"has no key 'z'. It has x, loss, half\."),
        ("tail 'a store/77' -k los", r"has no key 'los'. It has loss, half, λ. Did you m"),
        ("plot 'a store' -k z", r"has no key 'z'"),
        ("plot 'a store' -x epoch", r"nothing to plot with the step 'epoch': a curve is"),
        ("plot 'a store' -o a.b", r"Cannot write the picture to 'a.b': Format 'b' is not"),
        ("plot 'a store' -o no/a.png", r"Cannot write the picture to 'no/a.png'.*No such"),
        ("export 'a store' --to csv -o 'a store/lox.json'", r"Cannot write run `0-1` into"),
        ("export 'a store' --to csv --project p", r"Give `--out`, not `--project`"),
        ("export 'a store' --to wandb -o p", r"Give `--project`, not `--out`"),
    ],
)
def test_what_is_wrong_is_said(store, capsys, args, text):
    if args.startswith("plot"):
        pytest.importorskip("matplotlib")
    os.mkdir("empty")
    found = said(capsys, *shlex.split(args), code=1)
    assert re.match(f"lox: .*{text}", found)
    assert found.count("\n") == 1


def test_an_empty_store_and_no_store_at_all(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "A store is the folder that `SaveLogger`" in said(capsys, "ls", code=1)
    begin_session(".lox", "a")
    assert said(capsys, "ls", code=1) == "lox: The store in '.lox' has no runs yet.\n"
    assert told(capsys, "ls") == []
    assert "no runs yet" in said(capsys, "show", code=1)
    lox.save(lox.logdict({"x": 1}), ".lox")
    assert "x 1" in said(capsys, "tail", "saved", "--no-follow")


def test_wrong_usage(capsys):
    text = said(capsys, "sow", code=2)
    assert text.startswith("lox: There is no command 'sow'. Did you mean 'show'? There are")
    for args in (["tail", "-n", "-1"], ["plot", "--smooth", "0"], ["export"], ["-x"]):
        with pytest.raises(SystemExit, match="2"):
            main(args)
        assert "usage: lox" in capsys.readouterr().err
    assert "COMMAND" in said(capsys)


def test_version(capsys):
    try:
        version = importlib.metadata.version("jax-lox")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("It is not installed.")
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"lox {version}\n"


def test_what_is_not_installed_is_named(store, capsys, monkeypatch):
    for module, args, extra in [
        ("matplotlib", ["plot", store], "plot"),
        ("polars", ["export", store, "--to", "parquet"], "polars"),
        ("mlflow", ["export", store, "--to", "mlflow"], "mlflow"),
    ]:
        monkeypatch.setitem(sys.modules, module, None)
        assert f"needs `pip install 'jax-lox[{extra}]'`" in said(capsys, *args, code=1)


@pytest.mark.xdist_group("wandb")
def test_what_a_tracker_raises_is_said(store, capsys):
    pytest.importorskip("wandb")
    args = ["export", f"{store}/77", "--to", "wandb", "--project", "a/b"]
    text = said(capsys, *args, code=1)
    assert re.search(r"^lox: wandb raised \w+: .*'a/b'.*$", text.splitlines()[-1])


@pytest.mark.filterwarnings("default")
def test_what_is_damaged_is_left_out(store, capsys):
    session = Path(lox.runs(store)[1].session)
    with (store / session / "journal").open("ab") as journal:
        journal.write(b"half a li")
    assert main(["show", f"{store}/0-1@2"]) == 0
    out, err = capsys.readouterr()
    assert re.match(r"lox: Parts of the session .* were left out", err)
    assert "0-1@2" in out


# Plots and exports --------------------------------------------------------------------


def drawn(monkeypatch, *args):
    """The lines of each panel of a plot, and their labels."""
    figures, draw = [], _plot._draw
    with monkeypatch.context() as patch:
        patch.setattr(_plot, "_draw", lambda *a: figures.append(draw(*a)) or figures[0])
        assert main(["plot", *args]) == 0
    import matplotlib.pyplot as plt

    plt.close(figures[0])
    return {ax.get_ylabel(): ax.get_lines() for ax in figures[0].axes}


def test_plot(store, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    panels = drawn(monkeypatch, f"{store}/77", "-o", "one.png")
    assert list(panels) == ["loss", "half", "λ/n"]
    (line,) = panels["loss"]
    steps, own = logged(7)
    assert np.array_equal(line.get_xdata(), steps)
    assert np.array_equal(line.get_ydata(), own["loss"])
    assert Path("one.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == "loss, half, λ/n of 1 run: one.png\n"

    session = lox.runs(store)[-1].session
    args = [f"{store}/{session}", f"{store}/77", "-k", "loss", "--smooth", "4"]
    mean, one = drawn(monkeypatch, *args)["loss"]
    assert mean.get_label() == f"{store}/{session}, 3 runs"
    smooth = [
        [own[max(0, i - 3) : i + 1].mean() for i in range(ROWS + 7)]
        for own in (logged(seed)[1]["loss"].astype(float) for seed in SEEDS)
    ]
    np.testing.assert_allclose(one.get_ydata(), smooth[0])
    np.testing.assert_allclose(mean.get_ydata()[: ROWS + 7], np.mean(smooth, 0))
    lines = drawn(monkeypatch, store, "-k", "loss", "--band", "none")["loss"]
    assert len([line for line in lines if len(line.get_xdata())]) == 3


def test_a_smoothed_curve_has_a_gap_only_where_there_is_no_number(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    values = np.array([1, np.nan, 3, 5, np.inf, 7, 9], np.float32)
    logs = [lox.logdict({"x": x}) for x in values]
    lox.save(sum(logs[1:], logs[0]), tmp_path)
    args = [str(tmp_path), "--smooth", "2", "-o", str(tmp_path / "x.png")]
    line, marks = drawn(monkeypatch, *args)["x"]
    nan = np.nan
    assert np.array_equal(line.get_ydata(), [1, nan, nan, 4, nan, nan, 8], equal_nan=True)
    assert np.array_equal(marks.get_xydata(), [[1, 1], [4, 5]])


def test_a_key_is_a_text_and_no_formula(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    key = r"cost $\frac{$ x"
    logs = [lox.logdict({key: float(x)}) for x in range(3)]
    for name in ("a", "b"):
        lox.save(sum(logs[1:], logs[0]), tmp_path / name)
    for stores in (["a"], ["a", "b"]):
        paths = [str(tmp_path / name) for name in stores]
        curves = drawn(monkeypatch, *paths, "-o", str(tmp_path / "x.png"))[key]
        assert len(curves) == len(stores)


def diverging(path):
    """Four runs, of which three are NaN from step 20 on, and a vector of 64 each."""
    writer = SaveWriter(path)
    runs = [Run(i, f"seed-{i}", (i,), {}, 1e9, "group") for i in range(4)]
    for run in runs:
        writer.open(run)
    ids = np.arange(4, dtype=np.int32)
    forms = {"loss": Form(time=True), "success": Form(time=True, batch=1)}
    for step in range(40):
        loss = 1 / (step + 1) + ids
        loss[1:] = np.where(step >= 20, np.nan, loss[1:])
        success = np.tile(np.arange(64) % 8 > 0, (4, 1)).astype(np.float32)
        values = {"loss": loss, "success": success}
        steps = {"step": np.full(4, step)}
        writer.write(Batch([Block(ids, steps, values, forms)]))
        writer.flush()
    for run in runs:
        writer.close(run)


def test_nan_is_never_hidden(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    diverging(tmp_path / "s")

    listed = said(capsys, "ls", "s")
    assert "[4 runs, 3 diverged]" in listed
    grouped = said(capsys, "ls", "s", "--group-by", "state")
    assert "0.02500 ± 0 (3 of 4 diverged)" in grouped
    for seed in (1, 2, 3):
        assert f"s/seed-{seed}: loss 20 not finite, the first at step 20\n" in listed
    assert "seed-0: loss" not in listed
    shown = said(capsys, "show", "s")
    assert "0.02500  ± 0 (3 of 4 diverged)" in shown
    assert "loss: 60 not finite, the first at step 20\n" in shown
    by_key = told(capsys, "show", "s")["keys"]["loss"]
    assert (by_key["diverged"], by_key["nonfinite"]) == (3, 60)
    assert by_key["first_nonfinite"] == {"step": 20}
    bad = [run["nonfinite"] for run in told(capsys, "ls", "s")]
    assert bad[1]["loss"] == {"count": 20, "first": {"step": 20}}
    assert bad[0] == {}


def test_a_plot_says_what_it_shows(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    diverging(tmp_path / "s")

    curves = drawn(monkeypatch, "s", "--smooth", "3")
    notes = {name: lines[0].axes.get_title("right") for name, lines in curves.items()}
    assert notes == {
        "loss": "mean and std of 1 of 4 runs, 3 diverged\nsmoothed over 3 rows",
        "success": "mean and std of 256 elements of 4 runs\nsmoothed over 3 rows",
    }
    mean, *_, marks = curves["loss"]
    # The mean is that of the run that is left, from its beginning.
    np.testing.assert_allclose(mean.get_ydata()[3:], _running(1 / np.arange(1, 41))[3:])
    assert marks.get_xdata().tolist() == [20, 20, 20]
    np.testing.assert_allclose(marks.get_ydata(), [1.05, 2.05, 3.05])
    # No band reaches beyond the data, though mean and deviation add up to 1.2.
    (band,) = curves["success"][0].axes.collections
    assert band.get_paths()[0].vertices[:, 1].max() <= 1
    lines = drawn(monkeypatch, "s/seed-1", "-k", "loss")["loss"]
    note = lines[0].axes.get_title("right")
    assert note == "diverged, 20 not finite, the first at step 20"
    lines = drawn(monkeypatch, "s", "-k", "success", "--by", "seed", "--smooth", "3")
    note = lines["success"][0].axes.get_title("right")
    assert note == "mean and std\nsmoothed over 3 rows"


def _running(values):
    return np.array([values[max(0, i - 2) : i + 1].mean() for i in range(len(values))])


def test_a_key_is_also_those_below_it(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    one = lox.logdict({"loss/a": 1.0, "loss/b": 2.0, "lossy": 3.0})
    lox.save(one + one, "s")
    assert re.findall(r"loss\S*", said(capsys, "ls", "s", "-k", "loss")) == [
        "loss/a",
        "loss/b",
    ]
    assert list(told(capsys, "show", "s", "-k", "loss")["keys"]) == ["loss/a", "loss/b"]
    tail = told(capsys, "tail", "s", "-k", "loss", "-n", "1", "--no-follow")
    assert list(tail["values"]) == ["loss/a", "loss/b"]
    assert list(drawn(monkeypatch, "s", "-k", "loss")) == ["loss/a", "loss/b"]


def test_export(store, capsys):
    pl = pytest.importorskip("polars")
    args = ["export", f"{store}/0-1@1", "--to", "csv"]
    assert said(capsys, *args) == "1 run exported to csv\n"
    with open("csv/0-1.csv") as file:
        rows = list(csv.DictReader(file))
    own = values(np.arange(10))
    assert [np.float32(row["x"]) for row in rows] == own["x"].tolist()
    assert [json.loads(row["y"]) for row in rows] == own["y"].tolist()

    said(capsys, "export", f"{store}/88", store, "--to", "parquet", "-o", "tables")
    assert len(list(Path("tables").glob("*.parquet"))) == 5
    table = pl.read_parquet("tables/88.parquet")
    assert np.array_equal(table["loss"], logged(8)[1]["loss"])
    assert np.array_equal(table["step"], logged(8)[0])
    said(capsys, "export", f"{store}/0-1@2", "--to", "json")
    assert len(Path("json/0-1.jsonl").read_text().splitlines()) == 20


# Processes of their own ---------------------------------------------------------------


@pytest.fixture
def script(tmp_path):
    """What an installation puts beside Python."""
    path = tmp_path / "bin" / "lox"
    path.parent.mkdir()
    text = "import sys\nfrom lox_host.cli.main import main\nsys.exit(main())\n"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


ENV = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(sys.path),
    "PYTHONPROFILEIMPORTTIME": "1",
}


def imports(err):
    """The modules that a process has imported, and what else it has said."""
    found = re.findall(r"import time:.*\| +(\S+)\n", err)
    return set(found), re.sub(r"import time:.*\n", "", err)


def test_it_starts_quickly_and_writes_ascii_where_that_is_asked(store, script):
    env = {**ENV, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [script, "show", f"{store}/88"], env=env, capture_output=True, text=True, check=True
    )
    names, rest = imports(done.stderr)
    assert not rest
    assert {"numpy", "lox_host.reading.select"} <= names
    # Without a terminal there are no colours, and rich takes a while.
    assert not {name for name in names if name.partition(".")[0] in ("jax", "lox", "rich")}
    assert r"\u03bb/w 3" in done.stdout


# Packages that take a second to import: each command in turn, in one process.
WITHOUT_JAX = """
import sys
from lox_host.cli.main import main
for line in sys.argv[1:]:
    command, *options = line.split()
    where = [] if command == "completion" else ["a store"]
    assert main([command, *where, *options]) == 0, line
    print(line, sorted({"jax", "jaxlib", "lox"} & sys.modules.keys()), file=sys.stderr)
"""


def test_help_and_completion_do_without_numpy():
    code = "import sys; from lox_host.cli.main import main; main(sys.argv[1:])"
    for arguments in ([], ["completion", "bash"]):
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout
        assert "lox_host.cli.main" in done.stderr
        assert "numpy" not in done.stderr


def test_no_command_imports_jax_or_lox(store):
    needed = {
        "plot": "matplotlib",
        "export --to csv": "csv",
        "export --to json": "json",
        "export --to parquet": "polars",
        "export --to tensorboard": "tensorboard",
    }
    commands = ["ls", "show", "tail --no-follow", "completion bash", *needed]
    known = [c for c in commands if importlib.util.find_spec(needed.get(c, "json"))]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX, *known],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines() == [f"{command} []" for command in known]


def test_tail_follows_what_another_process_writes(tmp_path):
    writer, run = SaveWriter(tmp_path), Run(5, "5", (5,), {}, time.time(), "g")
    writer.open(run)
    writer.write(Batch([block(np.arange(3), id=5)]))
    writer.flush()
    command = [
        sys.executable,
        "-m",
        "lox_host.cli.main",
        "tail",
        str(tmp_path),
        "--json",
        "-n",
        "2",
    ]
    process = subprocess.Popen(
        command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines = [process.stdout.readline(), process.stdout.readline()]
    for i in range(3, 60):
        writer.write(Batch([block([i], id=5, split=i % 3 == 0)]))
        writer.flush()
        time.sleep(0.02 if i % 10 else 0.4)
    writer.write(Batch([block([60], id=5)]))
    writer.close(run)  # joins all frames, and replaces the journal
    out, err = process.communicate(timeout=60)
    found = [json.loads(line) for line in [*lines, *out.splitlines()]]
    assert [row["steps"]["step"] for row in found] == list(range(1, 61))
    xs = [np.float32(row["values"]["x"]) for row in found]
    assert xs == values(np.arange(1, 61))["x"].tolist()
    names, rest = imports(err)
    assert rest == f"lox: {tmp_path} has ended.\n"
    assert process.returncode == 0
    assert "jax" not in names


def test_tail_waits_for_a_key(tmp_path, capsys):
    writer, run = SaveWriter(tmp_path), Run(5, "5", (5,), {}, time.time(), "g")
    writer.open(run)
    writer.write(Batch([block([0], id=5, split=True)]))
    writer.flush()

    def write():
        time.sleep(0.3)
        writer.write(Batch([block([1], id=5)]))
        writer.close(run)

    thread = threading.Thread(target=write)
    thread.start()
    assert main(["tail", str(tmp_path), "-k", "y"]) == 0
    thread.join()
    out, err = capsys.readouterr()
    assert out == "step 1  y [1, -1]\n"
    there, ended = err.splitlines()
    assert there == f"lox: {tmp_path} has no key 'y'. It has x. Waiting for it."
    assert ended == f"lox: {tmp_path} has ended."


def test_tail_ends_when_files_are_taken_away(tmp_path):
    writer, run = SaveWriter(tmp_path), Run(5, "5", (5,), {}, time.time(), "g")
    writer.open(run)
    writer.write(Batch([block([0, 1], id=5)]))
    writer.flush()
    (run,) = select_runs(str(tmp_path))
    session = run.reader.folder
    follower = Follower(session, [5], list)
    (rows,) = follower.last(1)
    assert rows.steps["step"].tolist() == [1]
    (session / "0000.arrows").unlink()
    with pytest.raises(OSError, match=r"A file of the session in .* is missing"):
        Follower(session, [5], list).last(1)
    shutil.rmtree(session)
    assert (follower.new(), follower.ended) == ([], True)


def test_a_process_that_is_interrupted_or_not_read_any_more_ends_quietly(tmp_path):
    writer = SaveWriter(tmp_path)
    writer.open(Run(5, "5", (5,), {}, time.time(), "g"))
    writer.write(Batch([block(np.arange(5000), id=5)]))
    writer.flush()
    env = {name: value for name, value in ENV.items() if "PROFILE" not in name}
    command = [
        sys.executable,
        "-m",
        "lox_host.cli.main",
        "tail",
        str(tmp_path),
        "-n",
        "5000",
    ]
    for code in (141, 130):
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline().startswith("step 0  x 0.000  y [0, 0]")
            if code == 141:
                process.stdout.close()
            else:
                for _ in range(4999):
                    process.stdout.readline()
                process.send_signal(signal.SIGINT)
            assert process.stderr.read() == ""
        assert process.returncode == code


def test_colours_on_a_terminal(store, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    lox.save(lox.logdict({"bad": np.float32(np.nan)}), store)
    for no_color in (False, True):
        monkeypatch.setenv("NO_COLOR", "1" if no_color else "")
        terminal = Terminal(120)
        with streams(terminal):
            assert main(["show", f"{store}/77", "-k", "loss"]) == 0
            assert main(["show", f"{store}/saved"]) == 0
            assert main(["ls", store]) == 0
            assert main(["ls", store, "-k", "loss"]) == 0
        lines = terminal.lines()
        assert (b"\x1b[36m" in terminal.raw) is not no_color
        assert bool(re.search(rb"\x1b\[31m *nan\x1b", terminal.raw)) is not no_color
        heads = [line.split() for line in lines if line.startswith(("KEY", "RUN"))]
        assert heads == [
            ["KEY", "ROWS", "LAST", "TREND"],
            ["KEY", "ROWS", "LAST", "MIN", "MAX", "TREND"],
            ["RUN", "STATE", "lr", "loss"],
            ["RUN", "#", "STATE", "lr", "loss"],
        ]


def test_a_long_configuration_is_wrapped(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    config = {f"option{i}": i for i in range(6)}
    with lox.loggers.SaveLogger(tmp_path, config=config) as logger:
        logger.log(logger.init(0), {"x": 1.0}, step=3)
    terminal = Terminal(120)
    with streams(terminal):
        main(["show", str(tmp_path / "seed0")])
    lines = terminal.lines()
    assert [line for line in lines if "option" in line] == [
        "config   option0=0  option1=1  option2=2",
        "         option3=3  option4=4  option5=5",
    ]
    assert "steps    step 3" in lines


def test_bash_completes(store, script):
    program = """
eval "$(lox completion bash)"
for COMP_LINE in 'lox show "a store/0' 'lox tail "a store/77" -k ' 'lox plot -o a'; do
    COMP_POINT=${#COMP_LINE} COMP_TYPE=9
    _python_argcomplete lox
    printf '%s|' "${COMPREPLY[@]}"
done
"""
    env = {**ENV, "PATH": f"{Path(script).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", program], env=env, capture_output=True, text=True, check=True
    )
    # Inside of the quote nothing needs to be escaped; `-o` takes any file.
    assert done.stdout == "a store/0-1@1|a store/0-1@2|loss|half|λ|a\\ store/|"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_lox(capsys, shell):
    text = said(capsys, "completion", shell)
    assert "_ARGCOMPLETE" in text
    assert "lox" in text


def test_completion(store):
    def after(line):
        return complete(line).split("\n")[:-1]

    assert after("lox s") == ["show"]
    assert after("lox --v") == ["--version"]
    assert after("lox ls ") == ["a\\ store/"]
    assert after("lox show 'a store/8") == ["a store/88"]
    assert after("lox export x --to t") == ["tensorboard", "trackio"]
    assert after("lox tail --no") == ["--no-follow"]
    assert after("lox plot 'a store/0-1' -k ") == ["x", "y"]
    assert after("lox plot nowhere/x -k ") == [""]
    assert after("lox completion ") == ["bash", "zsh", "fish"]
    assert after("lox tail --no-follow a") == ["a\\ store/"]


def test_show_counts_the_rows_of_histograms(tmp_path, capsys):
    with lox.loggers.SaveLogger(tmp_path).run(0):
        for step in range(3):
            lox.log({"h": lox.histogram(np.arange(9.0), bins=4)}, step=step)
    assert main(["show", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["keys"]["h/mean"]["rows"] == 3
