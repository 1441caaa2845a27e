"""`lox.export`: send the runs of a store to any logger."""

import os
from typing import Any

from lox._io.flush_first import flush_first
from lox._io.save import words_of
from lox.loggers.base import BaseLogger
from lox.loggers.csv import CSVLogger
from lox.loggers.json import JSONLogger
from lox.loggers.tensorboard import TensorBoardLogger
from lox_host.runs.run_id import run_key
from lox_host.store import open_store
from lox_host.writer import Writer
from lox_host.writers.replay import read_recording, replay

# The formats that are written to a folder, by the name that the command line has for them.
_FORMATS = {"csv": CSVLogger, "json": JSONLogger, "tensorboard": TensorBoardLogger}


def export(
    path: str | os.PathLike,
    to: str | BaseLogger | Writer,
    *,
    out: str | os.PathLike | None = None,
    key: Any = None,
) -> None:
    """Send saved runs to a tracker, or write them to files of another format.

    Use it for runs that you recorded where the tracker was not installed. Each session of a
    run becomes a run there, with its name, group and configuration. Existing runs stay, so
    exporting twice makes two of each.

    Args:
        path: The folder of the store.
        to: `"csv"`, `"json"` or `"tensorboard"`, a logger, such as
            `lox.loggers.MLflowLogger()`, or a writer.
        out: The folder to write to if `to` is a format. None: a folder of the same name.
        key: The PRNG key of the run to send. None: all runs.

    Raises:
        LookupError: If there is no such run.

    Example:
        >>> import pathlib
        >>> lox.save(lox.logdict({"loss": 0.5}), "results")
        >>> lox.export("results", to="csv", out="tables")
        >>> print(pathlib.Path("tables/saved.csv").read_text())
        loss
        0.5
    """
    if isinstance(to, str):
        to = _format_logger(to, to if out is None else out)
    elif out is not None:
        raise TypeError(
            "`out` is for formats such as `to='csv'`. A logger has its own path."
        )
    if isinstance(to, BaseLogger):
        writers = [(back_end.writer, back_end.worker) for back_end in to._host.back_ends]
    else:
        writers = [(_check_writer(to), None)]
    words = None if key is None else run_key(words_of(key).tolist())
    flush_first(path)
    # Read everything before writing anything: the target may be the same store.
    recordings = []
    for reader in open_store(path):
        ids = [
            id
            for id, run in reader.runs.items()
            if words in (None, run.key) and id not in reader.continued
        ]
        recordings.append(read_recording(reader, ids))
    if not any(recording.runs for recording in recordings):
        what = "runs yet" if key is None else f"run with the key {words}: see `lox.runs`"
        raise LookupError(f"The store in {str(path)!r} has no {what}.")
    for recording in recordings:
        for writer, worker in writers:
            replay(recording, [writer], worker)


def _format_logger(to: str, out: str | os.PathLike) -> BaseLogger:
    if to in _FORMATS:
        return _FORMATS[to](out)
    raise ValueError(
        f"`to` is {to!r}. The formats are {', '.join(map(repr, _FORMATS))}. For a tracker, "
        "give a logger, such as `lox.loggers.WandbLogger()`. `lox export` on the command "
        "line has more formats."
    )


def _check_writer(to: Writer) -> Writer:
    if all(hasattr(to, name) for name in ("open", "write", "flush", "close")):
        return to
    raise TypeError(
        f"`to` is {type(to).__name__!r}. Give a logger, such as "
        '`lox.loggers.CSVLogger("path")`, or a writer with `open`, `write`, `flush` and '
        "`close`."
    )
