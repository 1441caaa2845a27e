"""The writer of `ConsoleLogger`."""

import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from lox_host.display.summary import Summary
from lox_host.display.terminal import can_move, region
from lox_host.rows import Batch
from lox_host.runs.run import Run

if TYPE_CHECKING:
    from rich.console import RenderableType


class ConsoleWriter:
    """The host side of `ConsoleLogger`.

    A table lasts from the first run that is opened until no run is open.
    """

    def __init__(
        self,
        *,
        every: float = 10.0,
        file: TextIO | None = None,
        max_keys: int = 40,
        title: str = "lox",
    ):
        if max_keys < 1:
            raise ValueError(f"`max_keys` must be at least 1, not {max_keys}.")
        self._every, self._file = every, file
        self._look = {"title": title, "most": max_keys}
        self._open: set[int] = set()
        self._view: LiveTable | PlainLines | None = None

    def open(self, run: Run) -> None:
        if self._view is None:
            self._view = self._begin()
        self._open.add(run.id)
        self._view.open(run.id)

    def write(self, batch: Batch) -> None:
        if self._view is not None:
            self._view.add(batch)

    def flush(self) -> None:
        if self._view is not None:
            self._view.tick()

    def close(self, run: Run) -> None:
        self._open.discard(run.id)
        if self._view is not None and not self._open:
            # The next run gets a table of its own, below what is printed in between.
            view, self._view = self._view, None
            view.end()

    def _begin(self) -> "LiveTable | PlainLines":
        if not can_move(self._file):
            return PlainLines(self._file, self._every, **self._look)
        table = LiveTable(**self._look)
        region.show(table, self._file)
        return table


class LiveTable:
    """A view for a terminal. Rows come on one thread, and it is drawn on another."""

    def __init__(self, *, title: str, most: int):
        self._title, self._most = title, most
        self._lock = threading.Lock()
        self._summary = Summary(time.monotonic())

    def open(self, run: int) -> None:
        with self._lock:
            self._summary.open(run)

    def add(self, batch: Batch) -> None:
        # Block by block, so that the thread that draws never waits for long.
        for block in batch:
            with self._lock:
                self._summary.add(block, time.monotonic())

    def tick(self) -> None:
        """Do nothing: the table draws itself."""

    def end(self) -> None:
        region.leave(self)

    def height(self) -> int:
        from lox_host.display import run_table

        with self._lock:
            return run_table.height(self._summary, self._most)

    def render(self, width: int, lines: int) -> "RenderableType":
        from lox_host.display import run_table

        now = time.monotonic()
        with self._lock:
            return run_table.table(
                self._summary, now, title=self._title, width=width, lines=lines
            )


class PlainLines:
    """A line every few seconds, where there is no terminal."""

    def __init__(self, file: TextIO | None, every: float, *, title: str, most: int):
        self._file, self._every = file, every
        self._title, self._most = title, most
        self._said = time.monotonic()
        self._summary = Summary(self._said)
        self._is_new = False

    def open(self, run: int) -> None:
        self._summary.open(run)

    def add(self, batch: Batch) -> None:
        for block in batch:
            self._summary.add(block, time.monotonic())
            self._is_new = True

    def tick(self) -> None:
        if self._is_new and time.monotonic() - self._said >= self._every:
            self._say()

    def end(self) -> None:
        self._say()

    def _say(self) -> None:
        self._said, self._is_new = time.monotonic(), False
        text = self._summary.line(self._said, title=self._title, most=self._most)
        stream = sys.stderr if self._file is None else self._file
        encoding = getattr(stream, "encoding", None) or "utf-8"
        # A log in ASCII shall not end a run whose keys are in Greek.
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        print(text, file=stream, flush=True)
