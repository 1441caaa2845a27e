"""Stores that were made to do harm. `make fuzz-store` has random ones."""

import dataclasses
import json
import os
import warnings
import zlib

import numpy as np
import pytest

import lox
from lox.loggers import Batch, Block, Form, Run
from lox_host.cli.main import main
from lox_host.store import StoredRun
from lox_host.writers.csv import CSVWriter
from lox_host.writers.save import SaveWriter
from support.storing import block, run

ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e"


def changed(store, change):
    """Change the flush in the journal, with the right checksum."""
    (journal,) = store.glob("*/journal")
    lines = [json.loads(line[9:]) for line in journal.read_bytes().splitlines()]
    for line in lines:
        if "flush" in line:
            change(line["flush"])
    texts = [json.dumps(line).encode() for line in lines]
    journal.write_bytes(b"".join(b"%08x %s\n" % (zlib.crc32(t), t) for t in texts))


def rows_claimed(flush):
    flush["frames"][0]["rows"] = 10**18


def size_claimed(flush):
    flush["frames"][0]["columns"][3][1] = 10**18


def shape_claimed(flush):
    flush["layouts"][0]["layout"]["columns"][3]["shape"] = [10**18]


def device(flush):
    flush["frames"][0]["file"] = "/dev/zero"


def file_outside(flush):
    flush["frames"][0]["file"] = "../../secret"


@pytest.mark.parametrize(
    "change", [rows_claimed, size_claimed, shape_claimed, device, file_outside]
)
def test_what_cannot_be_is_left_out(tmp_path, change, capsys):
    writer = SaveWriter(tmp_path / "store")
    writer.open(run(0))
    writer.write(Batch([block([0, 1])]))
    writer.close(run(0))
    (tmp_path / "secret").write_bytes(bytes(10**5))
    changed(tmp_path / "store", change)

    with pytest.warns(UserWarning, match=r"(frames|layouts) that cannot be read: 1"):
        assert lox.load(tmp_path / "store") == {}
    for command in ("ls", "show"):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            assert main([command, str(tmp_path / "store")]) in (0, 1)
        assert "that cannot be read: 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["journal", "lox.json", "sessions", "0000.arrows"])
@pytest.mark.parametrize("kind", ["fifo", "link", "device"])
def test_only_files_are_opened(tmp_path, name, kind):
    writer = SaveWriter(tmp_path / "store")
    writer.open(run(0))
    writer.write(Batch([block([0, 1])]))
    writer.close(run(0))
    (path,) = (tmp_path / "store").rglob(name)
    copy = tmp_path / "copy"
    path.rename(copy)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(copy if kind == "link" else "/dev/zero")

    if name == "lox.json":
        with pytest.raises(FileNotFoundError, match=r"no file 'lox.json'"):
            lox.load(tmp_path / "store")
    elif name == "journal":
        with pytest.warns(UserWarning, match="lost its journal"):
            assert lox.runs(tmp_path / "store") == []
    elif name == "sessions":
        with pytest.warns(UserWarning, match="'sessions', is missing"):
            assert len(lox.load(tmp_path / "store")["x"]) == 2
    else:
        with (
            pytest.warns(UserWarning, match="0000.arrows is missing"),
            pytest.warns(UserWarning, match="A part of 'x', 2 rows"),
            pytest.warns(UserWarning, match="A part of 'y', 2 rows"),
        ):
            assert lox.load(tmp_path / "store") == {}


def hostile_store(path):
    writer = SaveWriter(path)
    name = f"../../up{ESCAPE}"
    config = {f"lr{ESCAPE}": ESCAPE}
    owner = Run(0, name, (0,), config, 1e9, "group")
    writer.open(owner)
    key, step = f"=cmd{ESCAPE}", f"step{ESCAPE}"
    rows = {key: np.array([1.0, np.nan]), f"tree{ESCAPE}": {ESCAPE: np.ones((2, 9))}}
    forms = dict.fromkeys(rows, Form(time=True))
    writer.write(Batch([Block(np.zeros(2, np.int32), {step: np.arange(2)}, rows, forms)]))
    writer.close(owner)


def test_nothing_from_a_store_moves_the_cursor(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile_store(tmp_path / "s")
    for args in (
        *(["ls", "s"], ["ls", "s", "-c"], ["ls", "s", "--json"], ["show", "s"]),
        *(["show", "s", "--json"], ["tail", "s", "--no-follow"], ["doctor", "s"]),
        *(["tail", "s", "--no-follow", "--json"], ["plot", "s"], ["plot", "s", "-k", "z"]),
        *(["show", "s/z"], ["export", "s", "--to", "csv"]),
    ):
        main(args)
        captured = capsys.readouterr()
        text = captured.out + captured.err
        assert text
        assert all(c.isprintable() or c == "\n" for c in text), args
    (stored,) = lox.runs("s")
    assert repr(stored).isprintable()
    assert dataclasses.replace(stored, name="a\nb").__repr__().isprintable()
    assert isinstance(stored, StoredRun)


@pytest.mark.parametrize("to", ["tensorboard", "csv", "json", "parquet"])
def test_exports_stay_in_their_folder(tmp_path, to, monkeypatch):
    pytest.importorskip("tensorboard")
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    hostile_store(tmp_path / "s")

    assert main(["export", str(tmp_path / "s"), "--to", to, "-o", "out"]) == 0
    assert [path.name for path in inner.iterdir()] == ["out"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "s"]
    assert [path.name for path in (tmp_path / "a").rglob("*")][:2] == ["b", "c"]


def test_no_key_is_a_formula(tmp_path):
    writer = CSVWriter(tmp_path)
    writer.open(run(0))
    values = {key: np.ones(1) for key in ("=1+1", "+a", "-a", "@a", "\tb", "x")}
    forms = dict.fromkeys(values, Form())
    for _ in range(2):
        writer.write(Batch([Block(np.zeros(1, np.int32), {}, values, forms)]))
        writer.flush()
    (file,) = tmp_path.glob("*.csv")
    head = file.read_text().splitlines()[0].split(",")
    assert head == ["'=1+1", "'+a", "'-a", "@@a", "'\tb", "x"]
