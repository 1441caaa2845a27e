"""Stores that are damaged: the same, a part with a warning, or an error; nothing else.

`make fuzz-store` tries thousands of mutations, and this a few.
"""

import collections
import contextlib
import io
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import warnings

import numpy as np
import pytest

import lox
from lox.loggers import Batch
from lox_host.cli.main import main
from lox_host.reading import list_runs
from lox_host.store import (
    open_store,
    read_key_rows,
)
from lox_host.store.format import journal as _journal
from lox_host.tree import leaves
from lox_host.writers.save import SaveWriter
from support.mutations import ACCIDENTS, ATTACKS
from support.storing import block, run

COUNT = int(os.environ.get("LOX_FUZZ_STORE", "0")) or 150
GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "store"
ERRORS = (LookupError, OSError, ValueError)
SECONDS = 20  # a read that takes longer hangs

opened: list[str] = []
is_watched = False


def _note(event, args):
    if is_watched and event == "open":
        opened.append(os.fspath(args[0]) if not isinstance(args[0], int) else "")


@pytest.fixture(scope="module", autouse=True)
def watched():
    sys.addaudithook(_note)


def make_store(path):
    """Two ended sessions, one of them with two runs, and one that was killed."""
    for number in range(2):
        writer = SaveWriter(path)
        writer.open(run(number))
        for i in range(3):
            writer.write(Batch([block(np.arange(3 * i, 3 * i + 3), split=i == 1)]))
            writer.flush()
        writer.close(run(number))
    for i in range(3):
        lox.save({"x": float(i), "y": {"z": np.arange(i, i + 2)}}, path, key=9)
    writer = SaveWriter(path)
    for i in range(2):
        writer.open(run(i, id=i))
    for i in range(4):
        writer.write(Batch([block([i, i + 1], id=i % 2)]))
        writer.flush()
    writer._session.close()


def old_store(path):
    """What an older version wrote: lines without numbers, and no list of sessions."""
    shutil.copytree(GOLDEN, path)


def rows_of(path):
    """By session, run, key and array, the numbers of rows and their bytes."""
    found = {}
    for reader in open_store(path):
        for id, keys in read_key_rows(reader, list(reader.runs)).items():
            for key, rows in keys.items():
                arrays = [*leaves(rows.value, "value"), *leaves(rows.steps, "steps")]
                for name, array in arrays:
                    place = reader.original, reader.runs[id].key, key, name
                    numbers = rows.order.tolist()
                    cells = [(array.dtype.name, x.tobytes()) for x in array]
                    # A step that some rows have is there, masked, for the others.
                    mask = rows.masks.get(name.removeprefix("steps/"))
                    if mask is not None and name.startswith("steps"):
                        is_there = mask.reshape(len(mask), -1).all(1).tolist()
                        pairs = zip(numbers, cells, is_there, strict=True)
                        found[place] = {n: c for n, c, ok in pairs if ok}
                        continue
                    assert len(set(numbers)) == len(numbers)
                    found[place] = dict(zip(numbers, cells, strict=True))
    return found


@contextlib.contextmanager
def deadline():
    def fail(*_):
        raise AssertionError("This does not end.")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(read):
    """What reading gives, and what is said: the result, an error, the warnings."""
    global is_watched
    opened.clear()
    with warnings.catch_warnings(record=True) as said, deadline():
        warnings.simplefilter("always")
        is_watched = True
        try:
            return read(), None, [str(warning.message) for warning in said]
        except ERRORS as error:
            return None, error, [str(warning.message) for warning in said]
        finally:
            is_watched = False


def told_by(*args):
    """What a command prints, and that it neither raises nor moves the cursor."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code, _, _ = outcome(lambda: main(list(args)))
    assert code in (0, 1)
    text = out.getvalue() + error.getvalue()
    assert all(c.isprintable() or c == "\n" for c in text), text
    assert "Traceback" not in text
    return text


def assert_nothing_outside(store):
    outside = [path for path in opened if path.startswith("/dev/") or "outside" in path]
    assert not outside


@pytest.mark.parametrize("make", [make_store, old_store])
def test_mutations(tmp_path, monkeypatch, make):
    monkeypatch.setattr(_journal, "PATIENCE", 0.0)
    whole, store = tmp_path / "whole", tmp_path / "store"
    make(whole)
    truth = rows_of(whole)
    if make is old_store:
        # Nor a key or a run without rows.
        truth = {place: rows for place, rows in truth.items() if rows}
    chance = random.Random(f"{make.__name__} {os.environ.get('LOX_FUZZ_SEED', 0)}")
    mutations = {**ACCIDENTS, **ATTACKS}
    if make is old_store:
        # The first format cannot tell a session that is gone from one that never was.
        for name in ("session missing", "session twice", "session renamed", "file missing"):
            del mutations[name]
    outcomes = collections.Counter()
    for number in range(COUNT):
        name = list(mutations)[number % len(mutations)]
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(whole, store)
        mutations[name](store, chance)
        found, error, said = outcome(lambda: rows_of(store))
        assert_nothing_outside(store)
        if name in ATTACKS:
            outcomes[name, "read" if error is None else "error"] += 1
        else:
            kind = judged(truth, found, error, said)
            outcomes[name, kind] += 1
            assert kind in ("same", "a part, with a warning", "error"), (name, number)
        if number % 5 == 0:
            for args in (["ls"], ["ls", "--json"], ["show"], ["tail", "--no-follow"]):
                told_by(*args, str(store))
                assert_nothing_outside(store)
            _, _, about_runs = outcome(lambda: list_runs(store))
            if any("See `lox doctor`" in text for text in said):
                assert about_runs, "`lox.runs` says nothing of the damage"
    print(
        json.dumps({f"{name}: {kind}": n for (name, kind), n in sorted(outcomes.items())})
    )


def judged(truth, found, error, said):
    if error is not None:
        return "error" if str(error) else "an error without words"
    if {place: rows for place, rows in found.items() if rows or place in truth} == truth:
        return "same"
    for place, rows in found.items():
        if not rows.items() <= truth.get(place, {}).items():
            return "something else"
    return "a part, with a warning" if said else "a part, and no word"
