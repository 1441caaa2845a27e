"""`JSONLogger`: JSON lines, a file for each run."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lox._writer import Batch, Row, Run

from ._desk import OnError
from ._lines import Lines, create
from ._logger import Logger
from ._plain import named, plain

Special = Literal["null", "text"] | Mapping[str, Any]
TEXTS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class JSONLogger(Logger):
    """Write JSON lines, one file for each run: `PATH/NAME.jsonl`.

    Each line is an object with what a run logged at one step, `{"@step": 3, "loss": 0.5}`:
    the steps with an `@` before their names, then the keys. A key that itself begins with
    `@` gets another one. Arrays are nested lists, trees are objects and lists, complex
    numbers are `[real, imaginary]`, and examples of a `vmap` that did not log are null. The
    lines are strict JSON.

    Files of earlier sessions stay: the next of the same name is `NAME-2.jsonl`. What was
    flushed, twice a second, outlives the process.

    Args:
        path: A folder. It is made if it is not there.
        nan: What to write for NaN and infinities: "null"; "text", for the texts "NaN",
            "Infinity" and "-Infinity"; or a mapping with other values for some of "nan",
            "inf" and "-inf".
        config: Written beside the rows, into `NAME.config.json`.
        on_error: What happens if writing fails: "warn" or "raise".
        all_processes: Whether each process of `jax.distributed` writes its own runs.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        nan: Special = "null",
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
    ):
        super().__init__(
            JSONWriter(path, nan=nan),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
        )


class JSONWriter:
    """The host side of `JSONLogger`."""

    def __init__(self, path: str | os.PathLike, *, nan: Special = "null"):
        self._folder = Path(path).expanduser().absolute()
        self._specials = _specials(nan)
        self._files: dict[int, Lines] = {}

    def open(self, run: Run) -> None:
        self._files[run.id] = Lines(create(self._folder, run, ".jsonl"))

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
        values = {named(key): value for key, value in row.values.items()}
        return json.dumps(plain(steps | values, self._special), allow_nan=False) + "\n"

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
