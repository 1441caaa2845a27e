"""The host half of a logger: begins runs, takes what they log, and ends them.

The device half (`lox.loggers.Logger`) holds one, and calls it on any thread. The back end
is called on the thread of a worker that no other logger has:

    host calls of programs --take--> WriteBuffer --worker--> Writer
                                         ^
    logger.init, logger.finish --worker--+--> RunRegistry

A `MultiLogger` is one whose writer, a `FanOut`, puts rows into the buffers of its members.
It waits for none of them, so a member that hangs does not hold up the others. Only two
things wait: a program that logs while a member has no room, and a call that finishes runs.
"""

import contextlib
import functools as ft
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from typing import Any, TypeVar

import numpy as np

from lox_host.guarded_writer import GuardedWriter, OnError
from lox_host.run_key import run_key
from lox_host.run_registry import Agree, Key, RunRegistry
from lox_host.worker import Worker
from lox_host.write_buffer import PacketSource, WriteBuffer
from lox_host.writer import Writer

T = TypeVar("T")


class HostLogger:
    """Writes the runs of a logger on another thread.

    Methods may be called on any thread, but for those that say otherwise.

    Args:
        name: The name of the logger's class.
        writer: The back end.
        config: The configuration of its runs.
        on_error: Whether a writer that fails is warned of, or stops the program.
        all_processes: Whether processes other than the first write, too.
        every: How many seconds rows are collected before they are written.
        patience: How many seconds to wait for a writer that gets nothing done.
        members: The loggers that the writer hands everything to, if it is a `FanOut`.

    Attributes:
        worker: The thread that calls the writer.
    """

    def __init__(
        self,
        name: str,
        writer: Writer,
        *,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        every: float = 0.5,
        patience: float = 30.0,
        members: Sequence["HostLogger"] = (),
    ):
        if on_error not in ("warn", "raise"):
            raise ValueError(f'`on_error` is "warn" or "raise", not {on_error!r}.')
        if not patience >= 0:
            raise ValueError(f"`patience` is {patience!r}, not a number of seconds.")
        _check_writer(writer)
        _check_config(config)
        self.name, self.writer, self.every = name, writer, every
        self._config, self._all_processes = dict(config or {}), all_processes
        self._members = list(members)
        # The back ends that rows go to from here.
        self._others = self.back_ends if members else []
        self.worker = Worker(f"lox-{name}")
        self.registry = RunRegistry(name)
        self._guarded = GuardedWriter(name, writer, on_error=on_error, patience=patience)
        self.buffer = WriteBuffer(self._guarded, self.registry, self.worker, every=every)
        # Those that are to be finished when all programs are done.
        self._ending: dict[int, None] = {}
        self._is_forgotten = False
        # Not with the first run, which a thread of JAX may begin: those take subnormal
        # numbers for zero, and a thread inherits that from the one that starts it.
        self.worker.start()
        weakref.finalize(self, self.worker.retire).atexit = False

    @property
    def back_ends(self) -> list["HostLogger"]:
        """The loggers that really write something: this one, or those of its members."""
        if not self._members:
            return [self]
        return [back_end for member in self._members for back_end in member.back_ends]

    @property
    def everywhere(self) -> bool:
        """Whether processes other than the first are to be sent what is logged, too."""
        return any(back_end._all_processes for back_end in self.back_ends)

    @property
    def first_process_only(self) -> list[str]:
        """The names of loggers that write in the first process only."""
        return [x.name for x in self.back_ends if not x._all_processes]

    def open_runs(self, keys: np.ndarray, process: int, agree: Agree) -> np.ndarray:
        """Return the ids of the runs with these keys. New ones are begun.

        Args:
            keys: The data of the PRNG keys, one key per row.
            process: The number of this process.
            agree: Returns the value for a name that all processes agree on.
        """
        if self._is_forgotten:
            raise RuntimeError(
                "This logger was made before the process was forked, and belongs to the "
                "parent. Make another one in the child."
            )
        given = [run_key(key.tolist()) for key in keys]
        self._collect_waiting()
        ids = self.worker.run(lambda: self._open_runs(given, process, agree))
        return np.array(ids, np.int32)

    def take(
        self,
        source: PacketSource,
        layout: object,
        packet: Any,
        nbytes: int,
        *,
        stoppable: bool,
    ) -> None:
        """Have what is in a packet written soon.

        If that is in vain, this raises to stop the program.
        """
        if stoppable:
            self.check()
        _active[self] = None  # it may be refused
        # Of several back ends, one that is down does not keep the others from getting it.
        for back_end in self._others:
            back_end._guarded.watch()
            back_end.buffer.has_room()
        self._guarded.watch()
        if self.buffer.has_room():
            self.buffer.add(source, layout, packet, nbytes)
        else:
            self.buffer.leave_out(source, packet)

    def finish(self, ids: Iterable[int]) -> None:
        """End runs, and raise if something of them could not be written."""
        self._collect_waiting()
        self._wait(self.worker.request(lambda: self.finish_runs(ids)))
        for back_end in self.back_ends:
            # It may have been told to end its own just now.
            back_end._wait(back_end.worker.request(_nothing))
        self.check(at_end=True)

    def finish_later(self, ids: Iterable[int]) -> None:
        """End runs when all that was logged so far has been delivered."""
        self.worker.submit(lambda: self._ending.update(dict.fromkeys(ids)))

    def finish_ending(self) -> None:
        """End the runs that were to be ended later: all programs are done."""
        if ending := self.worker.run(self._take_ending):
            self.finish(ending)

    def finish_all(self) -> None:
        self.finish(list(self.registry.runs))

    def check_ids(self, ids: np.ndarray) -> None:
        """Raise if there is no such run, or not any more."""
        for id in ids.tolist():
            if id not in self.registry.runs:
                raise self.registry.unknown(id)

    def check(self, *, at_end: bool = False) -> None:
        """Raise what has failed; `at_end`: even what the program need not stop for."""
        self.buffer.check(at_end=at_end)
        for member in self._members:
            member.check(at_end=at_end)

    def forget(self) -> None:
        """Forget all runs, and write nothing more of them."""
        self.registry.forget()
        self.buffer.discard()
        self._ending = {}
        self._is_forgotten = True
        _active.pop(self, None)

    def collect(self) -> None:
        """Have a logger of several give all that waits to its members."""
        self.worker.run(self.buffer.write)

    @property
    def depth(self) -> int:
        """Return how many levels of `MultiLogger` are nested here."""
        return max((1 + member.depth for member in self._members), default=0)

    def _collect_waiting(self) -> None:
        """Get what was logged to runs of this logger, and still waits at others."""
        mine = set(self.back_ends)
        for logger in _outermost_first():
            if logger is not self and not mine.isdisjoint(logger._others):
                logger.collect()

    def _wait(self, future: Future[T]) -> T:
        """Wait for what the worker was asked for, but not for ever."""
        start = time.monotonic()
        while not self._guarded.has_done_nothing(start):
            try:
                return future.result(_PAUSE)
            except TimeoutError:
                if future.done():  # it was the call that raised this
                    raise
        raise RuntimeError(self.give_up())

    def give_up(self) -> str:
        """Say what has not been written."""
        return self._guarded.give_up(self.buffer.waiting_rows())

    # What follows is called on the worker's thread.

    def open_run(
        self, key: Key, group: str, process: int, job: str, config: Mapping[str, Any] = {}
    ) -> int:
        """Return the id of the run with this key, which is begun if there is none.

        Args:
            key: The data of the PRNG key.
            group: See `Run`.
            process: The number of this process.
            job: See `Run`.
            config: What is to be added to the configuration of the logger.
        """
        if self.registry.id_of(key) in self._ending:
            self._finish_ending()
        id = self.registry.id_of(key)
        if id is not None:
            return id
        config = {**self._config, **config}
        run = self.registry.new_run(key, config, group, process, job)
        if process == 0 or self._all_processes:
            self.buffer.open(run)
        self.registry.add(run)
        _active[self] = None
        return run.id

    def finish_runs(self, ids: Iterable[int]) -> None:
        """End runs, after all that was taken for them."""
        self.buffer.flush()
        self.close_runs(ids)

    def close_runs(self, ids: Iterable[int]) -> None:
        """End runs of which everything is flushed."""
        runs, ids = self.registry.runs, list(dict.fromkeys(ids))
        stale = [id for id in ids if id not in runs and not self.registry.is_finished(id)]
        known = [runs[id] for id in ids if id in runs]
        self.buffer.close(known)
        for run in known:
            self.registry.finish(run)
        if not runs:
            _active.pop(self, None)
        if stale:
            self.buffer.refuse(self.registry.unknown(stale[0]))

    def _open_runs(self, keys: Sequence[Key], process: int, agree: Agree) -> list[int]:
        if any(self.registry.id_of(key) in self._ending for key in keys):
            self._finish_ending()
        group = job = ""
        if any(self.registry.id_of(key) is None for key in keys):
            group, job = self.registry.agree_on_group(keys, agree)
        return [self.open_run(key, group, process, job) for key in keys]

    def _finish_ending(self) -> None:
        self.finish_runs(self._take_ending())

    def _take_ending(self) -> list[int]:
        ending, self._ending = list(self._ending), {}
        return ending


def settle() -> None:
    """Wait until everything that reached the host is written and flushed.

    This does not wait for back ends that have stalled; the user has been warned of them.
    """
    start, loggers = time.monotonic(), _outermost_first()
    for logger in loggers:
        if logger._members:
            logger.worker.run(logger.worker.flush)
    flushed = [(logger, logger.worker.request(logger.worker.flush)) for logger in loggers]
    for logger, future in flushed:
        while not future.done() and not logger._guarded.has_stalled(start):
            _wait_a_little(future)
    for logger in loggers:
        if logger._ending:
            logger.finish_ending()
        logger.check()


def flush_writers(is_wanted: Callable[[Writer], bool]) -> None:
    """Have the loggers of some writers write and flush all that reached the host."""
    for logger in _outermost_first():
        if any(is_wanted(back_end.writer) for back_end in logger.back_ends):
            logger.worker.run(logger.worker.flush)


def flush_all() -> None:
    """Have all loggers flush, and return when all are done. For the end of the process."""
    loggers = _outermost_first()
    for logger in loggers:
        if logger._members:
            logger.worker.run(logger.worker.flush)
    for future in [logger.worker.request(logger.worker.flush) for logger in loggers]:
        future.result()


def finish_all(*, is_interrupted: bool = False) -> None:
    """End all runs. For the end of the process.

    Print the names of loggers that do not get it done, and how much they have not written.

    Args:
        is_interrupted: Whether to wait for one second at most.
    """
    loggers, start = _outermost_first(), time.monotonic()
    ended = []
    for logger in loggers:
        runs = logger.registry.runs
        ended.append(logger.worker.request(ft.partial(logger.finish_runs, list(runs))))
        if logger._members:
            _wait_a_little(ended[-1], 1.0)
    for logger, future in zip(loggers, ended, strict=True):
        try:
            while is_interrupted and time.monotonic() < start + 1 and not future.done():
                _wait_a_little(future)
            if is_interrupted and not future.done():
                raise RuntimeError(logger.give_up())
            logger._wait(future)
            logger.worker.retire()
            logger.check(at_end=True)
        except KeyboardInterrupt:
            is_interrupted = True
            print(f"lox: {logger.give_up()}", file=sys.stderr, flush=True)
        except Exception as error:
            print(f"lox: {error}", file=sys.stderr, flush=True)


def forget_all() -> None:
    """Leave all runs to the process that began them."""
    for logger in list(_active):
        logger.forget()


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


def _outermost_first() -> list[HostLogger]:
    """Return the loggers that have runs, those of several before their members."""
    return sorted(_active, key=lambda logger: logger.depth, reverse=True)


def _wait_a_little(future: Future, seconds: float = 0.05) -> None:
    with contextlib.suppress(TimeoutError):
        future.exception(seconds)


def _nothing() -> None:
    pass


# How many seconds to wait before asking again whether waiting makes sense.
_PAUSE = 0.05
# Those that have runs, or something that waits. They live until their runs are finished.
_active: dict[HostLogger, None] = {}
