"""Draw keys with a `vmap` axis inside a run: each of their elements becomes a line.

Eight seeds under `vmap`, saved as one run, log `loss` with eight elements per row. To
aggregate and draw them like runs, each element gets its own number:

    runs      3 3 3 7 7 7       two runs with three elements each
    examples  0 1 2 0 1 2
    numbers   0 1 2 3 4 5       groups of runs become groups of these numbers
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from lox_host.view.data.series import Part
from lox_host.view.run_groups import Group


@dataclasses.dataclass(frozen=True)
class Elements:
    """Parts and groups with numbers of elements in place of runs.

    Attributes:
        parts: The parts.
        groups: The groups.
        runs: The run of each element, `(elements,)`.
        examples: The index of each element in its run, `(elements,)`.
    """

    parts: list[Part]
    groups: list[Group]
    runs: np.ndarray
    examples: np.ndarray


def as_elements(parts: Sequence[Part], groups: Sequence[Group]) -> Elements | None:
    """Number the elements of parts. Return None if each run is a single line."""
    if all(part.examples is None for part in parts):
        return None
    numbered, runs, examples, after = [], [], [], 0
    for part in parts:
        numbers = np.arange(after, after + len(part.runs))
        own = np.zeros(len(part.runs), int) if part.examples is None else part.examples
        runs.append(part.runs)
        examples.append(own)
        numbered.append(dataclasses.replace(part, runs=numbers, examples=None))
        after += len(numbers)
    all_runs = np.concatenate(runs)
    return Elements(
        numbered,
        [
            dataclasses.replace(group, runs=np.flatnonzero(np.isin(all_runs, group.runs)))
            for group in groups
        ],
        all_runs,
        np.concatenate(examples),
    )
