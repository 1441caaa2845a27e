"""What a writer that fails shows to the threads around it."""

import warnings

import pytest

from lox_host.guarded_writer import GuardedWriter
from lox_host.rows import Batch
from support.kept import Kept


class Full(Kept):
    def write(self, batch):
        raise OSError("no space left")


def test_a_failure_warns_before_it_can_stop_the_program(monkeypatch):
    guarded = GuardedWriter("Logger", Full(), on_error="raise", patience=30)
    shown = []

    def show(message, *_):
        shown.append(str(message))
        guarded.check(at_end=False)  # what another thread may do at this moment

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        guarded.write(Batch([]), rows=3)
    (message,) = shown
    assert message.startswith("Logger failed with OSError: no space left.")
    with pytest.raises(RuntimeError, match=r"no space left\. 3 logged rows"):
        guarded.check(at_end=False)
