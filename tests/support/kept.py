"""A writer that keeps what it is given, and what should be there."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from lox.loggers import Batch, Run
from lox_host.runs.run_id import run_name
from lox_host.tree import leaves
from support.truth import Record, assert_close


@dataclasses.dataclass
class Kept:
    """Keeps runs and rows.

    Attributes:
        opened: The runs that were begun.
        closed: Those that were ended.
        batches: What was written.
        flushed: How many batches had been written at the last `flush`.
    """

    opened: list[Run] = dataclasses.field(default_factory=list)
    closed: list[Run] = dataclasses.field(default_factory=list)
    batches: list[Batch] = dataclasses.field(default_factory=list)
    flushed: int = 0

    def open(self, run: Run) -> None:
        self.opened.append(run)

    def write(self, batch: Batch) -> None:
        assert len(batch)
        self.batches.append(batch)

    def flush(self) -> None:
        self.flushed = len(self.batches)

    def close(self, run: Run) -> None:
        assert self.flushed == len(self.batches)
        self.closed.append(run)

    def rows(self, name: str) -> list[tuple[dict, dict]]:
        """The steps and values of a run, by its name or the data of its key."""
        ids = [run.id for run in self.opened if name in (run.name, run_name(run.key))]
        rows = [row for batch in self.batches for row in batch.rows()]
        return [(row.steps, row.values) for row in rows if row.run in ids]


def assert_kept(rows: Sequence[tuple[dict, dict]], records: Sequence[Record], tol=1e-4):
    """Check that these are the records of one run: for each key all of them, in order."""
    keys = dict.fromkeys(key for record in records for key in record.data)
    assert {key for _, values in rows for key in values} == set(keys)
    for key in keys:
        own = [(steps, values[key]) for steps, values in rows if key in values]
        mine = [(r.steps, r.data[key]) for r in records if key in r.data]
        assert len(own) == len(mine), f"{key!r}: {len(own)} rows instead of {len(mine)}"
        for i, (row, record) in enumerate(zip(own, mine, strict=True)):
            for what, found, expected in zip(("steps", "value"), row, record, strict=True):
                assert_tree(f"the {what} of {key!r}, row {i}", found, expected, tol)


def assert_tree(where: str, found: Any, expected: Any, tol: float) -> None:
    parts = [np.asarray(x) for _, x in leaves(found)]
    for part, own in zip(parts, jax.tree.leaves(expected), strict=True):
        assert_close(where, part, own, tol=tol)
