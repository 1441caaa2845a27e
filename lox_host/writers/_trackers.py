"""What the loggers of experiment trackers have in common."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lox_host.writer import Run

Histogram = tuple[np.ndarray, np.ndarray]


def title(run: Run, name: str | None = None) -> str:
    """What a run is called: a name for all, the seed, and the process if not the first."""
    process = f"process-{run.process}" if run.process else None
    return "-".join(part for part in (name, run.name, process) if part)


def plain(config: Any) -> Any:
    """The configuration with Python's own numbers and lists instead of arrays."""
    if isinstance(config, Mapping):
        return {str(name): plain(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [plain(value) for value in config]
    return config.tolist() if hasattr(config, "tolist") else config


def parameters(config: Any, name: str = "") -> dict[str, Any]:
    """The configuration with one name for each entry, `outer/inner`."""
    if not isinstance(config, Mapping):
        return {name: config}
    entries: dict[str, Any] = {}
    for part, value in plain(config).items():
        entries.update(parameters(value, f"{name}/{part}" if name else part))
    return entries


def histograms(arrays: Mapping[str, np.ndarray]) -> dict[str, Histogram]:
    """For each array, how many finite elements are in each bin, and the bins' edges."""
    return {key: _histogram(finite(array)) for key, array in arrays.items()}


def outside(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """How many elements no histogram has, `key/nonfinite`, where there are any."""
    number = {key: int(np.ma.count(x)) - finite(x).size for key, x in arrays.items()}
    return {f"{key}/nonfinite": n for key, n in number.items() if n}


def finite(array: np.ndarray) -> np.ndarray:
    """The elements that are finite and not masked."""
    there = np.ma.compressed(array).astype(np.float64)
    return there[np.isfinite(there)]


def _histogram(x: np.ndarray) -> Histogram:
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.histogram(x, bins=min(64, x.size or 1))
    except ValueError:
        # The numbers are too close for bins between them, or too far apart.
        return np.array([x.size]), np.array([x.min(), x.max()])
