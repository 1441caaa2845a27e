"""Notice signals while the main thread cannot: in a long program of JAX.

Python calls the handlers of signals on the main thread, which may be inside a compiled
program for hours. But it writes the number of each signal to a file descriptor at once, and
another thread can read it there:

    SIGTERM   lox writes what has reached the host, and ends the process (`process_exit`)
    SIGINT    the program is stopped at its next host call (`check_interrupt`), so that the
              main thread gets back to Python, which raises KeyboardInterrupt there

JAX may make a host call on the main thread. If Python raised KeyboardInterrupt in there,
JAX would make an error of its own of it. So it is put off until the call is over.

The user's own handlers stay in force. If an event loop uses the file descriptor, as in a
notebook, programs are not stopped.
"""

import _thread
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType


class Interrupt:
    """Whether Ctrl-C was pressed, and the main thread does not know yet."""

    is_pending = False


def watch_signals() -> None:
    """Notice signals from now on. Only the main thread can ask for that."""
    is_main = threading.current_thread() is threading.main_thread()
    if os.name == "nt" or not is_main:
        return
    # A handler of the user's own, or of a notebook, is left alone.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_interrupt)
    if _pipe:
        return
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    # There is one such descriptor per process. If somebody has it, give it back.
    other = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if other != -1:
        signal.set_wakeup_fd(other)
        os.close(reading)
        os.close(writing)
        return
    _pipe.append(reading)
    threading.Thread(target=_watch, name="lox-signals", daemon=True).start()


def at_signal(number: int, handler: Callable[[], None]) -> None:
    """Have something called when a signal is noticed, on another thread."""
    _handlers[number] = handler


def check_interrupt() -> None:
    """Raise if Ctrl-C was pressed, to stop the program that makes a host call."""
    if Interrupt.is_pending:
        raise _stop()  # not by a name: the traceback would keep it alive


def interrupt() -> KeyboardInterrupt:
    """Interrupt the main thread as Ctrl-C does, and return what to raise in a host call."""
    if threading.current_thread() is threading.main_thread():
        return _stop()
    _thread.interrupt_main()
    return KeyboardInterrupt()


def makes_host_calls(code: CodeType) -> None:
    """Put KeyboardInterrupt off while the main thread is in a function with this code."""
    _host_calls.add(code)


def forget_signals() -> None:
    """Notice no signals in a forked process until it asks for that itself."""
    global _lock
    if _pipe:
        _pipe.clear()
        signal.set_wakeup_fd(-1)
    _lock = threading.RLock()
    Interrupt.is_pending = False


def _watch() -> None:
    while _pipe:
        select.select(_pipe, [], [])
        with _lock:
            numbers = _noticed()
            if signal.SIGINT in numbers:
                _at_interrupt()
        for number in numbers:
            if number in _handlers:
                _handlers[number]()


def _noticed() -> bytes:
    """Return the numbers of the signals that have come since the last call."""
    with contextlib.suppress(BlockingIOError):
        return os.read(_pipe[0], 64) if _pipe else b""
    return b""


def _at_interrupt() -> None:
    if signal.getsignal(signal.SIGINT) is _on_interrupt:
        Interrupt.is_pending = True


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt on the main thread, but not in a host call."""
    if _is_in_host_call(frame):
        Interrupt.is_pending = True
        threading.Thread(target=_interrupt_after_host_call, daemon=True).start()
        return
    with _lock:
        # What comes here need not be noticed by the other thread, maybe much later.
        _noticed()
        Interrupt.is_pending = False
    signal.default_int_handler(number, frame)


class _InterruptWhenGone:
    """Asks for another KeyboardInterrupt on the main thread when it is deleted.

    JAX deletes what a host call raises before it raises its own error. Python calls no
    handler there, but as soon as the main thread is back in Python, before anyone has seen
    JAX's error. This is not a Python method, because Python code would call the handlers.
    """

    __del__ = _thread.interrupt_main


def _stop() -> KeyboardInterrupt:
    if threading.current_thread() is threading.main_thread():
        return KeyboardInterrupt(_InterruptWhenGone())
    return KeyboardInterrupt()


def _interrupt_after_host_call() -> None:
    """Raise KeyboardInterrupt on the main thread if its host call was the last one."""
    main = threading.main_thread().ident or 0
    # Poll: nothing tells when a frame of another thread is left.
    while _is_in_host_call(sys._current_frames().get(main)):
        time.sleep(0.001)
    if Interrupt.is_pending:
        _thread.interrupt_main()


def _is_in_host_call(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _host_calls:
        frame = frame.f_back
    return frame is not None


# The file descriptor from which signals are read, if they are.
_pipe: list[int] = []
# Held while the number of a signal is read, until what it means is known.
_lock = threading.RLock()
_handlers: dict[int, Callable[[], None]] = {}
_host_calls: set[CodeType] = set()
