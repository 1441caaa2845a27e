"""Conditions on runs, compared with Python's own `eval` on the same values."""

import math

import numpy as np
import pytest

from lox_host.reading.run_fields import in_words
from lox_host.reading.where import select_where
from lox_host.store import StoredRun


def a_run(name, config, last=None, rows=1):
    values = {key: np.float32(value) for key, value in (last or {}).items()}
    return StoredRun(
        name=name,
        key=(0, 1),
        config=config,
        start=1e9,
        rows=rows,
        keys=tuple(values),
        session="s",
        process=0,
        launch="l",
        tags=("ppo",),
        state="ended",
        last=values,
    )


RATES = [1e-4, 1e-3, 3e-3, 0.5]
RUNS = [
    a_run(
        f"r{i}",
        {"lr": lr, "env": env, "seed": i, "optim": {"beta": i / 10}, "on": i % 2 == 0},
        {"train/loss": lr * 10, "acc": math.nan if i == 3 else i},
        rows=i,
    )
    for i, (lr, env) in enumerate((lr, env) for env in ("CartPole", "Ant") for lr in RATES)
]


def names(where, runs=RUNS):
    return [run.name for run in select_where(runs, where)]


@pytest.mark.parametrize(
    "text",
    [
        "lr > 1e-3",
        "lr >= 1e-3 and env == 'CartPole'",
        'lr < 1e-3 or env != "Ant"',
        "not (lr > 1e-3 or seed in [0, 1])",
        "1 < seed <= 5",
        "env in ('Ant', 'Pong')",
        "env not in ['Ant'] and -seed < -1",
        "'Pole' in env",
        "on",
        "not on and seed < 6",
        "on == True and seed != 0",
    ],
)
def test_a_condition_means_what_python_means(text):
    truth = [run.name for run in RUNS if eval(text, {}, dict(run.config))]
    assert names(text) == truth
    assert truth


def test_names_are_nested_entries_last_values_and_fields():
    assert names("optim.beta > 0.45") == ["r5", "r6", "r7"]
    assert names("beta > 0.45") == ["r5", "r6", "r7"]
    assert names("train/loss < 0.0011") == names("loss < 0.0011") == ["r0", "r4"]
    assert names("rows > 6 and state == 'ended'") == ["r7"]
    assert names("'ppo' in tags and name == 'r1'") == ["r1"]
    assert names("acc == nan") == ["r3"]
    assert names("acc < 2") == ["r0", "r1"]
    assert names('last["acc"] > 6 and config["seed"] < 9') == ["r7"]
    assert names({"lr": 1e-3, "env": "Ant"}) == ["r5"]
    assert names({"optim.beta": np.array([0.2, 0.3])}) == ["r2", "r3"]
    assert names({"lr": [1e-3, 3e-3], "env": "Ant"}) == ["r5", "r6"]
    assert names({}) == names("seed >= 0") == [run.name for run in RUNS]


def test_an_entry_may_be_none():
    configs = {"none": {"clip": None}, "one": {"clip": 1.0}, "without": {}}
    runs = [a_run(name, config) for name, config in configs.items()]
    for where in ("clip is None", "clip == None", {"clip": None}, "not clip is not None"):
        assert names(where, runs) == ["none", "without"]
    for where in ("clip is not None", "None != clip", "clip > 0"):
        assert names(where, runs) == ["one"]
    assert names({"clip": [None, 1.0]}, runs) == [*configs]
    with pytest.raises(ValueError, match="write `is None` or `is not None`"):
        names("clip > None", runs)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("lr == 0.5 && seed < 3", "write `and`, `or` and `not`"),
        ("lr > 0.5 || on", "write `and`, `or` and `not`"),
        ("lr > 0.1, seed < 3", "write `and` between conditions"),
        ("lr = 0.5", "to compare, write `==`"),
    ],
)
def test_the_syntax_of_other_languages_is_explained(text, hint):
    with pytest.raises(ValueError, match=hint):
        names(text)


def test_a_number_of_a_device_is_the_one_that_was_typed():
    on_device = [a_run(str(x), {"lr": float(np.float32(x))}) for x in (1e-3, 0.1, 0.5)]
    assert names("lr == 1e-3", on_device) == names({"lr": 1e-3}, on_device) == ["0.001"]
    assert names("lr > 1e-3", on_device) == ["0.1", "0.5"]
    assert names("lr <= 0.1", on_device) == ["0.001", "0.1"]
    assert [in_words(run.config["lr"]) for run in on_device] == ["0.001", "0.1", "0.5"]
    close = [a_run("a", {"x": 0.5 + 1e-11}), a_run("b", {"x": 0.5})]
    assert names("x > 0.5", close) == ["a"]
    assert names({"x": 0.5}, close) == ["b"]


def test_what_a_run_lacks_is_neither_true_nor_false():
    runs = [a_run("a", {"x": 1}), a_run("b", {"y": 2}), a_run("c", {"x": "auto", "y": 2})]
    assert names("x > 0", runs) == ["a"]
    assert names("not x > 0", runs) == []
    assert names("x > 0 or y == 2", runs) == ["a", "b", "c"]
    assert names("x != 1", runs) == ["c"]
    assert names("x == 1 and y == 2", runs) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "lr = 1e-3",
            r"The condition 'lr = 1e-3' is not an expression; to compare, write `==`",
        ),
        ("lr >", r"is not an expression\. Write it like 'lr > 1e-3 and env =="),
        (
            "__import__('os').system('true')",
            r"contains .*; it may contain names, numbers, strings in",
        ),
        ("(lambda: 1)() == 1", r"it may contain names"),
        ("lr + 1 > 2", r"contains 'lr \+ 1'; it may contain names"),
        ("[x for x in 'ab'] == 1", r"it may contain names"),
        ("seed in 3", r"uses `in` with 3, which is not a list"),
        ("lr is 3", r"compares with `is`; write `==`"),
        ("-env == 1", r"has a sign before 'CartPole', which is not a number"),
        ("foo['a'] > 1", r"write config\[\"\.\.\.\"\] or last"),
        ("(" * 9999, r"is not an expression"),
    ],
)
def test_what_is_no_condition_is_an_error(text, message):
    with pytest.raises(ValueError, match=message):
        names(text)


def test_unknown_names_list_what_there_is():
    text = (
        r"'sed > 1': No run has 'sed'.* Did you mean 'seed'\? The config has lr, env, "
        "seed, optim.beta, on; last values are train/loss, acc; other names are name, state"
    )
    with pytest.raises(LookupError, match=text):
        names("sed > 1")
    with pytest.raises(LookupError, match="put it in quotes"):
        names("env == CartPole")
    with pytest.raises(LookupError, match="No run has 'los'"):
        names({"los": 1})
    runs = [a_run("a", {"optim": {"lr": 1}, "critic": {"lr": 2}})]
    with pytest.raises(LookupError, match=r"'lr' could be optim.lr, critic.lr"):
        names("lr > 0", runs)
    with pytest.raises(TypeError, match="`where` is 'int'"):
        names(3)
