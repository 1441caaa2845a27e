"""Where output goes: a terminal gets colours, everything else plain text."""

import dataclasses
import functools as ft
import json
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from lox_host.display.terminal import can_move
from lox_host.writers._json_values import to_json

GAP = 2  # between columns
_NOT_FINITE = re.compile(r"^\s*(nan|-?inf)\b|\bnan\)")

# A text and its style.
Part = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        head: The heading.
        cells: The texts below.
        right: Whether they end below each other, as numbers do.
        style: What they look like on a terminal.
        numbers: Whether they are values, of which NaN and infinities stand out.
        optional: Whether it may be left out where it is narrow.
    """

    head: str
    cells: Sequence[str]
    right: bool = False
    style: str = ""
    numbers: bool = False
    optional: bool = False

    @ft.cached_property
    def width(self) -> int:
        return max(map(len, [self.head, *self.cells]))


class Plain:
    """Text for a file, a pipe or another program."""

    width: int | None = None

    def line(self, *parts: Part) -> None:
        print("".join(text for text, _ in parts).rstrip())

    def table(self, columns: Sequence[Column], strong: Collection[int] = ()) -> None:
        """Print a table. The rows with these numbers stand out where they can."""
        heads = [column.head for column in columns]
        for cells in (heads, *zip(*(column.cells for column in columns), strict=True)):
            pairs = zip(cells, columns, strict=True)
            print((" " * GAP).join(_pad(cell, of) for cell, of in pairs).rstrip())


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
        """Print a table. The rows with these numbers stand out."""
        shown = _fit(columns, self._console.width)
        self.line(*_space([(_pad(column.head, column), "dim") for column in shown]))
        for i, cells in enumerate(zip(*(column.cells for column in shown), strict=True)):
            style = "bold" if i in strong else ""
            pairs = zip(cells, shown, strict=True)
            parts = [(_pad(cell, of), _style(cell, of) or style) for cell, of in pairs]
            self.line(*_space(parts))


Screen = Plain | Terminal


def screen() -> Screen:
    """Return what standard output is."""
    return Terminal() if can_move(sys.stdout) else Plain()


def print_json(value: Any) -> None:
    """Print one line of strict JSON."""
    text = json.dumps(to_json(value), allow_nan=False, ensure_ascii=False)
    print("".join(c if c.isprintable() else _escape(c) for c in text))


def _escape(character: str) -> str:
    """Return what JSON has for a character in a text."""
    return json.dumps(character)[1:-1]


def _fit(columns: Iterable[Column], width: int) -> list[Column]:
    """Leave out the last optional columns that there is no room for."""
    shown = list(columns)
    optional = [column for column in shown if column.optional]
    while optional and room(shown, width) < 0:
        shown.remove(optional.pop())
    return shown


def room(columns: Sequence[Column], width: int) -> int:
    """Return how much of the width is left beside some columns."""
    return width - sum(column.width for column in columns) - GAP * (len(columns) - 1)


def _space(parts: Sequence[Part]) -> list[Part]:
    """Put a gap between the parts of a line."""
    return [piece for part in parts for piece in (part, (" " * GAP, ""))][:-1]


def _pad(cell: str, column: Column) -> str:
    return cell.rjust(column.width) if column.right else cell.ljust(column.width)


def _style(cell: str, column: Column) -> str:
    return "red" if column.numbers and _NOT_FINITE.search(cell) else column.style
