"""A progress bar: on a terminal one that moves, elsewhere a line now and then."""

import math
import sys
import time
from typing import Any

from lox_host.display.eta import pace
from lox_host.display.terminal import can_move, region

EVERY = 10.0  # seconds between lines where there is no terminal


class Bar:
    """How far a program is, on standard error.

    Args:
        title: What stands in front.
        total: How many iterations there will be. Infinity: nobody knows.
    """

    def __init__(self, title: str, total: float):
        self._title, self._total = title, total
        self._done = self._shown = 0
        self._start = self._said = 0.0
        self._view: BarView | None = None

    def begin(self, number: int) -> None:
        self._close()
        self._done = self._shown = number
        self._start = self._said = time.monotonic()
        if can_move():
            self._view = BarView(self._title, self._total)
            region.show(self._view)

    def advance(self, number: int) -> None:
        self._done += number
        # Under `vmap` more than one branch may run.
        self._total = max(self._total, self._done)
        if self._view is not None:
            self._view.update(self._done)
        elif time.monotonic() - self._said >= EVERY:
            self._say()

    def end(self, number: int) -> None:
        if self._view is not None:
            # What was in branches that were not taken does not count any more.
            self._view.update(self._done, total=self._done)
        elif self._said > self._start and self._shown < self._done:
            self._say()
        self._close()

    def _say(self) -> None:
        self._said, self._shown = time.monotonic(), self._done
        print(self._line(self._said - self._start), file=sys.stderr, flush=True)

    def _line(self, seconds: float) -> str:
        rate = self._done / seconds if seconds else 0.0
        how_far = pace(self._done, self._total, rate, seconds, "iterations")
        return f"{self._title}: {how_far}"

    def _close(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            region.leave(view)


class BarView:
    """One line of the terminal: a title, a bar, and numbers."""

    def __init__(self, title: str, total: float):
        from rich import progress

        self._progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(show_speed=True),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        self._progress.add_task(title, total=None if total == math.inf else total)

    def update(self, done: int, total: float | None = None) -> None:
        task = self._progress.task_ids[0]
        self._progress.update(task, completed=done, total=total)

    def height(self) -> int:
        return 1

    def render(self, width: int, lines: int) -> Any:
        return self._progress.get_renderable()
