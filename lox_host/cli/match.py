"""What `-k KEY` means: a key, what is in its tree, and keys that begin like a folder."""

from collections.abc import Iterable, Sequence

from lox_host.cli.errors import missing_key


def matches(name: str, key: str) -> bool:
    """Return whether a name is a key, or below it: `loss/policy` is below `loss`."""
    return name == key or name.startswith(f"{key}/")


def is_wanted(name: str, keys: Sequence[str]) -> bool:
    """Return whether a name is asked for by some `-k`, or all are."""
    return not keys or any(matches(name, key) for key in keys)


def select_names(names: Iterable[str], keys: Sequence[str], where: str) -> list[str]:
    """Return the names that the keys ask for, in the order of the keys.

    Raises:
        CLIError: If there is no name for a key. It says that it is missing in `where`.
    """
    names, selected = list(names), dict[str, None]()
    for key in keys:
        found = [name for name in names if matches(name, key)]
        if not found:
            raise missing_key(key, where, names)
        selected |= dict.fromkeys(found)
    return list(selected)
