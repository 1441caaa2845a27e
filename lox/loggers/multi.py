"""Several loggers as one."""

from collections.abc import Mapping, Sequence
from typing import Any

from lox.loggers.base import BaseLogger
from lox_host.rows import Block
from lox_host.run_registry import BaseDesk
from lox_host.writer import Run, Writer


class MultiLogger(BaseLogger):
    """Logs to several loggers, with one `spool` or `tap` for all of them.

    If one of them fails, the others go on.

    Args:
        *loggers: Any loggers. What is logged to them elsewhere goes to the same runs.
    """

    def __init__(self, *loggers: BaseLogger):
        wrong = [each for each in loggers if not isinstance(each, BaseLogger)]
        if wrong or not loggers:
            given = type(wrong[0]).__name__ if wrong else "none"
            raise TypeError(f"`MultiLogger` takes one or more loggers, not {given}.")
        super().__init__(Fan([each._desk for each in loggers]))


class Fan(BaseDesk):
    """Several desks as one. What one of them cannot write, the others do."""

    def __init__(self, desks: Sequence[BaseDesk]):
        every = min(desk.every for desk in desks)
        everywhere = any(desk.everywhere for desk in desks)
        super().__init__("MultiLogger", every, everywhere=everywhere)
        self._desks = list(desks)
        self._inner: dict[int, list[int]] = {}

    @property
    def first_only(self) -> list[str]:
        return [name for desk in self._desks for name in desk.first_only]

    @property
    def config(self) -> Mapping[str, Any]:
        return {}

    @property
    def writers(self) -> list[Writer]:
        return [writer for desk in self._desks for writer in desk.writers]

    def _raise_failure(self, *, always: bool) -> None:
        for desk in self._desks:
            desk.check(always=always)

    def _begin(self, run: Run) -> None:
        inner, new = [], []
        try:
            for desk in self._desks:
                is_new = run.key not in desk._ids
                inner.append(desk._opened(run.key, run.group, run.process, run.job))
                new += [(desk, inner[-1])] if is_new else []
        except BaseException:
            for desk, id in new:
                desk._finish([id])
            raise
        self._inner[run.id] = inner

    def _accept(self, blocks: Sequence[Block], number: int) -> None:
        for i, desk in enumerate(self._desks):
            ids = {id: inner[i] for id, inner in self._inner.items()}
            desk._gather()  # what was taken before
            desk._accept(desk._known([block.renamed(ids) for block in blocks]), number)

    def _flush(self) -> None:
        for desk in self._desks:
            desk._flush()

    def _end(self, ids: list[int]) -> None:
        ended = [self._inner.pop(id) for id in ids]
        for i, desk in enumerate(self._desks):
            desk._finish([inner[i] for inner in ended])
