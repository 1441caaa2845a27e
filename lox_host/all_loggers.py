"""What is done with all loggers of the process at once: settle, flush, finish, forget.

A `MultiLogger` only passes rows on, so the order matters. It has to pass on what it has
before its members are asked to flush:

    MultiLogger --+--> CSVLogger            1. flush the MultiLogger: its members have all
                  +--> SaveLogger           2. flush CSVLogger and SaveLogger, side by side
    JSONLogger                                 with all other loggers

`lox.barrier` settles. The end of the process finishes, and a forked child forgets, see
`process_exit.py`.
"""

import functools as ft
import sys
import time
from collections.abc import Callable

from lox_host.host_logger import active_loggers, outermost_first, wait_a_little
from lox_host.writer import Writer


def settle() -> None:
    """Wait until everything that reached the host is written and flushed.

    This does not wait for stalled back ends. The user has been warned about them.
    """
    start, loggers = time.monotonic(), outermost_first()
    # Fan-outs first, so that members flush what these pass on.
    for logger in loggers:
        if logger._members:
            logger.worker.run(logger.worker.flush)
    flushed = [(logger, logger.worker.request(logger.worker.flush)) for logger in loggers]
    for logger, future in flushed:
        while not future.done() and not logger._guarded.has_stalled(start):
            wait_a_little(future)
    for logger in loggers:
        if logger._ending:
            logger.finish_ending()
        logger.check()


def flush_writers(is_wanted: Callable[[Writer], bool]) -> None:
    """Make the loggers of some writers write and flush everything that reached the host."""
    for logger in outermost_first():
        if any(is_wanted(back_end.writer) for back_end in logger.back_ends):
            logger.worker.run(logger.worker.flush)


def flush_all() -> None:
    """Flush all loggers and wait for them. Called when the process exits."""
    loggers = outermost_first()
    for logger in loggers:
        if logger._members:
            logger.worker.run(logger.worker.flush)
    for future in [logger.worker.request(logger.worker.flush) for logger in loggers]:
        future.result()


def finish_all(*, is_interrupted: bool = False) -> None:
    """End all runs. Called when the process exits.

    Print which loggers do not finish in time, and how many rows they have not written.

    Args:
        is_interrupted: Whether the user pressed Ctrl-C. Then wait for one second at most.
    """
    loggers, start = outermost_first(), time.monotonic()
    # All of them at once: a slow back end must not use up the time of the others.
    ended = []
    for logger in loggers:
        runs = logger.registry.runs
        ended.append(logger.worker.request(ft.partial(logger.finish_runs, list(runs))))
        if logger._members:
            wait_a_little(ended[-1], 1.0)
    for logger, future in zip(loggers, ended, strict=True):
        try:
            while is_interrupted and time.monotonic() < start + 1 and not future.done():
                wait_a_little(future)
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
    for logger in list(active_loggers):
        logger.forget()
