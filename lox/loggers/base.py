"""The device side of a logger: it sends the logs of a function to a run.

    run = logger.init(key)              a host call starts the run, and returns its number
    logger.tap(fun, run)(x)             host calls send rows with this number
    logger.spool(fun, run)(x)           one host call sends all rows when `fun` returns
    logger.finish(run)                  a host call ends it

All of these work under `jit` and `vmap`, so the number may be a tracer. The host side, with
the writer thread and the writer, is `lox_host.host_logger`.
"""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lox._core import context as _context
from lox._core.log import check_function, loggable, with_jax_dtypes
from lox._core.options import check_prefix
from lox._core.record import Delivery, emit_effect, emit_p
from lox._core.spool import spool
from lox._core.when import Condition, check_when
from lox._jax import tracing
from lox._jax.types import AnyArray, PyTree
from lox._logdict.logdict import logdict
from lox._rows.reductions import Reduction
from lox._rows.rows import without_keys
from lox._rows.types import P, R
from lox._runs.concrete_logs import DirectSender
from lox._runs.logger_callbacks import FinishRuns, WriteRows
from lox._runs.open_run import open_run
from lox._runs.prng_key_words import key_words
from lox._runs.run_options import run_options
from lox._stream.callbacks import wait_for_packets
from lox._stream.emit import emit
from lox._stream.host_call_order import last_token
from lox._stream.packet import Packet
from lox._stream.tap import tapped
from lox_host.guarded_writer import OnError
from lox_host.host_logger import HostLogger
from lox_host.process_exit import write_at_sigterm
from lox_host.writer import Writer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoggerState:
    """A run, or under `jax.vmap` several runs. It is a pytree.

    Attributes:
        run: The number of the run, int32.
    """

    run: AnyArray


class BaseLogger:
    """What all loggers have in common; see `Logger`."""

    def __init__(self, host: HostLogger):
        self._host = host
        self._direct = DirectSender(host)
        # Whether a program will end runs when it is done.
        self._ends_later = False

    def init(
        self,
        key: Any,
        *,
        config: Mapping[str, Any] | None = None,
        name: str | None = None,
        group: str | None = None,
        tags: str | Iterable[str] = (),
        resume: bool = False,
    ) -> LoggerState:
        """Start a run.

        The same key and configuration mean the same run, until that run is finished. Under
        `vmap`, each key, and each configuration, starts a run.

        Args:
            key: A PRNG key, or a number.
            config: The configuration of the run, added to that of the logger: numbers,
                strings, arrays, and dictionaries and lists of them. Under `jit` and `vmap`,
                values may be traced, so that each run has its own.
            name: The name of the run. It can refer to entries of the configuration, to
                `{seed}`, and to `{index}`, its position in the batch, with format
                specifications: `"lr={lr:g}-{index}"`. By default, the name consists of
                the position and the seed.
            group: A name for runs that belong together, for trackers that have groups.
            tags: One or more words to find the run by, for trackers that have tags.
            resume: Whether to continue the run of an earlier session that has the same key
                and configuration. Its rows at or after the first step of this session no
                longer count. If there is no such run, this starts a new one.

        Returns:
            The state that you pass to the other methods.

        Raises:
            ValueError: If the name refers to something that does not exist.
        """
        # A run of the same key that is about to end must not be taken for this one.
        self._finish_ending()
        words = _key_words(key)
        options, operands = run_options(self._host, config, name, group, tags, resume)
        return LoggerState(open_run(self._host, words, options, operands))

    @contextlib.contextmanager
    def run(
        self,
        key: Any,
        *,
        config: Mapping[str, Any] | None = None,
        name: str | None = None,
        group: str | None = None,
        tags: str | Iterable[str] = (),
        resume: bool = False,
    ) -> Iterator[LoggerState]:
        """Start a run, write to it what `lox.log` logs in Python code, and finish it.

        This is for Python loops. It does not affect what compiled functions log: for these,
        use `logger.tap(fun, run)` or `logger.spool(fun, run)`.

        Args:
            key: See `init`.
            config: See `init`.
            name: See `init`.
            group: See `init`.
            tags: See `init`.
            resume: See `init`.

        Example:
            >>> logger = lox.loggers.SaveLogger("results")
            >>> with logger.run(0, config={"lr": 0.1}) as run:
            ...     for i in range(3):
            ...         logs = lox.log({"loss": 1 / (i + 1)}, step=i)
            >>> lox.load("results")["loss"].tolist()
            [1.0, 0.5, 0.3333333432674408]
        """
        # As a `with` block ends, the run ends, however the block ends.
        options = {"config": config, "name": name, "group": group, "tags": tags}
        state = self.init(key, **options, resume=resume)
        try:
            with _context.collecting(ft.partial(self._take, state)):
                yield state
        except BaseException:
            # An error of the back end must not hide the one that is being raised.
            with contextlib.suppress(Exception):
                self.finish(state)
            raise
        self.finish(state)

    def _take(
        self,
        state: LoggerState,
        values: dict[str, PyTree],
        steps: dict[str, AnyArray],
        tags: tuple[str, ...],
    ) -> None:
        """Write what Python code has logged."""
        if not tags:
            self.log(state, values, **steps)
            return
        rows = loggable(values, steps).rows()
        # `logger.log` has no option for tags, but the rows of a `logdict` may have some.
        tagged = {key: of_key.replace(tags=tags) for key, of_key in rows.items()}
        self.log(state, logdict.of(tagged))

    def spool(
        self,
        fun: Callable[P, R],
        state: LoggerState,
        argnames: str | Iterable[str] | None = None,
        tags: str | Iterable[str] | None = None,
        keep_logs: bool = False,
        interval: int | None = None,
        reduce: str | Reduction | Mapping[str, str | Reduction] | None = None,
        prefix: str = "",
        *,
        capacity: int | None = None,
        when: Condition | None = None,
    ) -> Callable[P, R]:
        """Write what `fun` logs when it returns. The options are those of `lox.spool`.

        Returns:
            A function that does and returns what `fun` does.
        """
        check_when("logger.spool", when)
        spooled = spool(
            fun,
            argnames,
            tags,
            keep_logs,
            interval,
            reduce,
            prefix,
            capacity=capacity,
            when=when,
        )
        self._check(state)

        @ft.wraps(fun)
        def logged(*args, **kwargs):
            out, logs = spooled(*args, **kwargs)
            self.log(state, logs)
            return out

        return logged

    def tap(
        self,
        fun: Callable[P, R],
        state: LoggerState,
        argnames: str | Iterable[str] | None = None,
        tags: str | Iterable[str] | None = None,
        prefix: str = "",
        *,
        interval: int | None = None,
        batch: int | None = None,
        when: Condition | None = None,
    ) -> Callable[P, R]:
        """Write what `fun` logs while it runs. The options are those of `lox.tap`.

        Returns:
            A function that does and returns what `fun` does.
        """
        check_function("logger.tap", fun)
        check_prefix(prefix)
        check_when("logger.tap", when)
        self._check(state)
        # The run is an operand of the host calls, so all runs share one program.
        write = WriteRows(self._host, prefix, is_sparse=when is not None)
        call = tapped(fun, write, argnames, tags, interval, batch, state.run, when)

        @ft.wraps(fun)
        def logged(*args, **kwargs):
            if tracing.is_eager():
                # The records of earlier calls may have come after these had returned.
                self._host.check()
            try:
                out = call(*args, **kwargs)
            except Exception:
                # Raise what stopped the program, instead of JAX's error about it.
                self._host.check()
                raise
            _order_after_calls_so_far(state)
            return out

        return logged

    def log(
        self,
        state: LoggerState,
        logs: logdict | Mapping[str, Any] | None = None,
        **steps: Any,
    ) -> None:
        """Write logs that you already have.

        Args:
            state: The run.
            logs: The logs, or values by key.
            **steps: Any other keyword is a step of all logs, such as `step=i`.
        """
        if isinstance(state, Mapping):
            raise TypeError(
                "`logger.log` takes the run first, which `logger.init(key)` returns: write "
                "`logger.log(run, logs)`."
            )
        self._check(state)
        if logs is None:
            key = next(iter(steps), "loss")
            raise TypeError(
                "`logger.log` got no values: keywords are steps. Write "
                f'`logger.log(run, {{"{key}": ...}})`.'
            )
        # In a Python loop the values are known, and no program is needed.
        with _after_programs():
            if self._direct.send(state.run, logs, steps):
                return
        rows = with_jax_dtypes(loggable(logs, steps)).rows()
        if rows:
            plain = {key: without_keys(of_key) for key, of_key in rows.items()}
            _send(WriteRows(self._host).of(rows), logdict.of(plain), state)

    def finish(self, state: LoggerState) -> None:
        """End the run: write everything that was logged to it, and close it.

        Runs that you do not finish end with the process.

        Raises:
            RuntimeError: If something could not be written.
        """
        _check_kind(state)
        # If host calls are inside loops or branches, or this one is, they may arrive after
        # it. Then the run ends when the whole program has ended.
        calls = tracing.staged_with(emit_effect)
        is_around_others = any(primitive is not emit_p for primitive, _ in calls)
        later = is_around_others or tracing.is_nested()
        self._ends_later |= later
        _send(FinishRuns(self._host, later), logdict(), state)

    def __enter__(self):
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An error of the back end must not hide the one that is already being raised.
        with (
            contextlib.suppress(*(() if kind is None else (Exception,))),
            _after_programs(),
        ):
            self._host.finish_all()

    def _finish_ending(self) -> None:
        """Outside programs, wait for programs that are to end runs, and end the runs."""
        if self._ends_later and tracing.staged_program() is None:
            wait_for_packets()
            self._host.finish_ending()

    def _check(self, state: LoggerState) -> None:
        _check_kind(state)
        if np.ndim(state.run):
            raise ValueError(
                f"The state contains {np.size(state.run)} runs, but this call takes one. "
                "Use `jax.vmap` over the states and the values that you log."
            )
        self._finish_ending()
        if not isinstance(state.run, Tracer):
            self._host.check_ids(np.asarray(state.run).reshape(-1))


class Logger(BaseLogger):
    """Send logs to a writer.

    Args:
        writer: The back end, with `open`, `write`, `flush` and `close`: see `Writer`.
        config: The configuration of the runs, which the back end stores with them.
        on_error: What to do when the writer fails. `"warn"`: warn once, and let `finish`
            raise. `"raise"`: stop the program.
        all_processes: With several processes (`jax.distributed`), let each process write
            its own runs. By default only the first one writes.
        every: How many seconds to collect rows before they are written, for back ends that
            limit the number of calls. `lox.barrier` and `finish` write at once. In a
            `MultiLogger`, the shortest time counts.
        patience: How many seconds to wait for a writer that does not return: when there is
            no more room for rows, in `finish`, and at the end of the process. After that, a
            message names the logger and the number of rows that it did not write. lox keeps
            waiting for a writer that is merely slow, or slow to open a run. If it hangs
            with the rows of another run, `init` raises.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        every: float = 0.5,
        patience: float = 30.0,
    ):
        name = type(self).__name__
        super().__init__(
            HostLogger(
                name,
                writer,
                config=config,
                on_error=on_error,
                all_processes=all_processes,
                every=every,
                patience=patience,
            )
        )
        write_at_sigterm()


def _send(callback: Callable[[Packet], None], logs: logdict, state: LoggerState) -> None:
    delivery = Delivery(logs=logs, run=jnp.asarray(state.run))
    with _after_programs():
        emit([delivery], callback, last_token())
    _order_after_calls_so_far(state)


def _order_after_calls_so_far(state: LoggerState) -> None:
    """Make later uses of the state come after the host calls of the program so far.

    The number of the run then depends on the token of the last call. Loops, branches and
    functions do not see the tokens outside. But if they use the state, they come
    after this call, too.
    """
    if tracing.is_current(state.run):
        object.__setattr__(state, "run", state.run + last_token())


@contextlib.contextmanager
def _after_programs():
    """Wait for what programs have yet to send, before something is done on the host."""
    try:
        if tracing.staged_program() is None:
            wait_for_packets()
    finally:
        yield


def _check_kind(state: object) -> None:
    if not isinstance(state, LoggerState):
        raise TypeError(
            f"`state` is {type(state).__name__!r}, not what `logger.init(key)` returns."
        )


def _key_words(key: object) -> jax.Array:
    """Return the data of a PRNG key, or a number, as an array of words."""
    words = key_words(key)
    if words is not None:
        return jnp.asarray(words)
    given = key if isinstance(key, jax.Array) else np.asarray(key)
    if isinstance(key, str):
        raise ValueError(
            f"`logger.init` takes one PRNG key or number, not the string {key!r}. Each run "
            "has its own: write `logger.init(jax.random.key(0))` or `logger.init(0)`."
        )
    is_array = isinstance(key, jax.Array | np.ndarray)
    what = f"{given.dtype}{list(given.shape)}" if is_array else repr(key)
    raise ValueError(
        f"`logger.init` takes one PRNG key or number, not {what}. Start several runs with "
        "`jax.vmap(logger.init)(keys)`."
    )
