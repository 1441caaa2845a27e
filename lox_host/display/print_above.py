"""What the program prints while something moves at the bottom of the terminal."""

from collections.abc import Iterable
from typing import Any, TextIO


class Above:
    """Stands before a standard stream, and prints whole lines above what moves.

    Rich has the same, but without a lock: a line that is printed while what moves becomes
    taller may be overwritten.

    Args:
        file: The stream.
        console: The console of rich that moves something.
        lock: Whoever has it is the only one to write to the terminal.

    Attributes:
        rich_proxied_file: The stream. So rich calls it, and asks for it.
    """

    def __init__(self, file: TextIO, console: Any, lock: Any):
        self.rich_proxied_file, self._lock = file, lock
        self._console: Any = console
        self._text = ""

    def write(self, text: str) -> int:
        with self._lock:
            if self._console is None:
                return self.rich_proxied_file.write(text)
            whole, line_break, self._text = (self._text + text).rpartition("\n")
            if line_break:
                self._print(whole)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        with self._lock:
            text, self._text = self._text, ""
            if text:
                self._print(text)
            self.rich_proxied_file.flush()

    def detach(self) -> None:
        """Nothing moves any more: from now on, write to the stream itself."""
        self._console = None
        self.rich_proxied_file.write(self._text)
        self._text = ""

    def _print(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.from_ansi(text), soft_wrap=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)
