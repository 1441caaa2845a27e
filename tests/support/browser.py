"""A real browser that looks at a real server."""

import asyncio
import contextlib
import shutil
import threading
import time

import pytest

from lox_host.view import Viewer

# Tests that import this are skipped without the extra `view`.
pytest.importorskip("tornado")
from lox_host.view.server import Server

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)


@contextlib.contextmanager
def served(*paths, **options):
    """Serve stores on a free port, on a thread of its own."""
    server = Server(Viewer(paths), port=0, **options)
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve(stop)))
    thread.start()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


@contextlib.contextmanager
def chromium():
    """Start a browser, or skip the test where none can be had."""
    playwright = pytest.importorskip("playwright.sync_api")
    found = [
        shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")
    ]
    path = next(filter(None, found), None)
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        except playwright.Error as error:
            pytest.skip(f"There is no browser to look with: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


def wait_for(page, expression, seconds=20.0):
    """Wait until something is true in the page. `eval` is what its policy forbids."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if page.evaluate(expression):
            return
        time.sleep(0.02)
    raise AssertionError(f"{expression} is not true after {seconds} s")


def open_page(browser, url, state="", **options):
    """Open a page, and gather what its scripts complain of in `page.complaints`."""
    page = browser.new_page(**options)
    page.set_default_timeout(10_000)
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("console", lambda m: m.type == "error" and page.complaints.append(m.text))
    page.goto(url + (f"#{state}" if state else ""))
    wait_for(page, "Boolean(window.lox && window.lox.overview)")
    return page


def panel_of(page, key):
    """What is drawn of a key, with arrays as lists."""
    drawn = (
        "Boolean(lox.panel(key)) && !lox.panels()[key].loading && !lox.panels()[key].stale"
    )
    wait_for(page, f"(key => {drawn})({key!r})")
    return page.evaluate(
        """key => JSON.parse(JSON.stringify(lox.panel(key), (name, value) =>
             ArrayBuffer.isView(value) ? Array.from(value, String) : value))""",
        key,
    )


def floats(values):
    return [float(value.replace("Infinity", "inf")) for value in values]
