"""What runs are called.

A name may be a template, which refers to entries of the configuration, to the seed and to
the position among the runs that were started together:

    "lr={lr:g}-{index}"       lr=0.001-3
    "{net.width} units"       64 units

Without one, a run is called after its position and its seed:

    logger.init(7), logger.init(jax.random.key(7))    seed7
    the same under `vmap`                             run0-seed7, run1-seed8, ...
    keys from `jax.random.split` under `vmap`         run0, run1, ...
    one such key alone                                928981903-3453687069
"""

import functools as ft
import string
from collections.abc import Collection, Mapping
from typing import Any

from lox_host.runs.run_config import flat_config
from lox_host.runs.run_id import Key, is_seed_known, run_name, run_seed

# What a name may refer to beside entries of the configuration, which take precedence.
SEED, INDEX = "seed", "index"


def default_name(key: Key, index: int | None) -> str:
    """Return the name of a run without one. None: it was not started with others."""
    seed = f"seed{run_seed(key)}" if is_seed_known(key) else ""
    if index is None:
        return seed or run_name(key)
    return f"run{index}-{seed}" if seed else f"run{index}"


def format_name(template: str, config: Mapping[str, Any], key: Key, index: int) -> str:
    """Fill in a template.

    Raises:
        ValueError: If it refers to something unknown, or in a way that does not work.
    """
    parts = []
    try:
        for text, field, spec, conversion in _parsed(template):
            parts.append(text)
            if field is not None:
                value = _value(field, config, key, index)
                if conversion is not None:
                    value = _FORMATTER.convert_field(value, conversion)
                parts.append(format(value, spec or ""))
    except (ValueError, TypeError) as error:
        raise ValueError(f"`name` is {template!r}: {error}") from error
    return "".join(parts)


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with a number behind it if it is taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free


@ft.lru_cache(256)
def _parsed(template: str) -> list[tuple[str, str | None, str | None, Any]]:
    """Return the texts of a template, each with the field behind it."""
    return list(_FORMATTER.parse(template))


def _value(field: str, config: Mapping[str, Any], key: Key, index: int) -> Any:
    """Return what a field refers to: an entry by its full name, the seed or the index."""
    # The usual ones first: there may be thousands of runs.
    if field in config and not isinstance(config[field], Mapping):
        return config[field]
    if field in (SEED, INDEX) and field not in config:
        return run_seed(key) if field == SEED else index
    entries = flat_config(config, separator=".")
    known = {SEED: run_seed(key), INDEX: index, **entries}
    name = field.replace("/", ".")
    if name in known:
        return known[name]
    names = ", ".join(f"{{{name}}}" for name in known)
    raise ValueError(
        f"there is no {{{field}}}. It can refer to {names}. For literal braces, write "
        "`{{` and `}}`."
    )


_FORMATTER = string.Formatter()
