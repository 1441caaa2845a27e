"""How fast `lox view` is with 1,024 runs × 10,000 rows × 20 keys, in headless Chromium.

    python benchmarks/viewed.py             # needs 1 GB of disk, Chromium and playwright
    python benchmarks/viewed.py --others    # TensorBoard, trackio and MLflow, on fewer runs

All times are from the moment at which the page is asked for, as the browser measures them.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

from lox_host.rows import Batch, Block, Form
from lox_host.runs.run import Run
from lox_host.writers.save import SaveWriter

RUNS, ROWS, KEYS = 1024, 10_000, 20
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
# When a page has drawn its first panel, and how often it has drawn one.
WATCH = """
window.drawn = {first: null, count: 0};
document.addEventListener("drawn", () => {
    drawn.first ??= performance.now();
    drawn.last = performance.now();
    drawn.count += 1;
});
"""
ZOOM = """([low, high]) => new Promise((done) => {
    const panels = Object.values(lox.panels()).filter((panel) => panel.visible);
    const waiting = new Set(panels.map((panel) => panel.key));
    const began = performance.now();
    const times = [];
    const drawn = (event) => {
        waiting.delete(event.detail.key);
        times.push(performance.now() - began);
        if (!waiting.size) { document.removeEventListener("drawn", drawn); done(times); }
    };
    document.addEventListener("drawn", drawn);
    lox.change({x0: low, x1: high});
})"""


class Session:
    """A session of runs that are written row by row, all of them together."""

    def __init__(self, path: pathlib.Path, runs: int, keys: int):
        self.runs = [
            Run(i, f"seed{i}", (i,), {"lr": 10.0 ** -(1 + i % 4)}, time.time(), "bench")
            for i in range(runs)
        ]
        self.keys = [f"group{i % 4}/key{i}" for i in range(keys)]
        self._writer, self._row = SaveWriter(path), 0
        self._random = np.random.default_rng(0)
        for run in self.runs:
            self._writer.open(run)

    def add(self, rows: int) -> None:
        number = len(self.runs)
        steps = np.arange(self._row, self._row + rows)
        trend = np.exp(-steps / ROWS)[:, None]
        values = {}
        for key in self.keys:
            noise = self._random.normal(size=(rows, number)).astype(np.float32)
            values[key] = (trend + 0.1 * noise).astype(np.float32).reshape(-1)
        ids = np.tile(np.arange(number, dtype=np.int32), rows)
        named = {"step": np.repeat(steps, number).astype(np.int32)}
        forms = dict.fromkeys(values, Form(time=True))
        self._writer.write(Batch([Block(ids, named, values, forms)]))
        self._writer.flush()
        self._row += rows

    def end(self) -> None:
        for run in self.runs:
            self._writer.close(run)


@contextlib.contextmanager
def serving(path):
    """Start `lox view`, as a user does."""
    command = [sys.executable, "-m", "lox_host.cli.main", "view", str(path)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-browser"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


def wait_for(page, expression, seconds=60.0):
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        if time.monotonic() > end:
            raise TimeoutError(expression)
        time.sleep(0.01)


def opened(browser, url):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.add_init_script(WATCH)
    page.goto(url)
    wait_for(page, "Boolean(window.drawn && drawn.first)")
    return page


def peak_memory(process) -> float:
    """The most memory that a process has had, in MB."""
    lines = pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines()
    [peak] = [line for line in lines if line.startswith("VmHWM")]
    return int(peak.split()[1]) / 1024


def processor_time(process) -> float:
    """How many seconds of the processor a process has used."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def report(name: str, value: str, goal: str) -> None:
    print(f"{name:58} {value:>14}   {goal}", flush=True)


def measure(folder: pathlib.Path, browser) -> None:
    print(f"{RUNS} runs × {ROWS} rows × {KEYS} keys; load {os.getloadavg()[0]:.1f}")
    if not (folder / "large").is_dir():
        session = Session(folder / "large", RUNS, KEYS)
        for _ in range(ROWS // 200):
            session.add(200)
        session.end()
    with serving(folder / "large") as (process, url):
        before = processor_time(process)
        page = opened(browser, url)
        cold, busy = page.evaluate("drawn.first"), processor_time(process) - before
        report("first picture, server just started", f"{cold:.0f} ms", "≤ 1 s")
        report(
            "  of which the server computed", f"{1e3 * busy:.0f} ms", "on other cores too"
        )
        time.sleep(5)
        page.close()
        page = opened(browser, url)
        warm = page.evaluate("drawn.first")
        report("first picture, server running", f"{warm:.0f} ms", "≤ 1 s")
        time.sleep(2)
        times = []
        before = processor_time(process)
        for low, high in ((2000, 4000), (2500, 3000), (5000, 9000), (0, 9999), (100, 8000)):
            times.append(page.evaluate(ZOOM, [low, high]))
        busy = (processor_time(process) - before) / sum(map(len, times))
        first = np.median([one[0] for one in times])
        report("zoom, first panel", f"{first:.0f} ms", "≤ 200 ms")
        every, number = np.median([one[-1] for one in times]), len(times[0])
        report(f"zoom, all {number} visible panels", f"{every:.0f} ms", "")
        report("  time of the server's processor, per panel", f"{1e3 * busy:.0f} ms", "")
        sizes = page.evaluate(
            """performance.getEntriesByType("resource")
                 .filter((entry) => entry.name.includes("api/panel"))
                 .map((entry) => entry.encodedBodySize)"""
        )
        report("largest panel", f"{max(sizes) / 1e3:.0f} kB", "≤ 1 MB")
        # Every key is looked at once, so that memory has all that it may have.
        keys = page.evaluate("lox.overview.keys.map((key) => key.name)")
        for key in keys:
            page.evaluate("key => lox.change({keys: key, x0: null, x1: null})", key)
            wait_for(page, f"Boolean(lox.panel({key!r}))")
        page.close()
        report("memory of the server", f"{peak_memory(process):.0f} MB", "≤ 1 GB")


def measure_live(folder: pathlib.Path, browser) -> None:
    session = Session(folder / "live", RUNS, KEYS)
    session.add(200)
    with serving(folder / "live") as (_, url):
        page = opened(browser, url)
        delays, rows = [], RUNS * 200
        key = session.keys[0]
        for _ in range(8):
            time.sleep(0.7)
            began = time.perf_counter()
            session.add(1)
            rows += RUNS
            wait_for(page, f"lox.panel({key!r})?.rows === {rows}")
            delays.append(time.perf_counter() - began)
        page.close()
    session.end()
    report("live: from a row to the screen, median", f"{np.median(delays):.2f} s", "≤ 1 s")
    report("live: the slowest of 8", f"{max(delays):.2f} s", "")


def main() -> None:
    from playwright.sync_api import sync_playwright
    from viewed_others import measure_others

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--others", nargs="*", help="lox and these viewers, or all")
    parser.add_argument("--folder", help="where the large session is kept for next time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as driver:
        folder = pathlib.Path(temporary)
        path = shutil.which("chromium")
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        if options.others is not None:
            measure_others(folder, browser, options.others)
        else:
            measure(pathlib.Path(options.folder or temporary), browser)
            measure_live(folder, browser)
        browser.close()


if __name__ == "__main__":
    main()
