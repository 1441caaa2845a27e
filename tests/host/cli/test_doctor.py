"""`lox doctor`: what is damaged, and what can be saved."""

import pathlib
import shutil

import numpy as np
import pytest

import lox
from lox.loggers import Batch
from lox_host.cli.main import main
from lox_host.writers.save import SaveWriter
from support.storing import block, run

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


def make_store(path):
    for number in range(2):
        writer = SaveWriter(path)
        writer.open(run(number))
        writer.write(Batch([block(np.arange(5 + number))]))
        writer.write(Batch([block([9], split=True)]))
        writer.close(run(number))
    return sorted(path.glob("*-*"))


def said(capsys, *args, code=0):
    assert main(["doctor", *map(str, args)]) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


def bytes_of(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_store_that_is_whole(tmp_path, capsys):
    make_store(tmp_path / "store")

    assert said(capsys, tmp_path / "store").endswith(
        "store is intact: 2 sessions, 2 runs with 13 rows.\n"
    )
    text = said(capsys, GOLDEN / "store")
    assert "is intact" in text


def test_what_is_damaged_is_named_and_the_rest_saved(tmp_path, capsys):
    store = tmp_path / "store"
    first, second = make_store(store)
    (data,) = first.glob("*0.arrows")
    changed = bytearray(data.read_bytes())
    changed[-5] ^= 1  # in `y`, the last column
    data.write_bytes(changed)
    journal = second / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines, lines[1]]))
    (store / "lox.json").write_text("{half")
    before = bytes_of(store)

    text = said(capsys, store, code=1)
    assert "store: lox.json is not what lox wrote\n" in text
    assert f"{first.name}: 1 run with 6 rows can be read\n" in text
    assert "  rows of 'y' that are damaged: 5\n" in text
    assert f"{second.name}: 1 run with 7 rows can be read\n" in text
    assert "there twice, and count once: 1" in text
    assert "To save 2 runs with 13 rows to a new store, run `lox doctor " in text

    assert "Saved 2 runs with 13 rows to" in said(capsys, store, "--repair", tmp_path / "b")
    assert bytes_of(store) == before
    assert "is intact: 2 sessions, 2 runs" in said(capsys, tmp_path / "b")
    for number in range(2):
        logs = lox.load(tmp_path / "b", key=(number,))
        np.testing.assert_array_equal(logs.step["x"], [*range(5 + number), 9])
    with pytest.raises(KeyError):
        lox.load(tmp_path / "b", key=(0,))["y"]
    assert "There is something in" in said(
        capsys, store, "--repair", tmp_path / "b", code=1
    )


def test_a_store_without_its_marker_or_a_journal(tmp_path, capsys):
    store = tmp_path / "store"
    first, second = make_store(store)
    (store / "lox.json").unlink()
    (first / "journal").unlink()

    with pytest.raises(FileNotFoundError, match="it has sessions of a store: `lox doctor`"):
        lox.load(store)
    text = said(capsys, store, code=1)
    assert "lox.json is missing" in text
    assert f"the session {first.name} has lost its journal" in text
    said(capsys, store, "--repair", tmp_path / "b")
    assert [r.session for r in lox.runs(tmp_path / "b")] == [second.name]
    assert "No such folder: 'nowhere'" in said(capsys, "nowhere", code=1)


def test_a_session_that_was_killed_and_an_old_one_are_saved(tmp_path, capsys):
    shutil.copytree(GOLDEN / "torn", tmp_path / "torn")
    said(capsys, tmp_path / "torn", "--repair", tmp_path / "b")

    with pytest.warns(UserWarning, match="Parts of the session"):
        before = lox.load(tmp_path / "torn")
    after = lox.load(tmp_path / "b")
    assert list(after) == list(before)
    for key in before:
        assert np.asarray(after[key]).tobytes() == np.asarray(before[key]).tobytes()


def test_rows_whose_file_is_lost_are_not_promised(tmp_path, capsys):
    store = tmp_path / "store"
    first, _ = make_store(store)
    for file in first.glob("*.arrows"):
        file.unlink()
    text = said(capsys, store, code=1)
    assert f"{first.name}: 1 run with 0 rows can be read\n" in text
    assert "To save 2 runs with 7 rows to a new store" in text
    assert "Saved 2 runs with 7 rows to" in said(capsys, store, "--repair", tmp_path / "b")
    assert sum(run.rows for run in lox.runs(tmp_path / "b")) == 7
