"""The configuration of runs: plain values, from the logger's own and from each `init`.

Values become plain, so that they read the same everywhere and in every session:

    np.float32(0.001), jnp.array(0.001)     0.001      not 0.0010000000474974513
    np.array([1, 2]), (1, 2)                [1, 2]
    jax.nn.relu                             "jax.nn.relu"
    pathlib.Path("a")                       "a"
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Config = dict[str, Any]


def plain_config(value: Any) -> Any:
    """Return a configuration as dictionaries, lists, numbers, texts, bools and None."""
    if isinstance(value, Mapping):
        return {str(name): plain_config(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_config(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value.item() if isinstance(value, np.generic) else value
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return plain_values(np.asarray(value))
    if callable(value) and hasattr(value, "__qualname__"):
        # `str` would have its address, which is another one in the next session.
        return f"{value.__module__}.{value.__qualname__}"
    return str(value)


def is_plain(config: Any) -> bool:
    """Return whether a configuration is what `plain_config` returns, at a glance."""
    return type(config) is dict and all(
        type(name) is str and type(value) in _PLAIN for name, value in config.items()
    )


_PLAIN = (int, float, str, bool, type(None))


def plain_values(array: np.ndarray) -> Any:
    """Return an array as a number or nested lists, floats with as few digits as they need.

    The float32 next to 0.1 becomes 0.1, which is a shorter name for the same number.
    """
    if isinstance(np.zeros((), array.dtype).item(), float) and array.dtype != np.float64:
        texts = np.array([float(str(x)) for x in array.reshape(-1)])
        return texts.reshape(array.shape).tolist()
    if array.dtype.kind == "c":
        return np.array([str(x) for x in array.reshape(-1)]).reshape(array.shape).tolist()
    return array.tolist()


def merged_config(base: Mapping[str, Any], over: Mapping[str, Any]) -> Config:
    """Return both configurations. Where both have an entry, that of `over` counts."""
    merged = dict(base)
    for name, value in over.items():
        before = merged.get(name)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[name] = merged_config(before, value)
        else:
            merged[name] = value
    return merged


def flat_config(config: Any, name: str = "", separator: str = "/") -> Config:
    """Return the configuration with one name for each entry, `outer/inner`."""
    # Most are dictionaries, and the look at an abstract class takes longer than the rest.
    if type(config) is not dict and not isinstance(config, Mapping):
        return {name: plain_config(config)}
    entries: Config = {}
    for part, value in config.items():
        full_name = f"{name}{separator}{part}" if name else str(part)
        entries.update(flat_config(value, full_name, separator))
    return entries
