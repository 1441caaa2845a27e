"""What the program prints while something moves at the bottom of the terminal."""

import io
from typing import Any, TextIO


class Above(io.TextIOBase):
    """Stands before a standard stream, and prints whole lines above what moves.

    Rich has the same, but without a lock: a line that is printed while what moves becomes
    taller may be overwritten.

    Args:
        file: The stream.
        console: The console of rich that moves something.
        lock: Whoever has it is the only one to write to the terminal.
    """

    def __init__(self, file: TextIO, console: Any, lock: Any):
        self._file, self.lock = file, lock
        self._console: Any = console
        self._text = ""

    def write(self, text: str) -> int:
        with self.lock:
            if self._console is None:
                return self._file.write(text)
            whole, line_break, rest = (self._text + text).rpartition("\n")
            self._text = rest
            if line_break:
                self._print(whole)
        return len(text)

    def flush(self) -> None:
        with self.lock:
            text, self._text = self._text, ""
            if text:
                self._print(text)
            self._file.flush()

    def detach(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Nothing moves any more: from now on, write to the stream itself."""
        self._console = None
        self._file.write(self._text)
        self._text = ""

    def _print(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.from_ansi(text), soft_wrap=True)

    @property
    def rich_proxied_file(self) -> TextIO:
        """The stream. So rich calls it, and asks for it."""
        return self._file

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._file.encoding

    @property
    def errors(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._file.errors

    def isatty(self) -> bool:
        return self._file.isatty()

    def fileno(self) -> int:
        return self._file.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
