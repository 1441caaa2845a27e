"""The host half of a logger: begins runs, takes what they log, and ends them.

The device half (`lox.loggers.Logger`) holds one, and calls it on any thread. It has all the
work done on the thread of its worker:

    host calls of programs --take--> worker's queue --> WriteBuffer --> Writer
                                                            ^
    logger.init, logger.finish ----> RunRegistry -----------+
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lox_host.run_key import run_key
from lox_host.run_registry import Agree, Key, RunRegistry
from lox_host.worker import Worker, writer_thread
from lox_host.write_buffer import OnError, PacketSource, WriteBuffer
from lox_host.writer import Writer


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
        members: The loggers that the writer hands everything to, if it is a `FanOut`.
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
        members: Sequence["HostLogger"] = (),
        worker: Worker = writer_thread,
    ):
        if on_error not in ("warn", "raise"):
            raise ValueError(f'`on_error` is "warn" or "raise", not {on_error!r}.')
        _check_writer(writer)
        _check_config(config)
        self.name, self.writer, self.every = name, writer, every
        self._config, self._all_processes = dict(config or {}), all_processes
        self._worker, self._members = worker, list(members)
        self.registry = RunRegistry(name)
        self.buffer = WriteBuffer(
            name, writer, self.registry, worker, on_error=on_error, every=every
        )
        # Those that are to be finished when all programs are done.
        self._ending: dict[int, None] = {}
        self._is_forgotten = False
        # Not with the first run, which a thread of JAX may begin: those take subnormal
        # numbers for zero, and a thread inherits that from the one that starts it.
        worker.start()

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
            keys: The data of the PRNG keys, one a row.
            process: The number of this process.
            agree: Returns the value for a name that all processes agree on.
        """
        if self._is_forgotten:
            raise RuntimeError(
                "This logger was made before the process was forked, and belongs to the "
                "parent. Make another one in the child."
            )
        given = [run_key(key.tolist()) for key in keys]
        ids = self._worker.run(lambda: self._open_runs(given, process, agree))
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
        self._submit(lambda: self._take(source, layout, packet, nbytes), nbytes)

    def finish(self, ids: Iterable[int]) -> None:
        """End runs, and raise if something of them could not be written."""
        self._worker.run(lambda: self.finish_runs(ids))
        self.check(at_end=True)

    def finish_later(self, ids: Iterable[int]) -> None:
        """End runs when all that was logged so far has been delivered."""
        self._submit(lambda: self._ending.update(dict.fromkeys(ids)))

    def finish_ending(self) -> None:
        """End the runs that were to be ended later: all programs are done."""
        if self._worker.run(self._finish_ending):
            self.check(at_end=True)

    def finish_all(self) -> None:
        self.finish(self.registry.runs)

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
        """Have no runs any more, and write nothing of those that there were."""
        self.registry.forget()
        self.buffer.discard()
        self._ending = {}
        self._is_forgotten = True
        _active.pop(self, None)

    def _submit(self, call: Callable[[], None], nbytes: int = 0) -> None:
        if self._worker.is_current():
            call()  # what a back end logs comes before what it does next
        else:
            self._worker.submit(call, nbytes)

    # What follows is called on the worker's thread.

    def _take(self, source: PacketSource, layout: object, packet: Any, nbytes: int) -> None:
        _active[self] = None  # it may be refused
        self.buffer.add(source, layout, packet, nbytes)

    def open_run(self, key: Key, group: str, process: int, job: str) -> int:
        """Return the id of the run with this key, which is begun if there is none."""
        if self.registry.id_of(key) in self._ending:
            self._finish_ending()
        id = self.registry.id_of(key)
        if id is not None:
            return id
        run = self.registry.new_run(key, self._config, group, process, job)
        if process == 0 or self._all_processes:
            self.buffer.open(run)
        self.registry.add(run)
        _active[self] = None
        return run.id

    def finish_runs(self, ids: Iterable[int]) -> None:
        """End runs, after all that was taken for them."""
        mine = set(self.back_ends)
        for logger in [*_active, self]:
            # What was logged to these runs may still wait at a MultiLogger.
            if not mine.isdisjoint(logger.back_ends):
                logger.write_waiting()
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

    def write_waiting(self) -> None:
        """Give all that waits to the writer, and if that passes it on, to theirs."""
        self.buffer.write()
        for member in self._members:
            member.write_waiting()

    def _open_runs(self, keys: Sequence[Key], process: int, agree: Agree) -> list[int]:
        if any(self.registry.id_of(key) in self._ending for key in keys):
            self._finish_ending()
        group = job = ""
        if any(self.registry.id_of(key) is None for key in keys):
            group, job = self.registry.agree_on_group(keys, agree)
        return [self.open_run(key, group, process, job) for key in keys]

    def _finish_ending(self) -> bool:
        """End what was to be ended later, and return whether there was anything."""
        ending, self._ending = self._ending, {}
        self.finish_runs(ending)
        return bool(ending)


def settle() -> None:
    """Return when all that reached the host is written and flushed."""
    for worker in {writer_thread, *(logger._worker for logger in _active)}:
        worker.run(worker.flush)
    settled = [(logger, logger._worker.run(logger._finish_ending)) for logger in [*_active]]
    for logger, has_ended in settled:
        logger.check(at_end=has_ended)


def flush_writers(is_wanted: Callable[[Writer], bool]) -> None:
    """Have the loggers of some writers write and flush all that reached the host."""
    for logger in list(_active):
        if any(is_wanted(back_end.writer) for back_end in logger.back_ends):
            logger._worker.run(logger._worker.flush)


def finish_all() -> None:
    """End all runs. For the end of the process."""
    for logger in list(_active):
        logger._worker.run(lambda logger=logger: logger.finish_runs(logger.registry.runs))


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


# Those that have runs, or something that waits. They live until their runs are finished.
_active: dict[HostLogger, None] = {}
