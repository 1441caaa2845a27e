"""`lox.view`: the viewer in a notebook."""

import html
import os
import pathlib

from lox._io.flush_first import flush_first
from lox_host.extras import import_extra
from lox_host.store import Path, is_url
from lox_host.view import Viewer, export_html


def view(path: Path, *, live: bool = False, height: int = 720) -> "View":
    """Look at the runs of a store in a notebook: curves, table, sweep and single runs.

    The page contains everything that it shows, so it stays in a saved notebook and works on
    a remote machine. With `live=True`, it asks this process for data instead. It then
    follows runs that are being written, and lets you group and filter them in other ways,
    but your browser must run on this machine. Without a notebook, run `lox view`.

    Args:
        path: A store, or a folder that contains stores.
        live: Whether the page follows the store. Needs the extra `jax-lox[view]`.
        height: The height of the page in pixels.

    Example:
        >>> lox.save(lox.logdict({"loss": 0.5}), "results")
        >>> lox.view("results")
        <view of 1 run in 'results'>
        >>> lox.view("results").save("report.html")
    """
    flush_first(path)
    if not is_url(path) and not pathlib.Path(path).expanduser().is_dir():
        raise FileNotFoundError(
            f"No such folder: {os.fspath(path)!r}. Give the path that `lox.save` or "
            "`SaveLogger` was given."
        )
    viewer = Viewer([path])
    url = _serve(viewer) if live else None
    return View(viewer, os.fspath(path), url, height)


class View:
    """A page that shows runs. Notebooks display it, and `save` writes it to a file."""

    def __init__(self, viewer: Viewer, path: str, url: str | None, height: int):
        self._viewer, self._path, self._url, self._height = viewer, path, url, height

    def save(self, file: Path) -> None:
        """Write the page to an HTML file, which needs no server and no network."""
        text = export_html(self._viewer)
        pathlib.Path(file).expanduser().write_text(text, encoding="utf-8")

    def __repr__(self) -> str:
        runs = len(self._viewer.catalog.newest())
        where = "" if self._url is None else f", at {self._url}"
        return f"<view of {runs} run{'' if runs == 1 else 's'} in {self._path!r}{where}>"

    def _repr_html_(self) -> str:
        source = f'src="{self._url}"'
        if self._url is None:
            source = f'srcdoc="{html.escape(export_html(self._viewer))}"'
        style = f"width: 100%; height: {self._height}px; border: 1px solid #8884"
        return f'<iframe {source} style="{style}" title="lox view"></iframe>'


def _serve(viewer: Viewer) -> str:
    """Serve a page on a thread for as long as this process lives, and return its URL."""
    import_extra("tornado", "`lox.view(live=True)`", "view")
    from lox_host.view.server import serve_in_thread

    return serve_in_thread(viewer)
