"""Who may ask the server, what it answers, and what the command line says."""

import base64
import dataclasses
import http.client
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse

import numpy as np
import pytest

from lox_host.cli.main import main
from lox_host.rows import Block, Form
from lox_host.view import Viewer
from lox_host.view.export import answers
from lox_host.view.viewer import FIRST_FIELDS
from support.browser import Server, served
from support.stores import Recording, block_of, make_runs, write_matrix


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("stores") / "store"
    values = {"x": np.arange(20.0).reshape(10, 2)}
    write_matrix(path, [{"lr": 0.1}, {"lr": 0.2}], values, np.arange(10))
    return path


def request(server, path="/", method="GET", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def ask(server, question, fields, **headers):
    answer, text = request(
        server, f"/api/{question}", "POST", json.dumps(fields), **headers
    )
    return answer.status, json.loads(text) if text.startswith("{") else text


def files_of(store):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in store.rglob("*")
        if path.is_file()
    }


def test_only_its_own_names_and_pages_may_ask(store):
    with served(store) as server:
        assert server.url == f"http://127.0.0.1:{server.port}/"
        assert request(server)[0].status == 200
        assert request(server, Host=f"localhost:{server.port}")[0].status == 200
        for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1:1"):
            answer, text = request(server, Host=host)
            assert answer.status == 403
            assert "Unknown host" in text
        assert ask(server, "overview", {}, Origin="http://evil.example")[0] == 403
        mine = f"http://127.0.0.1:{server.port}"
        assert ask(server, "overview", {}, Origin=mine)[0] == 200
        answer, _ = request(server)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_other_addresses_need_a_token(store):
    with served(store, host="0.0.0.0") as server:
        token = urllib.parse.parse_qs(urllib.parse.urlsplit(server.url).query)["token"][0]
        assert len(token) >= 32
        for path in ("/", "/app.js", "/events", "/export", "/?token=wrong"):
            answer, text = request(server, path)
            assert answer.status == 403
            assert "No token" in text
        assert ask(server, "overview", {})[0] == 403
        answer, _ = request(server, f"/?token={token}")
        assert answer.status == 200
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert ask(server, "overview", {}, Cookie=cookie.partition(";")[0])[0] == 200


def test_what_cannot_be_answered_is_an_error_in_words(store):
    with served(store) as server:
        status, found = ask(server, "nothing", {})
        assert (status, found["error"]) == (400, "There is no question 'nothing'.")
        status, found = ask(server, "panel", {"key": "x", "where": "lrr > 1"})
        assert status == 400
        assert "'lrr'" in found["error"]
        assert ask(server, "panel", {"key": "x", "centre": "mode"})[0] == 400
        assert ask(server, "run", {"run": "nobody"})[0] == 400
        answer, _ = request(server, "/api/overview", "POST", "[1, 2")
        assert answer.status == 400
        assert request(server, "/../../etc/passwd")[0].status == 404
        status, found = ask(server, "panel", {"key": "no such key"})
        assert (status, found["runs"]) == (200, 0)


def test_looking_changes_nothing(store):
    before = files_of(store)
    with served(store) as server:
        for question in ("overview", "diverged"):
            assert ask(server, question, {})[0] == 200
        assert ask(server, "panel", {"key": "x", "group": "lr"})[0] == 200
        assert ask(server, "table", {"keys": ["x"]})[0] == 200
        assert request(server, "/export")[0].status == 200
        time.sleep(0.6)
    assert files_of(store) == before


def test_a_port_that_is_taken(store):
    with (
        served(store) as server,
        pytest.raises(OSError, match=f"Port {server.port} is taken.*`--port 0`"),
    ):
        Server(Viewer([store]), port=server.port)
    with pytest.raises(OSError, match="not an address of this machine"):
        Server(Viewer([store]), "192.0.2.1", 0)


def test_the_command_serves_until_it_is_stopped(store):
    command = [sys.executable, "-m", "lox_host.cli.main", "view", str(store)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-browser"],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert re.fullmatch(r"2 runs: http://127\.0\.0\.1:\d+/\n", line)
        port = int(line.rpartition(":")[2].strip("/\n"))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(2)
        assert process.wait(10) == 130
    finally:
        process.kill()
        process.stdout.close()


def test_the_command_exports_a_file(store, tmp_path, capsys):
    file = tmp_path / "report.html"
    assert main(["view", str(store), "--export", str(file)]) == 0
    assert re.fullmatch(r"2 runs, 0\.\d MB: .*report\.html\n", capsys.readouterr().out)
    text = file.read_text()
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert main(["view", str(store), "--export", str(tmp_path / "no" / "x.html")]) == 1
    assert "Cannot write the report" in capsys.readouterr().err


def test_paths_that_are_wrong_or_empty(tmp_path, capsys):
    assert main(["view", str(tmp_path / "nope")]) == 1
    assert "No such folder" in capsys.readouterr().err
    assert main(["view", str(tmp_path), "--export", str(tmp_path / "x.html")]) == 1
    assert "There are no runs to export yet." in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["view", "--port", "99999"])
    assert "'99999' is not a port" in capsys.readouterr().err


def parts_of(viewer, key, x):
    runs = np.arange(len(viewer.catalog.runs))
    return {
        int(part.runs[i]): part.line(i)
        for part in viewer.catalog.parts(key, x, runs)
        for i in range(len(part.runs))
    }


def test_runs_in_any_order_keep_their_rows(tmp_path):
    """Runs of other lengths, another step for some, a key with another dtype."""
    rng = np.random.default_rng(0)
    recording = Recording(tmp_path, make_runs([{}] * 3))
    truth = {run: [] for run in range(3)}
    step = [0, 0, 0]
    for number in range(40):
        runs = rng.integers(3, size=rng.integers(1, 5))
        steps, values = [], rng.normal(size=len(runs))
        if number % 3 == 0:
            values = np.round(values * 10).astype(np.int32)
        for run, value in zip(runs, values, strict=True):
            step[run] += int(rng.integers(1, 4))
            steps.append(step[run])
            truth[run].append((step[run], float(value)))
        recording.add(block_of(runs, np.array(steps), {"x": values}))
    for _ in range(2):
        found = parts_of(Viewer([tmp_path]), "x", "step")
        for run in range(3):
            xs, ys = found[run]
            assert list(zip(xs, ys, strict=True)) == truth[run]
        recording.end()
        recording.end = lambda: None


def test_new_frames_alone_are_read(tmp_path):
    recording = Recording(tmp_path, make_runs([{}] * 2))
    values = np.arange(40.0).reshape(20, 2)
    recording.add_matrix({"x": values[:10], "y": values[:10]}, np.arange(10))
    viewer = Viewer([tmp_path])
    [session] = viewer.catalog.sessions.values()
    assert parts_of(viewer, "x", "step")[0][1].tolist() == values[:10, 0].tolist()
    asked = []
    original = type(session.columns.frame_reader()).column

    def column(self, frame, number):
        asked.append((frame.start, number))
        return original(self, frame, number)

    recording.add_matrix({"x": values[10:], "y": values[10:]}, np.arange(10, 20))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(session.columns.frame_reader()), "column", column)
        assert viewer.catalog.poll()
        assert parts_of(viewer, "x", "step")[1][1].tolist() == values[:, 1].tolist()
    # The runs, the steps and the key that is looked at, of one frame.
    assert len({start for start, _ in asked}) == 1
    assert len({number for _, number in asked}) == 3
    recording.end()


def test_a_resumed_run_is_one_curve(tmp_path):
    first = make_runs([{"lr": 0.1}])[0]
    # The second session begins at step 15, with another key.
    for steps, values, resumed in (
        ([0, 10, 18, 30], [0.0, 1, 2, 3], False),
        ([20, 30, 40], [7.0, 8, 9], True),
    ):
        run = type(first)(**{**vars(first), "resumed": resumed})
        recording = Recording(tmp_path, [run])
        recording.add(
            block_of(np.zeros(len(steps), int), np.array(steps), {"x": np.array(values)})
        )
        begin = np.array([15 if resumed else 0])
        recording.add(block_of(np.zeros(1, int), begin, {"other": np.ones(1)}))
        recording.end()
    viewer = Viewer([tmp_path])
    [number] = viewer.catalog.newest().tolist()
    panel = viewer.answer("panel", {"key": "x"})
    assert panel["runs"] == 1
    [part] = viewer.catalog.parts("x", "step", np.array([number]))
    xs, ys = part.line(0)
    assert (xs.tolist(), ys.tolist()) == ([0, 10, 20, 30, 40], [0, 1, 7, 8, 9])
    [part] = viewer.catalog.parts("x", "row", np.array([number]))
    assert part.line(0)[0].tolist() == [0, 1, 2, 3, 4]


def test_a_run_that_was_run_again_is_shown_in_its_newest_session(tmp_path):
    for value in (1.0, 2.0):
        write_matrix(tmp_path, [{}], {"x": np.full((3, 1), value)}, np.arange(3))
    viewer = Viewer([tmp_path])
    assert len(viewer.catalog.runs) == 2
    [part] = viewer.catalog.parts("x", "step", viewer.selection.selected({}))
    assert part.values.ravel().tolist() == [2, 2, 2]
    old = [viewer.catalog.runs[0].session.uid]
    [part] = viewer.catalog.parts("x", "step", viewer.selection.selected({"sessions": old}))
    assert part.values.ravel().tolist() == [1, 1, 1]


def test_memory_is_freed_and_rows_are_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("lox_host.view.data.catalog.BUDGET", 40_000)
    values = {f"k{i}": np.full((500, 10), float(i)) for i in range(5)}
    write_matrix(tmp_path, [{}] * 10, values, np.arange(500))
    viewer = Viewer([tmp_path])
    for _ in range(2):
        for i in range(5):
            assert parts_of(viewer, f"k{i}", "step")[3][1].mean() == i
    [session] = viewer.catalog.sessions.values()
    assert session.columns.nbytes <= 80_000


def test_elements_of_a_run_are_lines(tmp_path):
    """Eight seeds under `vmap`, saved as one run."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 8))
    values[30:, 3] = np.nan
    form = Form(time=True, lead=1, batch=1)
    recording = Recording(tmp_path, make_runs([{}]))
    ids = np.zeros(50, np.int32)
    recording.add(Block(ids, {"step": np.arange(50)}, {"x": values}, {"x": form}))
    recording.end()
    viewer = Viewer([tmp_path])
    panel = viewer.answer("panel", {"key": "x"})
    assert panel["note"] == "mean ± std of 7 of 8 elements of 1 run, 1 diverged"
    assert [(line["run"], line["example"]) for line in panel["lines"]] == [
        (0, i) for i in range(8)
    ]
    [group] = panel["groups"]
    centre = np.frombuffer(base64.b64decode(group["centre"]["d"]))
    np.testing.assert_allclose(centre, values[:, [0, 1, 2, 4, 5, 6, 7]].mean(1))
    assert panel["marks"][0]["example"] == 3
    summary = viewer.answer("table", {"keys": ["x"]})["columns"]["x"]
    assert summary["first_nonfinite"] == [30]


def test_a_filter_leaves_groups_and_their_colours_as_they_are(tmp_path):
    configs = [{"lr": 10.0 ** -(i % 4)} for i in range(12)]
    write_matrix(tmp_path, configs, {"x": np.ones((3, 12))}, np.arange(3))
    viewer = Viewer([tmp_path])

    def groups(**fields):
        found = viewer.answer("panel", {"key": "x", "group": "lr", **fields})
        return found["palette"], {g["label"]: g["index"] for g in found["groups"]}

    number, everything = groups()
    assert (number, len(everything)) == (4, 4)
    assert groups(where="lr > 0.05") == (4, {"lr = 0.1": 2, "lr = 1": 3})
    assert everything["lr = 1"] == 3


def test_rows_have_times_and_runs_have_rates(tmp_path):
    recording = Recording(tmp_path, make_runs([{}] * 2))
    start = recording.runs[0].start
    seconds = np.repeat([0.5, 1.0, 2.0, 4.0], 2)
    block = block_of(np.tile([0, 1], 4), np.repeat(np.arange(4), 2), {"x": np.ones(8)})
    recording.add(dataclasses.replace(block, time=start + seconds))
    recording.end()
    viewer = Viewer([tmp_path])
    assert viewer.answer("overview", {})["x"] == ["step", "row", "time"]
    found = parts_of(viewer, "x", "time")
    np.testing.assert_allclose(found[1][0], [0.5, 1, 2, 4], atol=1e-5)
    assert viewer.answer("panel", {"key": "x", "x": "time"})["x"] == "time"
    rates = viewer.answer("table", {"keys": ["x"]})["columns"]["x"]["rate"]
    np.testing.assert_allclose(rates, [1, 1], atol=1e-5)


def test_filters_are_those_of_the_command_line(tmp_path):
    values = {"return": np.arange(12.0).reshape(3, 4), "loss/value": np.ones((3, 4))}
    configs = [{"lr": lr, "net": {"width": 8}} for lr in (0.1, 0.2, 0.3, 0.4)]
    write_matrix(tmp_path, configs, values, np.arange(3))
    viewer = Viewer([tmp_path])

    def found(where):
        return viewer.selection.selected({"where": where}).tolist()

    assert found("lr > 0.15 and return > 9.5") == [2, 3]
    assert found("value == 1 and not lr > 0.15") == [0]
    assert found("name in ['seed1'] or last['return'] == 8") == [0, 1]
    assert found("net.width > 8") == []
    for hostile in ("__import__('os').system('x') == 1", "[x for x in ()] == 1"):
        with pytest.raises(ValueError, match="The condition"):
            found(hostile)


def test_a_diverged_run_whose_rows_have_no_times(tmp_path):
    """JSON has no NaN, so such a row has no mark against time."""
    recording = Recording(tmp_path, make_runs([{}] * 2))
    block = block_of(np.array([0, 1]), np.zeros(2), {"x": np.array([np.nan, 1.0])})
    recording.add(dataclasses.replace(block, time=np.full(2, np.nan)))
    recording.end()
    with served(tmp_path) as server:
        status, found = ask(server, "panel", {"key": "x", "x": "time"})
        assert (status, found["marks"]) == (200, [])
        status, found = ask(server, "diverged", {})
        assert (status, found["runs"]) == (200, [0])


def test_keys_are_in_sections_in_the_order_of_the_page(tmp_path):
    keys = ["b/1", "lr", "a/1", "b/2", "a/2", "b/3", "x/y/z"]
    values = {key: np.ones((2, 1)) for key in keys}
    write_matrix(tmp_path, [{}], values, np.arange(2))
    found = Viewer([tmp_path]).answer("overview", {})["keys"]
    assert [(key["section"], key["name"]) for key in found] == [
        *(("b", name) for name in ("b/1", "b/2", "b/3")),
        *(("", name) for name in ("lr", "a/1", "a/2", "x/y/z")),
    ]


def test_what_a_page_asks_first_is_known_before(store):
    viewer = Viewer([store])
    viewer.prepare()
    asked = {**FIRST_FIELDS, "key": "x", "group": None}
    deadline = time.monotonic() + 20
    while not viewer.is_known("panel", asked):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_requests_that_are_no_objects_are_refused(store):
    with served(store) as server:
        for body in ("[1]", "null", "[" * 100_000, "{"):
            assert request(server, "/api/overview", "POST", body)[0].status == 400
        assert request(server, "/export?state=[1]")[0].status == 400


def test_an_export_has_the_groups_of_each_config_entry(tmp_path):
    configs = [{"lr": 0.1 * (i % 2), "net": f"n{i % 3}"} for i in range(6)]
    values = {"x": np.arange(30.0).reshape(5, 6)}
    write_matrix(tmp_path, configs, values, np.arange(5))
    viewer = Viewer([tmp_path])
    found = answers(viewer, {})
    assert list(found["groupings"]) == ["lr", "", "net"]
    for group, number in (("lr", 2), ("", 1), ("net", 3)):
        own = found["groupings"][group]["x"]
        whole = viewer.answer("panel", {"key": "x", "group": group or None})
        assert len(own["groups"]) == number
        assert own["groups"] == whole["groups"]
        assert own["line_groups"] == [line["group"] for line in whole["lines"]]
        assert found["panels"]["x"]["y"] == whole["y"]
    assert "groups" not in found["panels"]["x"]


def test_captions_when_runs_diverge(tmp_path):
    values = np.ones((4, 3))
    for gone, note in (
        (0, "mean ± std of 3 runs"),
        (1, "mean ± std of 2 of 3 runs, 1 diverged"),
        (3, "all 3 runs diverged"),
    ):
        values[2:, :gone] = np.nan
        path = tmp_path / str(gone)
        write_matrix(path, [{}] * 3, {"x": values}, np.arange(4))
        assert Viewer([path]).answer("panel", {"key": "x"})["note"] == note


def test_a_logarithmic_axis_says_what_it_cannot_show(tmp_path):
    values = np.ones((4, 3))
    values[2, 1] = 0
    write_matrix(tmp_path, [{}] * 3, {"x": values, "y": values + 1}, np.arange(4))
    viewer = Viewer([tmp_path])
    note = viewer.answer("panel", {"key": "x", "logy": True})["note"]
    assert note == "mean ± std of 3 runs, values ≤ 0 not shown"
    for fields in ({"key": "x"}, {"key": "y", "logy": True}):
        assert viewer.answer("panel", fields)["note"] == "mean ± std of 3 runs"
