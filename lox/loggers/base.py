"""The device side of a logger: from a function that logs to the runs that it logs to."""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from lox._core.log import check_function, loggable
from lox._core.options import check_prefix
from lox._core.record import Delivery, emit_effect, emit_p
from lox._core.spool import spool
from lox._jax import tracing
from lox._logdict.logdict import logdict
from lox._rows.reductions import Reduction
from lox._rows.rows import without_keys
from lox._rows.types import P, R
from lox._runs.key_words import key_words
from lox._runs.logger_callbacks import FinishRuns, WriteRows
from lox._runs.open_run import open_run
from lox._runs.straight import StraightWay
from lox._stream.emit import emit
from lox._stream.packet import Packet
from lox._stream.tap import tapped
from lox._stream.token import last_token
from lox_host.guarded_writer import OnError
from lox_host.host_logger import HostLogger
from lox_host.process_exit import write_at_sigterm
from lox_host.writer import Writer


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LoggerState:
    """A run, or with `jax.vmap` several. A pytree.

    Attributes:
        run: The number of the run, int32.
    """

    run: Any


class BaseLogger:
    """What all loggers have in common; see `Logger`."""

    def __init__(self, host: HostLogger):
        self._host = host
        self._straight = StraightWay(host)
        # Whether a program has been told to end runs when it is done.
        self._ends_later = False

    def init(self, key: Any) -> LoggerState:
        """Start a run.

        The same key means the same run, as long as that is not finished. Under `vmap` each
        key starts one.

        Args:
            key: A PRNG key, or a number.

        Returns:
            The state to be handed to the other methods.
        """
        self._finish_ending()
        return LoggerState(open_run(self._host, _key_words(key)))

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
    ) -> Callable[P, R]:
        """Write what `fun` logs when it returns. The options are those of `lox.spool`.

        Returns:
            A function that does and returns what `fun` does.
        """
        spooled = spool(
            fun, argnames, tags, keep_logs, interval, reduce, prefix, capacity=capacity
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
    ) -> Callable[P, R]:
        """Write what `fun` logs while it runs. The options are those of `lox.tap`.

        Returns:
            A function that does and returns what `fun` does.
        """
        check_function("logger.tap", fun)
        check_prefix(prefix)
        self._check(state)
        write = WriteRows(self._host, prefix)
        call = tapped(fun, write, argnames, tags, interval, batch, state.run)

        @ft.wraps(fun)
        def logged(*args, **kwargs):
            try:
                out = call(*args, **kwargs)
            except Exception:
                # What stopped the program, instead of what JAX says of it.
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
        """Write logs that are already there.

        Args:
            state: The run.
            logs: The logs, or values by key.
            **steps: Any other keyword is a step of all of them, such as `step=i`.
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
        with _after_programs():
            if self._straight.send(state.run, logs, steps):
                return
        rows = loggable(logs, steps).rows()
        if rows:
            plain = {key: without_keys(of_key) for key, of_key in rows.items()}
            _send(WriteRows(self._host).of(rows), logdict.of(plain), state)

    def finish(self, state: LoggerState) -> None:
        """End the run: all that was logged to it is written, and it is closed.

        Without this, runs are ended when the process is.

        Raises:
            RuntimeError: If something could not be written.
        """
        _check_kind(state)
        # Where loops or branches made host calls, or this is in one, nobody knows whether
        # those arrive before: then the run ends when the whole program has.
        calls = tracing.staged_with(emit_effect)
        is_around_others = any(primitive is not emit_p for primitive, _ in calls)
        later = is_around_others or tracing.is_nested()
        self._ends_later |= later
        _send(FinishRuns(self._host, later), logdict(), state)

    def __enter__(self):
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        # What went wrong already is not hidden by what the back end says.
        with (
            contextlib.suppress(*(() if kind is None else (Exception,))),
            _after_programs(),
        ):
            self._host.finish_all()

    def _finish_ending(self) -> None:
        """Outside of programs, wait for those that are to end runs, and end these."""
        if self._ends_later and tracing.staged_program() is None:
            jax.effects_barrier()
            self._host.finish_ending()

    def _check(self, state: LoggerState) -> None:
        _check_kind(state)
        if np.ndim(state.run):
            raise ValueError(
                f"The state holds {np.size(state.run)} runs. Use one at a time: "
                "`jax.vmap` over the states and what is logged to them."
            )
        self._finish_ending()
        if not isinstance(state.run, Tracer):
            self._host.check_ids(np.asarray(state.run).reshape(-1))


class Logger(BaseLogger):
    """Sends what is logged to a writer.

    Args:
        writer: The back end: `open`, `write`, `flush` and `close`, see `Writer`.
        config: The configuration of the runs, which the back end keeps with them.
        on_error: What to do when the writer fails. `"warn"`: warn once, and let `finish`
            raise. `"raise"`: stop the program.
        all_processes: With several processes (`jax.distributed`), let each write runs of
            its own. Otherwise the first one does.
        every: How many seconds rows are collected before they are written, for back ends
            that limit the number of calls. `lox.barrier` and `finish` write at once. In a
            `MultiLogger` the shortest counts.
        patience: How many seconds to wait for a writer that does not return: where there
            is no more room for rows, in `finish`, and when the process ends. After that you
            are told which logger it is and how many rows it did not write. A writer that is
            only slow is waited for.
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
    """Let what this program does with the state later come after its host calls so far.

    The run's id then depends on the token of the last call. Loops, branches and functions
    that use the state see no other token, and so come after it, too.
    """
    if tracing.is_current(state.run):
        object.__setattr__(state, "run", state.run + last_token())


@contextlib.contextmanager
def _after_programs():
    """Do something on the host after what programs have still to send."""
    try:
        if tracing.staged_program() is None:
            jax.effects_barrier()
    finally:
        yield


def _check_kind(state: Any) -> None:
    if not isinstance(state, LoggerState):
        raise TypeError(
            f"`state` is {type(state).__name__!r}, not what `logger.init(key)` returns."
        )


def _key_words(key: Any) -> jax.Array:
    """Return the data of a PRNG key, or a number, as an array of words."""
    words = key_words(key)
    if words is not None:
        return jnp.asarray(words)
    given = key if isinstance(key, jax.Array) else np.asarray(key)
    if isinstance(key, str):
        raise ValueError(
            f"`logger.init` takes one PRNG key or number, not the text {key!r}. It is what "
            "tells runs apart: write `logger.init(jax.random.key(0))` or `logger.init(0)`."
        )
    is_array = isinstance(key, jax.Array | np.ndarray)
    what = f"{given.dtype}{list(given.shape)}" if is_array else repr(key)
    raise ValueError(
        f"`logger.init` takes one PRNG key or number, not {what}. Start several runs with "
        "`jax.vmap(logger.init)(keys)`."
    )
