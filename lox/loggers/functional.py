"""Runs that know their logger, for `lox.wandb` and `lox.neptune`."""

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import jax
from jax.core import Tracer

from lox._logdict.logdict import logdict
from lox.loggers.base import Logger, LoggerState


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run, or under `jax.vmap` several runs, with its logger. It is a pytree.

    Attributes:
        state: The state for the methods of the logger: `run.logger.tap(fun, run.state)`.
        logger: The logger.
    """

    state: LoggerState
    logger: Logger = dataclasses.field(metadata={"static": True})


def start_run(
    kind: type[Logger], options: Mapping[str, Any], key: Any, **run_options: Any
) -> TrackedRun:
    """Start a run of the logger with these options. Equal options share one logger.

    Args:
        kind: The class of the logger.
        options: Its options.
        key: The key of the run.
        **run_options: Other arguments of `logger.init`.
    """
    logger = _logger_with(kind, options)
    return TrackedRun(logger.init(key, **run_options), logger)


def log(run: TrackedRun, logs: logdict | Mapping[str, Any], **steps: Any) -> None:
    """Send logs to a run. Works under `jit` and `vmap`.

    Args:
        run: The run.
        logs: The logs, or values by key.
        **steps: Any other keyword is a step of all logs, such as `step=i`.
    """
    _checked(run).logger.log(run.state, logs, **steps)


def finish(run: TrackedRun) -> None:
    """End a run. Works under `jit` and `vmap`.

    Raises:
        RuntimeError: If something could not be written.
    """
    _checked(run).logger.finish(run.state)


def _logger_with(kind: type[Logger], options: Mapping[str, Any]) -> Logger:
    """Return the logger with these options, and make it if there is none."""
    for leaf in jax.tree.leaves(dict(options)):
        if isinstance(leaf, Tracer):
            raise TypeError(
                f"An option of `init` depends on {leaf}, which is not known while a "
                "program is traced. Options are the same for all runs. If a value differs "
                "between runs, put it into `config`, or log it."
            )
    # Compare options by their text, as a configuration is a dictionary, and not hashable.
    identity = kind, repr(sorted(options.items()))
    with _lock:
        if identity not in _loggers:
            _loggers[identity] = kind(**options)
        return _loggers[identity]


def _checked(run: object) -> TrackedRun:
    if not isinstance(run, TrackedRun):
        raise TypeError(f"`run` is {type(run).__name__!r}, not what `init(key)` returns.")
    return run


_loggers: dict[tuple[type[Logger], str], Logger] = {}
# Held while one is made, or two threads would have two loggers for the same runs.
_lock = threading.Lock()
