"""Tables of text: columns with a heading, and which of them fit into a width."""

import dataclasses
import functools as ft
import html
import re
from collections.abc import Iterator, Sequence

from lox_host.frozen import frozen

GAP = 2  # between columns
CUT = "…"
LEAST = 24  # width of a text that is cut
LOW_RANK = 3  # columns that a table should not be without
_NOT_FINITE = re.compile(r"^\s*(nan|-?inf)\b|\bnan\)")


@frozen
class Column:
    """A column of a table.

    Attributes:
        head: The heading.
        cells: The texts below.
        right: Whether they end below each other, as numbers do.
        style: What they look like on a terminal.
        numbers: Whether they are values, of which NaN and infinities stand out.
        rank: How soon it is left out where it is narrow, the highest first. 0: never.
    """

    head: str
    cells: Sequence[str]
    right: bool = False
    style: str = ""
    numbers: bool = False
    rank: int = 0

    @ft.cached_property
    def width(self) -> int:
        return max(map(len, [self.head, *self.cells]))

    def pad(self, cell: str) -> str:
        """Fill a cell up to the width of the column."""
        return cell.rjust(self.width) if self.right else cell.ljust(self.width)

    def is_not_finite(self, cell: str) -> bool:
        """Return whether a cell is a value that is NaN or infinite."""
        return self.numbers and _NOT_FINITE.search(cell) is not None


def fit(columns: Sequence[Column], width: int) -> list[Column]:
    """Leave out the columns of the highest ranks until the others fit.

    If that is not enough, the widest text is cut, as of runs with very long names. This
    comes before a column of a low rank is left out, if it makes room for it.
    """
    shown = list(columns)
    while room(shown, width) < 0:
        last = max(shown, key=lambda column: column.rank)
        if last.rank <= LOW_RANK:
            narrow = _with_cut(shown, -room(shown, width))
            if not last.rank or room(narrow, width) >= 0:
                return narrow
        shown.remove(last)
    return shown


def _with_cut(columns: Sequence[Column], excess: int) -> list[Column]:
    """Make the widest column of text narrower, but not too narrow to read."""
    # Digits are never cut off: a number would become another one.
    texts = [column for column in columns if not column.numbers]
    widest = max(texts, key=lambda column: column.width, default=None)
    if widest is None or widest.width <= LEAST:
        return list(columns)
    width = max(widest.width - excess, LEAST)
    cells = [cut(cell, width) for cell in widest.cells]
    narrow = dataclasses.replace(widest, cells=cells)
    return [narrow if column is widest else column for column in columns]


def cut(text: str, width: int) -> str:
    """Cut a text in its middle: names often differ at the end."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}{CUT}{text[len(text) - end :]}"


def room(columns: Sequence[Column], width: int) -> int:
    """Return how much of the width is left beside some columns."""
    return width - sum(column.width for column in columns) - GAP * (len(columns) - 1)


def text_lines(columns: Sequence[Column]) -> Iterator[str]:
    """Yield the lines of a table, the heading first."""
    heads = [column.head for column in columns]
    for cells in (heads, *zip(*(column.cells for column in columns), strict=True)):
        pairs = zip(cells, columns, strict=True)
        yield (" " * GAP).join(column.pad(cell) for cell, column in pairs).rstrip()


def html_table(columns: Sequence[Column], note: str = "") -> str:
    """Return a table for a notebook. Everything in it is escaped."""
    heads = "".join(f"<th{_align(of)}>{html.escape(of.head)}</th>" for of in columns)
    rows = []
    for cells in zip(*(column.cells for column in columns), strict=True):
        pairs = zip(cells, columns, strict=True)
        rows.append("".join(_html_cell(cell, column) for cell, column in pairs))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    below = f"<p>{html.escape(note)}</p>" if note else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{below}"


def _html_cell(cell: str, column: Column) -> str:
    red = ";color:#c00" if column.is_not_finite(cell) else ""
    return f"<td{_align(column, red)}>{html.escape(cell.strip())}</td>"


def _align(column: Column, rest: str = "") -> str:
    side = "right" if column.right or column.numbers else "left"
    return f' style="text-align:{side}{rest}"'
