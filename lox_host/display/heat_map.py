"""Histograms over time, drawn as a heat map: time to the right, values upwards.

    edges  3 |  .  .  o
           2 |  .  o  O          the brighter, the more values
           1 |  O  O  o
           0 +----------- step

Histograms with edges of their own are brought to common ones: the values of a bin are
taken to be spread evenly over it.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lox_host.display.curves import Curve, Positions, curves_of, positions_of
from lox_host.histogram import FIELDS, is_histogram
from lox_host.rows import FlatRows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Bins for histograms that have different edges.
BINS = 64
# How many edges are written at an axis whose bins are not equally wide.
TICKS = 7


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """Histograms of one key over time.

    Attributes:
        name: The name of the key.
        step: The name of the step that time is measured by.
        positions: The step of each row, in increasing order.
        counts: How many values are in each bin, `(rows, bins)`.
        edges: The edges of the bins.
    """

    name: str
    step: str
    positions: np.ndarray
    counts: np.ndarray
    edges: np.ndarray


def histogram_names(rows: FlatRows) -> list[str]:
    """Return the names of the histograms among the arrays of a key."""
    found = []
    for name in rows.arrays:
        parent, _, field = name.rpartition("/")
        if field != FIELDS[0]:
            continue
        parts = {field: rows.arrays.get(f"{parent}/{field}") for field in FIELDS}
        if all(x is not None for x in parts.values()) and is_histogram(parts):
            found.append(parent)
    return found


def heat_maps_of(rows: FlatRows, x: str | None) -> list[HeatMap]:
    """Return a heat map for each histogram of a key. `x` is as for `curves_of`."""
    positions = positions_of(rows, x)
    if positions is None or not rows.has_time:
        return []
    return [_heat_map(rows, name, positions) for name in histogram_names(rows)]


def drawn_of(rows: FlatRows, x: str | None) -> tuple[list[HeatMap], list[Curve]]:
    """Return all that is drawn of a key. `x` is as for `curves_of`."""
    # Values that no bin has are worth a curve only if there are any.
    unbinned = {f"{histogram}/nonfinite" for histogram in histogram_names(rows)}
    curves = [
        curve
        for curve in curves_of(rows, x)
        if curve.name not in unbinned or rows.arrays[curve.name].any()
    ]
    return heat_maps_of(rows, x), curves


def _heat_map(rows: FlatRows, name: str, positions: Positions) -> HeatMap:
    counts, edges = (rows.arrays[f"{name}/{field}"] for field in FIELDS[:2])

    def flat(array: np.ndarray, *bins: int) -> np.ndarray:
        # (rows, *examples, bins) -> (rows, examples, bins)
        return array.reshape(len(rows), math.prod(rows.examples), *bins).astype(np.float64)

    is_logged = flat(positions.is_logged) > 0
    counts, edges = flat(counts, counts.shape[-1]), flat(edges, edges.shape[-1])
    # Histograms of all examples of a row are added up.
    common = _common_edges(edges[is_logged])
    total = np.zeros((len(rows), len(common) - 1))
    for i, example in np.argwhere(is_logged):
        total[i] += _rebinned(counts[i, example], edges[i, example], common)
    kept = is_logged.any(1)
    # Examples log a row at the same step, or else the first of them counts.
    at = flat(positions.values)[kept, np.argmax(is_logged[kept], 1)]
    order = np.argsort(at, kind="stable")
    return HeatMap(name, positions.step, at[order], total[kept][order], common)


def add_up(heat_maps: Sequence[HeatMap]) -> HeatMap:
    """Add up the histograms of several runs at each step. They have one name."""
    common = _common_edges([heat_map.edges for heat_map in heat_maps])
    positions = np.unique(np.concatenate([each.positions for each in heat_maps]))
    counts = np.zeros((len(positions), len(common) - 1))
    for heat_map in heat_maps:
        rows = np.searchsorted(positions, heat_map.positions)
        for i, row in zip(rows, heat_map.counts, strict=True):
            counts[i] += _rebinned(row, heat_map.edges, common)
    return dataclasses.replace(
        heat_maps[0], positions=positions, counts=counts, edges=common
    )


def _common_edges(edges: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """Return the edges that all histograms have, or else equal bins over all of them."""
    if not len(edges):
        return np.array([0.0, 1.0])
    if all(np.array_equal(each, edges[0]) for each in edges):
        return edges[0]
    low, high = min(each[0] for each in edges), max(each[-1] for each in edges)
    return np.linspace(low, high, BINS + 1)


def _rebinned(counts: np.ndarray, edges: np.ndarray, common: np.ndarray) -> np.ndarray:
    if len(edges) == len(common) and (edges == common).all():
        return counts
    # How many values are below each edge, linear in between: that is the even spread.
    below = np.concatenate([[0.0], np.cumsum(counts)])
    return np.diff(np.interp(common, edges, below))


def draw_heat_map(ax: "Axes", heat_map: HeatMap) -> None:
    """Draw a heat map, as bright as the share of the values of a row that is in a bin."""
    filled = np.flatnonzero(heat_map.counts.any(0))
    low, high = (
        (filled[0], filled[-1] + 1) if len(filled) else (0, heat_map.counts.shape[1])
    )
    counts, edges = heat_map.counts[:, low:high], heat_map.edges[low : high + 1]
    widths = np.diff(heat_map.edges)
    is_even = np.allclose(widths, widths[0], rtol=1e-3)
    # Bins of very different widths, as of `edges="symlog"`, are drawn equally wide.
    heights = edges if is_even else np.arange(len(edges))
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ax.grid(visible=False)
    ax.pcolormesh(_borders(heat_map.positions), heights, share.T, cmap="viridis")
    if not is_even:
        shown = np.unique(np.linspace(0, len(edges) - 1, TICKS).round().astype(int))
        ax.set_yticks(shown, [f"{edge:.1g}" for edge in edges[shown]])


def _borders(positions: np.ndarray) -> np.ndarray:
    """Return where the columns of a heat map begin and end."""
    if len(positions) < 2:
        first = positions[0] if len(positions) else 0.0
        return np.array([first - 0.5, first + 0.5])
    # Between neighbours, half way. The outer columns reach as far out as in.
    middles = (positions[1:] + positions[:-1]) / 2
    ends = 2 * positions[[0, -1]] - middles[[0, -1]]
    return np.concatenate([ends[:1], middles, ends[1:]])
