"""A store that an older version wrote, and what commands say of it."""

import json
import math
import pathlib
import sys

import golden_commands
import jax
import ml_dtypes
import numpy as np
import pytest

import lox
from lox_host.cli.main import main

HERE = pathlib.Path(__file__).parent
torn = pytest.mark.filterwarnings("ignore:Parts of the session")


def read_expected():
    """By store, what its runs logged, the arrays as NumPy had made them."""
    bits = np.load(HERE / "expected.npz")["bits"].tobytes()

    def restored(value):
        if not isinstance(value, dict):
            return value
        if "array" in value:
            (name, *shape), start = value["array"], value["start"]
            dtype = np.dtype(getattr(ml_dtypes, name, name))
            array = np.frombuffer(bits, dtype, math.prod(shape), start)
            return array.reshape(shape)
        ((kind, inner),) = value.items()
        if kind == "dict":
            return {name: restored(child) for name, child in inner.items()}
        return {"list": list, "tuple": tuple}[kind](map(restored, inner))

    return restored(json.loads((HERE / "expected.json").read_text()))


EXPECTED = read_expected()
RUNS = [(store, i) for store, runs in EXPECTED.items() for i in range(len(runs))]


def assert_same_bits(found, expected, where=Ellipsis):
    """Check dtype, shape and bits, of a mask only where it says so."""
    found = np.asarray(found)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found[where].tobytes() == expected[where].tobytes()


@torn
@pytest.mark.parametrize(("store", "number"), RUNS)
def test_what_was_logged_is_loaded_bit_by_bit(store, number):
    run, expected = lox.runs(HERE / store)[number], EXPECTED[store][number]
    assert run.key == tuple(expected["key"])
    assert run.config == expected["config"]
    assert run.rows == expected["rows"]
    assert list(run.keys) == list(expected["logs"])
    logs = lox.load(HERE / store, key=run.key, session=run.session)
    assert list(logs) == list(expected["logs"])
    for key, own in expected["logs"].items():
        value = logs[key]
        if own["impl"] is not None:
            assert str(jax.random.key_impl(value)) == own["impl"]
            value = jax.random.key_data(value)
        assert jax.tree.structure(value) == jax.tree.structure(own["value"])
        where = Ellipsis if own["valid"] is None else own["valid"]
        for found, leaf in zip(*map(jax.tree.leaves, (value, own["value"])), strict=True):
            assert_same_bits(found, leaf, where)
        rows = logs.rows()[key]
        assert list(rows.tags) == own["tags"]
        assert rows.steps.keys() == own["steps"].keys()
        for name, step in own["steps"].items():
            mask = own["masks"].get(name)
            assert_same_bits(rows.steps[name], step, where if mask is None else mask)
        assert rows.masks.keys() == own["masks"].keys()
        for name, mask in own["masks"].items():
            assert_same_bits(rows.masks[name], mask)
        assert (rows.valid is None) == (own["valid"] is None)
        if own["valid"] is not None:
            assert_same_bits(rows.valid, own["valid"])


def test_the_runs_of_a_session_are_loaded_together():
    seeds = EXPECTED["store"][1:4]
    session = lox.runs(HERE / "store")[1].session
    logs = lox.load(HERE / "store", ["loss", "mixed"], session=session)
    for key in logs:
        each = [run["logs"][key]["value"] for run in seeds]
        assert_same_bits(logs[key], np.stack(each))


def test_the_command_line_has_the_same_numbers(capsys):
    runs = lox.runs(HERE / "store")
    for run, expected in zip(runs, EXPECTED["store"], strict=True):
        # One of the runs has two sessions, of which this is the first.
        which = "@1" if run == runs[1] else ""
        args = [f"{HERE}/store/{run.name}{which}", "--no-follow", "--json", "-n", "1000"]
        assert main(["tail", *args]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        for key, own in expected["logs"].items():
            value, is_partial = own["value"], own["valid"] is not None
            if isinstance(value, dict) or np.iscomplexobj(value) or is_partial:
                continue
            rows = value if own["steps"] else value[None]
            found = [line["values"][key] for line in lines if key in line["values"]]
            # JSON has whole numbers of any size, and neither NaN nor infinities.
            wide = np.array(found, object if rows.dtype.kind in "iu" else float)
            finite = np.isfinite(rows.astype(np.float64))
            np.testing.assert_array_equal(wide.astype(rows.dtype)[finite], rows[finite])
            assert np.isnan(wide.astype(np.float64))[~finite].all()


NEEDED = {
    "plot": ["matplotlib"],
    "export": ["polars", "tensorboard"],
    "query": ["duckdb"],
}


@pytest.mark.parametrize("command", golden_commands.COMMANDS)
def test_commands_print_and_write_what_they_did(command):
    for module in NEEDED.get(command, []):
        pytest.importorskip(module)
    if command == "usage" and sys.version_info < (3, 13):
        pytest.skip("Older versions of argparse lay out help in their own way.")
    recorded = (HERE / "output" / f"{command}.txt").read_text()
    assert golden_commands.record(command) == recorded
