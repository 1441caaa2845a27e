"""Write what was logged when the process exits, gets SIGTERM, or forks.

At a normal exit, lox waits for programs, then ends all runs. At SIGTERM it is not known
whether a program will ever return, so lox writes only what has reached the host. A forked
child leaves everything to its parent.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from lox_host.display.terminal import region
from lox_host.interrupts import at_signal, forget_signals, watch_signals
from lox_host.worker_thread import forget_threads

# How many seconds a back end may take after SIGTERM.
PATIENCE = 10.0


def wait_at_exit(wait: Callable[[], None]) -> None:
    """Have this called at exit before runs are ended: what it waits for may still log."""
    _waits.append(wait)


def stop_at_exit(stop: Callable[[], None]) -> None:
    """Have this called at exit after the functions that users have registered."""
    _stops.append(stop)


def in_forked_child(forget: Callable[[], None]) -> None:
    """Have this called in a forked child, which has none of its parent's threads."""
    _forgets.append(forget)


def settle() -> None:
    """Wait until everything that reached the host is written and flushed."""
    _call_loggers("settle")


def end_runs_first() -> None:
    """At exit, end the runs before back ends end, which have just registered for that."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def write_at_sigterm() -> None:
    """Write what reached the host before SIGTERM ends the process.

    The user's own handler stays in force. Windows does not send this signal.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if os.name == "nt" or not is_main:
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _on_sigterm)
    watch_signals()
    at_signal(signal.SIGTERM, _at_sigterm)


def _on_sigterm(*_: object) -> None:
    thread = threading.Thread(target=_write_all, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    # The default action again, which only the main thread could ask Python for.
    ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)
    os.kill(os.getpid(), signal.SIGTERM)


def _at_sigterm() -> None:
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        _on_sigterm()


def _write_all() -> None:
    _call_loggers("flush_all")
    region.end()  # gives the terminal its cursor back


def _at_exit() -> None:
    is_interrupted = False
    for wait in _waits:
        try:
            wait()
        except KeyboardInterrupt:
            is_interrupted = True
        except BaseException:
            traceback.print_exc()
    _call_loggers("finish_all", is_interrupted=is_interrupted)


def _stop_all() -> None:
    for stop in _stops:
        stop()


def _after_fork_in_child() -> None:
    """Leave the runs, threads and signals of the parent alone in a forked child."""
    forget_threads()
    for forget in _forgets:
        forget()
    _call_loggers("forget_all")
    with contextlib.suppress(ValueError):  # not on the main thread
        if signal.getsignal(signal.SIGTERM) is _on_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        forget_signals()


def _call_loggers(function: str, **options: Any) -> None:
    """Call a function of `all_loggers`, unless there has never been a logger.

    `import lox` prepares the exit of every program, and most have no logger.
    """
    if "lox_host.host_logger" in sys.modules:
        from lox_host import all_loggers

        getattr(all_loggers, function)(**options)


_waits: list[Callable[[], None]] = []
_stops: list[Callable[[], None]] = []
_forgets: list[Callable[[], None]] = []
atexit.register(_at_exit)
atexit.register(_stop_all)  # the last one registered is called first
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
