"""What is wrong with what was typed, and what there is instead."""

import difflib
from collections.abc import Iterable

MOST = 8  # names that are listed


class CLIError(Exception):
    """Something that the user can put right. Its text is all that is shown."""


def list_names(names: Iterable[str]) -> str:
    """Return the names in one line, the first ones if there are many."""
    names = list(names)
    more = len(names) - MOST
    rest = f", and {more} more" if more > 0 else ""
    return ", ".join(names[:MOST]) + rest


def suggest(name: str, names: Iterable[str]) -> str:
    """Return a question for the name that is closest, or nothing."""
    close = difflib.get_close_matches(name, list(names), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def missing_key(key: str, where: str, keys: Iterable[str]) -> CLIError:
    """Return the error for a key that was asked for, and that is not there."""
    keys = list(keys)
    known = f"It has {list_names(keys)}." if keys else "Nothing has been logged to it."
    return CLIError(f"{where} has no key {key!r}. {known}{suggest(key, keys)}")
