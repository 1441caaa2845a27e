"""Stores of many runs, written with NumPy alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lox_host.rows import Batch, Block, Form
from lox_host.runs.run import Run
from lox_host.writers.save import SaveWriter


def make_runs(configs: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> list[Run]:
    return [
        Run(i, names[i] if names else f"seed{i}", (0, i), config, 1.7e9, "group")
        for i, config in enumerate(configs)
    ]


def block_of(
    runs: np.ndarray, steps: np.ndarray | None, values: Mapping[str, Any]
) -> Block:
    """A block, with rows that have values of these runs."""
    named = {} if steps is None else {"step": steps.astype(np.int32)}
    forms = {key: Form(time=True) for key in values}
    return Block(runs.astype(np.int32), named, dict(values), forms)


class Recording:
    """A session that is written bit by bit."""

    def __init__(self, path, runs: Sequence[Run], mode: str = "a"):
        self.runs, self._writer = runs, SaveWriter(path, mode)
        for run in runs:
            self._writer.open(run)

    def add(self, *blocks: Block) -> None:
        self._writer.write(Batch(blocks))
        self._writer.flush()

    def add_matrix(self, values: Mapping[str, np.ndarray], steps: np.ndarray) -> None:
        """Write `(rows, runs)` as a vmapped program does: all runs in each row."""
        number = len(self.runs)
        ids = np.tile([run.id for run in self.runs], len(steps))
        flat = {key: matrix.reshape(-1) for key, matrix in values.items()}
        self.add(block_of(ids, np.repeat(steps, number), flat))

    def end(self) -> None:
        for run in self.runs:
            self._writer.close(run)


def write_matrix(path, configs, values, steps, **options) -> list[Run]:
    """Write a session of `(rows, runs)` matrices that has ended."""
    runs = make_runs(configs, **options)
    recording = Recording(path, runs)
    recording.add_matrix(values, steps)
    recording.end()
    return runs
