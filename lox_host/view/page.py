"""The files of the page, to serve one by one or to combine for an export."""

import functools as ft
import importlib.resources

# The scripts in the order in which they run.
SCRIPTS = (
    *("core.js", "scale.js", "plot.js", "panel.js", "curves.js", "table.js"),
    *("parallel.js", "sweep.js", "run.js", "overview.js", "main.js"),
)


@ft.cache
def style() -> str:
    """Return the style sheet."""
    return _file("style.css")


@ft.cache
def script() -> str:
    """Return all scripts as one, wrapped in a function so that no names leak."""
    parts = "\n".join(_file(name) for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def index_html() -> str:
    """Return the page for the server."""
    head = '<link rel="stylesheet" href="style.css">\n<script src="app.js" defer></script>'
    return _file("index.html").replace("<!-- head -->", head)


def single_html(head: str, body: str) -> str:
    """Return the page with `head` in its head, and `body` at the end of its body."""
    page = _file("index.html").replace("<!-- head -->", head)
    return page.replace("<!-- data -->", body)


@ft.cache
def _file(name: str) -> str:
    folder = importlib.resources.files("lox_host.view") / "page"
    return (folder / name).read_text(encoding="utf-8")
