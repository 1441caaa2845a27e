"""The page in a real browser: what it shows is what NumPy says of the stores."""

import html
import json

import numpy as np
import pytest

from lox_host.view import Viewer, export_html
from support.browser import chromium, floats, open_page, panel_of, served, wait_for
from support.stores import Recording, block_of, make_runs, write_matrix

ROWS, RUNS = 300, 64
LRS = (1e-4, 1e-3, 1e-2)
HTML = "<img src=x onerror=alert(1)>"


def numbers():
    rng = np.random.default_rng(1)
    t = np.arange(ROWS)[:, None] / ROWS
    returns = 500 * t + rng.normal(size=(ROWS, RUNS)).cumsum(0)
    returns[200:, 5] = np.nan
    return {
        "return": returns.astype(np.float32),
        "loss/policy": np.exp(-t * rng.uniform(1, 3, RUNS)),
        f"loss/{HTML}": rng.normal(size=(ROWS, RUNS)),
    }


VALUES, STEPS = numbers(), np.arange(ROWS) * 10
CONFIGS = [
    {"lr": LRS[i % 3], "net": HTML if i % 2 else "mlp", "seed": i} for i in range(RUNS)
]


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("stores") / "sweep"
    names = [HTML if i == 3 else f"seed{i}" for i in range(RUNS)]
    write_matrix(path, CONFIGS, VALUES, STEPS, names=names)
    return path


@pytest.fixture(scope="module")
def server(store):
    with served(store) as found:
        yield found


@pytest.fixture
def page(browser, server):
    found = open_page(browser, server.url)
    yield found
    assert found.complaints == []
    found.close()


def group(i):
    return [run for run in range(RUNS) if run % 3 == i]


def test_means_and_bands_on_the_page_are_numpys_over_all_runs(page):
    drawn = panel_of(page, "return")
    assert drawn["note"] == "mean ± std of 63 of 64 runs, 1 diverged"
    assert [g["label"] for g in drawn["groups"]] == [f"lr = {lr:g}" for lr in LRS]
    for i, shown in enumerate(drawn["groups"]):
        alive = [run for run in group(i) if run != 5]
        truth = VALUES["return"][:, alive].astype(float)
        mean, std = truth.mean(1), truth.std(1)
        np.testing.assert_array_equal(floats(shown["x"]), STEPS)
        np.testing.assert_allclose(floats(shown["centre"]), mean, rtol=1e-12)
        low = np.maximum(mean - std, truth.min(1))
        np.testing.assert_allclose(floats(shown["low"]), low, rtol=1e-9)
        assert shown["runs"] == len(group(i))
    assert drawn["density"] is not None
    assert [(m["x"], m["end"]) for m in drawn["marks"]] == [(2000, True)]
    assert "1 diverged" in page.inner_text("#legend")


def test_choices_change_what_is_drawn_and_the_link(page):
    page.select_option("select[name=centre]", "median")
    page.select_option("select[name=band]", "80")
    page.select_option("select[name=group]", "")
    page.fill("input[name=smooth]", "4")
    page.keyboard.press("Tab")
    wait_for(page, "lox.panel('return')?.note.includes('smoothed')")
    drawn = panel_of(page, "return")
    assert drawn["note"] == (
        "median 10–90 % of 63 of 64 runs, 1 diverged, smoothed over 4 rows"
    )
    alive = [run for run in range(RUNS) if run != 5]
    raw = VALUES["return"][:, alive].astype(float)
    smooth = np.stack([raw[max(0, i - 3) : i + 1].mean(0) for i in range(ROWS)])
    [shown] = drawn["groups"]
    np.testing.assert_allclose(floats(shown["centre"]), np.median(smooth, 1), rtol=1e-5)
    high = np.quantile(smooth, 0.9, axis=1)
    np.testing.assert_allclose(floats(shown["high"]), high, rtol=1e-5)
    # The link brings the same page back.
    assert "centre=median" in page.url
    again = open_page(page.context.browser, page.url)
    assert panel_of(again, "return")["note"] == drawn["note"]
    again.close()


def box_of(page, key):
    number = page.evaluate("key => Object.keys(lox.panels()).indexOf(key)", key)
    return page.locator(".panel .plot").nth(number).bounding_box()


def test_zoom_asks_for_finer_data_and_a_double_click_undoes_it(page):
    panel_of(page, "return")
    box = box_of(page, "return")
    y = box["y"] + 80
    page.mouse.move(box["x"] + 150, y)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, y, steps=4)
    page.mouse.up()
    wait_for(page, "lox.state.x0 !== null && lox.panel('return').groups[0].x.length < 200")
    drawn = panel_of(page, "return")
    x0, x1 = page.evaluate("[lox.state.x0, lox.state.x1]")
    shown = floats(drawn["groups"][0]["x"])
    inside = [step for step in STEPS.tolist() if x0 <= step <= x1]
    assert shown[1:-1] == inside
    page.mouse.dblclick(box["x"] + 150, y)
    wait_for(
        page, "lox.state.x0 === null && lox.panel('return').groups[0].x.length === 300"
    )
    # The same with keys.
    page.locator(".panel .plot").first.focus()
    page.keyboard.press("+")
    wait_for(page, "lox.state.x0 !== null")
    page.keyboard.press("0")
    wait_for(page, "lox.state.x0 === null")


def test_hover_names_a_run_and_a_click_isolates_it(page):
    panel_of(page, "return")
    box = box_of(page, "return")
    page.mouse.move(box["x"] + 200, box["y"] + 100)
    wait_for(page, "document.querySelector('#tip small')?.textContent.includes('isolate')")
    tip = page.inner_text("#tip")
    name = page.evaluate("lox.overview.runs[lox.panels()['return'].hovered.run].name")
    assert name in tip
    assert "lr = 0.001" in tip
    page.mouse.down()
    page.mouse.up()
    wait_for(page, "lox.state.picks.length === 1 && lox.panel('return').runs === 1")
    assert name in page.inner_text("#chips")
    drawn = panel_of(page, "loss/policy")
    assert drawn["runs"] == 1
    run = int(drawn["lines"][0]["run"])
    np.testing.assert_allclose(
        floats(drawn["lines"][0]["y"]), VALUES["loss/policy"][:, run], rtol=1e-6
    )
    page.mouse.move(5, 5)
    page.keyboard.press("Escape")
    wait_for(page, "lox.panel('return').runs === 64")


def test_a_filter_applies_to_all_panels_and_says_what_is_wrong(page):
    page.fill("#where", "lr > 5e-4 and return > 400")
    page.keyboard.press("Enter")
    last = VALUES["return"][-1]
    chosen = [r for r in range(RUNS) if CONFIGS[r]["lr"] > 5e-4 and last[r] > 400]
    wait_for(page, f"lox.panel('return')?.runs === {len(chosen)}")
    text = f"{len(chosen)} of 64 runs"
    wait_for(page, f"document.querySelector('#count').innerText.includes('{text}')")
    page.fill("#where", "learning > 1")
    page.keyboard.press("Enter")
    wait_for(page, "document.querySelector('#count').textContent.includes('No run')")
    assert "No run has 'learning'" in page.inner_text("#count")
    says = "document.querySelector('.panel .note').textContent.includes('No run')"
    wait_for(page, says)
    assert "No run has 'learning'" in page.inner_text(".panel .note >> nth=0")
    page.wait_for_timeout(300)
    page.complaints.clear()  # the browser notes each answer with an error


def test_the_table_sorts_and_selects(page):
    page.keyboard.press("2")
    wait_for(page, "document.querySelectorAll('tbody tr td.name').length > 10")
    page.click("th button[title=return]")
    wait_for(page, "lox.state.sort === 'key.return'")
    best = int(np.nanargmax(VALUES["return"][-1]))
    name = json.dumps(HTML if best == 3 else f"seed{best}")
    first = "document.querySelector('tbody tr:nth-child(2) td.name').textContent"
    wait_for(page, f"{first} === {name}")
    cells = page.locator("tbody tr td.name + td")
    assert cells.first.inner_text()
    page.locator("tbody tr td.pick input").first.check()
    page.locator("tbody tr td.pick input").nth(1).check()
    wait_for(page, "lox.state.picks.length === 2")
    page.click("#tab-curves")
    drawn = panel_of(page, "return")
    assert drawn["runs"] == 2


def test_the_page_says_which_runs_diverged_and_which_group_is_best(page):
    wait_for(page, "document.querySelector('#show-diverged') !== null")
    assert page.inner_text("#count") == "64 runs, 1 diverged"
    page.click("#show-diverged")
    wait_for(page, "lox.state.picks.length === 1 && lox.panel('return')?.runs === 1")
    assert (
        page.evaluate("lox.overview.runs.findIndex(r => r.uid === lox.state.picks[0])") == 5
    )
    page.keyboard.press("Escape")
    page.fill("#where", "seed != 5")
    page.keyboard.press("Enter")
    text = "63 of 64 runs, none diverged"
    wait_for(page, f"document.querySelector('#count').innerText === '{text}'")
    page.fill("#where", "")
    page.keyboard.press("Enter")
    page.click("#tab-sweep")
    wait_for(page, "document.querySelectorAll('#by-group li').length === 3")
    last = VALUES["return"][-1].astype(float)
    means = [np.nanmean(last[group(i)]) for i in range(3)]
    shown = page.locator("#by-group li").all_inner_texts()
    # The group with the run that diverged comes last.
    order = sorted(range(3), key=lambda i: (5 in group(i), -means[i]))
    for text, place in zip(shown, order, strict=True):
        assert text.startswith(f"lr {LRS[place]:g}{means[place]:.4g}")
        assert ("1 not finite" in text) == (5 in group(place))


def test_a_diverged_run_is_marked_in_the_table(browser, server):
    page = open_page(browser, server.url, "view=table&where=seed+%3D%3D+5")
    wait_for(page, "document.querySelectorAll('tr.diverged').length === 1")
    assert "2,000" in page.inner_text("tr.diverged")
    assert "nan" in page.inner_text("tr.diverged")
    page.close()


def test_the_sweep_brushes_and_finds_the_best(page):
    page.keyboard.press("3")
    wait_for(page, "document.querySelectorAll('#best-runs li').length === 5")
    last = VALUES["return"][-1].astype(float)
    order = [run for run in np.argsort(-last) if np.isfinite(last[run])]
    names = [HTML if run == 3 else f"seed{run}" for run in order]
    shown = page.locator("#best-runs li a").all_inner_texts()
    assert shown == names[:5]
    # Brush the axis of lr with numbers, then with the pointer.
    page.fill("input[aria-label='lr at least']", "0.005")
    page.keyboard.press("Tab")
    wait_for(page, "lox.state.brush.lr !== undefined && lox.table.selected.size === 21")
    page.keyboard.press("Escape")
    page.mouse.click(5, 300)
    page.keyboard.press("Escape")
    wait_for(page, "lox.table.selected.size === 64")
    box = page.locator(".parallel canvas").bounding_box()
    page.mouse.move(box["x"] + 70, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 70, box["y"] + 60, steps=3)
    page.mouse.up()
    wait_for(page, "lox.table.selected.size === 21")
    page.click("#best")
    drawn = panel_of(page, "return")
    assert drawn["runs"] == 10


def test_what_is_in_a_store_is_text(page):
    for view in ("curves", "table", "sweep", "overview"):
        page.click(f"#tab-{view}")
        page.wait_for_timeout(200)
        assert page.locator("main img, #top img, #filters img").count() == 0
    page.click("#tab-curves")
    assert page.locator(f"h3:text-is('loss/{HTML}')").count() == 1
    page.click("#tab-run")
    page.select_option("select[name=run]", label=HTML)
    wait_for(page, "document.querySelector('.facts')?.textContent.includes('onerror')")
    assert page.locator("img").count() == 0


def test_a_keyboard_is_enough(browser, server):
    page = open_page(browser, server.url, "where=seed+%3C+20")
    focused = "document.activeElement.dataset.focus || document.activeElement.id"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # skip to the content
    wait_for(page, f"({focused}) === 'main'")
    assert page.evaluate("lox.state.where") == "seed < 20"
    # What is drawn again keeps the focus.
    page.focus("#tab-table")
    page.keyboard.press("Enter")
    wait_for(page, "document.querySelectorAll('tbody td.name').length === 20")
    wait_for(page, f"({focused}) === 'tab-table'")
    page.focus("th button[title=return]")
    page.keyboard.press("Enter")
    wait_for(page, "lox.state.sort === 'key.return'")
    wait_for(page, f"({focused}) === 'key.return'")
    page.keyboard.press("Enter")
    wait_for(page, "lox.state.down === false")
    page.focus("tbody td.pick input")
    page.keyboard.press("Space")
    wait_for(page, "lox.state.picks.length === 1")
    wait_for(page, f"({focused}) === lox.state.picks[0]")
    page.keyboard.press("Space")
    wait_for(page, "lox.state.picks.length === 0")
    page.close()


def test_names_that_cannot_be_seen_are_shown_in_another_way(browser, tmp_path):
    names = ["a\x00b\nc", "\u202edesrever", " "]
    write_matrix(tmp_path, [{}] * 3, {"x": np.ones((2, 3))}, np.arange(2), names=names)
    with served(tmp_path) as server:
        page = open_page(browser, server.url, "view=table")
        wait_for(page, "document.querySelectorAll('tbody td.name').length === 3")
        shown = page.locator("tbody td.name a").all_inner_texts()
        assert shown[:2] == ["a\\u0000b\\u000ac", "\\u202edesrever"]
        assert shown[2] == page.evaluate("lox.overview.runs[2].uid")
        assert page.complaints == []
        page.close()


def test_themes_and_widths(browser, server):
    for width in (1280, 1920):
        page = open_page(browser, server.url, viewport={"width": width, "height": 900})
        panel_of(page, "return")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.keyboard.press("t")
        after = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert before != after
        page.close()


def test_an_export_opens_without_network(browser, store, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(export_html(Viewer([store])), encoding="utf-8")
    context = browser.new_context(offline=True)
    page = context.new_page()
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    wait_for(page, "Boolean(window.lox && window.lox.panel('return'))")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    drawn = panel_of(page, "return")
    alive = [run for run in group(0) if run != 5]
    truth = VALUES["return"][:, alive].astype(float).mean(1)
    np.testing.assert_allclose(floats(drawn["groups"][0]["centre"]), truth, rtol=1e-12)
    # The runs can still be grouped in other ways.
    page.select_option("select[name=group]", "net")
    wait_for(page, "lox.panel('return').groups.length === 2")
    drawn = panel_of(page, "return")
    alive = [run for run in range(RUNS) if run % 2 == 0]
    truth = VALUES["return"][:, alive].astype(float).mean(1)
    np.testing.assert_allclose(floats(drawn["groups"][1]["centre"]), truth, rtol=1e-12)
    assert drawn["density"] is not None
    assert page.is_disabled("select[name=centre]")
    for view in ("table", "sweep", "run", "overview"):
        page.click(f"#tab-{view}")
        page.wait_for_timeout(100)
        assert page.inner_text("main")
    assert page.locator("img").count() == 0
    assert complaints == []
    context.close()


def test_an_export_works_inside_another_page(browser, store, tmp_path):
    """As in a notebook, where the page has no address of its own."""
    source = html.escape(export_html(Viewer([store])))
    file = tmp_path / "notebook.html"
    frame = f'<iframe srcdoc="{source}" width=1200 height=700></iframe>'
    file.write_text(f"<!doctype html><meta charset=utf-8>{frame}", encoding="utf-8")
    page = browser.new_page()
    complaints = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    inside = page.frames[1]
    wait_for(inside, "Boolean(window.lox && window.lox.panel('return'))")
    inside.select_option("select[name=group]", "net")
    wait_for(inside, "lox.panel('return').groups.length === 2")
    inside.click("#tab-table")
    wait_for(inside, "document.querySelectorAll('tbody td.name').length > 10")
    inside.click("tbody td.name a >> nth=0")
    wait_for(inside, "document.querySelector('.facts')?.textContent.includes('Config')")
    assert page.url == file.as_uri()
    assert complaints == []
    page.close()


def test_new_rows_appear_within_a_second(browser, tmp_path):
    runs = make_runs([{"lr": lr} for lr in (0.1, 0.2)])
    recording = Recording(tmp_path / "live", runs)
    values = np.arange(40.0).reshape(20, 2)
    recording.add_matrix({"x": values[:10]}, np.arange(10))
    with served(tmp_path) as server:
        page = open_page(browser, server.url)
        assert panel_of(page, "x")["rows"] == 20
        assert "1 running" in page.inner_text("#live")
        page.evaluate("lox.stats.bytes = 0")
        recording.add_matrix({"x": values[10:]}, np.arange(10, 20))
        wait_for(page, "lox.panel('x').rows === 40", seconds=5)
        [shown] = panel_of(page, "x")["groups"]
        assert floats(shown["x"]) == list(range(20))
        assert floats(shown["centre"]) == values.mean(1).tolist()
        recording.end()
        wait_for(page, "lox.overview.sessions[0].state === 'finished'", seconds=5)
        assert floats(panel_of(page, "x")["groups"][0]["centre"]) == values.mean(1).tolist()
        page.close()


def test_stores_that_come_later_are_found(browser, tmp_path):
    with served(tmp_path) as server:
        page = open_page(browser, server.url)
        assert "There is no store" in page.inner_text("main")
        write_matrix(tmp_path / "new", [{}] * 2, {"x": np.ones((5, 2))}, np.arange(5))
        wait_for(page, "lox.panel('x')?.runs === 2", seconds=8)
        page.close()


def test_damage_is_said_in_the_page(browser, tmp_path):
    path = tmp_path / "damaged"
    write_matrix(path, [{}] * 2, {"x": np.ones((500, 2))}, np.arange(500))
    [file] = path.glob("*/*.arrows")
    data = bytearray(file.read_bytes())
    data[-100] ^= 255
    file.write_bytes(data)
    journal = next(path.glob("*/journal"))
    journal.write_bytes(journal.read_bytes() + b"garbage\n")
    with served(path) as server:
        page = open_page(browser, server.url, "view=overview")
        wait_for(page, "document.querySelector('.problems') !== null")
        assert "damaged" in page.inner_text(".problems")
        page.click("#tab-curves")
        note = panel_of(page, "x")["note"]
        assert note.endswith("1,000 rows are damaged and left out: see `lox doctor`")
        page.close()


def test_arrays_images_and_histograms_are_on_the_page_of_a_run(browser, tmp_path):
    recording = Recording(tmp_path / "media", make_runs([{"lr": 0.1}]))
    ids, steps = np.zeros(6, int), np.arange(6)
    image = np.zeros((6, 8, 8, 3), np.uint8)
    image[..., 0] = 200
    histogram = {
        "counts": np.ones((6, 4), np.int32),
        "edges": np.tile(np.arange(5.0), (6, 1)),
        "nonfinite": np.zeros(6, np.int32),
    }
    values = {"loss": np.ones(6), "frame": image, "w": np.ones((6, 5)), "h": histogram}
    recording.add(block_of(ids, steps, values))
    recording.end()
    with served(tmp_path) as server:
        page = open_page(browser, server.url, "view=run")
        wait_for(page, "document.querySelectorAll('#arrays canvas').length >= 5")
        kinds = page.locator("#arrays header small").all_inner_texts()
        assert kinds == ["image", "heat map", "histogram"]
        wait_for(
            page, "document.querySelector('#arrays').textContent.includes('row 6 of 6')"
        )
        pixel = page.evaluate(
            """[...document.querySelector('.picture').getContext('2d')
                .getImageData(3, 3, 1, 1).data]"""
        )
        assert pixel == [200, 0, 0, 255]
        assert "4 bins" in page.inner_text("#arrays")
        assert page.complaints == []
        page.close()


def test_a_million_rows_of_one_run_and_runs_without_steps(browser, tmp_path):
    rows = 1_000_000
    values = np.zeros(rows, np.float32)
    values[123_456] = 5
    recording = Recording(tmp_path / "long", make_runs([{}]))
    recording.add(block_of(np.zeros(rows, int), None, {"x": values}))
    recording.end()
    with served(tmp_path) as server:
        page = open_page(browser, server.url)
        drawn = panel_of(page, "x")
        [line] = drawn["lines"]
        assert len(line["x"]) < 1000
        assert max(floats(line["y"])) == 5
        assert drawn["x"] == "row"
        assert page.evaluate("lox.stats.bytes") < 100_000
        page.close()


def test_the_state_of_an_export_is_that_of_the_page(store):
    html = export_html(Viewer([store]), {"where": "lr > 5e-3", "centre": "median"})
    start = html.index('id="data">') + len('id="data">')
    data = json.loads(html[start : html.index("</script>", start)])
    assert data["answers"]["panels"]["return"]["runs"] == 21
    assert "<img" not in html
