"""Where `PlotLogger` shows its curves: a file, a notebook or a window."""

import atexit
import contextlib
import functools as ft
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lox_host.display.notebook import is_notebook, show_output
from lox_host.display.panels import Panel, Picture
from lox_host.display.plot_window import is_interactive

DEFAULT = "lox.png"
PATIENCE = 20.0  # seconds until a window must be there


class Plot:
    """What is shown at one time.

    Args:
        panels: The panels.
        title: The text above them.
        picture: Draws the panels when the image is needed.
    """

    def __init__(self, panels: Sequence[Panel], title: str, picture: Picture):
        self.panels, self.title, self._picture = panels, title, picture

    @ft.cached_property
    def png(self) -> bytes:
        """The image, which is drawn once for all outputs."""
        self._picture.draw(self.panels, self.title)
        file = io.BytesIO()
        self._picture.figure.savefig(file, format="png", dpi=100)
        return file.getvalue()


class PlotOutput(Protocol):
    """Somewhere to show curves. All of it is called on one thread."""

    def show(self, plot: Plot) -> None: ...


def plot_outputs(path: str | None, *, show: bool) -> list[PlotOutput]:
    """Open where to show curves: the file, if there is a path, and wherever one sees them.

    Raises:
        OSError: If the file cannot be written.
    """
    files: list[PlotOutput] = [] if path is None else [PNGFile(path)]
    screen = _screen() if show else None
    if screen is not None:
        return [*files, screen]
    return files or [PNGFile(os.path.abspath(DEFAULT))]


class PNGFile:
    """A PNG file, which is replaced as a whole."""

    def __init__(self, path: str):
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Try to write now: an error should come from the logger, not from its thread later.
        self._new = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        self._new.touch()
        self._new.unlink()

    def show(self, plot: Plot) -> None:
        try:
            self._new.write_bytes(plot.png)
            self._new.replace(self._path)
        finally:
            self._new.unlink(missing_ok=True)


class Notebook:
    """A picture below the cell that runs now, which is replaced."""

    def __init__(self):
        self._handle = show_output({"text/plain": ""})

    def show(self, plot: Plot) -> None:
        from IPython.display import Image

        self._handle.update(Image(plot.png, format="png"))


class Window:
    """A window, in a process of its own.

    Raises:
        OSError: If none can be opened.
    """

    def __init__(self, backend: str | None):
        environment = dict(os.environ)
        # The new process may run in a folder where lox is not installed.
        paths = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if backend is not None:
            environment["MPLBACKEND"] = backend
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lox_host.display.plot_window"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            # An interrupt of the program shall not close the window.
            start_new_session=True,
        )
        if self._answer() != b"open\n":
            self._process.kill()
            self._process.communicate()
            raise OSError("No window can be opened.")
        atexit.register(self._leave)

    def show(self, plot: Plot) -> None:
        """Send the panels to the process of the window, which draws them."""
        pipe = self._process.stdin
        assert pipe is not None
        # The user may have closed the window.
        with contextlib.suppress(BrokenPipeError, ValueError):
            pickle.dump((list(plot.panels), plot.title), pipe)
            pipe.flush()

    def _leave(self) -> None:
        """Let the window stay when the program ends; nobody waits for its process."""
        # A `returncode` keeps Python from warning about a process that is still running.
        self._process.stdin.close()  # pyright: ignore[reportOptionalMemberAccess]
        self._process.returncode = 0

    def _answer(self) -> bytes:
        """Read what the process says when it has a window. Empty if it takes too long."""
        lines: list[bytes] = []
        pipe = self._process.stdout
        assert pipe is not None
        thread = threading.Thread(target=lambda: lines.append(pipe.readline()), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        return lines[0] if lines else b""


def _screen() -> PlotOutput | None:
    """Open a notebook's cell, or else a window if there can be one."""
    if is_notebook():
        return Notebook()
    import matplotlib

    backend = matplotlib.get_backend(auto_select=False)
    if not _has_windows(backend):
        return None
    try:
        return Window(backend)
    except OSError:
        return None


def _has_windows(backend: str | None) -> bool:
    """Return whether it is worth trying to open one."""
    if backend is not None and not is_interactive(backend):
        return False
    is_custom = backend is not None and backend.startswith("module://")
    has_display = bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
    return is_custom or has_display or sys.platform in ("darwin", "win32")
