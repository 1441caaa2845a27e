"""Reductions that stand beside others of the same key, each with an entry of its own.

Such an entry is collected under the key and the name of its reduction, and named when
all of them are known.
"""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

RESERVED = "\0"
"""What no key of a user holds."""


@dataclasses.dataclass(frozen=True)
class SideBySide:
    """A reduction, by its name, that stands beside others of the same key."""

    name: str


class _Key(str):
    """A key and the name of its reduction; messages show the key alone."""

    def __repr__(self) -> str:
        return repr(split_entry_key(self)[0])


def entry_key(key: str, reduce: Any) -> str:
    """What a key is collected under if the reduction stands apart."""
    if reduce is None:
        reduce = "append"
    name = reduce if isinstance(reduce, str) else reduce.name
    return _Key(key + RESERVED + name)


def split_entry_key(key: str) -> tuple[str, str]:
    """The key as it was logged, and the name of a reduction that stands apart."""
    own, _, name = key.partition(RESERVED)
    return own, name


def name_entries(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries by key, those that share it with others as `key/reduction`."""
    each = {key: split_entry_key(key) for key in entries}
    shared = collections.Counter(own for own, _ in each.values())
    named: dict[str, Any] = {}
    for key, (own, reduction) in each.items():
        name = f"{own}/{reduction}" if reduction and shared[own] > 1 else own
        if name in named:
            raise ValueError(
                f"Two entries would be called {name!r}: the key of that name, and one of "
                "the reductions of a key that has several. Rename one of the two keys."
            )
        named[name] = entries[key]
    return named
