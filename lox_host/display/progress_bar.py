"""A progress bar: on a terminal one that moves, elsewhere a line every few seconds.

Both end in how long the rest will take (the ETA): `train: 25%, 50/200 iterations, 5/s, 0:30
left`. On a terminal rich writes it, elsewhere `progress_text`.
"""

import math
import sys
import time
from typing import TYPE_CHECKING

from lox_host.display.terminal import can_move, region
from lox_host.display.text import duration, speed

if TYPE_CHECKING:
    from rich.console import RenderableType

EVERY = 10.0  # seconds between lines where there is no terminal


class Bar:
    """How far a program is, on standard error.

    Args:
        title: The text in front of the bar.
        total: How many iterations there will be. Infinity: unknown.
    """

    def __init__(self, title: str, total: float):
        self._title, self._total = title, total
        self._done = self._printed = 0
        self._start = self._last_line = 0.0
        self._view: BarView | None = None

    def begin(self, number: int) -> None:
        self._close()
        self._done = self._printed = number
        self._start = self._last_line = time.monotonic()
        if can_move():
            self._view = BarView(self._title, self._total)
            region.show(self._view)

    def advance(self, number: int) -> None:
        self._done += number
        # Under `vmap` more than one branch may run.
        self._total = max(self._total, self._done)
        if self._view is not None:
            self._view.update(self._done)
        elif time.monotonic() - self._last_line >= EVERY:
            self._print_line()

    def end(self, number: int) -> None:
        if self._view is not None:
            # Iterations in branches that were not taken no longer count.
            self._view.update(self._done, total=self._done)
        elif self._last_line > self._start and self._printed < self._done:
            self._print_line()
        self._close()

    def _print_line(self) -> None:
        self._last_line, self._printed = time.monotonic(), self._done
        seconds = self._last_line - self._start
        rate = self._done / seconds if seconds else 0.0
        text = progress_text(self._done, self._total, rate, seconds, "iterations")
        print(f"{self._title}: {text}", file=sys.stderr, flush=True)

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

    def render(self, width: int, lines: int) -> "RenderableType":
        return self._progress.get_renderable()


def progress_text(done: int, total: float, rate: float, seconds: float, unit: str) -> str:
    """Say how far something is after some seconds: `25%, 50/200 rows, 5/s, 0:30 left`.

    After the last iteration, it is the time it took. A total of infinity means unknown.
    """
    parts = [number + unit for number, unit in progress_numbers(done, total, rate, unit)]
    if done == total:
        parts.append(f"in {duration(seconds)}")
    elif total != math.inf:
        parts.append(f"{eta(done, total, rate)} left")
    return ", ".join(parts)


def progress_numbers(
    done: int, total: float, rate: float, unit: str
) -> list[tuple[str, str]]:
    """Return the share, the number and the speed, each with its unit."""
    if total == math.inf:
        return [(str(done), f" {unit}"), (speed(rate), "/s")]
    share = done / total if total else 1.0
    return [(f"{share:.0%}", ""), (f"{done}/{total}", f" {unit}"), (speed(rate), "/s")]


def eta(done: int, total: float, rate: float) -> str:
    """Write how long the rest takes at some rate."""
    return duration((total - done) / rate if rate else math.inf)
