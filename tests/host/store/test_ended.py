"""Sessions that have ended are listed from a summary, while that can be believed."""

import json
import warnings

import numpy as np
import pytest

import lox
from lox.loggers import Batch, Block, Form
from lox_host.reading import list_runs
from lox_host.store import open_store
from lox_host.store.format import frame_reader
from lox_host.store.format.journal import encode
from lox_host.store.summary import summary_of
from lox_host.writers.save import SaveWriter
from support.storing import run

IDS = np.tile(np.arange(3), 20).astype(np.int32)
STEPS = np.repeat(np.arange(20), 3)


def write(path, *, runs=3, count_as_float=()):
    """Write runs side by side; one of them diverges, and one counts in another dtype."""
    writer = SaveWriter(path)
    opened = [run(i, id=i) for i in range(runs)]
    for one in opened:
        writer.open(one)
    loss = np.where((IDS == 1) & (STEPS > 14), np.nan, 1 / (1 + STEPS)).astype(np.float32)
    values = {"loss": loss, "n": STEPS.astype(np.int64), "v": np.ones((60, 2))}
    forms = {key: Form(time=True) for key in values}
    writer.write(Batch([Block(IDS, {"step": STEPS}, values, forms)]))
    for id in count_as_float:
        steps = np.array([20])
        block = Block(np.array([id], np.int32), {"step": steps}, {"n": np.array([0.5])},
                      {"n": Form(time=True)})  # fmt: skip
        writer.write(Batch([block]))
    for one in opened:
        writer.close(one)
    return next(path.glob("*-*"))


def what(path):
    found = list_runs(path)
    return [
        (r.name, r.rows, r.keys, {k: (v.dtype.name, str(v)) for k, v in r.last.items()},
         dict(r.nonfinite))
        for r in found
    ]  # fmt: skip


def without_summary(session):
    lines = (session / "journal").read_bytes().splitlines(keepends=True)
    assert b'"summary":' in lines[-1]
    (session / "journal").write_bytes(b"".join(lines[:-1]))


@pytest.mark.parametrize("mixed", [(), (1,)])
def test_a_summary_says_what_the_frames_say(tmp_path, monkeypatch, mixed):
    session = write(tmp_path, count_as_float=mixed)
    with monkeypatch.context() as patched:
        # No data file is opened.
        patched.setattr(frame_reader, "open_file", None)
        summary = what(tmp_path)
    assert open_store(tmp_path)[0].ended_session is not None
    without_summary(session)
    assert what(tmp_path) == summary
    assert [row[1] for row in summary] == [20 + (i in mixed) for i in range(3)]
    assert summary[1][4]["loss"][:3] == (5, "step", 15.0)
    assert summary[0][3]["loss"] == ("float32", "0.05")


def test_a_summary_that_is_stale_or_damaged_is_not_believed(tmp_path):
    session = write(tmp_path)
    journal, truth = session / "journal", what(tmp_path)
    whole = journal.read_bytes()
    *lines, last = whole.splitlines(keepends=True)
    fields = json.loads(last[9:])
    fields["summary"]["keys"]["loss"]["rows"] = [999, 999, 999]
    lie = encode([fields])
    # Rows were added after it, or a run was removed: then it is not the last line.
    more = encode([{"n": fields["n"] + 1, "removed": [2]}])
    journal.write_bytes(b"".join([*lines, lie, more]))
    assert what(tmp_path) == truth[:2]
    # A damaged line, a line twice, a line that is missing: all is read, and said.
    for damaged in (
        [*lines, bytes([last[0] ^ 1]) + last[1:]],
        [*lines, lines[1], last],
        [*lines[:2], *lines[3:], last],
    ):
        journal.write_bytes(b"".join(damaged))
        with pytest.warns(UserWarning, match="lines of its journal are"):
            assert open_store(tmp_path)[0].ended_session is None
    # Fields that lox does not write.
    for key, value in [("dtype", "object"), ("rows", [-1, 0, 0]), ("last", 3)]:
        fields = json.loads(last[9:])
        fields["summary"]["keys"]["loss"][key] = value
        journal.write_bytes(b"".join([*lines, encode([fields])]))
        assert what(tmp_path) == truth
    journal.write_bytes(whole)
    (data,) = [file for file in session.glob("*.arrows") if file.stat().st_size]
    data.write_bytes(data.read_bytes()[:-8])
    with pytest.warns(UserWarning, match="is cut short"):
        list_runs(tmp_path)


def test_a_flipped_bit_shows_where_values_are_read(tmp_path):
    session = write(tmp_path)
    (data,) = session.glob("*.arrows")
    content = bytearray(data.read_bytes())
    content[-1000] ^= 1
    data.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [r.rows for r in lox.runs(tmp_path)] == [20] * 3
    with pytest.warns(UserWarning, match="A part of"):
        lox.load(tmp_path)


def test_rows_that_are_added_later_count(tmp_path):
    for i in range(3):
        lox.save(lox.logdict({"x": float(i)}, step={"x": i}), tmp_path)
        (stored,) = lox.runs(tmp_path)
        assert (stored.rows, stored.last["x"]) == (i + 1, i)
        (reader,) = open_store(tmp_path)
        assert summary_of(reader)[next(iter(reader.runs))].rows == {"x": i + 1}
