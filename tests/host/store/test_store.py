"""The store: what was flushed is there, whatever happens, and others can read it."""

import dataclasses
import os
import pathlib
import random
import resource
import shutil
import struct
import subprocess
import sys
import time
import warnings

import ml_dtypes
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import lox
from lox.loggers import Batch, Block, Form
from lox_host import tree
from lox_host.reading import select as _select
from lox_host.store import (
    compact as _compact,
    open_store,
    session as _session,
)
from lox_host.store.format import segments as _segments
from lox_host.store.format.dtypes import dtype_named, from_stored, is_storable, to_stored
from lox_host.store.format.frame_reader import StaleSession
from lox_host.store.run_statistics import last_values
from lox_host.writers.save import SaveWriter
from support import storing
from support.blocks import in_packet
from support.storing import block, run, values

PLAIN = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
OTHERS = [
    name
    for name in dir(ml_dtypes)
    if name.startswith(("bfloat", "float", "int", "uint")) and name != "finfo"
]
SHAPES = [(), (3,), (2, 2), (0,), (2, 0, 3)]


def every_code(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Seven rows of random bits: NaNs, infinities and zeros of either sign among them."""
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    bits = {"bool": 1}.get(name, 8)
    if dtype.isbuiltin == 2:
        info = ml_dtypes.iinfo if "int" in name else ml_dtypes.finfo
        bits = min(info(dtype).bits, 8)
    size = 7 * int(np.prod(shape)) * dtype.itemsize
    codes = np.random.default_rng(size).integers(0, 2**bits, size, np.uint8)
    return codes.view(dtype).reshape(7, *shape)


def written(path, batches, *, close=True, **options):
    """Write batches of blocks, a flush after each."""
    writer = SaveWriter(path, **options)
    writer.open(run(0))
    for blocks in batches:
        writer.write(Batch(blocks))
        writer.flush()
    if close:
        writer.close(run(0))
    return writer


def single(array, **steps):
    steps = {name: np.asarray(step) for name, step in steps.items()}
    runs = np.zeros(len(array), np.int32)
    return Block(runs, steps, {"x": array}, {"x": Form(time=True)})


def in_order(blocks):
    """The same blocks, logged one after the other."""
    ends = np.cumsum([len(of) for of in blocks])
    return [
        dataclasses.replace(of, order=np.arange(end - len(of), end))
        for of, end in zip(blocks, ends, strict=True)
    ]


def files(path, pattern="*/*.arrows"):
    return sorted(pathlib.Path(path).glob(pattern))


def tables(path):
    """What polars and pyarrow read from all files; both the same."""
    found = [pa.ipc.open_stream(file).read_all() for file in files(path)]
    for file, table in zip(files(path), found, strict=True):
        ours, columns = pl.read_ipc_stream(file), table.to_pydict()
        # As text, in which NaN is NaN.
        assert {name: str(ours[name].to_list()) for name in ours.columns} == {
            name: str(column) for name, column in columns.items()
        }
    return found


def assert_bits_equal(a, b):
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


def assert_prefix(logs, least, most=10**6):
    """The first rows of what `storing` writes, at least as many as had been flushed."""
    steps = logs.step["x"]
    assert least <= len(steps) <= most
    np.testing.assert_array_equal(steps, np.arange(len(steps)))
    assert_bits_equal(logs["x"], values(steps)["x"])
    if "y" in logs:
        assert_bits_equal(logs["y"], values(logs.step["y"])["y"])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("close", [False, True])
def test_every_dtype_comes_back_bit_by_bit(tmp_path, shape, close):
    arrays = {name: every_code(name, shape) for name in PLAIN + OTHERS}
    forms = dict.fromkeys(arrays, Form(time=True))
    parts = [{name: x[at] for name, x in arrays.items()} for at in (slice(4), slice(4, 7))]
    blocks = [Block(np.zeros(len(p["bool"]), np.int32), {}, p, forms) for p in parts]

    written(tmp_path, [[b] for b in blocks], close=close)

    for _ in range(2):
        logs = lox.load(tmp_path)
        for name, array in arrays.items():
            assert_bits_equal(logs[name], array)
    (table,) = tables(tmp_path)
    for name in PLAIN if np.prod(shape) else []:
        if "complex" not in name:
            assert str(table[name].to_pylist()) == str(arrays[name].tolist())


@pytest.mark.parametrize("name", OTHERS)
def test_every_code_of_small_dtypes_can_be_stored(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    info = ml_dtypes.iinfo if "int" in name else ml_dtypes.finfo
    codes = np.arange(2 ** info(dtype).bits).astype(f"u{dtype.itemsize}").view(dtype)

    assert is_storable(dtype)
    assert_bits_equal(from_stored(to_stored(codes), dtype), codes)
    wide = to_stored(codes)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(wide, codes.astype(wide.dtype))


def test_others_read_steps_keys_and_runs(tmp_path):
    steps = np.arange(5)
    writer = SaveWriter(tmp_path)
    for i in range(2):
        writer.open(run(i, id=i))
    for i in range(2):
        writer.write(Batch([block(steps + i, id=i)]))
    writer.flush()

    frame = pl.read_ipc_stream(files(tmp_path)[0])
    assert frame.columns == ["@run", "@row", "@time", "@step", "x", "y"]
    assert frame["@run"].to_list() == [0] * 5 + [1] * 5
    assert frame["@row"].to_list() == list(range(10))
    assert frame["@step"].to_list() == [0, 1, 2, 3, 4, 1, 2, 3, 4, 5]
    second = values(steps + 1)
    np.testing.assert_array_equal(frame["x"].to_numpy()[5:], second["x"])
    np.testing.assert_array_equal(frame["y"].to_numpy()[5:], second["y"])
    pandas = pa.ipc.open_stream(files(tmp_path)[0]).read_pandas()
    np.testing.assert_array_equal(pandas["x"][5:], second["x"])
    for i in range(2):
        writer.close(run(i, id=i))
    for i in range(2):
        np.testing.assert_array_equal(lox.load(tmp_path, key=(i,)).step["x"], steps + i)


KEYS = ["../../x", "/etc/x", "", ".", "a/b", "a\0b", "ä→😀", "k" * 10_000, "@run", "@step"]


def test_keys_are_never_paths(tmp_path):
    inside = tmp_path / "a" / "b" / "store"
    arrays = {key: np.full(3, i) for i, key in enumerate(KEYS)}
    arrays = {**arrays, "a": {"b": np.arange(3)}, "\ud800": np.arange(3)}
    forms = dict.fromkeys(arrays, Form(time=True))

    for _ in range(2):
        rows = Block(np.zeros(3, np.int32), {"step": np.arange(3)}, arrays, forms)
        written(inside, [[rows], [rows]])

        logs = lox.load(inside)
        assert list(logs) == list(arrays)
        for i, key in enumerate(KEYS):
            np.testing.assert_array_equal(logs[key], [i] * 6)
        np.testing.assert_array_equal(logs["a"]["b"], [0, 1, 2] * 2)
        assert tables(inside)[0].num_columns == 4 + len(arrays)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["store"]


def test_rows_of_several_files_come_in_order(tmp_path):
    blocks = [[block([i], split=i % 3 == 1)] for i in range(20)]

    for close in (False, True):
        written(tmp_path / str(close), blocks, close=close)

        logs = lox.load(tmp_path / str(close))
        assert_prefix(logs, 20)
        np.testing.assert_array_equal(logs.epoch.valid["x"], np.arange(20) % 3 == 1)
        np.testing.assert_array_equal(logs.step["y"], [i for i in range(20) if i % 3 != 1])


def test_frames_are_joined_at_the_end(tmp_path):
    writer = written(tmp_path, [[block([i])] for i in range(100)], close=False)
    (before,) = tables(tmp_path)
    assert before["x"].num_chunks == 100

    writer.close(run(0))
    (after,) = tables(tmp_path)

    assert after["x"].num_chunks == 1
    assert after.equals(before.combine_chunks())
    assert_prefix(lox.load(tmp_path), 100)
    (session,) = files(tmp_path, "*-*")
    assert sorted(path.name for path in session.iterdir()) == ["0001.arrows", "journal"]


def test_a_few_small_frames_stay_as_they_are(tmp_path):
    written(tmp_path, [[block([i])] for i in range(4)])

    (table,) = tables(tmp_path)
    assert table["x"].num_chunks == 4
    assert_prefix(lox.load(tmp_path), 4, 4)


DIFFERENT = {
    "nothing": lambda array: array,
    "its dtype": lambda array: array.astype(np.float64),
    "its byte order": lambda array: array.astype(">f4"),
    "its shape": lambda array: array[:, None],
    "a tree": lambda array: {"a": array},
    "a list": lambda array: [array, [array]],
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_small_blocks_of_a_batch_are_stored_as_they_are(tmp_path, name):
    blocks = [single(np.float32([i, i + 0.5]), i=[i, 2 * i]) for i in range(20)]
    other = DIFFERENT[name](blocks[7].values["x"])
    blocks[7] = dataclasses.replace(blocks[7], values={"x": other})

    written(tmp_path, [in_order(blocks)])

    (reader,) = open_store(tmp_path)
    rows = list(Batch(list(reader.blocks([0]))).rows())
    expected = [(step, x) for i in range(20) for step, x in ((i, i), (2 * i, i + 0.5))]
    for row, (step, x) in zip(rows, expected, strict=True):
        assert row.steps["i"] == step
        leaves = [array for _, array in tree.leaves(row.values)]
        assert [array.tolist() for array in leaves] == [
            [x] if array.ndim else x for array in leaves
        ]
    kinds = {tuple(a.dtype.name for _, a in tree.leaves(row.values)) for row in rows}
    assert len(kinds) == 1 + (name in ("its dtype", "a list"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int8", "bool"])
def test_large_blocks_load_as_written(tmp_path, dtype):
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(n, 64, 64)).astype(dtype_named(dtype)) for n in (100, 1, 60)]
    blocks = [single(x, i=np.arange(len(x))) for x in arrays]

    written(tmp_path, [in_order(blocks)])

    assert_bits_equal(lox.load(tmp_path)["x"], np.concatenate(arrays))
    assert len(tables(tmp_path)[0]) == 161


@pytest.mark.parametrize("place", [(0, 3, 5), (2, 59, 63)])
def test_a_large_array_with_a_nan_is_noted(tmp_path, place):
    arrays = np.zeros((3, 60, 64, 64), np.float32)
    arrays[*place, 1] = np.inf
    written(tmp_path, [[single(x, i=np.arange(60)) for x in arrays]])

    (reader,) = open_store(tmp_path)
    ((frame,),) = reader.frames.values()
    assert [reader.layouts[0].columns[i].name for i in frame.nonfinite] == ["@time", "x"]


def test_frames_become_no_larger_than_they_should(tmp_path, monkeypatch):
    monkeypatch.setattr(_compact, "BYTES", 20_000)

    written(tmp_path, [[block([i])] for i in range(101)])

    (table,) = tables(tmp_path)
    assert 1 < table["x"].num_chunks < 10
    assert_prefix(lox.load(tmp_path), 101, 101)


def test_a_damaged_frame_is_not_joined(tmp_path):
    writer = written(tmp_path, [[block([i])] for i in range(10)], close=False)
    (file,) = files(tmp_path)
    file.write_bytes(_flipped_at(file.read_bytes(), -5))

    writer.close(run(0))

    assert files(tmp_path) == [file]
    with pytest.warns(UserWarning, match="A part of 'y', 1 rows"):
        assert_prefix(lox.load(tmp_path), 10, 10)


def test_a_session_may_be_rewritten_or_removed_while_it_is_read(tmp_path, monkeypatch):
    writer = SaveWriter(tmp_path)
    both = np.array([0, 1] * 4, np.int32)
    for i in range(2):
        writer.open(run(i, id=i))
    for _ in range(3):
        writer.write(Batch([Block(both, {}, {"x": np.arange(8)}, {"x": Form(time=True)})]))
        writer.flush()
    old = open_store(tmp_path)
    for i in range(2):
        writer.close(run(i, id=i))

    answers = iter([old])
    now = lambda path: next(answers, None) or open_store(path)  # noqa: E731
    monkeypatch.setattr(_select, "open_store", now)
    assert [r.rows for r in lox.runs(tmp_path)] == [12, 12]
    answers = iter([old])
    np.testing.assert_array_equal(lox.load(tmp_path)["x"][1], [1, 3, 5, 7] * 3)
    written(tmp_path, [], mode="w")
    with pytest.raises(StaleSession):
        list(old[0].blocks())


def test_only_the_frames_of_a_run_are_read(tmp_path):
    writer = SaveWriter(tmp_path)
    for i in range(2):
        writer.open(run(i, id=i))
        writer.write(Batch([block(np.arange(1000), id=i)]))
        writer.flush()
    (file,) = files(tmp_path)
    file.write_bytes(_flipped_at(file.read_bytes(), -1000))

    assert_prefix(lox.load(tmp_path, key=(0,)), 1000, 1000)
    with pytest.warns(UserWarning, match="A part of 'y', 1000 rows"):
        assert_prefix(lox.load(tmp_path, key=(1,)), 1000, 1000)
    for i in range(2):
        writer.close(run(i, id=i))


def test_a_frame_without_rows_of_a_run_is_not_read(tmp_path):
    writer = SaveWriter(tmp_path)
    for i in range(3):
        writer.open(run(i, id=i))
    around = np.array([0, 2] * 500, np.int32)
    values = np.random.default_rng(0).normal(size=1000)
    for runs in (around, np.full(1000, 1, np.int32)):
        rows = Block(runs, {}, {"x": values}, {"x": Form(time=True)})
        writer.write(Batch([rows]))
        writer.flush()
    (file,) = files(tmp_path)
    file.write_bytes(_flipped_at(file.read_bytes(), file.stat().st_size // 2 - 1000))

    np.testing.assert_array_equal(lox.load(tmp_path, key=(1,))["x"], values)
    with pytest.warns(UserWarning, match="A part of 'x', 1000 rows"):
        assert lox.load(tmp_path, key=(0,)) == {}
    for i in range(3):
        writer.close(run(i, id=i))


def _flipped_at(data, at):
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def test_a_run_that_is_opened_later_begins_another_session(tmp_path):
    writer = SaveWriter(tmp_path)
    for n in (3, 5):
        writer.open(run(0))
        writer.write(Batch([block(np.arange(n))]))
        writer.close(run(0))
        writer.flush()

        assert_prefix(lox.load(tmp_path), n, n)
    assert [r.rows for r in lox.runs(tmp_path)] == [3, 5]


def test_blocks_of_some_runs_and_keys_since_a_row(tmp_path):
    writer = SaveWriter(tmp_path)
    for i in range(2):
        writer.open(run(i, id=i))
    for i in range(6):
        writer.write(Batch([block([i], id=i % 2)]))
        writer.flush()
    (before,) = open_store(tmp_path)
    since = before.last_rows()
    for i in range(6, 10):
        writer.write(Batch([block([i], id=i % 2)]))
        writer.flush()

    def steps(reader, *args):
        return [step for rows in reader.blocks(*args) for step in rows.steps["step"]]

    for _ in range(2):
        (reader,) = open_store(tmp_path)
        assert steps(reader) == list(range(10))
        assert steps(reader, [1], ["x"], since) == [7, 9]
        assert steps(reader, None, ["z"]) == []
        (*_, last) = reader.blocks([0], ["y"])
        assert list(last.values) == ["y"]
        np.testing.assert_array_equal(last.values["y"][-1], [8, -8])
        assert last_values(reader) == {0: {"x": values(8)["x"]}, 1: {"x": values(9)["x"]}}
        # The second time, all is in one frame.
        for i in range(2):
            writer.close(run(i, id=i))


def test_large_files_are_followed_by_others(tmp_path, monkeypatch):
    monkeypatch.setattr(_segments, "SIZE", 2000)
    written(tmp_path, [[block([i])] for i in range(30)], close=False)

    assert len(files(tmp_path)) > 3
    assert sum(table.num_rows for table in tables(tmp_path)) == 30
    assert_prefix(lox.load(tmp_path), 30, 30)


def test_few_files_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(_segments, "OPEN", 2)
    kinds = [single(np.full((2, n), n), **{f"s{n}": [0, 1]}) for n in range(1, 6)]
    kinds = [Block(b.runs, b.steps, {f"x{i}": b.values["x"]}, {f"x{i}": Form()})
             for i, b in enumerate(kinds)]  # fmt: skip

    written(tmp_path, [kinds, kinds], close=False)

    logs = lox.load(tmp_path)
    for i in range(5):
        np.testing.assert_array_equal(logs[f"x{i}"], np.full((4, i + 1), i + 1))


@pytest.mark.parametrize("limit", ["BYTES", "BLOCKS"])
def test_many_rows_do_not_wait_for_a_flush(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(_session, limit, 10)
    writer = SaveWriter(tmp_path)
    writer.open(run(0))
    for i in range(25):
        writer.write(Batch([block([i])]))

    assert_prefix(lox.load(tmp_path), 20)
    writer.close(run(0))


def test_a_key_is_read_without_the_others(tmp_path):
    big = np.ones((1000, 1000))
    rows = Block(
        np.zeros(1000, np.int32), {}, {"big": big, "x": big[0]},
        {"big": Form(time=True), "x": Form(time=True)},
    )  # fmt: skip
    written(tmp_path, [[rows]])
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    before = _bytes_read()
    np.testing.assert_array_equal(lox.load(tmp_path, "x")["x"], big[0])
    assert _bytes_read() - before < 100_000 < file.stat().st_size / 50
    with pytest.warns(UserWarning, match="A part of 'big', 1000 rows"):
        logs = lox.load(tmp_path)
    assert list(logs) == ["x"]


def _bytes_read() -> int:
    lines = pathlib.Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def test_adding_costs_what_is_added(tmp_path):
    size = 0
    for _ in range(3):
        before = {path: path.read_bytes() for path in files(tmp_path, "*/*")}
        written(tmp_path, [[block(np.arange(50))]])

        assert before.items() <= {p: p.read_bytes() for p in files(tmp_path, "*/*")}.items()
        more = sum(path.stat().st_size for path in files(tmp_path, "*/*")) - size
        assert size in (0, more * (size // more))
        size += more


def test_modes(tmp_path):
    other = tmp_path / "mine.txt"
    other.write_text("mine")
    written(tmp_path, [[block([0])]])
    written(tmp_path, [[block([0, 1])]], mode="a")
    assert len(lox.runs(tmp_path)) == 2
    sessions = [file.parent for file in files(tmp_path)]
    (sessions[0] / "mine.txt").write_text("mine")
    left = tmp_path / "20260101-000000-000000000-0-00000000"
    left.mkdir()
    (left / "0000.arrows").write_text("what a crash has left")

    with pytest.raises(FileExistsError, match="already, and `mode` is 'x'"):
        written(tmp_path, [[block([0])]], mode="x")
    writer = written(tmp_path, [[block([0, 1, 2])]], mode="w")
    assert [r.rows for r in lox.runs(tmp_path)] == [3]
    assert (sessions[0] / "mine.txt").exists()
    assert not sessions[1].exists()
    assert not left.exists()
    assert other.read_text() == "mine"
    writer.open(run(1))
    writer.close(run(1))
    assert len(lox.runs(tmp_path)) == 2

    written(tmp_path / "new", [[block([0])]], mode="x")
    assert_prefix(lox.load(tmp_path / "new"), 1)
    with pytest.raises(ValueError, match="not 'r'"):
        written(tmp_path, [], mode="r")


def test_a_path_that_cannot_be_written_to_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")

    for path in (tmp_path / "file", tmp_path / "file" / "store", "/proc/store"):
        with pytest.raises(
            OSError, match=r"Cannot write to a store in '.*': .*Give a folder"
        ):
            SaveWriter(path).open(run(0))


def test_a_dtype_that_cannot_be_stored_is_an_error(tmp_path):
    writer = SaveWriter(tmp_path)
    writer.open(run(0))

    with pytest.raises(TypeError, match="'x' has the dtype `<U1`"):
        writer.write(Batch([single(np.array(["a"]))]))
    writer.close(run(0))


def test_what_was_flushed_outlives_a_kill(tmp_path):
    _child("kill", tmp_path)

    for i in range(40):
        said = (tmp_path / f"{i}.acknowledged").read_bytes()
        flushed = dict(struct.iter_unpack("ii", said))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = {r.key: r for r in lox.runs(tmp_path / str(i))}
            for number, rows in flushed.items():
                assert found[number,].rows >= rows - rows // 7
                assert_prefix(lox.load(tmp_path / str(i), key=(number,)), rows, 40)


def _child(*args):
    root = pathlib.Path(lox.__file__).parents[1]
    code = [sys.executable, storing.__file__, *map(str, args)]
    subprocess.run(code, check=True, env={**os.environ, "PYTHONPATH": str(root)})


def test_two_processes_write_while_another_reads(tmp_path):
    path = tmp_path / "store"
    root = pathlib.Path(lox.__file__).parents[1]
    code = [sys.executable, storing.__file__, "two", str(path)]
    child = subprocess.Popen(code, env={**os.environ, "PYTHONPATH": str(root)})
    lengths = []
    while child.poll() is None:
        if path.exists() and (path / "lox.json").exists():
            for one in lox.runs(path):
                logs = lox.load(path, key=one.key)
                if "x" in logs:
                    assert_prefix(logs, one.rows)
                    lengths.append(len(logs["x"]))
        time.sleep(0.001)

    assert child.returncode == 0
    assert len(set(lengths)) > 2
    for number in range(2):
        assert_prefix(lox.load(path, key=(number,)), 200, 200)
    assert lox.load(path)["x"].shape == (2, 200)


def _truncated(data, random):
    return data[: random.randrange(len(data) * 3 // 4, len(data))]


def _zeroed(data, random):
    rest = _truncated(data, random)
    return rest + bytes(len(data) - len(rest))


def _flipped(data, random):
    at = random.randrange(len(data) * 3 // 4, len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("damage", [_truncated, _zeroed, _flipped])
def test_damage_is_noticed_and_left_out(tmp_path, damage, close):
    chance = random.Random(f"{damage} {close}")
    path = tmp_path / "store"
    batches = [[block(np.arange(i, i + 3), split=i % 2 == 1)] for i in range(0, 30, 3)]
    written(path, batches, close=close)
    clean = {file: file.read_bytes() for file in files(path, "*/*")}

    for _ in range(10):
        file = chance.choice(sorted(clean))
        file.write_bytes(damage(clean[file], chance))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                logs = lox.load(path)
            except LookupError:
                logs = lox.logdict()
        if "x" in logs:
            assert_bits_equal(logs["x"], values(logs.step["x"])["x"])
            assert set(logs.step["x"].tolist()) <= set(range(30))
        if "y" in logs:
            assert_bits_equal(logs["y"], values(logs.step["y"])["y"])
        lost = len(logs.get("x", ())) < 30 or len(logs.get("y", ())) < 15
        assert said or not lost
        file.write_bytes(clean[file])
    assert_prefix(lox.load(path), 30, 30)


def test_a_missing_file_is_noticed(tmp_path):
    batches = [[block([i], split=i > 5)] for i in range(10)]
    written(tmp_path, batches, small_frames=1)
    files(tmp_path)[1].unlink()
    (files(tmp_path)[0].parent / "9999.arrows").symlink_to("nowhere")

    with (
        pytest.warns(UserWarning, match=r"\(0003.arrows is missing\). See `lox doctor`"),
        pytest.warns(UserWarning, match="A part of 'x', 4 rows, in the session"),
    ):
        assert_prefix(lox.load(tmp_path), 6, 6)


@pytest.fixture(params=["tmpfs", "limit"])
def small_disk(request, tmp_path):
    """A folder with little room, and a function that makes more of it."""
    if request.param == "limit":
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        more = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)  # noqa: E731
        yield tmp_path, more
        more()
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(tmp_path)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("A small file system cannot be mounted here.")
    ballast = tmp_path / "ballast"
    ballast.write_bytes(bytes(100_000))
    yield tmp_path, ballast.unlink
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_disk_loses_nothing(small_disk):
    path, more = small_disk
    writer = SaveWriter(path / "store")
    writer.open(run(0))
    flushed = written_ = 0
    with pytest.raises(OSError, match=r"No space|too large"):  # noqa: PT012
        for written_ in range(1, 2000):
            writer.write(Batch([block([written_ - 1])]))
            writer.flush()
            flushed = written_
    with pytest.raises(OSError, match=r"No space|too large"):
        writer.flush()

    assert flushed > 5
    assert_prefix(lox.load(path / "store"), flushed, flushed)
    more()
    writer.flush()
    assert_prefix(lox.load(path / "store"), written_, written_)
    assert sum(table.num_rows for table in tables(path / "store")) == written_
    writer.close(run(0))
    assert_prefix(lox.load(path / "store"), written_, written_)


def test_a_batch_that_cannot_be_written_is_kept_whole(small_disk, monkeypatch):
    monkeypatch.setattr(_session, "BYTES", 10)
    path, more = small_disk
    writer = SaveWriter(path / "store")
    writer.open(run(0))
    many = [
        in_packet(i, block(np.arange(i, i + 50), split=i % 100 == 50))
        for i in range(0, 4000, 50)
    ]

    # The rows are taken, so that nobody sends them again, and the flush raises.
    writer.write(Batch(many))
    with pytest.raises(OSError, match=r"No space|too large"):
        writer.flush()

    more()
    writer.flush()
    assert_prefix(lox.load(path / "store"), 4000, 4000)
    writer.close(run(0))
    assert_prefix(lox.load(path / "store"), 4000, 4000)


def test_without_room_for_both_the_small_frames_stay(tmp_path):
    writer = written(tmp_path, [[block([i])] for i in range(30)], close=False)
    (session,) = files(tmp_path, "*-*")
    (session / "0001.arrows.new").write_text("in the way")

    writer.close(run(0))

    (table,) = tables(tmp_path)
    assert table["x"].num_chunks == 30
    assert_prefix(lox.load(tmp_path), 30, 30)
