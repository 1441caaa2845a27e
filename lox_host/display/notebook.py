"""What lox shows below a cell of a notebook, and replaces while the cell runs.

Rich moves things in a notebook with widgets. A widget is not saved with the notebook, so
the exported page shows nothing, and it swallows what others display. Here the
output is HTML with an id, as `IPython.display` has it: it is saved, and needs no widgets.
"""

import io
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH, HEIGHT = 100, 50  # in characters
FORMAT = '<pre style="line-height: 1.25; font-family: monospace">{code}</pre>'


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return hasattr(get_ipython(), "kernel")


def show_output(data: dict[str, str]) -> Any:
    """Show something below the cell that runs now.

    Args:
        data: The same thing in several forms, by MIME type.

    Returns:
        What replaces it: `.update(data, raw=True)`, on any thread.
    """
    from IPython.display import display

    return display(data, raw=True, display_id=True)


class NotebookLive:
    """What `rich.live.Live` is on a terminal.

    Args:
        render: Returns what to show.
    """

    def __init__(self, render: "Callable[[], RenderableType]"):
        from rich.console import Console

        self._render = render
        # It draws into memory, in colours.
        self.console = Console(
            file=io.StringIO(),
            force_terminal=True,
            force_jupyter=False,
            color_system="truecolor",
            width=WIDTH,
            height=HEIGHT,
            record=True,
        )
        self._handle: Any = None

    def start(self) -> None:
        self._handle = show_output({"text/plain": ""})

    def refresh(self) -> None:
        self._handle.update(self._data(self._render()), raw=True)

    def stop(self) -> None:
        """Do nothing: the last output stays, and nothing else was changed."""

    def print(self, what: "RenderableType") -> None:
        """Show something that will not change."""
        show_output(self._data(what))

    def _data(self, what: "RenderableType") -> dict[str, str]:
        self.console.print(what, end="")
        text = self.console.export_text(clear=False)
        html = self.console.export_html(code_format=FORMAT, inline_styles=True)
        return {"text/plain": text, "text/html": html}
