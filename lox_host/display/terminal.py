"""The live region of the terminal, which all displays of lox share.

    printed line
    printed line                        <- what the program prints scrolls away above
    lox  2 runs  ━━━━━━━━  40%  ...     <- the view of a logger
    train  ━━━━━━━━━━  60%  6/10  ...   <- the view of a progress bar

Four times a second a thread draws all views again. Everything that writes to the terminal
does so with the lock of the region, so that no line is overwritten.
"""

import atexit
import functools as ft
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from lox_host.display.notebook import NotebookLive, is_notebook
from lox_host.display.print_above import PrintAbove

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

REFRESHES = 4  # in a second, at most


class View(Protocol):
    """Something on the terminal that changes. Its methods are called on any thread."""

    def height(self) -> int:
        """Return how many lines it would fill if there were room."""
        ...

    def render(self, width: int, lines: int) -> "RenderableType":
        """Return what rich should print, with at most this many lines."""
        ...


class Region:
    """The views at the bottom of the terminal; what is printed appears above them.

    Rich moves one such region at a time, so all views of the process share this one.
    """

    def __init__(self):
        # Only who has it may write to the terminal.
        self._lock = threading.RLock()
        self._forget()

    def show(self, view: View, file: TextIO | None = None) -> None:
        """Add a view below the others. The file is that of the first view."""
        with self._lock:
            self._views += (view,)
            if self._live is None:
                self._begin(file)

    def leave(self, view: View) -> None:
        """Print a view for the last time. It stays where it is, and moves no more."""
        with self._lock:
            if view not in self._views:
                return
            if len(self._views) == 1 or self._live is None:
                self.end()
                return
            # Draw the rest without it, and then print it above: it scrolls away like text.
            self._views = tuple(other for other in self._views if other is not view)
            self._live.refresh()
            live = self._live
            last = view.render(live.console.width, view.height())
            live.print(last) if isinstance(live, NotebookLive) else live.console.print(last)

    def end(self) -> None:
        """Print all views for the last time, and give the terminal back."""
        with self._lock:
            if self._live is None:
                return
            self._done.set()
            try:
                self._live.refresh()
                self._live.stop()
            finally:
                self._release()

    def fork(self) -> None:
        """Wait until no thread is writing, before the process forks."""
        self._lock.acquire()

    def forked(self, *, is_child: bool) -> None:
        """Let only one of the two processes keep the region after the fork."""
        if is_child:
            self._release()
        self._lock.release()

    def _release(self) -> None:
        for name, above in self._above.items():
            if getattr(sys, name) is above:
                setattr(sys, name, above.rich_proxied_file)
            above.detach()
        self._forget()

    def _forget(self) -> None:
        self._views: tuple[View, ...] = ()
        self._live: Live | NotebookLive | None = None
        self._above: dict[str, PrintAbove] = {}
        self._done = threading.Event()

    def _begin(self, file: TextIO | None) -> None:
        self._live = _live(file, self._render)
        self._live.start()
        console = self._live.console
        # What goes to a file or a pipe shall still go there.
        is_terminal = not isinstance(self._live, NotebookLive)
        for name in ("stdout", "stderr") if is_terminal else ():
            stream = getattr(sys, name)
            if _is_terminal(stream):
                self._above[name] = PrintAbove(stream, console, self._lock)
                setattr(sys, name, self._above[name])
        args = (self._done,)
        threading.Thread(target=self._move, args=args, name="lox-live", daemon=True).start()

    def _move(self, done: threading.Event) -> None:
        """Draw the views again and again, on a thread of its own."""
        while not done.wait(1 / REFRESHES):
            with self._lock:
                if not done.is_set() and self._live is not None:
                    self._live.refresh()

    def _render(self) -> "RenderableType":
        from rich.console import Group
        from rich.segment import SegmentLines

        if self._live is None:  # rich asks once while it makes the display
            return Group()
        console = self._live.console
        heights = [view.height() for view in self._views]
        if not self._done.is_set():
            heights = divide_lines(heights, console.height - 1)
        pairs = zip(self._views, heights, strict=True)
        views = Group(*(view.render(console.width, height) for view, height in pairs))
        # Rich writes this again below each line that is printed; that shall be quick.
        return SegmentLines(console.render_lines(views, pad=False), new_lines=True)


def divide_lines(heights: Sequence[int], lines: int) -> list[int]:
    """Divide lines among views: small ones get what they ask for, tall ones the same."""
    # From the smallest: what it does not need is there for the others.
    #     heights 1 9 3, 8 lines    ->    1 of 8/3, 3 of 7/2, 4 of 4/1
    shares = [0] * len(heights)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    for done, i in enumerate(order):
        shares[i] = min(heights[i], max(1, lines // (len(order) - done)))
        lines -= shares[i]
    return shares


def can_move(file: TextIO | None = None) -> bool:
    """Return whether what is shown can change: on a terminal, and in a notebook.

    Args:
        file: Where it is shown. None: standard error, or the notebook.
    """
    stream = _stream(file)
    if not _is_terminal(stream):
        return file is None and is_notebook()
    # The environment may tell rich to write escape codes anywhere; that is not asked.
    is_able = os.environ.get("TERM", "").lower() not in ("dumb", "unknown")
    return is_able and (stream.encoding or "").lower().startswith("utf")


def _stream(file: TextIO | None) -> TextIO:
    """Return the file itself, without the `PrintAbove` that may replace it."""
    stream = sys.stderr if file is None else file
    return getattr(stream, "rich_proxied_file", stream)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


def _live(
    file: TextIO | None, render: "Callable[[], RenderableType]"
) -> "Live | NotebookLive":
    from rich.console import Console
    from rich.live import Live

    stream = _stream(file)
    if not _is_terminal(stream) and is_notebook():
        return NotebookLive(render)
    return Live(
        console=Console(file=stream, force_terminal=_is_terminal(stream) or None),
        auto_refresh=False,
        get_renderable=render,
        redirect_stdout=False,
        redirect_stderr=False,
    )


region = Region()
# A program that is stopped never gets to the end, and the terminal has no cursor. What is
# registered first is called last, after the loggers have had their say.
atexit.register(region.end)
if hasattr(os, "register_at_fork"):  # pragma: no branch (Windows)
    os.register_at_fork(
        before=region.fork,
        after_in_parent=ft.partial(region.forked, is_child=False),
        after_in_child=ft.partial(region.forked, is_child=True),
    )
