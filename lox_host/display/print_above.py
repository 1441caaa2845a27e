"""What the program prints while something moves at the bottom of the terminal."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console


class PrintAbove:
    """Replaces a standard stream, and prints whole lines above what moves.

    Rich has the same, `rich.file_proxy.FileProxy`, but holds no lock from when it measures
    what moves until it has written. With rich 15.0, of 200 lines that two threads print
    while the region grows, one to three are overwritten. It also reads markup in text that
    is flushed, and wraps long lines.

    Args:
        file: The stream.
        console: The console of rich that moves something.
        lock: Only the thread that holds it may write to the terminal.

    Attributes:
        rich_proxied_file: The stream. So rich calls it, and asks for it.
    """

    def __init__(
        self, file: TextIO, console: "Console", lock: AbstractContextManager[object]
    ):
        self.rich_proxied_file, self._lock = file, lock
        self._console: Console | None = console
        self._begun_line = ""

    def write(self, text: str) -> int:
        """Print the lines that are now whole, and keep the rest."""
        with self._lock:
            if self._console is None:
                return self.rich_proxied_file.write(text)
            whole, line_break, self._begun_line = (self._begun_line + text).rpartition("\n")
            if line_break:
                self._print(whole)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Print an unfinished line as a line of its own."""
        with self._lock:
            text, self._begun_line = self._begun_line, ""
            if text:
                self._print(text)
            self.rich_proxied_file.flush()

    def detach(self) -> None:
        """Write to the stream itself from now on: nothing moves any more."""
        self._console = None
        self.rich_proxied_file.write(self._begun_line)
        self._begun_line = ""

    def _print(self, text: str) -> None:
        from rich.text import Text

        assert self._console is not None
        self._console.print(Text.from_ansi(text), soft_wrap=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)
