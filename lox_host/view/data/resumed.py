"""Join the sessions of a resumed run into one curve."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Piece:
    """The rows of one session of a run.

    Attributes:
        x: The positions of the rows.
        y: The values of the rows.
        steps: The steps of the rows. None: they have no steps, and all of them count.
        first: The first step of the run in this session, of any key.
    """

    x: np.ndarray
    y: np.ndarray
    steps: np.ndarray | None
    first: float


def join(pieces: Sequence[Piece]) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions and values of all sessions, the oldest first.

    A session that begins again at an earlier step replaces all rows from that step on:

        steps  0 10 20 30 40       killed
                    20 30 40 50    resumed from a checkpoint
        kept   0 10 20 30 40 50    the first two of the first session, all of the second
    """
    xs: list[np.ndarray] = []
    ys: list[np.ndarray] = []
    limit = np.inf
    for piece in reversed(pieces):
        steps = np.full(len(piece.x), -np.inf) if piece.steps is None else piece.steps
        known = steps < limit
        xs.insert(0, piece.x[known])
        ys.insert(0, piece.y[known])
        limit = min(limit, piece.first)
    return np.concatenate(xs), np.concatenate(ys)
