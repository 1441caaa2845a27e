"""The writer of `CSVLogger`."""

import csv
import dataclasses
import functools as ft
import io
import itertools as it
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lox_host.rows import Row
from lox_host.runs.run import Run
from lox_host.tree import leaves
from lox_host.writers._files import FileWriter, append, candidates, create_file, encode
from lox_host.writers._json_values import key_name, to_json

# Larger files are not rewritten to add a column.
LARGE = 64 * 2**20

# What readers of CSV files know, where Python writes it otherwise.
WORDS = {"True": "true", "False": "false", "nan": "NaN"}


class CSVWriter(FileWriter):
    """The host side of `CSVLogger`."""

    def __init__(self, path: str | os.PathLike):
        folder = Path(path).expanduser().absolute()
        super().__init__(ft.partial(CSVFile, folder))


class Column(NamedTuple):
    """What is in a column: a step, or an array of a key."""

    is_key: bool
    key: str
    name: str


class CSVFile:
    """The file of a run.

    Rows wait until they are flushed, so that usually all columns are known by then. If one
    comes later, the file is written again, at most once per flush. So a reader always finds
    one complete table. Rewriting takes too long for files above 64 MiB. These are left as
    they are, and the run continues in another file.
    """

    def __init__(self, folder: Path, run: Run):
        self._folder, self._run = folder, run
        self._path = create_file(folder, run, ".csv")
        self._columns: dict[Column, str] = {}
        self._waiting: list[dict[Column, str]] = []

    def add(self, row: Row) -> None:
        steps = {
            Column(False, name, f"@{name}"): _cell(step) for name, step in row.steps.items()
        }
        values = {
            Column(True, key, _not_a_formula(name)): _cell(array)
            for key, tree in row.values.items()
            for name, array in leaves(tree, key_name(key))
        }
        if steps or values:
            self._waiting.append(steps | values)

    def flush(self) -> None:
        if not self._waiting:
            return
        columns = _extended(self._columns, it.chain(*self._waiting))
        lines = [[row.get(column, "") for column in columns] for row in self._waiting]
        if len(columns) == len(self._columns):
            append(self._path, _text(lines))
        elif not self._columns:
            # The first rows: the heading comes with them.
            append(self._path, _text([columns.values(), *lines]))
        elif self._path.stat().st_size > LARGE:
            run = dataclasses.replace(self._run, config={})
            self._path = create_file(self._folder, run, ".csv")
            append(self._path, _text([columns.values(), *lines]))
        else:
            # If appending fails now, the file has the new columns already.
            _widen(self._path, list(self._columns.values()), list(columns.values()))
            self._columns = columns
            append(self._path, _text(lines))
        self._columns, self._waiting = columns, []


def _extended(columns: dict[Column, str], found: Iterable[Column]) -> dict[Column, str]:
    """Return the columns and the new ones, steps before keys, with unique names."""
    new = [column for column in dict.fromkeys(found) if column not in columns]
    columns = dict(columns)
    taken = set(columns.values())
    for column in sorted(new, key=lambda column: column.is_key):
        # A key may be called what the path in a tree is called.
        name = next(n for n in candidates(column.name) if n not in taken)
        columns[column] = name
        taken.add(name)
    return columns


def _not_a_formula(name: str) -> str:
    """Return a name that no spreadsheet computes: it has a quote in front."""
    return f"'{name}" if name.startswith(("=", "+", "-", "\t", "\r")) else name


def _cell(array: Any) -> str:
    if np.ndim(array):
        return json.dumps(to_json(array), allow_nan=False)
    text = str(array)
    return WORDS.get(text, text.strip("()"))


def _text(lines: Iterable[Iterable[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _widen(path: Path, before: list[str], after: list[str]) -> None:
    """Give all rows of a file more columns, which are empty. No cell has a line break."""
    wider = path.with_name(f"{path.name}.new")
    commas = "," * (len(after) - len(before))
    try:
        wider.write_bytes(encode(_text([after])))
        with path.open("rb") as old, wider.open("ab") as new:
            old.seek(len(encode(_text([before]))))
            end = encode(f"{commas}\n")
            new.writelines(line.removesuffix(b"\n") + end for line in old)
        wider.replace(path)
    finally:
        wider.unlink(missing_ok=True)
