"""What is wrong with what was typed, and what there is instead."""

import difflib
from collections.abc import Iterable

MOST = 8  # names that are listed


class Trouble(Exception):
    """Something that the user can put right. Its text is all that is shown."""


def listed(names: Iterable[str]) -> str:
    """The names in one line, the first ones if there are many."""
    every = list(names)
    more = len(every) - MOST
    rest = f", and {more} more" if more > 0 else ""
    return ", ".join(every[:MOST]) + rest


def meant(name: str, names: Iterable[str]) -> str:
    """A question for the name that is closest, or nothing."""
    close = difflib.get_close_matches(name, list(names), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def missing_key(name: str, where: str, keys: Iterable[str]) -> Trouble:
    """A key that was asked for, and is not there."""
    every = list(keys)
    there = f"It has {listed(every)}." if every else "Nothing has been logged to it."
    return Trouble(f"{where} has no key {name!r}. {there}{meant(name, every)}")
