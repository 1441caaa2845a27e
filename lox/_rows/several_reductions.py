r"""Several reductions of one key side by side, each with an entry of its own.

In logify, `log("loss", x, "mean")` and `log("loss", x, "sum")` are two results. While the
program runs, each is collected under the key and the name of its reduction, with a
character between them that no key of a user holds. In the end each gets a name, which is
known only when all of them are:

    collected          "loss\0mean"    "loss\0sum"    "accuracy\0mean"
    named              "loss/mean"     "loss/sum"     "accuracy"
"""

import collections
from collections.abc import Mapping
from typing import Protocol, TypeVar

from lox_host.frozen import frozen

T = TypeVar("T")

RESERVED = "\0"
"""What no key of a user holds."""


@frozen
class SideBySide:
    """The name of a reduction that a key may have beside others."""

    name: str


class Named(Protocol):
    """Anything with a name: a `SideBySide` or a `Reduction`."""

    @property
    def name(self) -> str: ...


class _Key(str):
    """A key and the name of its reduction; messages show the key alone."""

    def __repr__(self) -> str:
        return repr(split_entry_key(self)[0])


def entry_key(key: str, reduce: str | Named | None) -> str:
    """Return what a key is collected under if it may have several reductions."""
    if reduce is None:
        reduce = "append"
    name = reduce if isinstance(reduce, str) else reduce.name
    return _Key(key + RESERVED + name)


def split_entry_key(key: str) -> tuple[str, str]:
    """Return the key as it was logged, and the reduction that it has beside others."""
    logged_key, _, name = key.partition(RESERVED)
    return logged_key, name


def name_entries(entries: Mapping[str, T]) -> dict[str, T]:
    """Return the entries by key, those that share it with others as `key/reduction`."""
    # How many reductions each key has. One alone needs no suffix.
    number_of = collections.Counter(split_entry_key(entry)[0] for entry in entries)
    named: dict[str, T] = {}
    for entry, rows in entries.items():
        key, reduction = split_entry_key(entry)
        name = f"{key}/{reduction}" if reduction and number_of[key] > 1 else key
        if name in named:
            raise ValueError(
                f"Two entries would be called {name!r}: the key of that name, and one of "
                "the reductions of a key that has several. Rename one of the two keys."
            )
        named[name] = rows
    return named
