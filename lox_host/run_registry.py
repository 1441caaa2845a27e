"""Where the runs of a logger are kept, and what they log is collected for its writer.

What has no underscore may be called on any thread, what has one runs on the scribe's.
"""

import abc
import contextlib
import hashlib
import itertools as it
import secrets
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from lox_host.rows import Batch, Block, merge_blocks
from lox_host.worker import scribe
from lox_host.writer import Run, Writer

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
        name: What it belongs to. `desk.name` is the same in all processes that make the
            same loggers in the same order.
        every: How many seconds it collects before it writes.
        everywhere: Whether processes other than the first write, too.
    """

    def __init__(self, name: str, every: float, *, everywhere: bool):
        self.name, self.every = f"{name}-{next(_made[name])}", every
        self.everywhere = everywhere
        self._names: dict[int, str] = {}
        self._ids: dict[tuple[int, ...], int] = {}
        self._keys: dict[int, tuple[int, ...]] = {}
        self._finished: dict[int, str] = {}
        self._ending: dict[int, None] = {}
        self._bug: Exception | None = None
        self._is_forgotten = False
        self._waiting: dict[Site, list[tuple[int, Any]]] = {}
        self._number = self._bytes = 0
        # How often runs with the same keys have been begun together.
        self._calls: Counter[str] = Counter()

    def open(
        self, keys: np.ndarray, process: int, agreed: Callable[[str, str], str]
    ) -> np.ndarray:
        """The ids of the runs with these keys, one a row. New ones are begun.

        Args:
            keys: The data of the PRNG keys.
            process: The number of this process.
            agreed: Of a name and a value, the value that all processes agree on.
        """
        if self._is_forgotten:
            raise RuntimeError(
                "This logger was made before the process was forked, and belongs to the "
                "parent. Make another one in the child."
            )
        scribe.start()
        each = [tuple(key.tolist()) for key in keys]
        return np.array(scribe.run(lambda: self._open(each, process, agreed)), np.int32)

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

    def finish_now(self) -> None:
        """End the runs that were to be ended later: all programs are done."""
        if scribe.run(self.settle):
            self.check(always=True)

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
        self._is_forgotten = True
        _desks.pop(self, None)

    def check(self, *, always: bool = False) -> None:
        """Raise what has failed; `always`: also what the program need not stop for."""
        if self._bug is not None:
            bug, self._bug = self._bug, None
            raise bug
        self._raise_failure(always=always)

    @abc.abstractmethod
    def _raise_failure(self, *, always: bool) -> None: ...

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
    def first_only(self) -> list[str]:
        """The names of loggers that write in the first process only."""

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

    def settle(self) -> bool:
        """End what was to be ended later, if anything. Called on the scribe's thread."""
        ending, self._ending = self._ending, {}
        self._finish(list(ending))
        return bool(ending)

    def _open(
        self,
        keys: Sequence[tuple[int, ...]],
        process: int,
        agreed: Callable[[str, str], str],
    ) -> list[int]:
        if any(self._ids.get(key) in self._ending for key in keys):
            self.settle()
        group = job = ""
        if any(key not in self._ids for key in keys):
            job = agreed("lox/job", secrets.token_hex(4))
            what = hashlib.sha256(repr(keys).encode()).hexdigest()
            self._calls[what] += 1
            name = f"lox/{self.name}/{what}/{self._calls[what]}"
            group = agreed(name, secrets.token_hex(4))
        return [self._opened(key, group, process, job) for key in keys]

    def _opened(self, key: tuple[int, ...], group: str, process: int, job: str) -> int:
        if self._ids.get(key) in self._ending:
            self.settle()
        if key in self._ids:
            return self._ids[key]
        # The same in all processes that run a program together, and one that a process
        # that is dead has not had: the name of the group is random.
        ids = (_number(f"{group}{key}{i}") for i in it.count())
        id = next(id for id in ids if id not in self._names and id not in self._finished)
        name = "-".join(map(str, key))
        run = Run(id, name, key, self.config, time.time(), group, process, job)
        self._begin(run)
        self._ids[key], self._keys[id], self._names[id] = id, key, name
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
                found += self._known(site.blocks(parcels, np.array(order)))
            except Exception as error:
                self._complain(error)
        self._accept(found, number)

    def _known(self, blocks: Sequence[Block]) -> list[Block]:
        """The rows of runs that there are. Of others it will complain."""
        for block in blocks:
            for id in np.unique(block.runs).tolist():
                if id not in self._names:
                    self._complain(self._unknown(id))
        return [block.of_runs(self._names) for block in blocks]

    def _complain(self, error: Exception) -> None:
        self._bug = self._bug or error
        _desks[self] = None  # for `settle`

    def _finish(self, ids: list[int]) -> None:
        for desk in [*_desks, self]:
            desk._gather()  # it may wait at a logger of several
        ids = list(dict.fromkeys(ids))
        known = [id for id in ids if id in self._names]
        stale = [id for id in ids if id not in self._names and id not in self._finished]
        self._end(known)
        for id in known:
            self._finished[id] = self._names.pop(id)
            del self._ids[self._keys.pop(id)]
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
        super().__init__(name, every, everywhere=all_processes)
        if on_error not in ("warn", "raise"):
            raise ValueError(f'`on_error` is "warn" or "raise", not {on_error!r}.')
        _check_writer(writer)
        _check_config(config)
        self._name, self._writer = name, writer
        self._config = dict(config or {})
        self._on_error: OnError = on_error
        self._runs: dict[int, Run] = {}
        self._pending: list[Block] = []
        self._rows = self._size = self._count = self._lost = 0
        self._failure: BaseException | None = None

    @property
    def first_only(self) -> list[str]:
        return [] if self.everywhere else [self._name]

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def writers(self) -> list[Writer]:
        return [self._writer]

    def _raise_failure(self, *, always: bool) -> None:
        if self._failure is not None and (always or self._on_error == "raise"):
            failure, lost = self._failure, self._lost
            if always and not self._runs:
                self._failure, self._lost = None, 0
            what = f"{lost} rows that were" if lost else "What was"
            raise RuntimeError(
                f"{self._name} failed with {_described(failure)}. {what} logged may not be "
                "written."
            ) from failure

    def _begin(self, run: Run) -> None:
        if run.process == 0 or self.everywhere:
            self._writer.open(run)
            self._runs[run.id] = run

    def _accept(self, blocks: Sequence[Block], number: int) -> None:
        for block in blocks:
            self._pending.append(block.later(self._count))
            self._rows += len(block)
            self._size += block.nbytes
        self._count += number
        if self._rows >= ROWS or self._size >= BYTES:
            self._write()

    def _flush(self) -> None:
        self._write()
        self._try(self._writer.flush)

    def _end(self, ids: list[int]) -> None:
        self._flush()
        for run in [self._runs[id] for id in ids if id in self._runs]:
            self._try(lambda run=run: self._writer.close(run), always=True)
            del self._runs[run.id]

    def _write(self) -> None:
        pending, rows = self._pending, self._rows
        self._pending, self._rows, self._size = [], 0, 0
        if not rows or not self._runs:
            return
        if not self._try(lambda: self._writer.write(Batch(merge_blocks(pending)))):
            self._lost += rows

    def _try(self, call: Callable[[], None], *, always: bool = False) -> bool:
        """Whether it worked. After a failure only that is tried which is for `always`."""
        if self._failure is not None and not always:
            return False
        try:
            call()
        except BaseException as error:
            if self._failure is None:
                self._failure = error
                self._warn(error)
        return self._failure is None

    def _warn(self, error: BaseException) -> None:
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


def settle() -> None:
    """Return when all that reached the host is written and flushed."""
    for desk, has_ended in scribe.run(_settle):
        desk.check(always=has_ended)


def finish_all() -> None:
    """End all runs. For the end of the process."""
    scribe.run(_finish_all)


def forget_all() -> None:
    """Leave all runs to the process that began them."""
    for desk in list(_desks):
        desk.forget()


def _settle() -> list[tuple[BaseDesk, bool]]:
    scribe.flush()
    return [(desk, desk.settle()) for desk in list(_desks)]


def _finish_all() -> None:
    scribe.flush()
    for desk in list(_desks):
        desk._finish(list(desk._names))


def _check_writer(writer: Any) -> None:
    parts = ("open", "write", "flush", "close")
    missing = [f"`{part}`" for part in parts if not hasattr(writer, part)]
    if missing:
        kind = type(writer).__name__
        raise TypeError(
            f"`writer` is {kind!r}, without {', '.join(missing)}. A writer has all "
            "methods of `lox.loggers.Writer`. For a function, use `lox.tap`."
        )


def _check_config(config: Any) -> None:
    if not isinstance(config, Mapping | None):
        raise TypeError(
            f"`config` is {type(config).__name__!r}, not a mapping from names to values. "
            "Give `dataclasses.asdict(config)`, or `vars(config)`."
        )


def _number(name: str) -> int:
    """A number for a name, of 31 bits."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) % 2**31


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


# By what they belong to, the numbers of desks.
_made: defaultdict[str, it.count] = defaultdict(it.count)
# Those that have runs, or something to complain of.
_desks: dict[BaseDesk, None] = {}
