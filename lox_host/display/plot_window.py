"""The window of `PlotLogger`: a process that draws what it is sent. It imports no JAX."""

import pickle
import sys
import threading
from typing import Any

from lox_host.display.panels import Picture

INTERVAL = 100  # milliseconds between two looks at what has come


def main() -> None:
    """Open a window, say so, and draw what comes until the user closes it."""
    import matplotlib.pyplot as plt

    figure = plt.figure("lox", layout="none")
    if not is_interactive(plt.get_backend()):
        return
    print("open", flush=True)
    view = View(figure)
    threading.Thread(target=view.read, daemon=True).start()
    timer = figure.canvas.new_timer(interval=INTERVAL)
    timer.add_callback(view.refresh)
    timer.start()
    plt.show()


def is_interactive(backend: str) -> bool:
    """Whether a backend of matplotlib opens windows."""
    from matplotlib.backends import BackendFilter, backend_registry

    silent = backend_registry.list_builtin(BackendFilter.NON_INTERACTIVE)
    return backend.lower() not in silent


class View:
    """What the window shows. Frames come on one thread, and are drawn on the main one."""

    def __init__(self, figure: Any):
        self._picture = Picture(figure)
        self._frame: tuple | None = None
        self._title = "lox"
        self._has_ended = False

    def read(self) -> None:
        """Take frames until there are no more. Of those that wait, the last counts."""
        try:
            while True:
                self._frame = pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):
            self._has_ended = True

    def refresh(self) -> None:
        ended, frame, self._frame = self._has_ended, self._frame, None
        figure = self._picture.figure
        if frame is not None:
            panels, title = frame
            self._picture.draw(panels, title)
            self._title = title or "lox"
            figure.canvas.draw_idle()
        if frame is not None or ended:
            end = " (ended)" if ended else ""
            figure.canvas.manager.set_window_title(self._title + end)


if __name__ == "__main__":
    main()
