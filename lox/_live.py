"""The part of the terminal that moves: one for all that lox shows there."""

import atexit
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, Protocol, TextIO

REFRESHES = 4  # in a second, at most


class View(Protocol):
    """Something on the terminal that changes. Its methods are called on any thread."""

    def height(self) -> int:
        """How many lines it would fill if there were room."""
        ...

    def render(self, width: int, lines: int) -> Any:
        """Something for rich to print, of at most so many lines."""
        ...


class Region:
    """The views at the bottom of the terminal; what is printed appears above them.

    Rich moves one such region at a time, so all views of the process share this one.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._views: tuple[View, ...] = ()
        self._live: Any = None
        self._is_ending = False

    def show(self, view: View, file: TextIO | None = None) -> None:
        """Add a view below the others. The file is that of the first view."""
        with self._lock:
            self._views += (view,)
            if self._live is None:
                self._live = _live(file, self._render)
                self._live.start()

    def leave(self, view: View) -> None:
        """Print a view for the last time. It stays where it is, and moves no more."""
        with self._lock:
            if view not in self._views:
                return
            if len(self._views) == 1:
                self._end()
                return
            self._views = tuple(other for other in self._views if other is not view)
            self._live.refresh()
            self._live.console.print(view.render(self._live.console.width, view.height()))

    def end(self) -> None:
        """Print all views for the last time, and give the terminal back."""
        with self._lock:
            if self._live is not None:
                self._end()

    def _end(self) -> None:
        self._is_ending = True
        try:
            # In a notebook `stop` does not draw again.
            self._live.refresh()
            self._live.stop()
        finally:
            self._views, self._live, self._is_ending = (), None, False

    def _render(self) -> Any:
        from rich.console import Group

        if self._live is None:  # rich asks once while it makes the display
            return Group()
        views = self._views
        heights = [view.height() for view in views]
        width, lines = self._live.console.size
        if not self._is_ending:
            heights = shares(heights, lines - 1)
        return Group(
            *(view.render(width, h) for view, h in zip(views, heights, strict=True))
        )


def shares(heights: Sequence[int], lines: int) -> list[int]:
    """Divide lines among views: small ones get what they ask for, tall ones the same."""
    given = [0] * len(heights)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    for place, i in enumerate(order):
        given[i] = min(heights[i], max(1, lines // (len(order) - place)))
        lines -= given[i]
    return given


def can_move(file: TextIO | None = None) -> bool:
    """Whether what is shown can change: on a terminal, and in a notebook.

    Args:
        file: Where it is shown. None: standard error, or the notebook.
    """
    stream = _stream(file)
    if not _is_terminal(stream):
        return file is None and _is_notebook()
    # The environment may tell rich to write escape codes anywhere; that is not asked.
    is_able = os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    return is_able and (stream.encoding or "").lower().startswith("utf")


def _stream(file: TextIO | None) -> Any:
    """The file itself. While something moves, rich stands before the standard ones."""
    stream = sys.stderr if file is None else file
    return getattr(stream, "rich_proxied_file", stream)


def _is_terminal(stream: Any) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def _is_notebook() -> bool:
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    # Rich moves what it shows in a notebook with widgets, and warns without them.
    return Console().is_jupyter and importlib.util.find_spec("ipywidgets") is not None


def _live(file: TextIO | None, render: Any) -> Any:
    from rich.console import Console
    from rich.live import Live

    stream = _stream(file)
    is_terminal = _is_terminal(stream)
    return Live(
        console=Console(file=stream, force_terminal=True if is_terminal else None),
        refresh_per_second=REFRESHES,
        get_renderable=render,
        # What goes to a file or a pipe shall still go there.
        redirect_stdout=is_terminal and _is_terminal(sys.stdout),
        redirect_stderr=is_terminal and _is_terminal(sys.stderr),
    )


region = Region()
# A program that is stopped never gets to the end, and the terminal has no cursor. What is
# registered first is called last, after the loggers have had their say.
atexit.register(region.end)
