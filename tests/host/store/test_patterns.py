"""Columns with a pattern: computed by lox, compressed for other programs."""

import io
import json

import numpy as np
import polars
import pyarrow
import pytest

import lox
from lox.loggers import Batch, Block, Form, Run
from lox_host.store import open_store
from lox_host.store.format.column_pattern import Pattern
from lox_host.store.format.frames import Encoder, Frame
from lox_host.store.format.layout import Layout, flatten
from lox_host.store.format.lz4 import compress
from lox_host.store.run_statistics import lost_rows
from lox_host.writers.save import SaveWriter

IDS = np.random.default_rng(0).integers(0, 2**31, 30).astype(np.int32)
BATCHES = [np.tile(np.arange(i, i + 50, dtype=np.int32), 30) for i in range(0, 500, 50)]
COLUMNS = {
    "runs one after the other": np.repeat(IDS, 700),
    "runs in batches": np.tile(np.repeat(IDS, 50), 20),
    "runs side by side": np.tile(IDS, 700),
    "one after the other, more than a block": np.repeat(IDS, 70_000),
    "row numbers": np.arange(5, 30_000),
    "row numbers, more than a block": np.arange(65_500, 65_500 + 600_000),
    "row numbers beyond 2**31": np.arange(2**31 - 700, 2**31 + 9000),
    "row numbers beyond 2**32": np.arange(2**32 - 700, 2**32 + 9000),
    "few row numbers": np.arange(255, 255 + 300),
    "row numbers that end with a group": np.arange(256, 256 + 2 * 256 + 1),
    "the same time": np.full(4000, 1.7e9 + 0.1),
    "some times": np.repeat(1.7e9 + 0.3 * np.arange(10), 300),
    "steps again and again": np.tile(np.arange(700, dtype=np.int16), 30),
    "steps in batches": np.concatenate(BATCHES),
    "the same step for all": np.repeat(np.arange(700), 30),
    "every tenth step": np.tile(np.arange(0, 7000, 10), 30),
    "downwards": np.arange(5000, 0, -1),
    "negative zero, then zero": np.repeat([-0.0, 0.0], 600),
    "not a number": np.full(1000, np.nan, np.float32),
    "bytes": np.full(3000, 200, np.uint8),
    "wide": np.tile(np.array([2**63 - 1, -(2**63)]), 500),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_pattern_is_the_column_bit_for_bit(name):
    column = COLUMNS[name]
    pattern = Pattern.of(column)
    assert pattern is not None
    assert pattern.rows == len(column)
    again = Pattern.from_json(json.loads(json.dumps(pattern)))
    assert again.column(column.dtype).dtype == column.dtype
    assert again.column(column.dtype).tobytes() == column.tobytes()


@pytest.mark.parametrize("name", COLUMNS)
def test_arrow_decompresses_what_is_compressed(name):
    column = COLUMNS[name]
    pattern = Pattern.of(column)
    assert pattern is not None
    packed = compress(column, pattern)
    if name in ("downwards", "row numbers beyond 2**32"):
        assert packed is None
        return
    assert packed is not None
    assert len(packed) < 0.65 * column.nbytes or len(column) < 1000
    codec = pyarrow.Codec("lz4")
    assert codec.decompress(packed, column.nbytes).to_pybytes() == column.tobytes()


def test_other_columns_have_no_pattern():
    rng = np.random.default_rng(0)
    assert Pattern.of(rng.normal(size=1000)) is None
    assert Pattern.of(rng.integers(0, 2, 5000)) is None


def test_polars_and_arrow_read_a_frame_with_and_without_patterns():
    rows = 6000
    rng = np.random.default_rng(0)
    values = {
        "x": rng.normal(size=rows).astype(np.float32),
        "image": rng.normal(size=(rows, 2, 3)),
        "is_good": rng.random(rows) < 0.5,
        "nothing": np.zeros((rows, 0, 3)),
    }
    block = Block(
        np.repeat(IDS[:2], rows // 2),
        {"step": np.tile(np.arange(rows // 2), 2)},
        values,
        dict.fromkeys(values, Form(time=True)),
        time=np.full(rows, 1.5e9),
    )
    layout = Layout.of(block)
    runs, *others = flatten(block)[1]
    columns = [runs, np.arange(rows), *others]
    encoder = Encoder(layout)
    # In parts: what waits for a flush comes from several writes.
    frame = encoder.frame([np.split(column, [7, 4000]) for column in columns])
    few = encoder.frame([[column[:5]] for column in columns])
    assert [x.pattern is not None for x in frame.extents()] == [True] * 4 + [False] * 4
    data = b"".join([encoder.schema(), *map(bytes, [*frame.parts, *few.parts])])
    arrow = pyarrow.ipc.open_stream(io.BytesIO(data)).read_all()
    arrow.validate(full=True)
    table = polars.read_ipc_stream(data)
    for column, described in zip(columns, layout.columns, strict=True):
        if 0 in column.shape:
            continue
        expected = np.concatenate([column, column[:5]])
        assert np.array_equal(table[described.name].to_numpy(), expected)
        of_arrow = np.array(arrow[described.name].to_pylist(), column.dtype)
        assert np.array_equal(of_arrow, expected)


def test_a_forged_pattern_cannot_make_a_reader_allocate_more_than_lz4_could():
    fields = {
        "group": 0,
        "file": "0000.arrows",
        "start": 0,
        "end": 10_000,
        "rows": 10**15,
        "runs": [0, 0],
        "columns": [[0, 100, 0, [[0], 10**15, 0, 1]]] * 2 + [[0, 100, 0]],
    }
    values = {"x": np.zeros(1)}
    block = Block(np.zeros(1, np.int32), {}, values, {"x": Form()})
    with pytest.raises(ValueError, match="not what lox writes"):
        Frame.of(fields, {0: Layout.of(block)})
    for pattern in ([[0], 10, 0], [[], 1, 0, 1], [[0], -1, 0, 1], [[2**70], 1, 0, 1], 3):
        with pytest.raises(ValueError, match="not what lox writes"):
            Pattern.from_json(pattern)


def test_damage_that_only_other_programs_see_is_found_by_doctor(tmp_path):
    writer = SaveWriter(tmp_path)
    run = Run(7, "7", (0, 7), {}, 0.0, "")
    writer.open(run)
    rows = np.random.default_rng(0).normal(size=5000)
    writer.write(Batch([Block(np.full(5000, 7, np.int32), {}, {"x": rows}, {"x": Form()})]))
    writer.close(run)
    (reader,) = open_store(tmp_path)
    (frame,) = reader.frames[0]
    extent = frame.columns[1]
    assert extent.pattern is not None
    (file,) = tmp_path.glob("*/*.arrows")
    data = bytearray(file.read_bytes())
    data[extent.offset + 20] ^= 1
    file.write_bytes(data)
    np.testing.assert_array_equal(lox.load(tmp_path)["x"], rows)
    assert lost_rows(*open_store(tmp_path)) == {"x": 5000}
