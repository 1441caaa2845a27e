"""The writer of `JSONLogger`."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lox_host.rows import Batch, Row
from lox_host.runs.run import Run
from lox_host.writers._files import LineFile, create_file
from lox_host.writers._json_values import key_name, to_json

Special = Literal["null", "text"] | Mapping[str, Any]
TEXTS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class JSONWriter:
    """The host side of `JSONLogger`."""

    def __init__(self, path: str | os.PathLike, *, nan: Special = "null"):
        self._folder = Path(path).expanduser().absolute()
        self._specials = _specials(nan)
        self._files: dict[int, LineFile] = {}

    def open(self, run: Run) -> None:
        self._files[run.id] = LineFile(create_file(self._folder, run, ".jsonl"))

    def write(self, batch: Batch) -> None:
        for row in batch.rows():
            self._files[row.run].add(self._line(row))

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def close(self, run: Run) -> None:
        self._files[run.id].flush()
        del self._files[run.id]

    def _line(self, row: Row) -> str:
        steps = {f"@{name}": step for name, step in row.steps.items()}
        values = {key_name(key): value for key, value in row.values.items()}
        return json.dumps(to_json(steps | values, self._special), allow_nan=False) + "\n"

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
