"""Print to standard output: with colours on a terminal, as plain text elsewhere."""

import json
import sys
from collections.abc import Collection, Sequence

from lox_host.display.columns import GAP, Column, fit, text_lines
from lox_host.display.terminal import can_move
from lox_host.writers._json_values import to_json

# A text and its style.
Part = tuple[str, str]


class Plain:
    """Text for a file, a pipe or another program."""

    width: int | None = None

    def line(self, *parts: Part) -> None:
        print("".join(text for text, _ in parts).rstrip())

    def table(self, columns: Sequence[Column], strong: Collection[int] = ()) -> None:
        """Print a table. Plain text cannot highlight rows."""
        for line in text_lines(columns):
            print(line)


class Terminal:
    """Text with colours, in a known width."""

    def __init__(self):
        from rich.console import Console

        self._console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.width: int | None = self._console.width

    def line(self, *parts: Part) -> None:
        from rich.text import Text

        self._console.print(Text.assemble(*parts))

    def table(self, columns: Sequence[Column], strong: Collection[int] = ()) -> None:
        """Print a table, and highlight the rows with these numbers."""
        shown = fit(columns, self._console.width)
        self.line(*_space([(column.pad(column.head), "dim") for column in shown]))
        for i, cells in enumerate(zip(*(column.cells for column in shown), strict=True)):
            style = "bold" if i in strong else ""
            pairs = zip(cells, shown, strict=True)
            parts = [(of.pad(cell), _style(cell, of) or style) for cell, of in pairs]
            self.line(*_space(parts))


Screen = Plain | Terminal


def screen() -> Screen:
    """Return the printer for standard output: a terminal or plain text."""
    return Terminal() if can_move(sys.stdout) else Plain()


def print_json(value: object) -> None:
    """Print one line of strict JSON."""
    text = json.dumps(to_json(value), allow_nan=False, ensure_ascii=False)
    print("".join(c if c.isprintable() else _escape(c) for c in text))


def _escape(character: str) -> str:
    """Return what JSON has for a character in a text."""
    return json.dumps(character)[1:-1]


def _space(parts: Sequence[Part]) -> list[Part]:
    """Put a gap between the parts of a line."""
    return [piece for part in parts for piece in (part, (" " * GAP, ""))][:-1]


def _style(cell: str, column: Column) -> str:
    return "red" if column.is_not_finite(cell) else column.style
