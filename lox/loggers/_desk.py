"""Where the runs of a logger are kept, and what they log is collected for its writer.

What has no underscore may be called on any thread, what has one runs on the scribe's.
"""

import abc
import contextlib
import secrets
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from lox._writer import Batch, Block, Run, Writer, merged

from ._scribe import scribe

OnError = Literal["warn", "raise"]
# How much is collected before it is written, even if it is not yet time.
ROWS = PARCELS = 10_000
BYTES = 16 * 2**20


class Site(Protocol):
    """A place in a program that sends parcels, all of the same form. It can be hashed."""

    def blocks(self, parcels: Sequence[Any], order: np.ndarray) -> list[Block]:
        """What is in them. `order` has a number for each."""
        ...


class BaseDesk(abc.ABC):
    """Takes what arrives on the host, and has it written on another thread.

    Args:
        every: How many seconds it collects before it writes.
    """

    def __init__(self, every: float):
        self.every = every
        self._names: dict[int, str] = {}
        self._ids: dict[tuple[int, ...], int] = {}
        self._finished: dict[int, str] = {}
        self._ending: dict[int, None] = {}
        self._bug: Exception | None = None
        self._waiting: dict[Site, list[tuple[int, Any]]] = {}
        self._number = self._bytes = 0

    def open(self, keys: np.ndarray, process: int, group: str) -> np.ndarray:
        """The ids of the runs with these keys, one a row. New ones are begun."""
        scribe.start()
        each = [tuple(key.tolist()) for key in keys]
        ids = scribe.run(lambda: [self._opened(key, group, process) for key in each])
        return np.array(ids, np.int32)

    def take(self, site: Site, parcel: Any, nbytes: int, *, stoppable: bool) -> None:
        """Have what is in a parcel written soon.

        If that is in vain, this raises to stop the program.
        """
        if stoppable:
            self.check()
        scribe.send(lambda: self._take(site, parcel, nbytes), nbytes)

    def finish(self, ids: Iterable[int]) -> None:
        """End runs, and raise if something of them could not be written."""
        scribe.run(lambda: self._finish(list(ids)))
        self.check(always=True)

    def finish_later(self, ids: Iterable[int]) -> None:
        """End runs when all that was logged so far has been delivered."""
        scribe.send(lambda: self._ending.update(dict.fromkeys(ids)))

    def finish_all(self) -> None:
        self.finish(self._names)

    def check_ids(self, ids: np.ndarray) -> None:
        """Raise if there is no such run, or not any more."""
        for id in ids.tolist():
            if id not in self._names:
                raise self._unknown(id)

    def forget(self) -> None:
        """Have no runs any more, and write nothing of those that there were."""
        self._names, self._ids, self._ending, self._waiting = {}, {}, {}, {}
        _desks.pop(self, None)

    @abc.abstractmethod
    def check(self, *, always: bool = False) -> None:
        """Raise what has failed; `always`: also what the program need not stop for."""

    @abc.abstractmethod
    def _begin(self, run: Run) -> None: ...

    @abc.abstractmethod
    def _accept(self, blocks: Sequence[Block], number: int) -> None:
        """Take blocks of so many parcels, in which they are ordered."""

    @abc.abstractmethod
    def _flush(self) -> None: ...

    @abc.abstractmethod
    def _end(self, ids: list[int]) -> None: ...

    @property
    @abc.abstractmethod
    def config(self) -> Mapping[str, Any]: ...

    @property
    @abc.abstractmethod
    def writers(self) -> list[Writer]: ...

    def flush(self) -> None:
        """Write what was taken. Called on the scribe's thread."""
        self._gather()
        self._flush()

    def settle(self) -> None:
        """End what was to be ended later. Called on the scribe's thread."""
        ending, self._ending = self._ending, {}
        self._finish(list(ending))

    def _opened(self, key: tuple[int, ...], group: str, process: int) -> int:
        if key in self._ids:
            return self._ids[key]
        id = secrets.randbelow(2**31)  # which a process that is dead has not had, either
        name = "-".join(map(str, key))
        run = Run(id, name, key, self.config, time.time(), group, process)
        self._begin(run)
        self._ids[key], self._names[id] = id, name
        _desks[self] = None
        return id

    def _take(self, site: Site, parcel: Any, nbytes: int) -> None:
        self._waiting.setdefault(site, []).append((self._number, parcel))
        self._number += 1
        self._bytes += nbytes
        if self._number >= PARCELS or self._bytes >= BYTES:
            self._gather()
        scribe.flush_soon(self, self.every)

    def _gather(self) -> None:
        """Hand over what was taken, that of one place in the program in one piece."""
        waiting, number = self._waiting, self._number
        self._waiting, self._number, self._bytes = {}, 0, 0
        found: list[Block] = []
        for site, taken in waiting.items():
            order, parcels = zip(*taken, strict=True)
            try:
                arrived = site.blocks(parcels, np.array(order))
                for block in arrived:
                    self.check_ids(np.unique(block.runs))
                found += arrived
            except Exception as error:
                self._bug = self._bug or error
                _desks[self] = None  # for `settle`
        self._accept(found, number)

    def _finish(self, ids: list[int]) -> None:
        self._gather()
        known = [id for id in ids if id in self._names]
        stale = [id for id in ids if id not in self._names and id not in self._finished]
        self._end(known)
        for id in known:
            self._finished[id] = self._names.pop(id)
        self._ids = {key: id for key, id in self._ids.items() if id in self._names}
        if not self._names:
            _desks.pop(self, None)
        if stale:
            self._bug = self._unknown(stale[0])

    def _unknown(self, id: int) -> ValueError:
        if id in self._finished:
            return ValueError(
                f"The run {self._finished[id]!r} is finished: nothing can be logged to it "
                "any more. Call `logger.finish` last, or `logger.init` for another run."
            )
        return ValueError(
            f"This logger has no run with the id {id}. The state comes from another logger "
            "or from a process that has ended, such as with a checkpoint: call "
            "`logger.init(key)` in this process, which goes on with the run of that key."
        )


class Desk(BaseDesk):
    """The desk of one writer.

    Args:
        name: What stands in messages.
        writer: The back end.
        config: The configuration of its runs.
        on_error: Whether a writer that fails is warned of, or stops the program.
        all_processes: Whether processes other than the first write, too.
        every: How many seconds it collects before it writes.
    """

    def __init__(
        self,
        name: str,
        writer: Writer,
        config: Mapping[str, Any] | None,
        on_error: OnError,
        all_processes: bool,
        every: float,
    ):
        super().__init__(every)
        if on_error not in ("warn", "raise"):
            raise ValueError(f'`on_error` is "warn" or "raise", not {on_error!r}.')
        self._name, self._writer = name, writer
        self._config = dict(config or {})
        self._on_error, self._all_processes = on_error, all_processes
        self._runs: dict[int, Run] = {}
        self._pending: list[Block] = []
        self._rows = self._count = self._lost = 0
        self._failure: Exception | None = None

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def writers(self) -> list[Writer]:
        return [self._writer]

    def check(self, *, always: bool = False) -> None:
        if self._bug is not None:
            bug, self._bug = self._bug, None
            raise bug
        if self._failure is not None and (always or self._on_error == "raise"):
            failure, lost = self._failure, self._lost
            if always and not self._runs:
                self._failure, self._lost = None, 0
            raise RuntimeError(
                f"{self._name} failed with {_described(failure)}. {lost} rows that were "
                "logged are not written."
            ) from failure

    def _begin(self, run: Run) -> None:
        if run.process == 0 or self._all_processes:
            self._writer.open(run)
            self._runs[run.id] = run

    def _accept(self, blocks: Sequence[Block], number: int) -> None:
        for block in blocks:
            self._pending.append(block.later(self._count))
            self._rows += len(block)
        self._count += number
        if self._rows >= ROWS:
            self._write()

    def _flush(self) -> None:
        self._write()
        self._try(self._writer.flush)

    def _end(self, ids: list[int]) -> None:
        self._flush()
        for id in ids:
            run = self._runs.pop(id, None)
            if run is not None:
                self._try(lambda run=run: self._writer.close(run), always=True)

    def _write(self) -> None:
        batch, rows = Batch(merged(self._pending)), self._rows
        self._pending, self._rows = [], 0
        if batch and self._runs and not self._try(lambda: self._writer.write(batch)):
            self._lost += rows

    def _try(self, call: Callable[[], None], *, always: bool = False) -> bool:
        """Whether it worked. After a failure only that is tried which is for `always`."""
        if self._failure is not None and not always:
            return False
        try:
            call()
        except Exception as error:
            if self._failure is None:
                self._failure = error
                self._warn(error)
        return self._failure is None

    def _warn(self, error: Exception) -> None:
        names = [run.name for run in self._runs.values()]
        listed = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        # Where warnings are errors, it is `finish` that raises.
        with contextlib.suppress(RuntimeWarning):
            warnings.warn(
                f"{self._name} failed with {_described(error)}. From here on, what the run "
                f"{listed} logs is not written, and `logger.finish` will raise.",
                RuntimeWarning,
                stacklevel=2,
            )


class Fan(BaseDesk):
    """Several desks as one. What one of them cannot write, the others do."""

    def __init__(self, desks: Sequence[BaseDesk]):
        super().__init__(min(desk.every for desk in desks))
        self._desks = list(desks)
        self._inner: dict[int, list[int]] = {}

    @property
    def config(self) -> Mapping[str, Any]:
        return {}

    @property
    def writers(self) -> list[Writer]:
        return [writer for desk in self._desks for writer in desk.writers]

    def check(self, *, always: bool = False) -> None:
        if self._bug is not None:
            bug, self._bug = self._bug, None
            raise bug
        for desk in self._desks:
            desk.check(always=always)

    def _begin(self, run: Run) -> None:
        inner: list[int] = []
        try:
            for desk in self._desks:
                inner.append(desk._opened(run.key, run.group, run.process))
        except BaseException:
            for desk, id in zip(self._desks, inner, strict=False):
                desk._finish([id])
            raise
        self._inner[run.id] = inner

    def _accept(self, blocks: Sequence[Block], number: int) -> None:
        for i, desk in enumerate(self._desks):
            ids = {id: inner[i] for id, inner in self._inner.items()}
            desk._gather()  # what was taken before
            desk._accept([block.renamed(ids) for block in blocks], number)

    def _flush(self) -> None:
        for desk in self._desks:
            desk._flush()

    def _end(self, ids: list[int]) -> None:
        ended = [self._inner.pop(id) for id in ids]
        for i, desk in enumerate(self._desks):
            desk._finish([inner[i] for inner in ended])


def settle() -> None:
    """Return when all that reached the host is written and flushed."""
    for desk in scribe.run(_settle):
        desk.check()


def finish_all() -> None:
    """End all runs. For the end of the process."""
    scribe.run(lambda: [desk._finish(list(desk._names)) for desk in list(_desks)])


def forget_all() -> None:
    """Leave all runs to the process that began them."""
    for desk in list(_desks):
        desk.forget()


def _settle() -> list[BaseDesk]:
    scribe.flush()
    desks = list(_desks)
    for desk in desks:
        desk.settle()
    return desks


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


# Those that have runs, or something to complain of.
_desks: dict[BaseDesk, None] = {}
