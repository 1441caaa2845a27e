"""Several real processes of `jax.distributed`, with two devices each.

One pair of them runs all that is in `tests/support/processes.py`; the tests read what
it saw.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import lox
from support.object_server import ObjectServer, environment

pytestmark = [pytest.mark.xdist_group("distributed"), pytest.mark.long]
SECONDS = 240  # after which a process is given up

PROGRAM = pathlib.Path(__file__).parent / "support" / "processes.py"
XS = np.arange(8, dtype=np.float32)
# What `train` logs: x halves in each of three steps.
ROWS = XS / 2 ** np.arange(3, dtype=np.float32)[:, None]


@contextlib.contextmanager
def pair(folder, what, **variables):
    """Two processes, which do not outlive this, and the files of what they print."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
    outputs = [folder / f"output-{i}" for i in range(2)]
    processes = []
    try:
        for i, path in enumerate(outputs):
            command = [sys.executable, PROGRAM, address, str(i), folder, what]
            with open(path, "w") as file:
                processes.append(
                    subprocess.Popen(command, stdout=file, stderr=file, env=environment)
                )
        yield processes, outputs
    finally:
        for process in processes:
            process.kill()
            process.wait()


def finished(folder, **variables):
    """Run the checks, and return how that went. Somebody else may take the port."""
    for _ in range(3):
        with pair(folder, "checks", **variables) as (processes, outputs):
            codes = [process.wait(SECONDS) for process in processes]
            texts = [path.read_text() for path in outputs]
        if not any("in use" in text for text in texts):
            break
    return codes, texts


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """What processes need to know to write to a bucket. Nothing if there is no server."""
    if importlib.util.find_spec("moto") is None or not importlib.util.find_spec("obstore"):
        yield {}
        return
    server = ObjectServer()
    server.make_bucket("pair")
    yield environment(server.url, tmp_path_factory.mktemp("objects"))
    server.close()


@pytest.fixture(scope="module")
def seen(tmp_path_factory, objects):
    """What both processes saw, and the folder that they wrote to."""
    folder = tmp_path_factory.mktemp("pair")
    codes, texts = finished(folder, **objects)
    assert codes == [0, 0], "\n".join(texts)
    results = [json.loads((folder / f"{i}.json").read_text()) for i in range(2)]
    return results, texts, folder


def shards(array, number):
    """Which part of an array each device of a process has, by its last axis."""
    parts = np.split(array, 4, axis=-1)[2 * number : 2 * number + 2]
    return [part.tolist() for part in parts]


@pytest.mark.parametrize("number", [0, 1])
def test_spooled_logs_are_global_arrays(seen, number):
    own = seen[0][number]["spool"]

    assert own["x"] == {"spec": [None, "d"], "shards": shards(ROWS, number)}
    assert own["eager"] == own["x"]
    assert own["mean"] == {"spec": [], "shards": [ROWS.mean(1).tolist()] * 2}
    assert own["step"]["shards"] == [[0, 1, 2]] * 2
    assert own["y"] == {"spec": ["d"], "shards": shards(XS / 8, number)}
    assert own["print"] == "{'mean': [3.5, 1.75, 0.875], 'x': float32[3,8]}"


def test_what_processes_log_together_is_tapped_once_by_the_first(seen):
    first, second = (results["tap"] for results in seen[0])
    expected = [{"mean": float(row.mean()), "x": row.tolist()} for row in ROWS]

    for way in ("jitted", "eager", "backwards"):
        assert first[way] == expected, way
        assert second[way] == [], way
    assert second["y"] == {"spec": ["d"], "shards": shards(XS / 8, 1)}


def test_each_process_taps_what_it_logs_alone(seen):
    for number, results in enumerate(seen[0]):
        means = [record["mean"] for record in results["tap"]["own"]]

        assert means == [(3.5 + number) / 2**i for i in range(3)]


@pytest.mark.parametrize("number", [0, 1])
def test_each_process_taps_what_its_devices_log_in_a_shard_map(seen, number):
    own = seen[0][number]["tap_of_shard_map"]
    sums = XS.reshape(4, 2).sum(1)
    mine = range(2 * number, 2 * number + 2)

    assert own["heard"] == [[i, number, sums[i]] for i in mine]
    assert own["spooled"] == {"spec": ["d"], "shards": [[sums[i]] for i in mine]}


def test_what_nobody_hears_is_printed_once(seen):
    results, texts, _ = seen
    first, second = (text.split("--\n") for text in texts)
    lines = [line for line in first[0].splitlines() if line.startswith("{")]

    assert [line.split(", ")[0] for line in lines] == [
        f"{{'mean': {mean}" for mean in (3.5, 1.75, 0.875)
    ]
    assert "{" not in second[0]
    for number, own in enumerate(results):
        plain = {"spec": ["d"], "shards": shards(XS / 8, number)}
        assert own["print_and_nolog"] == own["progress"] == plain


def test_a_run_is_written_once_by_the_first_process(seen):
    results, _, folder = seen
    logs = lox.load(folder / "one")
    [run] = lox.runs(folder / "one")

    np.testing.assert_array_equal(logs["x"], np.concatenate([ROWS] * 3))
    np.testing.assert_array_equal(logs.step["mean"], [0, 1, 2] * 3)
    assert (run.process, run.rows) == (0, 9)
    assert results[0]["one_writer"] == results[1]["one_writer"]


def test_seeds_on_devices_of_all_processes_are_written_by_the_first(seen):
    results, _, folder = seen
    keys = [tuple(key) for key in results[0]["seeds_on_all_processes"]["keys"]]
    runs = lox.runs(folder / "seeds")

    assert results[1]["seeds_on_all_processes"]["spec"] == ["d"]
    assert [run.key for run in runs] == keys * 3
    assert {(run.process, run.rows) for run in runs} == {(0, 3)}
    assert len({run.launch for run in runs}) == 3
    logs = lox.load(folder / "seeds")
    np.testing.assert_array_equal(logs.step["w"], [[0, 1, 2]] * 8)
    np.testing.assert_array_equal(logs["w"][:, 1:], logs["w"][:, :-1] / 2)
    assert len(np.unique(logs["w"][:, 0])) == 8


def test_each_process_writes_its_own_runs_if_asked(seen):
    results, _, folder = seen
    runs = sorted(lox.runs(folder / "all"), key=lambda run: (run.start, run.process))
    latest = sorted(runs[2:], key=lambda run: run.process)

    # `mode="w"` has not removed what the other process had just begun.
    assert sorted(run.process for run in runs) == [0, 0, 1, 1]
    assert len({run.launch for run in latest}) == 1
    assert results[0]["all_write"] == results[1]["all_write"]
    logs = lox.load(folder / "all", ["x", "sum", "own"], key=(0, 0))
    np.testing.assert_array_equal(logs["x"], [ROWS, ROWS])
    np.testing.assert_array_equal(np.sort(logs["sum"]), [[1, 5], [9, 13]])
    np.testing.assert_array_equal(logs["own"], [0 * XS, XS])
    for number, run in enumerate(latest):
        alone = lox.load(folder / "all", "own", session=run.session)
        np.testing.assert_array_equal(alone["own"], XS * number)


def test_of_several_loggers_each_writes_where_it_should(seen):
    folder = seen[2]

    np.testing.assert_array_equal(lox.load(folder / "several")["mean"], ROWS.mean(1))
    names = sorted(path.name for path in (folder / "csv").iterdir())
    assert names == ["seed0-process-1.csv", "seed0.csv"]
    first, second = ((folder / "csv" / name).read_text() for name in names)
    assert first == second
    assert len(first.splitlines()) == 4
    assert "mean 0.875" in (folder / "console-0").read_text()
    assert (folder / "console-1").read_text() == ""


def test_a_writer_is_opened_in_the_first_process_or_in_each(seen):
    for number, results in enumerate(seen[0]):
        own = results["own_writers"]
        calls = [["open", number], ["rows", 3], ["close", number]]

        assert own["True"] == calls
        assert own["False"] == ([] if number else calls)


def test_records_that_nobody_would_write_are_refused(seen):
    for results in seen[0]:
        assert len(results["refused"]) == 2
        for message in results["refused"]:
            assert message.startswith(
                "SaveLogger writes in the first process only, but process 1 would get "
                "records of 'sum': the program logs them on devices of several processes"
            )
            assert "`all_processes=True`" in message


def test_both_processes_write_one_store_in_a_bucket(seen, objects, monkeypatch):
    if not objects:
        pytest.skip("There is no server of object storage here.")
    for name, value in objects.items():
        monkeypatch.setenv(name, value)

    runs = sorted(lox.runs("s3://pair/exp1"), key=lambda run: run.process)
    assert [run.process for run in runs] == [0, 1]
    assert len({run.key for run in runs}) == 1
    logs = lox.load("s3://pair/exp1", ["x", "own"], key=(0, 0))
    np.testing.assert_array_equal(logs["x"], [ROWS, ROWS])
    np.testing.assert_array_equal(logs["own"], [0 * XS, XS])


def test_logs_of_several_processes_are_saved_once(seen):
    folder = seen[2]

    for name in ("saved", "staged"):
        [run] = lox.runs(folder / name)
        assert run.process == 0
        np.testing.assert_array_equal(lox.load(folder / name)["x"], ROWS)
    np.testing.assert_array_equal(lox.load(folder / "own")["own"], [0, 1])


def test_no_collective_is_added(seen):
    """The mean needs one all-reduce, whoever takes it; nothing is gathered."""
    for results in seen[0]:
        assert results["no_collective_is_added"] == [[1, 0]] * 4


@pytest.mark.parametrize("victim", [0, 1])
def test_what_was_delivered_outlives_a_process_that_is_killed(tmp_path, victim):
    with pair(tmp_path, "endless") as (processes, outputs):
        deadline = time.monotonic() + SECONDS
        while not all((tmp_path / f"going-{i}").exists() for i in range(2)):
            codes = [process.poll() for process in processes]
            assert codes == [None, None], [path.read_text() for path in outputs]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        processes[victim].send_signal(signal.SIGKILL)
        assert processes[1 - victim].wait(SECONDS) != 0
        said = outputs[1 - victim].read_text()
    logs = lox.load(tmp_path / "endless")
    rows = len(logs["i"])

    # JAX's own error: the other one is gone.
    assert any(word in said for word in ("Gloo", "coordination service")), said[-3000:]
    assert rows > 100
    np.testing.assert_array_equal(logs["i"], range(rows))
    np.testing.assert_array_equal(logs["mean"], np.full(rows, 3.5))
