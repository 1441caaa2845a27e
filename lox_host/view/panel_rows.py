"""The rows of a panel, and the options that say how to draw them."""

import dataclasses
import functools as ft
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lox_host.display.bands import CENTRES
from lox_host.view import density as drawing
from lox_host.view.aggregate import (
    BANDS,
    Aggregate,
    aggregate,
    common_positions,
    diverged_runs,
    group_means,
    smoothed,
)
from lox_host.view.data.series import Part
from lox_host.view.element_lines import as_elements
from lox_host.view.run_groups import Group

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class PanelOptions:
    """The options of a panel that a user can choose.

    Attributes:
        x: The name of a step, `row` or `time`.
        centre: One of `CENTRES`.
        band: One of `BANDS`.
        smooth: How many rows to average, up to and including each row.
        log_y: Whether the axis of values is logarithmic.
        span: The visible positions.
        full_range: Whether to show values far outside of the others, too.
    """

    x: str = "step"
    centre: str = "mean"
    band: str = "std"
    smooth: int = 1
    log_y: bool = False
    span: tuple[float, float] = (-math.inf, math.inf)
    full_range: bool = False

    @classmethod
    def of(cls, fields: Json) -> "PanelOptions":
        """Return the options in a request of a page.

        Raises:
            ValueError: If an option does not exist.
        """
        options = cls(
            x=str(fields.get("x", "step")),
            centre=str(fields.get("centre", "mean")),
            band=str(fields.get("band", "std")),
            smooth=max(1, min(100_000, int(fields.get("smooth", 1)))),
            log_y=bool(fields.get("logy", False)),
            span=(_bound(fields.get("x0"), -math.inf), _bound(fields.get("x1"), math.inf)),
            full_range=bool(fields.get("full", False)),
        )
        if options.centre not in CENTRES or options.band not in BANDS:
            raise ValueError(
                f"There is no {options.centre!r} with a band {options.band!r}."
            )
        return options


def _bound(value: Any, otherwise: float) -> float:
    return otherwise if value is None else float(value)


class PanelRows:
    """The rows of a panel, and what does not change while a user zooms and pans.

    Args:
        parts: The rows of all selected runs.
        groups: The groups of runs to aggregate.
        marks: Where runs first have non-finite values.
        smooth: How many rows to average, up to and including each row.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        groups: Sequence[Group],
        marks: Sequence[drawing.Mark],
        smooth: int,
    ):
        self.raw = [part for part in parts if np.isfinite(part.x).any()]
        self.groups, self.marks = groups, marks
        self.runs = sum(len(part.runs) for part in self.raw)
        self.elements = as_elements(self.raw, groups)
        if self.elements is not None:
            self.runs = len(np.unique(self.elements.runs))
            self.raw, self.groups = self.elements.parts, self.elements.groups
            self.marks = drawing.marks(self.raw)
        self.parts = [smoothed(part, smooth) for part in self.raw]

    def name(self, line: int) -> Json:
        """Return the run of a line, and the element of the run if it has several."""
        if self.elements is None:
            return {"run": line}
        run, example = self.elements.runs[line], self.elements.examples[line]
        return {"run": int(run), "example": int(example)}

    @property
    def nbytes(self) -> int:
        """How much memory this takes in addition to the rows of the session."""
        own = [part.values for part in self.parts if part.values.base is None]
        return sum(values.nbytes for values in own)

    @ft.cached_property
    def gone(self) -> np.ndarray:
        """The runs that diverged, even if smoothing hides it."""
        return diverged_runs(self.raw)

    @ft.cached_property
    def means(self) -> np.ndarray | None:
        """The mean of each group at each row. None: the runs share no positions."""
        shared = common_positions(self.parts)
        if shared is None:
            return None
        alive = [group.runs[~np.isin(group.runs, self.gone)] for group in self.groups]
        return group_means(self.parts, alive, len(shared))

    @ft.cached_property
    def blocks(self) -> drawing.Blocks | None:
        return drawing.blocks(self.parts)

    def aggregates(self, options: PanelOptions) -> list[Aggregate]:
        """Return the centre and the band of each group."""
        members = [group.runs for group in self.groups]
        choices = options.centre, options.band, options.span
        known = {"gone": self.gone, "means": self.means}
        return aggregate(self.parts, members, *choices, **known)
