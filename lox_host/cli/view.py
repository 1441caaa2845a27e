"""`lox view`: show runs in a browser, even while they are being written."""

import os
import sys
import webbrowser
from collections.abc import Sequence

from lox_host.cli.errors import CLIError
from lox_host.display.text import count
from lox_host.extras import import_extra
from lox_host.store import is_url


def view(
    where: Sequence[str], *, host: str, port: int, browser: bool, export: str | None
) -> None:
    """Serve a page with all runs under some paths, or write it to a file."""
    for path in where:
        if not is_url(path) and not os.path.isdir(os.path.expanduser(path)):
            raise CLIError(
                f"No such folder: {path!r}. Give a store, the folder that `SaveLogger` or "
                "`lox.save` was given, or a folder with stores in it."
            )
    from lox_host.view import Viewer, export_html

    viewer = Viewer(where)
    for problem in viewer.catalog.problems:
        print(f"lox: {problem}", file=sys.stderr)
    if export is not None:
        _write(export_html(viewer), export, len(viewer.catalog.newest()))
        return
    import_extra("tornado", "`lox view`", "view")
    viewer.prepare()
    from lox_host.view.server import Server, run_server

    server = Server(viewer, host, port)
    found = count(len(viewer.catalog.newest()), "run")
    print(f"{found}: {server.url}\nPress Ctrl-C to stop.", flush=True)
    if browser:
        webbrowser.open(server.url)
    run_server(server)


def _write(html: str, path: str, runs: int) -> None:
    if not runs:
        raise CLIError("There are no runs to export yet.")
    try:
        with open(os.path.expanduser(path), "w", encoding="utf-8") as file:
            file.write(html)
    except OSError as error:
        raise CLIError(f"Cannot write the report to {path!r}: {error.strerror}.") from error
    print(f"{count(runs, 'run')}, {len(html) / 1e6:.1f} MB: {path}")
