"""What was logged is written also when the process ends, or is told to."""

import atexit
import contextlib
import ctypes
import os
import signal
import threading
from typing import Any

from lox._stream.callbacks import barrier, when_settling
from lox_host.display.terminal import region
from lox_host.run_registry import finish_all, forget_all, settle
from lox_host.worker import scribe

# How long a back end may take when the process is told to end.
PATIENCE = 10.0


def write_at_sigterm() -> None:
    """Write what reached the host before SIGTERM ends the process.

    A handler of the user's stays in force.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _handler)
    # Python calls handlers on the main thread, which may be in a long program of JAX.
    # What is written to this file descriptor reaches another thread at once.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    other = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if other != -1:
        signal.set_wakeup_fd(other)
        return
    threading.Thread(
        target=_watch, args=(reading,), name="lox-sigterm", daemon=True
    ).start()


def _handler(*_: Any) -> None:
    _end()


def end_before_others() -> None:
    """End the runs before back ends end themselves, which have just registered for that."""
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _watch(pipe: int) -> None:
    while True:
        number = os.read(pipe, 1)[0]
        if number == signal.SIGTERM and signal.getsignal(number) is _handler:
            _end()


def _end() -> None:
    thread = threading.Thread(target=_write_all, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    # The default action again, which only the main thread could ask Python for.
    ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)
    os.kill(os.getpid(), signal.SIGTERM)


def _write_all() -> None:
    scribe.run(scribe.flush)
    region.end()  # gives the terminal its cursor back


def _at_exit() -> None:
    try:
        barrier()
    finally:
        finish_all()
        scribe.stop()


def _in_a_fork() -> None:
    """What a process has begun is not for its children to write, nor its signals."""
    scribe.forget()
    forget_all()
    with contextlib.suppress(ValueError):  # not on the main thread
        if signal.getsignal(signal.SIGTERM) is _handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)


when_settling(settle)
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_a_fork)
