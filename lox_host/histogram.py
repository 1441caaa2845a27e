"""Histograms that were counted on the device, as the host knows them.

`lox.histogram` logs a small tree, which the store and the trackers get like any other:

    {"counts": [bins], "edges": [bins + 1], "nonfinite": []}

It is recognised by this form, so stores need no special format for it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from lox_host.tree import Tree

FIELDS = ("counts", "edges", "nonfinite")


class Histogram(NamedTuple):
    """How many values lie between the edges of some bins.

    Attributes:
        counts: The number of values in each bin.
        edges: The edges of the bins, one more than there are bins.
    """

    counts: np.ndarray
    edges: np.ndarray

    @property
    def centers(self) -> np.ndarray:
        return (self.edges[:-1] + self.edges[1:]) / 2

    def statistics(self) -> dict[str, float]:
        """Return what can be said of the values, as exactly as the bins are narrow."""
        total = self.counts.sum()
        if not total:
            return {"count": 0.0}
        mean = float((self.counts * self.centers).sum() / total)
        spread = float((self.counts * (self.centers - mean) ** 2).sum() / total)
        filled = np.flatnonzero(self.counts)
        low, high = self.edges[filled[0]], self.edges[filled[-1] + 1]
        return {
            "count": float(total),
            "mean": mean,
            "std": spread**0.5,
            "min": float(low),
            "max": float(high),
        }

    def with_at_most(self, bins: int) -> "Histogram":
        """Return a histogram with fewer bins: neighbours become one."""
        size = -(-len(self.counts) // bins)
        starts = np.arange(0, len(self.counts), size)
        ends = np.append(self.edges[:-1][starts], self.edges[-1])
        return Histogram(np.add.reduceat(self.counts, starts), ends)


def is_histogram(tree: Tree) -> bool:
    """Return whether a tree is a histogram, or many with axes in front."""
    if not isinstance(tree, Mapping) or tuple(sorted(tree)) != FIELDS:
        return False
    counts, edges, nonfinite = (np.shape(tree[name]) for name in FIELDS)
    return (
        bool(counts)
        and edges == (*counts[:-1], counts[-1] + 1)
        and (nonfinite == counts[:-1])
    )


def named_histograms(tree: Tree, name: str) -> Iterator[tuple[str, Tree]]:
    """Yield the histograms in a tree with their names, `key/path/in/the/tree`."""
    if is_histogram(tree):
        yield name, tree
    elif isinstance(tree, dict | list | tuple):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for part, inner in items:
            yield from named_histograms(inner, f"{name}/{part}")


def means(tree: Tree) -> np.ndarray:
    """Return the means of the values in histograms, NaN where there are none."""
    counts, edges = (np.asarray(tree[name], np.float64) for name in FIELDS[:2])
    centers = (edges[..., :-1] + edges[..., 1:]) / 2
    with np.errstate(invalid="ignore"):
        return (counts * centers).sum(-1) / counts.sum(-1)


def packed(tree: Tree) -> np.ndarray:
    """Return the counts and edges of histograms in one array, for `unpacked`."""
    return np.concatenate([tree["counts"], tree["edges"]], -1).astype(np.float64)


def unpacked(key: str, array: np.ndarray) -> Iterator[tuple[str, Histogram]]:
    """Yield the histograms in a packed array: one if they have the same edges.

    Otherwise there is one for each example, `key/0`, `key/1`, ... Masked ones are left out.
    """
    # (*examples, counts and edges): one more edge than there are bins
    bins = array.shape[-1] // 2
    rows = [
        (index, Histogram(np.asarray(row[:bins]), np.asarray(row[bins:])))
        for index in np.ndindex(array.shape[:-1])
        if not np.ma.is_masked(row := array[index])
    ]
    if not rows:
        return
    first = rows[0][1]
    # Counts of the same bins add up. Others have no bins in common.
    if all(np.array_equal(first.edges, other.edges) for _, other in rows):
        counts = np.sum([histogram.counts for _, histogram in rows], 0)
        yield key, Histogram(counts, first.edges)
        return
    for index, histogram in rows:
        yield "/".join([key, *map(str, index)]), histogram


def histograms_in(tree: Tree, make: Any) -> Tree:
    """Return a tree with `make(counts, edges, nonfinite)` in place of each histogram."""
    if is_histogram(tree):
        return make(*(tree[name] for name in FIELDS))
    if isinstance(tree, dict):
        return {name: histograms_in(inner, make) for name, inner in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(histograms_in(inner, make) for inner in tree)
    return tree
