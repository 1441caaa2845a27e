"""The writer of `JSONLogger`."""

import functools as ft
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lox_host.rows import Row
from lox_host.runs.run import Run
from lox_host.writers._files import FileWriter, append, create_file
from lox_host.writers._json_values import key_name, to_json

Special = Literal["null", "text"] | Mapping[str, Any]
TEXTS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class JSONWriter(FileWriter):
    """The host side of `JSONLogger`."""

    def __init__(self, path: str | os.PathLike, *, nan: Special = "null"):
        folder = Path(path).expanduser().absolute()
        super().__init__(ft.partial(JSONFile, folder, _specials(nan)))


class JSONFile:
    """The file of a run."""

    def __init__(self, folder: Path, specials: Mapping[str, Any], run: Run):
        self._specials = specials
        self._path = create_file(folder, run, ".jsonl")
        self._waiting: list[str] = []

    def add(self, row: Row) -> None:
        steps = {f"@{name}": step for name, step in row.steps.items()}
        values = {key_name(key): value for key, value in row.values.items()}
        text = json.dumps(to_json(steps | values, self._special), allow_nan=False)
        self._waiting.append(f"{text}\n")

    def flush(self) -> None:
        if self._waiting:
            append(self._path, "".join(self._waiting))
            self._waiting = []

    def _special(self, number: float) -> Any:
        return self._specials["nan" if math.isnan(number) else str(number)]


def _specials(nan: Special) -> Mapping[str, Any]:
    if nan == "null":
        return dict.fromkeys(TEXTS)
    if nan == "text":
        return TEXTS
    if not isinstance(nan, Mapping) or nan.keys() - TEXTS.keys():
        raise ValueError(
            f'`nan` is {nan!r}; it must be "null", "text", or a mapping with values for '
            'some of "nan", "inf" and "-inf".'
        )
    json.dumps(dict(nan), allow_nan=False)
    return dict.fromkeys(TEXTS) | dict(nan)
