"""Flush this process's own loggers before a store is read."""

import os
from collections.abc import Iterable

from lox._jax import tracing
from lox._stream.callbacks import callback_thread, wait_for_packets
from lox_host.all_loggers import flush_writers
from lox_host.reading import find_stores
from lox_host.store import Path, absolute
from lox_host.worker_thread import current_worker
from lox_host.writer import Writer
from lox_host.writers.save import StoreWriter


def flush_first(paths: Path | Iterable[Path]) -> None:
    """Wait for programs that this thread has started, and for loggers that write here.

    Back ends and callbacks run on threads of lox. They do not wait, since the program may
    be waiting for them; they read what has been flushed so far.
    """
    if current_worker() is not None or tracing.staged_program() is not None:
        return
    wait_for_packets()
    if callback_thread.is_running():
        callback_thread.wait()  # for `lox.save` in a program
    places = [absolute(store) for store in find_stores(paths)]
    written: list[StoreWriter] = []

    def writes_here(writer: Writer) -> bool:
        if not isinstance(writer, StoreWriter):
            return False
        if not any(_is_same(writer.path, place) for place in places):
            return False
        written.append(writer)
        return True

    flush_writers(writes_here)
    for writer in written:
        writer.push()


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return one == other
