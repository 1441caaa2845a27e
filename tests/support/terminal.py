"""A terminal that tests read back, as a person would see it."""

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
import threading
from unittest import mock

import pyte


class Terminal:
    """A terminal, and what stands on it."""

    def __init__(self, width=100, height=40):
        self._ours, self.theirs = pty.openpty()
        size = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)
        self._screen = pyte.HistoryScreen(width, height, history=1000)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(self._ours, 4096):
                self.raw += data
                self._stream.feed(data)

    def lines(self):
        """All lines, once nobody writes any more."""
        self._thread.join(60)
        os.close(self._ours)
        width = self._screen.columns
        above = [
            "".join(row[i].data for i in range(width)) for row in self._screen.history.top
        ]
        rows = [row.rstrip() for row in [*above, *self._screen.display]]
        return "\n".join(rows).rstrip().split("\n")

    @property
    def has_cursor(self):
        return not self._screen.cursor.hidden


@contextlib.contextmanager
def streams(terminal):
    """Standard output and standard error, on the terminal."""
    with (
        open(terminal.theirs, "w") as stdout,
        open(os.dup(terminal.theirs), "w") as stderr,
        mock.patch.multiple(sys, stdout=stdout, stderr=stderr),
    ):
        yield stdout, stderr
