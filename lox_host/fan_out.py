"""A writer that hands everything to the writers of several loggers."""

import functools as ft
from collections.abc import Mapping, Sequence
from typing import Any

from lox_host.host_logger import HostLogger
from lox_host.rows import Batch
from lox_host.writer import Run


class FanOut:
    """The back end of `MultiLogger`.

    Each member has a registry, a buffer and a thread of its own: it may have begun the run
    of a key before, alone, and then has another id for it. Nothing but the opening of runs
    waits for members. One that fails keeps its failure, and one that hangs only its rows.
    """

    def __init__(self, members: Sequence[HostLogger]):
        self._members = members
        # By the id of a run, those that the members have for it.
        self._ids: dict[int, list[int]] = {}

    def open(self, run: Run) -> None:
        """Begin a run at all members, or at none of them."""
        ids: list[int] = []
        begun: list[tuple[HostLogger, int]] = []
        try:
            for member in self._members:
                is_new = member.registry.id_of(run.key) is None
                open_run = ft.partial(
                    member.open_run, run.key, run.group, run.process, run.job, run.config
                )
                ids.append(member.worker.run(open_run))
                begun += [(member, ids[-1])] if is_new else []
        except BaseException:
            for member, id in begun:
                member.worker.run(ft.partial(member.finish_runs, [id]))
            raise
        self._ids[run.id] = ids

    def write(self, batch: Batch) -> None:
        for i, member in enumerate(self._members):
            ids_there = {id: ids[i] for id, ids in self._ids.items()}
            member.buffer.add_blocks([block.renamed(ids_there) for block in batch])

    def flush(self) -> None:
        for member in self._members:
            member.worker.submit(member.buffer.flush)

    def close(self, run: Run) -> None:
        for member, id in zip(self._members, self._ids.pop(run.id), strict=True):
            member.worker.submit(ft.partial(member.finish_runs, [id]))


def fan_out(
    members: Sequence[HostLogger], config: Mapping[str, Any] | None = None
) -> HostLogger:
    """Make one logger of several. Its configuration is added to theirs."""
    return HostLogger(
        "MultiLogger",
        FanOut(members),
        config=config,
        all_processes=True,  # each member knows in which it writes
        every=min(member.every for member in members),
        members=members,
    )
