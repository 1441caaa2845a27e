"""Comma-separated values, read back by others."""

import csv
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pytest

from lox.loggers import Batch
from lox.loggers.csv import CSVLogger
from lox_host.writers import csv as _table
from lox_host.writers.csv import CSVWriter
from support.blocks import block, run, written

NAN, INF = float("nan"), float("inf")


def read(path):
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def rows(folder, *blocks):
    written(CSVWriter(folder), *blocks)
    return read(folder / "run-0.csv")


def test_columns_are_steps_and_then_keys(tmp_path):
    loss = block({"loss": np.array([0.5, 0.25])}, steps={"step": [3, 4], "epoch": [0, 1]})
    rows(tmp_path, loss)
    assert (tmp_path / "run-0.csv").read_text() == (
        "@step,@epoch,loss\n3,0,0.5\n4,1,0.25\n"
    )


@pytest.mark.parametrize(
    ("array", "cell"),
    [
        (np.array(0.1, np.float32), "0.1"),
        (np.array(1 / 3), str(1 / 3)),
        (np.array(1.5, ml_dtypes.bfloat16), "1.5"),
        (np.array(-0.5, ml_dtypes.float8_e4m3fn), "-0.5"),
        (np.array(3, ml_dtypes.int4), "3"),
        (np.array(True), "true"),
        (np.array(2**64 - 1, np.uint64), str(2**64 - 1)),
        (np.array(NAN), "NaN"),
        (np.array(-INF, np.float32), "-inf"),
        (np.array(1 + 2j), "1+2j"),
        (np.array(complex(NAN, 1)), "nan+1j"),
        (np.array([1.0, NAN], np.float32), "[1.0, null]"),
        (np.array([[True], [False]]), "[[true], [false]]"),
        (np.array([1j]), "[[0.0, 1.0]]"),
        (np.zeros((0,)), "[]"),
    ],
    ids=repr,
)
def test_every_type_has_a_form(tmp_path, array, cell):
    assert rows(tmp_path, block({"x": array[None]})) == [{"x": cell}]


def test_the_arrays_of_a_tree_have_a_column_each(tmp_path):
    tree = {"w": np.ones((1, 2)), "rest": (np.zeros(1), None)}
    assert rows(tmp_path, block({"p": tree}, runs=[0])) == [
        {"p/w": "[1.0, 1.0]", "p/rest/0": "0.0"}
    ]


def test_names_never_meet(tmp_path):
    one, two, three, four = (np.array([i]) for i in range(1, 5))
    values = {"a/b": one, "a": {"b": two}, "@step": three, "@": four}
    assert rows(tmp_path, block(values, steps={"step": [0]})) == [
        {"@step": "0", "a/b": "1", "a/b-2": "2", "@@step": "3", "@@": "4"}
    ]


def test_odd_names_come_back(tmp_path):
    names = ["a,b", 'say "x"', "two\nlines", "α", "", "\ud800"]
    (row,) = rows(tmp_path, block({name: np.array([1]) for name in names}))
    assert list(row) == [*names[:-1], "\\ud800"]


def test_a_late_key_gets_a_column(tmp_path):
    a = block({"a": np.arange(2), "v": np.ones((2, 2))}, steps={"step": [0, 1]})
    b = block({"two\nlines": np.array([5])}, steps={"step": [2], "epoch": [1]})
    c = block({"c": np.array([6])})
    none = {"@epoch": "", "two\nlines": "", "c": ""}
    assert rows(tmp_path, a, b, b, c) == [
        {"@step": "0", "a": "0", "v": "[1.0, 1.0]", **none},
        {"@step": "1", "a": "1", "v": "[1.0, 1.0]", **none},
        *2 * [{"@step": "2", "a": "", "v": "", "@epoch": "1", "two\nlines": "5", "c": ""}],
        {"@step": "", "a": "", "v": "", "@epoch": "", "two\nlines": "", "c": "6"},
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["run-0.csv"]


def test_keys_that_come_together_cost_one_change(tmp_path, monkeypatch):
    changes = []
    widen = _table._widen
    monkeypatch.setattr(
        _table, "_widen", lambda *args: changes.append(args) or widen(*args)
    )
    writer = CSVWriter(tmp_path)
    writer.open(run())
    for i in range(3):
        for j in range(5):
            writer.write(Batch([block({f"k{i}{j}": np.arange(10)})]))
        writer.flush()
    writer.close(run())
    assert len(changes) == 2
    assert len(read(tmp_path / "run-0.csv")) == 150


def test_a_late_key_leaves_a_large_file_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(_table, "LARGE", 20)
    a = block({"a": np.arange(20)}, steps={"step": range(20)})
    b = block({"b": np.arange(2)}, steps={"step": [20, 21]})
    written(CSVWriter(tmp_path), a, b, a, runs=[run(0, "a", rate=1)])
    first, second = read(tmp_path / "a.csv"), read(tmp_path / "a-2.csv")
    assert first == [{"@step": str(i), "a": str(i)} for i in range(20)]
    assert [row["@step"] for row in second] == ["20", "21", *map(str, range(20))]
    assert [row["b"] for row in second[:2]] == ["0", "1"]
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    writer = CSVWriter(tmp_path)
    writer.open(run())
    writer.write(Batch([block({"a": np.arange(2)})]))
    writer.flush()
    before = (tmp_path / "run-0.csv").read_text()
    writer.write(Batch([block({"b": np.arange(2)})]))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.flush()
    assert (tmp_path / "run-0.csv").read_text() == before
    assert len(list(tmp_path.iterdir())) == 1
    writer.close(run())
    assert [row["b"] for row in read(tmp_path / "run-0.csv")] == ["", "", "0", "1"]


def test_each_run_has_its_file_and_older_ones_stay(tmp_path):
    both = block({"x": np.arange(4)}, runs=[5, 6, 5, 6], steps={"step": [0, 0, 1, 1]})
    for _ in range(2):
        written(CSVWriter(tmp_path), both, runs=[run(5, "a"), run(6, "b")])
    for name, xs in {"a": "02", "a-2": "02", "b": "13", "b-2": "13"}.items():
        assert [row["x"] for row in read(tmp_path / f"{name}.csv")] == list(xs)


def test_nothing_logged_is_no_row(tmp_path):
    assert rows(tmp_path, block({"x": {}}, runs=[0])) == []


def test_examples_that_did_not_log_are_null(tmp_path):
    values, valid = np.ones((1, 2)), np.array([[True, False]])
    (row,) = rows(tmp_path, block({"x": values}, valid={"x": valid}))
    assert json.loads(row["x"]) == [1.0, None]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Cannot write run `run-0` into the folder"):
        CSVWriter(tmp_path / "file" / "x").open(run())


def test_pandas_and_polars_read_it(tmp_path):
    values = {
        "loss": np.array([0.5, NAN, INF], np.float32),
        "ok": np.array([True, False, True]),
        "n": np.arange(3),
        "v": np.ones((3, 2)),
    }
    late = block({"late": np.array([1.5])}, steps={"step": [3]})
    rows(tmp_path, block(values, steps={"step": [0, 1, 2]}), late)
    frame = pd.read_csv(tmp_path / "run-0.csv")
    assert frame["@step"].tolist() == [0, 1, 2, 3]
    assert frame["ok"].tolist()[:3] == [True, False, True]
    np.testing.assert_equal(frame["loss"].to_numpy(), [0.5, NAN, INF, NAN])
    assert frame["late"].tolist()[3:] == [1.5]
    frame = pl.read_csv(tmp_path / "run-0.csv")
    assert frame["ok"].to_list() == [True, False, True, None]
    assert frame["loss"].dtype == pl.Float64
    assert frame["loss"].is_nan().to_list() == [False, True, False, None]
    assert [json.loads(v) for v in frame["v"].to_list()[:3]] == [[1.0, 1.0]] * 3


def test_the_logger_takes_the_options_of_its_writer(tmp_path):
    assert isinstance(CSVLogger(tmp_path, config={"a": 1}, on_error="raise"), CSVLogger)
