"""The host side of a recorder: unpack what fired, save it, and stop the program or not.

A host call brings the rings of all examples that have fired. They are written to disk at
once, on the thread of JAX, because the process may not live much longer. Only then does the
program continue or stop.

    rings of one example        numbers around the one that fired
    place  0   1   2   3        2, 3, 4 (fired), 5
    a      a4  a1  .   a3       2 % 4 = 2, 3 % 4 = 3, 4 % 4 = 0, ...
    b      .   b5  b2  .
"""

import dataclasses
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from lox._core.record import Delivery
from lox._inside.black_box.box import FIRED, NUMBER
from lox._jax import sharding
from lox._logdict.logdict import logdict
from lox._rows.rows import Rows
from lox._runs.to_blocks import to_blocks
from lox._stream.callbacks import call_soon, stop_program
from lox._stream.packet import Packet
from lox_host.display.values import short
from lox_host.interrupts import interrupt
from lox_host.runs.run import Run
from lox_host.store import save_session


@dataclasses.dataclass(frozen=True)
class Recording:
    """The records around the one that fired, as NumPy arrays.

    Attributes:
        logs: All of them by key: the last records up to the one that fired, and those that
            came after it.
        records: The same records one by one, in the order of execution.
        fired: The record that fired, with its steps.
        example: Under `vmap`, the index of the example; under nested ones, a tuple of
            indices. None: there is no `vmap`.
        path: The store that it was written to. None: it was not written.
    """

    logs: logdict
    records: tuple[logdict, ...]
    fired: logdict
    example: int | tuple[int, ...] | None = None
    path: str | None = None

    def steps(self) -> list[str]:
        """Return the steps of the record that fired, as texts such as `step=3`."""
        named = self.fired.steps.items()
        return [f"{name}={short(next(iter(own.values())))}" for name, own in named]

    def __str__(self) -> str:
        where = [] if self.example is None else [f"example={self.example}"]
        return " ".join([str(self.fired), *self.steps(), *where])


class Diverged(RuntimeError):
    """Raised by `lox.recorder(f, then="raise")` when a record has fired.

    Attributes:
        recordings: What was recorded, for each example that fired.
    """

    def __init__(self, text: str, recordings: Sequence[Recording]):
        super().__init__(text)
        self.recordings = list(recordings)


@dataclasses.dataclass(frozen=True)
class Report:
    """Takes what a recorder delivers, on threads of JAX.

    Attributes:
        keep: How many records to deliver, up to the one that fired.
        after: How many more.
        then: What to do: `"raise"`, `"stop"`, `"save"`, or a function to call.
        path: The store to write to. None: write nothing.
    """

    keep: int
    after: int
    then: str | Callable[[Recording], Any]
    path: str | None

    def __str__(self) -> str:
        return "The callback of `lox.recorder`"

    def __call__(self, packet: Packet) -> None:
        recordings = [
            recording
            for delivery in packet.deliveries()
            for recording in _recordings(delivery, self.keep, self.after)
        ]
        if self.path is not None:
            recordings = self._saved(recordings, self.path)
        if callable(self.then):
            call_soon(self, lambda _: self._call(recordings), packet)
        elif self.then == "raise":
            stop_program(self, packet, Diverged(self._text(recordings), recordings))
        elif self.then == "stop":
            print(f"lox: {self._text(recordings)}", file=sys.stderr, flush=True)
            if packet.layout.stoppable:
                raise interrupt()  # not by a name: the traceback would keep it alive
            interrupt()

    def _call(self, recordings: Sequence[Recording]) -> None:
        assert callable(self.then)
        for recording in recordings:
            self.then(recording)

    def _saved(self, recordings: list[Recording], path: str) -> list[Recording]:
        """Write recordings to disk, each as a run of a new session of the store."""
        try:
            _save(recordings, path)
        except OSError as error:
            # Do not hide what went wrong in the program behind an error of the disk. Warn,
            # and then do what `then` asks for.
            warnings.warn(f"`lox.recorder` cannot write to {path!r}: {error}", stacklevel=2)
            return recordings
        return [dataclasses.replace(own, path=path) for own in recordings]

    def _text(self, recordings: Sequence[Recording]) -> str:
        first, others = recordings[0], len(recordings) - 1
        more = f" (and {others} other examples)" if others else ""
        kept = f"the last {self.keep} records up to it and {self.after} more"
        if self.path is None:
            saved = "Give `lox.recorder` a `path` to keep what was logged before."
        elif first.path is None:
            saved = f"What was logged before could not be written to {self.path!r}."
        else:
            saved = f"See `lox.load({first.path!r})` for {kept}."
        return f"`lox.recorder` stopped the program: {first}{more}. {saved}"


def _recordings(delivery: Delivery, keep: int, after: int) -> Iterator[Recording]:
    """Yield the recording of each example that has fired."""
    valid = True if delivery.valid is None else delivery.valid
    for index in np.argwhere(np.broadcast_to(valid, delivery.batch)):
        at = tuple(index.tolist())
        logs = jax.tree.map(lambda x, at=at: x[(*at, ...)], delivery.logs)
        example = None if not at else at[0] if len(at) == 1 else at
        rows = logs.rows()
        fired = max(int(own.steps[FIRED].max()) for own in rows.values())
        window = _in_window(rows, fired, keep, after)
        numbers = {
            number
            for own in window.values()
            for number in own.steps[NUMBER][own.valid].tolist()
        }
        records = {number: logdict.of(_one(window, number)) for number in sorted(numbers)}
        plain = {key: _as_logged(own) for key, own in window.items()}
        yield Recording(logdict.of(plain), tuple(records.values()), records[fired], example)


def _in_window(
    rows: Mapping[str, Rows], fired: int, keep: int, after: int
) -> dict[str, Rows]:
    """Return the rows of the last records in order, of the keys that have any.

    `rows` are at their places in the rings, see `box.py`.
    """
    numbers = np.arange(max(1, fired - keep + 1), fired + after + 1)
    found = {}
    for key, own in rows.items():
        places = numbers % len(own.steps[NUMBER])
        stored = own.steps[NUMBER][places]
        # (time,) -> (time, *batch)
        valid = stored == numbers.reshape(-1, *[1] * (stored.ndim - 1))
        kept = valid.reshape(len(valid), -1).any(1)
        if kept.any():
            inside = own.map(lambda x, at=places[kept]: x[at])
            found[key] = inside.replace(valid=valid[kept])
    return found


def _one(rows: Mapping[str, Rows], number: int) -> dict[str, Rows]:
    """Return the record with this number: one row of each of its keys."""
    found = {}
    for key, own in rows.items():
        is_it = own.valid & (own.steps[NUMBER] == number)
        for i in np.flatnonzero(is_it.reshape(len(is_it), -1).any(1)):
            one = own.replace(valid=is_it).map(lambda x, i=i: x[i], time=False)
            found[key] = _as_logged(one)
    return found


def _as_logged(rows: Rows) -> Rows:
    """Return rows with the steps that the user has logged, and masks where needed."""
    steps, masks = dict(rows.steps), dict(rows.masks)
    del steps[NUMBER], steps[FIRED]
    for name, mask in rows.masks.items():
        # A step that all rows have, or none, needs no mask.
        if mask.all():
            del masks[name]
        elif not mask.any():
            del masks[name], steps[name]
    valid = rows.valid if rows.batch and not np.all(rows.valid) else None
    return rows.replace(steps=steps, masks=masks, valid=valid)


def _save(recordings: Sequence[Recording], path: str) -> None:
    job, now = sharding.agree_on("lox/job", secrets.token_hex(4)), time.time()
    runs, blocks, keys = [], [], {}
    for i, recording in enumerate(recordings):
        index = _index(recording.example)
        name = f"run{'-'.join(map(str, index))}" if index else "recorder"
        process, tags = jax.process_index(), _tags(recording)
        runs.append(Run(i, name, index, {}, now, job, process, job, tags=tags, index=i))
        rows = recording.logs.rows()
        blocks.extend(to_blocks(rows, i, time=np.array([now])))
        keys.update(dict.fromkeys(rows))
    save_session(path, "a", runs, tuple(keys), blocks)


def _index(example: int | tuple[int, ...] | None) -> tuple[int, ...]:
    if example is None:
        return ()
    return (example,) if isinstance(example, int) else example


def _tags(recording: Recording) -> tuple[str, ...]:
    """Return the keys and steps of the record that fired, as tags of a run."""
    return (*recording.fired, *recording.steps())
