"""A writer that hands everything to the writers of several loggers."""

import functools as ft
from collections.abc import Mapping, Sequence
from typing import Any

from lox_host.host_logger import HostLogger
from lox_host.rows import Batch
from lox_host.runs.run import Run
from lox_host.runs.run_registry import Launch, WantedRun


class FanOut:
    """The back end of `MultiLogger`.

    Each member has its own registry, buffer and thread. It may have begun the run of a key
    before, outside of the `MultiLogger`, and then it has another id for the run. Only
    opening a run waits for members. A member that fails keeps its error to itself, and a
    member that hangs holds up only its own rows.
    """

    def __init__(self, members: Sequence[HostLogger]):
        self._members = members
        # The ids that the members use for each run, by its id here.
        self._ids: dict[int, list[int]] = {}

    def open(self, run: Run) -> None:
        """Begin a run at all members, or at none of them."""
        # The name is complete. For members it is a template, in which braces are doubled.
        name = run.name.replace("{", "{{").replace("}", "}}")
        wanted = WantedRun(
            run.key, run.config, name, run.group, run.tags, run.index, run.resumed
        )
        launch = Launch(run.launch, run.process, run.job)
        ids: list[int] = []
        begun: list[tuple[HostLogger, int]] = []
        try:
            for member in self._members:
                open_run = ft.partial(member.open_run, wanted, launch)
                id, is_new = member.open_patiently(open_run)
                ids.append(id)
                begun += [(member, id)] if is_new else []
        except BaseException:
            # Members that had the run before keep it.
            for member, id in begun:
                member.worker.run(ft.partial(member.finish_runs, [id]))
            raise
        self._ids[run.id] = ids

    def write(self, batch: Batch) -> None:
        for i, member in enumerate(self._members):
            member_ids = {id: ids[i] for id, ids in self._ids.items()}
            member.buffer.add_blocks([block.renamed(member_ids) for block in batch])

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
