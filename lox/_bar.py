"""A progress bar: on a terminal one that moves, elsewhere a line now and then."""

import atexit
import math
import sys
import time
from typing import Any

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
        self._live: Any = None

    def begin(self, number: int) -> None:
        self._close()
        self._done = self._shown = number
        self._start = self._said = time.monotonic()
        if sys.stderr.isatty():
            self._live = _live(self._title, self._total)

    def advance(self, number: int) -> None:
        self._done += number
        # Under `vmap` more than one branch may run.
        self._total = max(self._total, self._done)
        if self._live is not None:
            self._live.update(0, completed=self._done)
        elif time.monotonic() - self._said >= EVERY:
            self._say()

    def end(self, number: int) -> None:
        if self._live is not None:
            # What was in branches that were not taken does not count any more.
            self._live.update(0, completed=self._done, total=self._done)
        elif self._said > self._start and self._shown < self._done:
            self._say()
        self._close()

    def _say(self) -> None:
        self._said, self._shown = time.monotonic(), self._done
        print(self._line(self._said - self._start), file=sys.stderr, flush=True)

    def _line(self, seconds: float) -> str:
        rate = self._done / seconds if seconds else 0.0
        if self._total == math.inf:
            return f"{self._title}: {self._done} iterations, {rate:.3g}/s"
        share = self._done / self._total if self._total else 1.0
        left = (self._total - self._done) / rate if rate else math.inf
        return (
            f"{self._title}: {share:.0%}, {self._done}/{self._total} iterations, "
            f"{rate:.3g}/s, {_duration(left)} left"
        )

    def _close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            atexit.unregister(live.stop)


def _live(title: str, total: float) -> Any:
    from rich import console, progress

    live = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(show_speed=True),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
    )
    live.add_task(title, total=None if total == math.inf else total)
    live.start()
    # A program that is stopped never gets to the end, and the terminal has no cursor.
    atexit.register(live.stop)
    return live


def _duration(seconds: float) -> str:
    if seconds == math.inf:
        return "unknown"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
