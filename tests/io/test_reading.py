"""`lox.runs` and `lox.load`: words, conditions, many stores, tables."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox_host.reading import find_stores

RATES = [1e-3, 0.1]


def curve(lr, seed, rows):
    return ((1 - lr) ** np.arange(rows) * seed).astype(np.float32)


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Two rates with two seeds each, of 3, 4, 5 and 6 rows, in a vmapped `init`."""
    monkeypatch.chdir(tmp_path)
    with lox.loggers.SaveLogger(
        "results", config={"env": "Ant"}, environment=False
    ) as logger:
        keys = jax.random.split(jax.random.key(0), 4)
        rates, seeds = jnp.repeat(jnp.array(RATES), 2), jnp.array([1, 2, 1, 2])

        def start(key, lr, seed):
            config = {"optim": {"lr": lr}, "n": seed}
            return logger.init(key, config=config, name="lr={optim.lr:g}-{n}")

        states = jax.vmap(start)(keys, rates, seeds)
        for i, (lr, seed) in enumerate(zip(np.repeat(RATES, 2), [1, 2, 1, 2], strict=True)):
            state = jax.tree.map(lambda x, i=i: x[i], states)
            for step, value in enumerate(curve(lr, seed, 3 + i)):
                logger.log(state, {"train/loss": value}, step=step)
        logger.log(state, {"final": 7}, step=0)
    return jax.random.key_data(keys)


def test_every_word_means_the_same_run(sweep):
    runs = lox.runs("results")
    assert [run.name for run in runs] == [
        "lr=0.001-1",
        "lr=0.001-2",
        "lr=0.1-1",
        "lr=0.1-2",
    ]
    for i, run in enumerate(runs):
        key = tuple(sweep[i].tolist())
        assert run.key == key
        text = "-".join(map(str, key))
        words = [
            run.name,
            f"#{i}",
            text,
            text[:-2],
            f"results/{run.name}",
            run,
            key,
            sweep[i],
        ]
        words += [jax.random.wrap_key_data(sweep[i]), i, f"{run.name}@1"]
        truth = curve(np.repeat(RATES, 2)[i], [1, 2][i % 2], 3 + i)
        for word in words:
            logs = lox.load("results", "train/loss", run=word)
            np.testing.assert_array_equal(logs["train/loss"], truth)
    assert lox.load("results", run=runs[0].session)["train/loss"].shape == (4, 6)


def test_a_name_wins_over_an_index_and_the_number_of_a_session(tmp_path):
    names = ["first", "#0", "user@host", "@", "user@host@2"]
    for i, name in enumerate(names):
        with lox.loggers.SaveLogger(tmp_path, environment=False).run(i, name=name):
            lox.log({"x": i})
    for i, name in enumerate(names):
        assert lox.load(tmp_path, run=name)["x"] == i
    assert lox.load(tmp_path, run="#1")["x"] == 1
    assert lox.load(tmp_path, run="user@host@1")["x"] == 2
    assert lox.load(tmp_path, run="fir@1")["x"] == 0


def test_tables_of_several_stores_tell_their_runs_apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for i, store in enumerate("ab"):
        with lox.loggers.SaveLogger(store, environment=False).run(0, name="one"):
            lox.log({"x": i})
    table = lox.load(["a", "b"]).to_pandas()
    assert table["run"].tolist() == ["a/one", "b/one"]
    assert lox.load("b").to_pandas()["run"].tolist() == ["one"]


def test_what_is_no_run_is_an_error_that_lists_near_ones(sweep):
    for word, text in [
        (
            "lr=0.1-3",
            r"'results' has no run 'lr=0.1-3'. Did you mean 'lr=0.1-[12]'\? It has lr",
        ),
        (
            "lr=0.1",
            r"'lr=0.1' in 'results' could be lr=0.1-1, lr=0.1-2. Type more of",
        ),
        ("#4", r"'results' has no run '#4'. Runs go up to #3"),
        ("lr=0.1-1@2", r"The run 'lr=0.1-1' has no session @2. It has only one"),
        (4, r"no run with the key \(4,\). It has runs with the keys"),
    ]:
        with pytest.raises(LookupError, match=text):
            lox.load("results", run=word)
    with pytest.raises(LookupError, match="None of the 4 runs in 'results' matches lr > 1"):
        lox.load("results", where="lr > 1")
    with pytest.raises(LookupError, match=r"has no key 'los'. All keys of its session are"):
        lox.load("results", "los")
    with pytest.raises(TypeError, match="both `run` and `key`"):
        lox.load("results", run="a", key=3)


def test_unequal_runs_are_stacked_and_make_long_tables(sweep):
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    truth = [curve(np.repeat(RATES, 2)[i], [1, 2][i % 2], 3 + i) for i in range(4)]
    logs = lox.load("results")
    assert logs["train/loss"].shape == (4, 6)
    for i, own in enumerate(truth):
        np.testing.assert_array_equal(
            logs["train/loss"][i][logs.valid["train/loss"][i]], own
        )
    assert logs.valid["final"].tolist() == [False, False, False, True]
    parts = [
        pd.DataFrame({
            "run": run.name, "env": "Ant", "optim.lr": run.config["optim"]["lr"],
            "n": run.config["n"], "step": np.arange(len(own), dtype=np.int32),
            "train/loss": own,
        })
        for run, own in zip(lox.runs("results"), truth, strict=True)
    ]  # fmt: skip
    expected = pd.concat(parts, ignore_index=True)
    found = logs.filter(lambda key, _: key != "final").to_pandas()
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    polars = lox.load("results", "train/loss").to_polars()
    assert polars.drop("run", "env").equals(
        pl.from_pandas(expected.drop(columns=["run", "env"])), null_equal=True
    ) or polars.to_dicts() == expected.to_dict("records")
    some = lox.load("results", where={"lr": 0.1}).slice[-1:].to_pandas()
    assert set(some["run"]) <= {"lr=0.1-1", "lr=0.1-2"}


def test_a_config_entry_may_be_called_like_a_key(tmp_path):
    pytest.importorskip("pandas")
    with lox.loggers.SaveLogger(tmp_path, config={"lr": 1.0}) as logger:
        state = logger.init(0)
        logger.log(state, {"lr": 0.5}, step=0)
    table = lox.load(tmp_path).to_pandas()
    assert (table["config.lr"][0], table["lr"][0]) == (1.0, 0.5)
    of_runs = lox.runs(tmp_path).to_pandas()
    assert (of_runs["config.lr"][0], of_runs["lr"][0]) == (1.0, 0.5)


def test_the_table_of_runs(sweep, monkeypatch):
    pd = pytest.importorskip("pandas")
    pl = pytest.importorskip("polars")
    runs = lox.runs("results", where="lr > 0.01")
    monkeypatch.setenv("COLUMNS", "200")
    head, first, _, note = repr(runs).splitlines()
    assert head.split()[:4] == ["RUN", "#", "STATE", "n"]
    assert first.split()[:4] == ["lr=0.1-1", "2", "ended", "1"]
    assert note == "[2 runs]"
    table = runs.to_pandas()
    assert table["name"].tolist() == ["lr=0.1-1", "lr=0.1-2"]
    assert table["optim.lr"].tolist() == [0.1, 0.1]
    assert table["final"].isna().tolist() == [True, False]
    assert table["final"][1] == 7
    assert runs.to_polars()["rows"].to_list() == [5, 6]
    assert runs.to_polars()["final"].to_list() == [None, 7]
    assert isinstance(table, pd.DataFrame)
    assert isinstance(runs.to_polars(), pl.DataFrame)
    assert runs._repr_html_().startswith("<table><thead><tr><th")
    assert type(runs[:1]) is type(runs)
    assert repr(runs.where("n > 5")) == "no runs"


def test_names_from_a_store_are_escaped(tmp_path):
    with lox.loggers.SaveLogger(tmp_path, config={"<b>": "\x1b[1m"}) as logger:
        for i, name in enumerate(["<script>alert(1)</script>", "b\x1b[2J"]):
            logger.log(logger.init(i, name=name, config={"<i>": i}), {"<u>": 1.0})
    runs = lox.runs(tmp_path)
    page = runs._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<i>" not in page
    assert "\x1b" not in page + repr(runs)


def test_many_stores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for job in (0, 2, 10):
        with lox.loggers.SaveLogger(
            f"multirun/{job}/results", config={"job": job}
        ) as logger:
            logger.log(logger.init(0, name="main"), {"x": float(job)}, step=0)
    os.makedirs("multirun/.git/objects")
    os.symlink(tmp_path / "multirun", tmp_path / "multirun" / "loop")
    stores = [f"multirun/{job}/results" for job in (0, 2, 10)]
    every = ["multirun", "multirun/*/results", "multirun/**/results", stores]
    every += [[pathlib.Path(store) for store in stores], ["multirun/0", *stores]]
    for paths in every:
        assert find_stores(paths) == stores
        assert [run.path for run in lox.runs(paths)] == [f"{s}/main" for s in stores]
        np.testing.assert_array_equal(np.ravel(lox.load(paths)["x"]), [0, 2, 10])
    assert lox.load("multirun", run="multirun/2/results/main")["x"] == 2
    assert lox.load("multirun", where={"job": 10})["x"] == 10
    with pytest.raises(
        LookupError, match="could be multirun/0/results/main, multirun/2/resul"
    ):
        lox.load("multirun", run="main")
    with pytest.raises(FileNotFoundError, match="No such folder: 'multirun/x"):
        lox.runs("multirun/x*")


def test_the_same_key_with_another_config_is_another_run(tmp_path):
    for rate in (0.1, 0.2, 0.2):
        with lox.loggers.SaveLogger(tmp_path, config={"lr": rate}) as logger:
            logger.log(logger.init(3), {"x": rate})
    np.testing.assert_allclose(lox.load(tmp_path)["x"], [0.1, 0.2])
    assert len(lox.runs(tmp_path)) == 3


def test_1024_runs_are_listed_in_a_second(tmp_path):
    """Runs with their own configs: sort, where and groups, in CPU time."""
    resource = pytest.importorskip("resource")
    with lox.loggers.SaveLogger(tmp_path / "s", environment=False) as logger:
        lr = jnp.geomspace(1e-5, 1.0, 1024)
        init = jax.vmap(lambda seed, lr: logger.init(seed, config={"lr": lr, "n": seed}))
        states = init(jnp.arange(1024), lr)

        @jax.vmap
        def log(state, lr, i):
            logger.log(state, {"loss": lr * i, "acc": lr + i}, step=i)

        for i in range(3):
            log(states, lr, jnp.full(1024, i))
    truth = np.sort(np.asarray(lr * 2)[np.asarray(lr) > 1e-3])[::-1][:3]
    command = [sys.executable, "-m", "lox_host.cli.main", "ls", str(tmp_path / "s")]
    command += ["--where", "lr > 1e-3", "--sort=-loss", "--limit", "3", "-k", "loss"]
    best = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    lines = done.stdout.splitlines()[1:4]
    found = [float(line.split()[5]) for line in lines]
    np.testing.assert_allclose(found, truth, rtol=1e-3)
    assert min(best) < 1.0


@pytest.mark.parametrize("one_session", [True, False])
def test_runs_of_one_name_with_different_configs_are_all_found(tmp_path, one_session):
    store = str(tmp_path / "store")
    with lox.loggers.SaveLogger(store) as logger:
        if one_session:
            logger.init(7, name="open all the time")
        for lr in (0.25, 0.5, 0.75):
            state = logger.init(0, config={"lr": lr}, name="base")
            logger.log(state, {"x": lr}, step=0)
            logger.log(state, {"x": lr + 1}, step=1)
            logger.finish(state)

    def first(**kwargs):
        return lox.load(store, **kwargs)["x"][..., 0].tolist()

    runs = [run for run in lox.runs(store) if run.name == "base"]
    assert len({run.session for run in runs}) == (1 if one_session else 3)
    assert [first(run=word) for word in ("base", "ba", "0", 0)] == 4 * [[0.25, 0.5, 0.75]]
    for number, run in enumerate(runs, 1):
        lr = run.config["lr"]
        assert first(run=run) == first(run="base", where={"lr": lr}) == lr
        assert first(run=f"base@{number}") == lr
        expected = [0, 0.25, 0.5, 0.75] if one_session else lr
        assert first(run=run.session) == expected
