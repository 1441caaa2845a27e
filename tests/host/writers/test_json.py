"""JSON lines, read back by others."""

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pandas as pd
import polars as pl
import pytest

from lox.loggers import Batch
from lox.loggers.json import JSONLogger
from lox_host.writers.json import JSONWriter
from support.blocks import block, run, written

NAN, INF = float("nan"), float("inf")


def strict(line):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def read(path):
    return [strict(line) for line in Path(path).read_text().splitlines()]


def rows(folder, *blocks, **options):
    written(JSONWriter(folder, **options), *blocks)
    (path,) = folder.glob("*.jsonl")
    return read(path)


def test_a_line_holds_steps_and_values(tmp_path):
    loss = block({"loss": np.array([0.5, 0.25])}, steps={"step": [3, 4]})
    assert rows(tmp_path, loss) == [{"@step": 3, "loss": 0.5}, {"@step": 4, "loss": 0.25}]


def test_a_key_may_be_called_like_a_step(tmp_path):
    values = {"step": np.array([7]), "@step": np.array([8])}
    (row,) = rows(tmp_path, block(values, steps={"step": [1]}))
    assert row == {"@step": 1, "step": 7, "@@step": 8}


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(0.1, np.float32), 0.1),
        (np.array(1 / 3, np.float64), 1 / 3),
        (np.array(1.5, ml_dtypes.bfloat16), 1.5),
        (np.array(-0.5, ml_dtypes.float8_e4m3fn), -0.5),
        (np.array(3, ml_dtypes.int4), 3),
        (np.array(True), True),
        (np.array(2**64 - 1, np.uint64), 2**64 - 1),
        (np.array(-(2**63), np.int64), -(2**63)),
        (np.array(1 + 2j), [1.0, 2.0]),
        (np.array([1 + 2j, 3], np.complex64), [[1.0, 2.0], [3.0, 0.0]]),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([0.1, 0.2], np.float32), [0.1, 0.2]),
        (np.zeros((0, 3), np.float32), []),
        (np.array([7, 9], np.uint32), [7, 9]),
        (np.array([1, NAN, -INF]), [1.0, None, None]),
    ],
    ids=repr,
)
def test_every_type_can_be_read_back(tmp_path, array, expected):
    (row,) = rows(tmp_path, block({"x": array[None]}))
    assert row == {"x": expected}
    assert type(row["x"]) is type(expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_floats_come_back_exactly(tmp_path, dtype):
    values = np.random.default_rng(0).normal(size=1000).astype(dtype)
    read = [row["x"] for row in rows(tmp_path, block({"x": values}))]
    assert np.array(read).astype(dtype).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    ("nan", "expected"),
    [
        ("null", [None, None, None, 1.0]),
        ("text", ["NaN", "Infinity", "-Infinity", 1.0]),
        ({"nan": -1, "inf": "big"}, [-1, "big", None, 1.0]),
    ],
)
def test_what_is_no_number_is_what_the_user_chooses(tmp_path, nan, expected):
    values = np.array([NAN, INF, -INF, 1.0])
    assert [row["x"] for row in rows(tmp_path, block({"x": values}), nan=nan)] == expected


@pytest.mark.parametrize("nan", ["None", {"NaN": 0}, 3, {"inf": INF}])
def test_other_choices_are_errors(tmp_path, nan):
    with pytest.raises(ValueError, match=r"`nan` is|JSON compliant"):
        JSONWriter(tmp_path, nan=nan)


def test_trees_are_objects_and_lists(tmp_path):
    tree = {"w": np.ones((1, 2)), "rest": (np.zeros(1), None)}
    (row,) = rows(tmp_path, block({"p": tree}, runs=[0]))
    assert row == {"p": {"w": [1.0, 1.0], "rest": [0.0, None]}}


def test_examples_that_did_not_log_are_null(tmp_path):
    values = {"x": np.ones((1, 2, 2)), "z": np.ones((1, 2)) * 1j}
    valid = dict.fromkeys(values, np.array([[True, False]]))
    (row,) = rows(tmp_path, block(values, valid=valid))
    assert row == {"x": [[1.0, 1.0], [None, None]], "z": [[0.0, 1.0], [None, None]]}


def test_each_run_has_its_file(tmp_path):
    both = block({"x": np.arange(4)}, runs=[5, 6, 5, 6], steps={"step": [0, 0, 1, 1]})
    written(JSONWriter(tmp_path), both, both, runs=[run(5, "a"), run(6, "b")])
    assert [row["x"] for row in read(tmp_path / "a.jsonl")] == [0, 2, 0, 2]
    assert [row["x"] for row in read(tmp_path / "b.jsonl")] == [1, 3, 1, 3]


def test_older_files_stay(tmp_path):
    for value in range(3):
        written(JSONWriter(tmp_path), block({"x": np.array([value])}), runs=[run(0, "a")])
    for name, value in {"a.jsonl": 0, "a-2.jsonl": 1, "a-3.jsonl": 2}.items():
        assert read(tmp_path / name) == [{"x": value}]


def test_a_name_stays_in_the_folder(tmp_path):
    folder = tmp_path / "inside" / "deep"
    for i, name in enumerate(["../../x", "/etc/x", "..", "a b\n"]):
        JSONWriter(folder).open(run(i, name))
    assert len(list(folder.iterdir())) == 4
    assert len(list(tmp_path.rglob("*"))) == 6


def test_the_config_is_beside_the_rows(tmp_path):
    config = {
        "rate": 0.1,
        "worst": INF,
        "shape": (1, 2),
        "seed": np.int32(3),
        "f": Path("x"),
    }
    written(JSONWriter(tmp_path), runs=[run(0, "a", **config)])
    assert strict((tmp_path / "a.config.json").read_text()) == {
        "rate": 0.1,
        "worst": None,
        "shape": [1, 2],
        "seed": 3,
        "f": "x",
    }
    written(JSONWriter(tmp_path), runs=[run(0, "b")])
    assert not (tmp_path / "b.config.json").exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Cannot write run `run-0` into the folder"):
        JSONWriter(tmp_path / "file").open(run())


def test_a_file_that_is_gone_is_an_error(tmp_path):
    writer = JSONWriter(tmp_path)
    writer.open(run())
    (tmp_path / "run-0.jsonl").unlink()
    writer.write(Batch([block({"x": np.arange(2)})]))
    with pytest.raises(FileNotFoundError):
        writer.flush()


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    writer = JSONWriter(tmp_path)
    writer.open(run())
    writer.write(Batch([block({"x": np.arange(2)})]))
    writer.flush()
    write, calls = os.write, []

    def full(file, data):
        calls.append(data)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return write(file, data[:5])

    writer.write(Batch([block({"x": np.arange(2, 4)})]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            writer.flush()
    assert [row["x"] for row in read(tmp_path / "run-0.jsonl")] == [0, 1]
    writer.close(run())
    assert [row["x"] for row in read(tmp_path / "run-0.jsonl")] == [0, 1, 2, 3]


def test_more_runs_than_open_files(tmp_path):
    runs = [run(i) for i in range(2000)]
    every = block({"x": np.arange(2000)}, runs=range(2000))
    written(JSONWriter(tmp_path), every, every, runs=runs)
    assert read(tmp_path / "run-1999.jsonl") == 2 * [{"x": 1999}]


def test_pandas_and_polars_read_it(tmp_path):
    values = {"loss": np.array([0.5, NAN]), "ok": np.array([True, False])}
    values["v"] = np.ones((2, 3), np.float32)
    rows(tmp_path, block(values, steps={"step": [0, 1]}))
    frame = pd.read_json(tmp_path / "run-0.jsonl", lines=True)
    assert list(frame.columns) == ["@step", "loss", "ok", "v"]
    assert frame["loss"].isna().tolist() == [False, True]
    frame = pl.read_ndjson(tmp_path / "run-0.jsonl")
    assert frame["loss"].to_list() == [0.5, None]
    assert frame["v"].to_list() == [[1.0] * 3] * 2


def test_the_logger_takes_the_options_of_its_writer(tmp_path):
    logger = JSONLogger(tmp_path, nan="text", config={"a": 1}, on_error="raise")
    assert isinstance(logger, JSONLogger)
    with pytest.raises(ValueError, match="`nan` is"):
        JSONLogger(tmp_path, nan="no")  # pyright: ignore[reportArgumentType]
