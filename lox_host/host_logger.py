"""The host half of a logger: begins runs, accepts what they log, and ends them.

The device half (`lox.loggers.Logger`) owns a `HostLogger` and calls it from any thread.
The back end runs on the thread of a worker that belongs to this logger alone:

    host calls of programs --take--> WriteBuffer --worker--> Writer
                                         ^
    logger.init, logger.finish --worker--+--> RunRegistry

A `MultiLogger` has a `FanOut` as its writer, which puts rows into the buffers of the
members. It waits for none of them, so a member that hangs does not hold up the others. Only
two things wait: a program that logs while a member has no room, and a call that finishes
runs.
"""

import contextlib
import dataclasses
import functools as ft
import itertools as it
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, TimeoutError
from typing import Any, TypeVar

import numpy as np

from lox_host.guarded_writer import GuardedWriter, OnError
from lox_host.runs.run_config import Config, merged_config, plain_config
from lox_host.runs.run_id import run_identity
from lox_host.runs.run_names import format_name
from lox_host.runs.run_registry import Agree, Launch, RunRegistry, WantedRun
from lox_host.worker_thread import Worker
from lox_host.write_buffer import PacketSource, WriteBuffer
from lox_host.writer import Writer

T = TypeVar("T")


class HostLogger:
    """Writes the runs of a logger on another thread.

    Call the methods on any thread, unless they say otherwise.

    Args:
        name: The name of the logger's class.
        writer: The back end.
        config: The configuration that all of its runs share.
        on_error: Whether a failing writer only warns, or stops the program.
        all_processes: Whether processes other than the first write, too.
        every: How many seconds to collect rows before writing them.
        patience: How many seconds to wait for a writer that makes no progress.
        members: The loggers that get everything from the writer, if it is a `FanOut`.

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
            raise ValueError(f'`on_error` must be "warn" or "raise", not {on_error!r}.')
        if not patience >= 0:
            raise ValueError(f"`patience` must be a number of seconds, not {patience!r}.")
        _check_writer(writer)
        check_config(config)
        self.name, self.writer, self.every = name, writer, every
        self._config: Config = plain_config(config or {})
        self._all_processes = all_processes
        self._members = list(members)
        # The back ends that a `MultiLogger` forwards its rows to.
        self._others = self.back_ends if members else []
        self.worker = Worker(f"lox-{name}")
        self.registry = RunRegistry(name)
        self._guarded = GuardedWriter(name, writer, on_error=on_error, patience=patience)
        self.buffer = WriteBuffer(self._guarded, self.registry, self.worker, every=every)
        # The ids of runs to finish once all programs are done.
        self._ending: dict[int, None] = {}
        # The ids of runs that several examples log to, after the warning about it.
        self._shared: set[int] = set()
        self._is_forgotten = False
        # Start the thread here, not with the first run. A thread of JAX may begin that run.
        # JAX's threads flush subnormal numbers to zero, and a thread inherits this mode
        # from the thread that starts it.
        self.worker.start()
        weakref.finalize(self, self.worker.retire).atexit = False

    @property
    def back_ends(self) -> list["HostLogger"]:
        """The loggers that do the writing: this one, or the back ends of its members."""
        if not self._members:
            return [self]
        return [back_end for member in self._members for back_end in member.back_ends]

    def with_members(self) -> Iterator["HostLogger"]:
        """Yield this logger and all loggers that are nested in it."""
        yield self
        for member in self._members:
            yield from member.with_members()

    @property
    def everywhere(self) -> bool:
        """Whether processes other than the first need the rows, too."""
        return any(back_end._all_processes for back_end in self.back_ends)

    @property
    def first_process_only(self) -> list[str]:
        """The names of loggers that write in the first process only."""
        return [x.name for x in self.back_ends if not x._all_processes]

    @property
    def names_from(self) -> Config:
        """The configuration that run names may refer to, including that of the members."""
        config: Config = {}
        for member in self._members:
            config = merged_config(config, member.names_from)
        return merged_config(config, self._config)

    def check_name(self, name: str, config: Config) -> None:
        """Raise if a name refers to a configuration entry that will not exist.

        Args:
            name: The name, or a template.
            config: The configuration given to `init`. Values that are not known yet may be
                any value of the same kind.
        """
        format_name(name, merged_config(self.names_from, config), key=(0,), index=0)

    def open_runs(
        self, wanted: Sequence[WantedRun], process: int, agree: Agree
    ) -> np.ndarray:
        """Return the ids of runs, and begin the runs that are new.

        Args:
            wanted: The runs. If several have the same key and configuration, they are one
                run, and the first counts.
            process: The number of this process.
            agree: See `Agree`.
        """
        if self._is_forgotten:
            raise RuntimeError(
                "This logger was created before the process was forked, so it belongs to "
                "the parent process. Create another one in the child."
            )
        self._collect_waiting()
        ids = self.open_patiently(lambda: self._open_runs(wanted, process, agree))
        return np.array(ids, np.int32)

    def open_patiently(self, call: Callable[[], T]) -> T:
        """Open runs on the worker's thread.

        To open a run may take long, and lox says what it waits for. But if the writer
        hangs with the rows of other runs, nobody knows whether it will ever open another.

        Raises:
            RuntimeError: If the writer does not return from another method.
        """
        opening, start, is_said = self.worker.request(call), time.monotonic(), False
        while True:
            try:
                return opening.result(_PAUSE)
            except TimeoutError:
                if opening.done():  # the call itself raised the `TimeoutError`
                    raise
                self._guarded.check_opening(start)
                # Of several, the one that takes long says so.
                is_due = time.monotonic() > start + _QUIET and not self._members
                if is_due and not is_said:
                    self._say_that_it_waits("open a run")
                    is_said = True

    def take(
        self,
        source: PacketSource,
        layout: object,
        packet: object,
        nbytes: int,
        *,
        stoppable: bool,
    ) -> None:
        """Queue the rows of a packet for writing.

        If `stoppable`, raise earlier errors that should stop the program.
        """
        if stoppable:
            self.check()
        # Even without a run: the packet may be refused, and `settle` has to raise that.
        active_loggers[self] = None
        if self.has_room():
            self.buffer.add(source, layout, packet, nbytes)
        else:
            self.buffer.leave_out(source, packet)

    def has_room(self) -> bool:
        """Wait for room, and return whether a packet may be added."""
        # Wait for the back ends of members here. The result does not matter: one that is
        # down leaves the rows out by itself, and the others still get them.
        for back_end in self._others:
            back_end._guarded.watch()
            back_end.buffer.has_room()
        self._guarded.watch()
        return self.buffer.has_room()

    def warn_of_shared(self, ids: Iterable[int], examples: int) -> None:
        """Warn, once per run, that several examples of a batch log to it."""
        for id in ids:
            run = self.registry.runs.get(id)
            if run is None or id in self._shared:
                continue
            self._shared.add(id)
            # If warnings are errors, swallow this one: the rows must still be written.
            with contextlib.suppress(UserWarning):
                warnings.warn(
                    f"{examples} examples of a `vmap` log to the same run {run.name!r}: "
                    "they have the same key and configuration. The step `example` says "
                    "which example a row comes from. For one run per example, give each "
                    "its own key, `jax.vmap(logger.init)(keys)`, or its own `config`.",
                    stacklevel=2,
                )

    def finish(self, ids: Iterable[int]) -> None:
        """End runs, and raise if some of their rows could not be written."""
        self._collect_waiting()
        self._wait(self.worker.request(lambda: self.finish_runs(ids)))
        # The fan-out has only queued the end of the members' runs: wait for them, too.
        _call_all(logger._wait_for_end for logger in self.with_members())

    def _wait_for_end(self) -> None:
        self._wait(self.worker.request(_nothing))
        self.buffer.check(at_end=True)

    def finish_later(self, ids: Iterable[int]) -> None:
        """End runs once everything logged so far has been delivered."""
        self.worker.submit(lambda: self._ending.update(dict.fromkeys(ids)))

    def finish_ending(self) -> None:
        """End the runs passed to `finish_later`. All programs must be done."""
        if ending := self.worker.run(self._take_ending):
            self.finish(ending)

    def finish_all(self) -> None:
        self.finish(list(self.registry.runs))

    def check_ids(self, ids: np.ndarray) -> None:
        """Raise if an id belongs to no run, or to a run that is finished."""
        for id in ids.tolist():
            if id not in self.registry.runs:
                raise self.registry.unknown(id)

    def check(self, *, at_end: bool = False) -> None:
        """Raise earlier errors; with `at_end`, even those that need not stop a program."""
        checks = [logger.buffer.check for logger in self.with_members()]
        _call_all(ft.partial(check, at_end=at_end) for check in checks)

    def forget(self) -> None:
        """Forget all runs and drop their unwritten rows."""
        self.registry.forget()
        self.buffer.discard()
        self._ending = {}
        self._is_forgotten = True
        active_loggers.pop(self, None)

    def collect(self) -> None:
        """Make a `MultiLogger` pass all buffered rows to its members."""
        self.worker.run(self.buffer.write)

    @property
    def depth(self) -> int:
        """The number of levels of `MultiLogger` nested in this one."""
        return max((1 + member.depth for member in self._members), default=0)

    def _collect_waiting(self) -> None:
        """Fetch rows for this logger that are still buffered in a `MultiLogger`."""
        # Rows that were logged before `finish` must be written before the run is closed,
        # even those that came through a `MultiLogger` and still wait there.
        back_ends = set(self.back_ends)
        for logger in outermost_first():
            if logger is not self and not back_ends.isdisjoint(logger._others):
                logger.collect()

    def _wait(self, future: Future[T]) -> T:
        """Wait for a result of the worker until the writer has stalled.

        After `_QUIET` seconds, print what this is waiting for.
        """
        start, is_said = time.monotonic(), False
        while not self._guarded.has_done_nothing(start):
            try:
                return future.result(_PAUSE)
            except TimeoutError:
                # Done by now, or the call itself raised the `TimeoutError`.
                if future.done():
                    return future.result()
                if not is_said and time.monotonic() > start + _QUIET:
                    rows = self.buffer.waiting_rows() + self._guarded.unflushed_rows
                    what = f"write {rows} rows" if rows else "finish its runs"
                    self._say_that_it_waits(what)
                    is_said = True
        raise RuntimeError(self.give_up())

    def _say_that_it_waits(self, what: str) -> None:
        text = f"lox: Waiting for {self.name} to {what}. Press Ctrl-C to stop waiting."
        print(text, file=sys.stderr, flush=True)

    def give_up(self) -> str:
        """Return the text that says what has not been written."""
        return self._guarded.give_up(self.buffer.waiting_rows())

    # Call the following methods on the worker's thread.

    def open_run(self, wanted: WantedRun, launch: Launch) -> tuple[int, bool]:
        """Return the id of a run, and whether this call began it."""
        ((identity, whole),) = self._identified([wanted])
        if self.registry.id_of(identity) in self._ending:
            self._finish_ending()
        is_new = self.registry.id_of(identity) is None
        return self._open_run(identity, whole, launch), is_new

    def _open_run(self, identity: str, wanted: WantedRun, launch: Launch) -> int:
        id = self.registry.id_of(identity)
        if id is not None:
            return id
        # The configuration of the run already includes the logger's own.
        names_from = wanted.config
        if self._members:
            names_from = merged_config(self.names_from, wanted.config)
        run = self.registry.new_run(identity, wanted, names_from, launch)
        if launch.process == 0 or self._all_processes:
            self.buffer.open(run)
        self.registry.add(run, identity)
        active_loggers[self] = None
        return run.id

    def _identified(self, wanted: Sequence[WantedRun]) -> list[tuple[str, WantedRun]]:
        """Return each run's identity, and the run with its complete configuration."""
        found = []
        for run in wanted:
            if self._config:
                config = merged_config(self._config, run.config)
                run = dataclasses.replace(run, config=config)
            found.append((run_identity(run.key, run.config), run))
        return found

    def finish_runs(self, ids: Iterable[int]) -> None:
        """Write and flush all buffered rows, then end runs."""
        self.buffer.flush()
        self.close_runs(ids)

    def close_runs(self, ids: Iterable[int]) -> None:
        """End runs whose rows have been flushed."""
        runs, ids = self.registry.runs, list(dict.fromkeys(ids))
        # An id that is finished already is no error: it may be finished twice.
        stale = [id for id in ids if id not in runs and not self.registry.is_finished(id)]
        known = [runs[id] for id in ids if id in runs]
        self.buffer.close(known)
        for run in known:
            self.registry.finish(run)
        if not runs:
            active_loggers.pop(self, None)
        if stale:
            self.buffer.refuse(self.registry.unknown(stale[0]))

    def _open_runs(
        self, wanted: Sequence[WantedRun], process: int, agree: Agree
    ) -> list[int]:
        identified = self._identified(wanted)
        identities = [identity for identity, _ in identified]
        # A run that is to end is another one than the run that is asked for now.
        if any(self.registry.id_of(identity) in self._ending for identity in identities):
            self._finish_ending()
        # To agree takes a round trip between processes: only if there is a new run.
        launch = Launch("", process, "")
        if any(self.registry.id_of(identity) is None for identity in identities):
            launch = self.registry.agree_on_launch(identities, process, agree)
        return [self._open_run(*pair, launch) for pair in identified]

    def _finish_ending(self) -> None:
        self.finish_runs(self._take_ending())

    def _take_ending(self) -> list[int]:
        ending, self._ending = list(self._ending), {}
        return ending


def _check_writer(writer: object) -> None:
    parts = ("open", "write", "flush", "close")
    missing = [f"`{part}`" for part in parts if not hasattr(writer, part)]
    if missing:
        kind = type(writer).__name__
        raise TypeError(
            f"`writer` is {kind!r}, which lacks {', '.join(missing)}. A writer has all "
            "methods of `lox.loggers.Writer`. To call a function, use `lox.tap`."
        )


def check_config(config: object) -> None:
    """Raise if a configuration is not a mapping."""
    if not isinstance(config, Mapping | None):
        raise TypeError(
            "`config` must be a mapping from names to values, not "
            f"{type(config).__name__!r}. Pass `dataclasses.asdict(config)` or "
            "`vars(config)`."
        )


def outermost_first() -> list[HostLogger]:
    """Return the loggers that have runs, each `MultiLogger` before its members.

    Members are among them even without a run: they may be about to get rows.
    """
    loggers = it.chain.from_iterable(x.with_members() for x in list(active_loggers))
    return sorted(dict.fromkeys(loggers), key=lambda logger: logger.depth, reverse=True)


def wait_a_little(future: Future, seconds: float = 0.05) -> None:
    with contextlib.suppress(TimeoutError):
        future.exception(seconds)


def _nothing() -> None:
    pass


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    """Call all functions, then raise what they raised: an error that names all others."""
    errors = []
    for call in calls:
        try:
            call()
        except Exception as error:
            errors.append(error)
    if len(errors) > 1:
        raise RuntimeError("\n".join(map(str, errors))) from errors[0]
    if errors:
        raise errors[0]


# How many seconds to wait before checking again whether the writer has stalled.
_PAUSE = 0.05
# How many seconds to wait before telling the user.
_QUIET = 3.0
# The loggers that have runs or buffered rows. This keeps them alive until their runs are
# finished.
active_loggers: dict[HostLogger, None] = {}
