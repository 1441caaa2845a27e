"""The window of `PlotLogger`: a process that draws what it is sent. It imports no JAX."""

import pickle
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lox_host.display.panels import Panel, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERVAL = 100  # milliseconds between two looks at what has come


def main() -> None:
    """Open a window, say so, and draw what comes until the user closes it."""
    import matplotlib.pyplot as plt

    figure = plt.figure("lox", layout="none")
    if not is_interactive(plt.get_backend()):
        return
    print("open", flush=True)
    content = WindowContent(figure)
    threading.Thread(target=content.read, daemon=True).start()
    timer = figure.canvas.new_timer(interval=INTERVAL)
    timer.add_callback(content.refresh)
    timer.start()
    plt.show()


def is_interactive(backend: str) -> bool:
    """Return whether a backend of matplotlib opens windows."""
    from matplotlib.backends import BackendFilter, backend_registry

    silent = backend_registry.list_builtin(BackendFilter.NON_INTERACTIVE)
    return backend.lower() not in silent


class WindowContent:
    """What the window shows. Panels come on one thread, and are drawn on the main one."""

    def __init__(self, figure: "Figure"):
        self._picture = Picture(figure)
        self._received: tuple[Sequence[Panel], str] | None = None
        self._title = "lox"
        self._has_ended = False

    def read(self) -> None:
        """Receive panels until no more come. `refresh` draws only the latest ones."""
        try:
            while True:
                self._received = pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):
            self._has_ended = True

    def refresh(self) -> None:
        """Draw what has come since the last time."""
        ended, received, self._received = self._has_ended, self._received, None
        figure = self._picture.figure
        if received is not None:
            panels, title = received
            self._picture.draw(panels, title)
            self._title = title or "lox"
            figure.canvas.draw_idle()
        if received is not None or ended:
            end = " (ended)" if ended else ""
            figure.canvas.manager.set_window_title(self._title + end)  # pyright: ignore[reportOptionalMemberAccess]


if __name__ == "__main__":
    main()
