"""Match names that people type against existing names, and suggest similar ones.

`-k loss` means the key `loss` and all keys below it, such as `loss/policy`. If there is no
such key, it means all keys that end with it, such as `train/loss`.

    keys    loss  loss/policy  train/acc  test/acc

    -k loss      loss, loss/policy          the key, and what is below it
    -k acc       train/acc, test/acc        there is no `acc`, so what ends with it
    -k lose      an error that suggests `loss`
"""

from collections.abc import Iterable, Sequence

MOST = 8  # names that are listed


def list_names(names: Iterable[str]) -> str:
    """Return the names in one line, or only the first ones if there are many."""
    names = list(names)
    more = len(names) - MOST
    rest = f", and {more} more" if more > 0 else ""
    return ", ".join(names[:MOST]) + rest


def suggest(name: str, names: Iterable[str]) -> str:
    """Return a question that suggests the closest name, or an empty text."""
    import difflib

    close = difflib.get_close_matches(name, list(names), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def missing_key(key: str, where: str, keys: Iterable[str]) -> LookupError:
    """Return the error for a key that does not exist."""
    keys = list(keys)
    known = f"It has {list_names(keys)}." if keys else "Nothing has been logged to it."
    return LookupError(f"{where} has no key {key!r}. {known}{suggest(key, keys)}")


def matches(name: str, key: str) -> bool:
    """Return whether a name is a key, or below it: `loss/policy` is below `loss`."""
    return name == key or name.startswith(f"{key}/")


def ends_like(name: str, key: str, separator: str = "/") -> bool:
    """Return whether a name is a prefix and then a key: `train/loss` ends like `loss`."""
    whole, part = f"{separator}{name}{separator}", f"{separator}{key}{separator}"
    return part in whole


def find_names(names: Iterable[str], key: str) -> list[str]:
    """Return the names that match a key: itself and those below, or that end like it."""
    names = list(names)
    found = [name for name in names if matches(name, key)]
    return found or [name for name in names if ends_like(name, key)]


def wanted_names(names: Iterable[str], keys: Sequence[str]) -> list[str]:
    """Return the names that match any `-k`, in their order. Without `-k`, return all."""
    names = list(names)
    wanted = {name for key in keys for name in find_names(names, key)}
    return [name for name in names if name in wanted or not keys]


def select_names(names: Iterable[str], keys: Sequence[str], where: str) -> list[str]:
    """Return the names that match the keys, in the order of the keys.

    Raises:
        LookupError: If no name matches a key. The text says that `where` does not have it.
    """
    names, selected = list(names), dict[str, None]()
    for key in keys:
        found = find_names(names, key)
        if not found:
            raise missing_key(key, where, names)
        selected |= dict.fromkeys(found)
    return list(selected)
