"""The fields by which you can sort, select and group runs.

    lr, optim.lr        an entry of the config, nested ones with dots
    loss, train/loss    the last value of a key
    name, state, rows   a field that every run has: `FIELDS`

Config entries come first, then keys, then fields. If none has exactly this name, the end of
a name is enough: `lr` finds `optim.lr`, and `loss` finds `train/loss`. `config["lr"]` and
`last["lr"]` are unambiguous.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lox_host.reading.names import ends_like, list_names, suggest
from lox_host.runs.run_id import run_seed
from lox_host.store import StoredRun

# Returns the value of a field for a run, or None if the run does not have it.
Getter = Callable[[StoredRun], Any]

FIELDS: dict[str, Getter] = {
    "name": lambda run: run.name,
    "state": lambda run: run.state,
    "rows": lambda run: run.rows,
    "start": lambda run: run.start,
    "took": lambda run: run.took,
    "session": lambda run: run.session,
    "store": lambda run: run.store,
    "group": lambda run: run.group,
    "tags": lambda run: list(run.tags),
    "seed": lambda run: run_seed(run.key),
    "launch": lambda run: run.launch,
    "process": lambda run: run.process,
}


def field(runs: Sequence[StoredRun], name: str) -> tuple[str, Getter]:
    """Return the full name of a field of these runs, and its getter.

    Raises:
        LookupError: If no run has such a field, or if the name is ambiguous.
    """
    settings = dict.fromkeys(entry for run in runs for entry in run.settings)
    keys = dict.fromkeys(key for run in runs for key in run.last)
    if name in settings:
        return name, setting(name)
    if name in keys:
        return name, last_value(name)
    if name in FIELDS:
        return name, FIELDS[name]
    # No exact match: names that end like this, `optim.lr` for `lr`.
    found = [(entry, setting) for entry in settings if ends_like(entry, name, ".")]
    found += [(key, last_value) for key in keys if ends_like(key, name)]
    if len(found) == 1:
        full_name, get = found[0]
        return full_name, get(full_name)
    if found:
        raise LookupError(f"{name!r} could be {list_names(full for full, _ in found)}.")
    known = [*settings, *keys, *FIELDS]
    raise LookupError(
        f"No run has {name!r}, neither in its config nor as a last value."
        f"{suggest(name, known)} The config has {list_names(settings) or 'nothing'}; last "
        f"values are {list_names(keys) or 'none'}; other names are {', '.join(FIELDS)}."
    )


def setting(name: str) -> Getter:
    """Return the getter of a config entry."""
    return lambda run: run.settings.get(name)


def last_value(key: str) -> Getter:
    """Return the getter of the last value of a key, as a Python number."""

    def get(run: StoredRun) -> Any:
        value = run.last.get(key)
        if value is None:
            return None
        # Floats of 16 bits or less fit into float32. Some of them are not NumPy types.
        return value.item() if value.dtype.isbuiltin == 1 else float(np.float32(value))

    return get


def differing(runs: Sequence[StoredRun]) -> list[str]:
    """Return the config entries that differ between runs."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    return [name for name in names if len({text_of(run, name) for run in runs}) > 1]


def text_of(run: StoredRun, name: str) -> str:
    """Format a config entry of a run. The text is empty if the run does not have it."""
    return in_words(run.settings[name]) if name in run.settings else ""


def in_words(value: Any) -> str:
    """Format a config value. Numbers from a device look as they were typed: 0.001.

    A float32 comes from the device as the float64 0.0010000000474974513. The user has most
    likely typed the shortest of all numbers that give the same float32.
    """
    if isinstance(value, float) and is_from_device(value):
        return str(np.float32(value))
    return str(value)


def is_from_device(value: float) -> bool:
    """Return whether a number looks like a float32 that was converted to float64."""
    with np.errstate(over="ignore"):
        small = np.float32(value)
    return float(small) == value and len(str(small)) < len(str(value))


def sort_key(value: Any) -> tuple[int, Any]:
    """Return a sort key with numbers before texts, and missing values and NaN last."""
    if value is None or value != value:
        return 3, ""
    if isinstance(value, bool | int | float):
        return 0, value
    return 1, str(value)
