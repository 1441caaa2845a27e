"""Put runs into groups by a config value."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

GROUPS = 10  # the most values that get their own colour
BINS = 6  # the number of groups for more numbers than that


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that have a config value in common.

    Attributes:
        label: The value, or a range of values.
        runs: The numbers of the runs.
    """

    label: str
    runs: np.ndarray


def group_runs(values: Sequence[Any], runs: np.ndarray, name: str) -> list[Group]:
    """Put runs into groups by a value.

    Args:
        values: The value of each run; None if it has none.
        runs: The numbers of the runs.
        name: The name of the value.
    """
    by_text: dict[str, list[int]] = {}
    value_of: dict[str, Any] = {}
    for value, run in zip(values, runs.tolist(), strict=True):
        text = "none" if value is None else config_text(value)
        by_text.setdefault(text, []).append(run)
        value_of.setdefault(text, value)
    texts = sorted(by_text, key=lambda text: _sort_key(value_of[text]))
    if len(texts) > GROUPS and all(is_number(value) for value in value_of.values()):
        return _binned(np.array([float(value) for value in values]), runs)
    if len(texts) > GROUPS:
        frequent = sorted(texts, key=lambda text: -len(by_text[text]))[: GROUPS - 1]
        others = [run for text in texts if text not in frequent for run in by_text[text]]
        by_text = {text: by_text[text] for text in texts if text in frequent}
        by_text["others"] = others
        texts = list(by_text)
    return [Group(f"{name} = {text}", np.array(by_text[text])) for text in texts]


def _binned(values: np.ndarray, runs: np.ndarray) -> list[Group]:
    """Put runs with similar numbers into groups of about the same size."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)))
    bin_of = np.clip(np.searchsorted(edges, values, "right") - 1, 0, len(edges) - 2)
    groups = []
    for number in range(len(edges) - 1):
        which = bin_of == number
        if which.any():
            label = f"{values[which].min():.3g} – {values[which].max():.3g}"
            groups.append(Group(label, runs[which]))
    return groups


def is_number(value: object) -> bool:
    """Return whether a config value is a number that can be drawn on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def config_text(value: object) -> str:
    """Write a config value in one short line."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sort_key(value: Any) -> tuple[int, float, str]:
    if is_number(value):
        return 0, float(value), ""
    return (1, 0.0, str(value)) if value is not None else (2, 0.0, "")
